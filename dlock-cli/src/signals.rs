//! The signals that this process is sent.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The signals that the command gets too, and whether they end a program that does nothing about them.
const KINDS: [(Signal, bool); 7] = [
    (Signal::HUP, true),
    (Signal::INT, true),
    (Signal::QUIT, true),
    (Signal::TERM, true),
    (Signal::USR1, false),
    (Signal::USR2, false),
    (Signal::TSTP, false),
];

/// Those that have come.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on they do not end this process. HUP is left as it is where it was to be ignored, as by `nohup`: the
    /// command ignores it too, then.
    pub(crate) fn catch() -> io::Result<Self> {
        let caught = KINDS.iter().filter(|(signal, _)| *signal != Signal::HUP || !ignores(*signal));
        let streams = caught.map(|(signal, _)| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((*signal, stream))
        });
        Ok(Self(streams.collect::<io::Result<_>>()?))
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks to end.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if KINDS.iter().any(|(kind, ends)| *kind == signal && *ends) {
                return signal;
            }
        }
    }
}

/// Whether this process ignores a signal. Where the system has no `/proc` it is not known to.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// What a shell reports of a program that a signal ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
