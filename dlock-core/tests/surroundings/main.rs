//! The engine in surroundings that are not made for it: wakers that act at once or panic, executors other than tokio's,
//! subscribers that use dlock themselves, threads that end.

mod executors;
mod reentering;
mod wakers;

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Runs `test` on a thread of its own, and fails when it does not end: a mutex that is waited for on the thread that
/// has it never gets free.
fn must_end(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = tell.send(());
    });
    if told.recv_timeout(Duration::from_secs(20)) == Err(RecvTimeoutError::Timeout) {
        panic!("it does not end");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until `test` holds; the keeper runs on a thread of its own.
fn eventually(what: &str, test: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if test() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never happened: {what}");
}
