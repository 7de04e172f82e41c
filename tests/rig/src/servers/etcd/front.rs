//! What one member reaches the others by, so that a test can part two of them.
//!
//! All members know a member by one address, so a proxy behind that address cannot tell who connects to it. A member's
//! own SOCKS proxy can: it knows who asks, and for whom.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;

/// A SOCKS proxy of one member. Dropping it closes every connection.
#[derive(Debug)]
pub(super) struct Front {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// A proxy that connects who asks for a port of `links` to the address beside it.
    pub(super) fn start(links: Vec<(u16, SocketAddr)>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("front".to_owned()).spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a runtime with I/O");
                tokio::select! {
                    _ = ended => {}
                    () = serve(&listener, links) => {}
                }
            });
            // Dropping the runtime drops every connection.
        })?;
        Ok(Self { address, end: Some(end), thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn serve(listener: &TcpListener, links: Vec<(u16, SocketAddr)>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        // A member that goes away, or is not reached, tries again by itself.
        drop(tokio::spawn(connection(client, links.clone())));
    }
}

async fn connection(mut member: TcpStream, links: Vec<(u16, SocketAddr)>) -> io::Result<()> {
    member.set_nodelay(true)?;
    let [version, methods] = read(&mut member).await?;
    if version != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    for _ in 0..methods {
        let [_method] = read(&mut member).await?;
    }
    member.write_all(&[VERSION, NO_PASSWORD]).await?;
    let [_, command, _, kind] = read(&mut member).await?;
    if (command, kind) != (CONNECT, IPV4) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [_, _, _, _, port @ ..] = read::<6>(&mut member).await?;
    let port = u16::from_be_bytes(port);
    let (_, link) = links.iter().find(|(to, _)| *to == port).ok_or(io::ErrorKind::InvalidInput)?;
    let mut link = TcpStream::connect(link).await?;
    link.set_nodelay(true)?;
    // Granted, from an address that nobody looks at.
    member.write_all(&[VERSION, 0, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut member, &mut link).await.map(drop)
}

async fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
