//! A TCP proxy in front of a real server, which a test makes fail.
//!
//! It runs on a thread of its own, so that faults go on while a test blocks its runtime.
//!
//! ```
//! use std::time::Duration;
//! use dlock_rig::proxy::{Direction, Flow, Loss, Proxy, Resp};
//!
//! # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let proxy = Proxy::speaking(Resp, server.local_addr()?)?;
//! println!("let the client connect to {}", proxy.address());
//!
//! proxy.set(Direction::ToClient, Flow::Hold); // no answers for now
//! proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(20)));
//! proxy.mend(); // what was held goes on its way
//! proxy.lose_reply(1, "EVALSHA", Loss::Cut); // the next one is carried out, and nobody learns of it
//! proxy.cut(); // every connection is reset
//! # std::io::Result::Ok(())
//! ```

mod connection;
mod fate;
mod grpc;
mod jute;
mod mysql;
mod postgres;
mod resp;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use grpc::Grpc;
pub use jute::Jute;
pub use mysql::Mysql;
pub use postgres::Pgwire;
pub use resp::Resp;

use fate::Fates;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: replies and notifications.
    ToClient,
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They are passed on at once.
    #[default]
    Pass,
    /// They are passed on after this long; their order and their pace stay as they were.
    Delay(Duration),
    /// They are kept until the flow is another one, and are then passed on (or dropped).
    Hold,
    /// They are lost. The connection stays open, and is of no use any more once a part of a message is missing.
    Drop,
}

/// What happens to new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// They are connected to the server.
    #[default]
    Accept,
    /// They are connected to the server as soon as it listens; [`Accept`](Self::Accept) resets them when it does not.
    Await,
    /// They come about and stay silent for ever, as behind a firewall that drops packets.
    BlackHole,
    /// They are reset at once, as by a machine on which nobody listens.
    Reset,
}

/// How connections are ended.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// In an orderly way, at both ends.
    Close,
    /// By a reset at both ends.
    Reset,
    /// By a reset at the client's end.
    Strand,
}

/// How a reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The connection is reset instead of the reply.
    Cut,
    /// Neither the reply nor anything after it arrives on this connection; requests go on being carried out.
    Silence,
}

/// Cuts a stream of bytes into messages, so that the proxy can count requests and find their replies.
///
/// One value for each direction of a connection. See [`Resp`] for Redis, [`Jute`] for ZooKeeper, [`Pgwire`] for
/// PostgreSQL, [`Mysql`] for MariaDB and MySQL, and [`Grpc`] for etcd.
pub trait Protocol: Clone + Send + 'static {
    /// The first message in these bytes from the client.
    fn request(&mut self, bytes: &[u8]) -> Message;

    /// The first message in these bytes from the server.
    fn reply(&mut self, bytes: &[u8]) -> Message;

    /// Which stream of the connection the last message belonged to. Replies are in the order of the requests on the
    /// same stream, of which most protocols have one.
    fn stream(&self) -> u32 {
        0
    }
}

/// The first message in some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// There are more bytes to come.
    Incomplete,
    /// A request that gets one reply, or such a reply.
    Whole {
        /// How many bytes it has.
        length: usize,
        /// What is asked for, in upper case; empty for a reply.
        name: String,
    },
    /// A message that belongs to no other one: a notification, or a request that is answered by notifications.
    Aside {
        /// How many bytes it has.
        length: usize,
        /// What is asked for, in upper case; empty for a notification.
        name: String,
    },
    /// From here on messages are not distinguished; the connection is passed through.
    Opaque,
}

/// A protocol of which the proxy knows nothing: bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes;

impl Protocol for Bytes {
    fn request(&mut self, _bytes: &[u8]) -> Message {
        Message::Opaque
    }

    fn reply(&mut self, _bytes: &[u8]) -> Message {
        Message::Opaque
    }
}

/// What a proxy has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that were accepted, also those that were reset at once.
    pub connections: u64,
    /// Connections that are open to the server at the moment.
    pub open: usize,
    /// Bytes that the clients sent.
    pub bytes_to_server: u64,
    /// Bytes that the server sent.
    pub bytes_to_client: u64,
}

