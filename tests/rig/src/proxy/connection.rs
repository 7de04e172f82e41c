//! One connection through the proxy.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::fate::Fate;
use super::{Controls, Direction, Ending, Flow, Loss, Message, Protocol, reset};

/// What travels in one direction.
enum InTransit {
    /// Bytes that were read at this time.
    Bytes(Instant, Vec<u8>),
    /// The connection is reset when it gets here.
    Reset,
}

/// Both of a connection's ends are reset.
struct ConnectionReset;

/// What the two directions of a connection know of each other.
#[derive(Default)]
struct Pairing {
    /// For each reply that is to come, by its stream: what is to happen to it.
    expected: Mutex<HashMap<u32, VecDeque<Fate>>>,
    /// Messages are not distinguished any more.
    opaque: AtomicBool,
}

/// Connects to the server, and if need be `waits` until it listens.
async fn connect(controls: &Controls, waits: bool) -> io::Result<TcpStream> {
    loop {
        let target = *controls.target.borrow();
        match TcpStream::connect(target).await {
            Err(error) if waits && error.kind() == io::ErrorKind::ConnectionRefused => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            connected => return connected,
        }
    }
}

/// Passes bytes to and fro until the connection is cut, or both sides have closed it.
pub(super) async fn run(
    client: TcpStream,
    mut cut: watch::Receiver<u64>,
    controls: Arc<Controls>,
    protocol: impl Protocol,
    waits: bool,
) {
    let server = tokio::select! {
        server = connect(&controls, waits) => server,
        _ = cut.changed() => return reset(&client),
    };
    let Ok(server) = server else { return reset(&client) };
    let _open = Open::new(controls.clone());
    for stream in [&client, &server] {
        drop(stream.set_nodelay(true));
    }
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let pairing = Pairing::default();
    let (there, arrive_there) = mpsc::unbounded_channel();
    let (back, arrive_back) = mpsc::unbounded_channel();
    let requests = RequestStream { protocol: protocol.clone(), pairing: &pairing, controls: &controls };
    let replies = Replies { protocol, pairing: &pairing, controls: &controls, silent: false };
    let ending = {
        let passing = async {
            tokio::try_join!(
                async {
                    read(from_client, there, &controls.bytes_to_server, requests).await;
                    Ok(())
                },
                async {
                    read(from_server, back, &controls.bytes_to_client, replies).await;
                    Ok(())
                },
                write(arrive_there, &mut to_server, controls.flow(Direction::ToServer).subscribe()),
                write(arrive_back, &mut to_client, controls.flow(Direction::ToClient).subscribe()),
            )
        };
        tokio::select! {
            ended = passing => if ended.is_err() { Ending::Reset } else { Ending::Close },
            _ = cut.changed() => *controls.ending.borrow(),
        }
    };
    let reset = |side: OwnedWriteHalf| {
        reset(side.as_ref());
        // Dropping it would announce an orderly end first.
        side.forget();
    };
    match ending {
        Ending::Close => {}
        Ending::Reset => [to_client, to_server].into_iter().for_each(reset),
        Ending::Strand => {
            reset(to_client);
            drop(cut.changed().await);
            reset(to_server);
        }
    }
}

/// Reads and forgets, until the connection is cut or closed.
pub(super) async fn swallow(mut client: TcpStream, mut cut: watch::Receiver<u64>) {
    let mut bytes = vec![0; 4096];
    let reading = async { while client.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
    let was_cut = tokio::select! {
        () = reading => false,
        _ = cut.changed() => true,
    };
    if was_cut {
        reset(&client);
    }
}

/// Cuts the bytes of one direction into pieces.
trait Cutter {
    /// Takes what can be passed on off the front of `bytes`.
    fn cut(&mut self, bytes: &mut Vec<u8>, out: &mpsc::UnboundedSender<InTransit>);
}

/// Reads one side to its end. What was read travels on, whatever happens to the other side.
async fn read(
    mut from: OwnedReadHalf,
    out: mpsc::UnboundedSender<InTransit>,
    counter: &AtomicU64,
    mut cutter: impl Cutter,
) {
    let mut chunk = vec![0; 16 * 1024];
    let mut pending = Vec::new();
    loop {
        match from.read(&mut chunk).await {
            Ok(0) => {
                if !pending.is_empty() {
                    send(&out, std::mem::take(&mut pending));
                }
                return;
            }
            Ok(count) => {
                counter.fetch_add(count as u64, Ordering::SeqCst);
                pending.extend_from_slice(&chunk[..count]);
                cutter.cut(&mut pending, &out);
            }
            // A reset comes after what was sent before it.
            Err(_) => return drop(out.send(InTransit::Reset)),
        }
    }
}

fn send(out: &mpsc::UnboundedSender<InTransit>, bytes: Vec<u8>) {
    // The other end lives as long as the connection.
    drop(out.send(InTransit::Bytes(Instant::now(), bytes)));
}

/// Writes what arrives, as the flow of the moment says, and then closes that side.
async fn write(
    mut arriving: mpsc::UnboundedReceiver<InTransit>,
    to: &mut OwnedWriteHalf,
    mut flow: watch::Receiver<Flow>,
) -> Result<(), ConnectionReset> {
    // Once the peer is gone the rest is lost, and the other direction goes on.
    let mut peer_is_there = true;
    while let Some(piece) = arriving.recv().await {
        let at = match &piece {
            InTransit::Bytes(at, _) => *at,
            InTransit::Reset => Instant::now(),
        };
        let passes = gate(&mut flow, at).await;
        match piece {
            InTransit::Bytes(_, bytes) if passes && peer_is_there => {
                peer_is_there = to.write_all(&bytes).await.is_ok();
            }
            InTransit::Bytes(..) => {}
            InTransit::Reset => return Err(ConnectionReset),
        }
    }
    // The end of a connection is sent again until it arrives.
    while !gate(&mut flow, Instant::now()).await {
        if flow.changed().await.is_err() {
            break;
        }
    }
    drop(to.shutdown().await);
    Ok(())
}

/// Waits until what was sent at `at` gets on, and says whether it does.
async fn gate(flow: &mut watch::Receiver<Flow>, at: Instant) -> bool {
    loop {
        let now = *flow.borrow_and_update();
        let changed = flow.changed();
        match now {
            Flow::Pass => return true,
            Flow::Drop => return false,
            Flow::Hold => drop(changed.await),
            Flow::Delay(by) => tokio::select! {
                biased;
                _ = changed => {}
                () = sleep_until(at + by) => return true,
            },
        }
    }
}

struct RequestStream<'a, P> {
    protocol: P,
    pairing: &'a Pairing,
    controls: &'a Controls,
}

