//! A process that can start no thread for a while. A program of its own, since the limit is that of the process.
#![cfg(target_os = "linux")]

mod every_store;

use std::process::Command;

use dlock::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use every_store::{EveryStore, LIMIT, works};

/// Names the URL of a process that is short of threads.
const URL: &str = "DLOCK_TEST_URL";

/// What the stack of each thread takes of the memory that the process may address. None of it is used.
const STACK: u64 = 1 << 30;

/// So many threads can be started as long as this lives: there is room for their stacks, and for what else is needed.
struct ThreadsLeft(Rlimit);

impl ThreadsLeft {
    fn now(threads: u64) -> Self {
        let limit = getrlimit(Resource::As);
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let addressed = pages * u64::try_from(rustix::param::page_size()).unwrap();
        let current = Some(addressed + threads * STACK + STACK / 2);
        setrlimit(Resource::As, Rlimit { current, maximum: limit.maximum }).unwrap();
        Self(limit)
    }
}

impl Drop for ThreadsLeft {
    fn drop(&mut self) {
        setrlimit(Resource::As, self.0).unwrap();
    }
}

fn passes(what: &str, error: &Error) {
    assert!(error.is_retryable(), "{what}: {error}");
    assert!(error.to_string().contains("thread"), "{what}: {error}");
}

/// The size of a stack is read once, when a process starts its first thread; and a thread of tokio's is kept for a
/// while. So each URL has a process of its own.
#[test]
fn a_passing_lack_of_threads_is_a_retryable_error_that_says_so_and_leaves_nothing_broken() {
    if let Ok(url) = std::env::var(URL) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(lacks_threads(&url));
    }
    let stores = EveryStore::start();
    for url in stores.urls.iter().map(String::as_str).chain(["memory:"]) {
        // A name has to be looked up, which takes a thread too.
        let url = url.replace("127.0.0.1", "localhost");
        let mut process = Command::new(std::env::current_exe().unwrap());
        let process = process.arg("--nocapture").env("RUST_MIN_STACK", STACK.to_string()).env(URL, &url);
        assert!(process.status().unwrap().success(), "{url}");
    }
}

async fn lacks_threads(url: &str) {
    let mut refusals = 0;
    // What the first try started serves the second.
    for threads in [0, 1, 1, 2, 2, 3, 3] {
        let lack = ThreadsLeft::now(threads);
        let connected = tokio::time::timeout(LIMIT, dlock::connect(url)).await;
        let used = match connected.unwrap_or_else(|_| panic!("{url} with {threads} threads: never ends")) {
            Ok(locks) => locks.lock("k").try_acquire().await.map(drop),
            Err(error) => Err(error),
        };
        drop(lack);
        eprintln!("{url} {threads}: {used:?}");
        if let Err(error) = used {
            passes(url, &error);
            refusals += 1;
        }
    }
    assert!(refusals > 0, "{url}");
    let locks = dlock::connect(url).await.unwrap();
    works(url, &locks).await;
    locks.shutdown(LIMIT).await.unwrap();
}
