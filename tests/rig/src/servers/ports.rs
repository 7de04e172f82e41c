//! Free loopback ports.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that systems hand out for outgoing connections, so that a server which is down for a while gets its
/// own port back.
const RANGE: std::ops::Range<u16> = 15_000..31_000;

/// Hands out ports that nobody listens on.
#[derive(Debug)]
pub struct Ports(());

impl Ports {
    /// A port of `127.0.0.1` that nobody listened on a moment ago, and that this process gets once only.
    ///
    /// # Panics
    ///
    /// When all ports are in use.
    #[must_use]
    pub fn free() -> u16 {
        static LAST: AtomicU16 = AtomicU16::new(0);
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock();
        if LAST.load(Ordering::Relaxed) == 0 {
            // Different processes begin at different places.
            LAST.store(fastrand::u16(RANGE), Ordering::Relaxed);
        }
        for _ in RANGE {
            let next = LAST.load(Ordering::Relaxed) + 1;
            let port = if RANGE.contains(&next) { next } else { RANGE.start };
            LAST.store(port, Ordering::Relaxed);
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return port;
            }
        }
        panic!("no free port on 127.0.0.1 from {} to {}", RANGE.start, RANGE.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_handed_out_once_and_can_be_listened_on() {
        let first = Ports::free();
        let second = Ports::free();
        assert_ne!(first, second);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, second)).unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), second);
    }
}
