//! A machine that gives no thread for a while. A program of its own, since the limit is that of the process.
#![cfg(target_os = "linux")]

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Gives the process so much more memory than it has, while `code` runs.
fn with_memory_left<T>(left: u64, code: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::As);
    let pages = std::fs::read_to_string("/proc/self/statm").expect("what it has");
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    let current = Some(pages * rustix::param::page_size() as u64 + left);
    setrlimit(Resource::As, Rlimit { current, maximum: limit.maximum }).expect("a lower limit");
    let output = code();
    setrlimit(Resource::As, limit).expect("the limit it had");
    output
}

/// The stack of a thread has 2 MiB: first there is no room for any of the three threads, then for one.
#[tokio::test]
async fn locks_can_be_built_after_their_thread_could_not_be_started() {
    for left in [1 << 20, 3 << 20] {
        let error = with_memory_left(left, || Locks::builder(Memory::new()).build().expect_err("no thread"));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable() && error.to_string().contains("try again"), "{error}");
    }
    let memory = Memory::new();
    let locks = Locks::builder(memory.clone()).with_lease(Duration::from_millis(300)).build().expect("locks");
    let guard = locks.lock("k").acquire().await.expect("it is free");
    let renewal = async {
        while locks.stats().renewals == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewal).await.expect("it is renewed");
    drop(guard);
    locks.shutdown(Duration::from_secs(20)).await.expect("it is given back");
    assert_eq!(memory.held(), 0);
}