impl<P: Protocol> Cutter for RequestStream<'_, P> {
    fn cut(&mut self, bytes: &mut Vec<u8>, out: &mpsc::UnboundedSender<InTransit>) {
        while !bytes.is_empty() {
            if self.pairing.opaque.load(Ordering::SeqCst) {
                return send(out, std::mem::take(bytes));
            }
            let (length, name, paired) = match self.protocol.request(bytes) {
                Message::Incomplete => return,
                Message::Opaque => {
                    self.pairing.opaque.store(true, Ordering::SeqCst);
                    continue;
                }
                Message::Whole { length, name } => (length, name, true),
                Message::Aside { length, name } => (length, name, false),
            };
            let rest = bytes.split_off(length);
            let fate = if name.is_empty() { Fate::Pass } else { self.controls.fates().request(name) };
            if fate == Fate::LoseRequest {
                drop(out.send(InTransit::Reset));
                self.controls.lost.send_modify(|lost| *lost += 1);
            } else {
                if paired {
                    self.pairing.expect(self.protocol.stream(), fate);
                }
                send(out, std::mem::take(bytes));
            }
            *bytes = rest;
        }
    }
}

struct Replies<'a, P> {
    protocol: P,
    pairing: &'a Pairing,
    controls: &'a Controls,
    silent: bool,
}

impl<P: Protocol> Cutter for Replies<'_, P> {
    fn cut(&mut self, bytes: &mut Vec<u8>, out: &mpsc::UnboundedSender<InTransit>) {
        while !bytes.is_empty() {
            if self.silent {
                bytes.clear();
                return;
            }
            if self.pairing.opaque.load(Ordering::SeqCst) {
                return send(out, std::mem::take(bytes));
            }
            let (length, paired) = match self.protocol.reply(bytes) {
                Message::Incomplete => return,
                Message::Opaque => {
                    self.pairing.opaque.store(true, Ordering::SeqCst);
                    continue;
                }
                Message::Whole { length, .. } => (length, true),
                Message::Aside { length, .. } => (length, false),
            };
            let fate = if paired { self.pairing.next(self.protocol.stream()) } else { Fate::Pass };
            if let Fate::LoseReply(loss) = fate {
                match loss {
                    Loss::Cut => drop(out.send(InTransit::Reset)),
                    Loss::Silence => self.silent = true,
                }
                self.controls.lost.send_modify(|lost| *lost += 1);
                continue;
            }
            let rest = bytes.split_off(length);
            let message = std::mem::replace(bytes, rest);
            if fate == Fate::RepeatReply {
                send(out, message.clone());
                self.controls.repeated.fetch_add(1, Ordering::SeqCst);
            }
            send(out, message);
        }
    }
}

impl Pairing {
    fn expect(&self, stream: u32, fate: Fate) {
        self.expected().entry(stream).or_default().push_back(fate);
    }

    /// A reply that nothing was asked for passes.
    fn next(&self, stream: u32) -> Fate {
        let mut expected = self.expected();
        let Some(of_stream) = expected.get_mut(&stream) else { return Fate::Pass };
        let fate = of_stream.pop_front().unwrap_or(Fate::Pass);
        if of_stream.is_empty() {
            expected.remove(&stream);
        }
        fate
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<u32, VecDeque<Fate>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection as open.
struct Open(Arc<Controls>);

impl Open {
    fn new(controls: Arc<Controls>) -> Self {
        controls.open.fetch_add(1, Ordering::SeqCst);
        Self(controls)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}
