//! A server that is some way off: what goes to it and comes from it arrives a little later.
//!
//! The test rig's proxy counts in milliseconds, which is too coarse for that. Both sides send at once what they have;
//! the client library in Rust does not, so that its second request of two waits for an acknowledgement of the first,
//! which comes with the answer to it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Passes on what goes to `server` and comes from it, this much later. Returns where to connect to. It ends with the
/// process.
///
/// # Errors
///
/// When there is no free port.
pub fn away(server: SocketAddr, delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().map_while(std::result::Result::ok) {
            // A client sees the end of its connection when the server cannot be reached.
            let Ok(server) = TcpStream::connect(server) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
                continue;
            };
            pass_on(from_client, server, delay);
            pass_on(from_server, client, delay);
        }
    });
    Ok(address)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if send.send((Instant::now() + delay, bytes[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((due, bytes)) = arriving.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