/// A proxy in front of one server. Dropping it cuts every connection.
pub struct Proxy {
    address: SocketAddr,
    controls: Arc<Controls>,
    thread: Option<JoinHandle<()>>,
}

/// What the test sets, and what the connections look at.
struct Controls {
    to_server: watch::Sender<Flow>,
    to_client: watch::Sender<Flow>,
    arrivals: watch::Sender<Arrivals>,
    target: watch::Sender<SocketAddr>,
    /// How often all connections were cut.
    cuts: watch::Sender<u64>,
    /// How the last cut was made.
    ending: watch::Sender<Ending>,
    end: watch::Sender<bool>,
    fates: Mutex<Fates>,
    lost: watch::Sender<u64>,
    repeated: AtomicU64,
    accepted: AtomicU64,
    open: AtomicUsize,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
}

impl Controls {
    fn flow(&self, direction: Direction) -> &watch::Sender<Flow> {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn fates(&self) -> std::sync::MutexGuard<'_, Fates> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxy {
    /// A proxy for any protocol in front of `server`, on a free port of `127.0.0.1`.
    ///
    /// # Errors
    ///
    /// When no port or no thread is to be had.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        Self::speaking(Bytes, server)
    }

    /// A proxy that understands the protocol, so that it can count requests and lose single replies.
    ///
    /// # Errors
    ///
    /// When no port or no thread is to be had.
    pub fn speaking(protocol: impl Protocol, server: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let controls = Arc::new(Controls {
            to_server: watch::Sender::new(Flow::Pass),
            to_client: watch::Sender::new(Flow::Pass),
            arrivals: watch::Sender::new(Arrivals::Accept),
            target: watch::Sender::new(server),
            cuts: watch::Sender::new(0),
            ending: watch::Sender::new(Ending::Reset),
            end: watch::Sender::new(false),
            fates: Mutex::default(),
            lost: watch::Sender::new(0),
            repeated: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            bytes_to_server: AtomicU64::new(0),
            bytes_to_client: AtomicU64::new(0),
        });
        let shared = controls.clone();
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            runtime.block_on(async {
                let mut end = shared.end.subscribe();
                let listener = TcpListener::from_std(listener).expect("a runtime with I/O");
                tokio::select! {
                    _ = end.wait_for(|end| *end) => {}
                    () = serve(&listener, &shared, protocol) => {}
                }
            });
            // Dropping the runtime drops every connection.
        })?;
        Ok(Self { address, controls, thread: Some(thread) })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happens to bytes that go this way, on all connections, from now on. What is held or delayed at this moment
    /// is treated in the new way too.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.controls.flow(direction).send_replace(flow);
    }

    /// What happens to new connections.
    pub fn set_arrivals(&self, arrivals: Arrivals) {
        self.controls.arrivals.send_replace(arrivals);
    }

    /// Nothing passes in either direction, and new connections stay silent: a network that drops packets. What was
    /// sent meanwhile arrives after [`mend`](Self::mend), as it would when packets are sent again.
    pub fn black_hole(&self) {
        self.set(Direction::ToServer, Flow::Hold);
        self.set(Direction::ToClient, Flow::Hold);
        self.set_arrivals(Arrivals::BlackHole);
    }

    /// Ends [`set`](Self::set), [`set_arrivals`](Self::set_arrivals), [`black_hole`](Self::black_hole) and
    /// what was planned for single requests. A connection that has become silent stays so.
    pub fn mend(&self) {
        self.controls.fates().forget();
        self.set_arrivals(Arrivals::Accept);
        self.set(Direction::ToServer, Flow::Pass);
        self.set(Direction::ToClient, Flow::Pass);
    }

    /// New connections go to this server.
    pub fn retarget(&self, server: SocketAddr) {
        self.controls.target.send_replace(server);
    }

    /// Resets every connection. What was on its way is lost.
    pub fn cut(&self) {
        self.end_connections(Ending::Reset);
    }

    /// Closes every connection in an orderly way, as a server does that shuts down.
    pub fn close(&self) {
        self.end_connections(Ending::Close);
    }

    /// Resets every connection at the client's end only. At the server's it stays open and silent until the next
    /// [`cut`](Self::cut), so that the server believes for a while that the client is there.
    pub fn strand(&self) {
        self.end_connections(Ending::Strand);
    }

    fn end_connections(&self, ending: Ending) {
        self.controls.ending.send_replace(ending);
        self.controls.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Loses the reply of the `nth` request from now on, where 1 is the next one; only requests of this name count, or
    /// all when it is empty. The request is carried out.
    ///
    /// # Panics
    ///
    /// When `nth` is 0.
    pub fn lose_reply(&self, nth: u64, name: &str, loss: Loss) {
        assert!(nth > 0, "1 is the next request");
        self.controls.fates().lose_reply(nth, name, loss);
    }

    /// Resets the connection instead of passing on the `nth` request from now on. The request is not carried out.
    ///
    /// # Panics
    ///
    /// When `nth` is 0.
    pub fn lose_request(&self, nth: u64, name: &str) {
        assert!(nth > 0, "1 is the next request");
        self.controls.fates().lose_request(nth, name);
    }

    /// Passes on the reply of the `nth` request from now on twice, so that all later replies of the connection are one
    /// behind, as a broken proxy may do it.
    ///
    /// # Panics
    ///
    /// When `nth` is 0.
    pub fn repeat_reply(&self, nth: u64, name: &str) {
        assert!(nth > 0, "1 is the next request");
        self.controls.fates().repeat_reply(nth, name);
    }

    /// How many replies and requests were lost by [`lose_reply`](Self::lose_reply) and
    /// [`lose_request`](Self::lose_request).
    #[must_use]
    pub fn lost(&self) -> u64 {
        *self.controls.lost.borrow()
    }

    /// Waits until [`lost`](Self::lost) is at least `count`.
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn wait_until_lost(&self, count: u64) {
        let mut lost = self.controls.lost.subscribe();
        // The sender lives as long as we do.
        drop(lost.wait_for(|lost| *lost >= count).await);
    }

    /// How many replies of the server were repeated by [`repeat_reply`](Self::repeat_reply). A reply that is held by
    /// [`Flow::Hold`] counts already.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.controls.repeated.load(Ordering::SeqCst)
    }

    /// How often each request was sent by clients so far, by name.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.controls.fates().requests().clone()
    }

    /// Connections and bytes so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let controls = &self.controls;
        Traffic {
            connections: controls.accepted.load(Ordering::SeqCst),
            open: controls.open.load(Ordering::SeqCst),
            bytes_to_server: controls.bytes_to_server.load(Ordering::SeqCst),
            bytes_to_client: controls.bytes_to_client.load(Ordering::SeqCst),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.controls.end.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .field("traffic", &self.traffic())
            .finish_non_exhaustive()
    }
}

async fn serve(listener: &TcpListener, controls: &Arc<Controls>, protocol: impl Protocol) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        // Whatever was cut before this moment is not about this connection.
        let cut = controls.cuts.subscribe();
        let arrivals = *controls.arrivals.borrow();
        // Counted last: who sees it counted knows that it is treated as was set before.
        controls.accepted.fetch_add(1, Ordering::SeqCst);
        match arrivals {
            Arrivals::Accept | Arrivals::Await => {
                let waits = arrivals == Arrivals::Await;
                drop(tokio::spawn(connection::run(client, cut, controls.clone(), protocol.clone(), waits)));
            }
            Arrivals::BlackHole => drop(tokio::spawn(connection::swallow(client, cut))),
            Arrivals::Reset => reset(&client),
        }
    }
}

/// Closing it will be a reset, not an orderly end.
fn reset(stream: &TcpStream) {
    // The peer may be gone already.
    drop(stream.set_zero_linger());
}

#[cfg(test)]
mod tests;
