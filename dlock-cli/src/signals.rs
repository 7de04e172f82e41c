//! The signals that are sent to this process.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// The signals that the command gets too, and whether they end a program that does not handle them.
const KINDS: [(Signal, bool); 7] = [
    (Signal::HUP, true),
    (Signal::INT, true),
    (Signal::QUIT, true),
    (Signal::TERM, true),
    (Signal::USR1, false),
    (Signal::USR2, false),
    (Signal::TSTP, false),
];

/// The signals that have come and do not end this process.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: Vec<(Signal, unix::Signal)>,
    /// Keeps `CHLD` from being ignored: otherwise nothing would show how a command ended.
    _children: unix::Signal,
}

impl Signals {
    /// Catches the signals: from now on they do not end this process. A signal that is ignored stays so, such as HUP
    /// after `nohup`, and INT in what a script starts in the background: the command then ignores it too.
    pub(crate) fn catch() -> io::Result<Self> {
        let caught = KINDS.iter().filter(|(signal, _)| !ignores(*signal));
        let streams = caught.map(|(signal, _)| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((*signal, stream))
        });
        let caught = streams.collect::<io::Result<_>>()?;
        Ok(Self { caught, _children: unix::signal(SignalKind::child())? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.caught {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that asks to end. A signal that asks to stop is obeyed meanwhile.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::TSTP => stop(),
                signal if ends(signal) => return signal,
                _ => {}
            }
        }
    }
}

/// Is `true` if a signal ends a program that does not handle it.
pub(crate) fn ends(signal: Signal) -> bool {
    KINDS.contains(&(signal, true))
}

/// Stops this process until a signal continues it.
pub(crate) fn stop() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Is `true` if this process ignores a signal. Without `/proc` the result is `false`.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Returns the code that a shell reports for a program that a signal ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
