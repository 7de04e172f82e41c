//! A process that has no descriptor left for a while. A program of its own, since the limit is that of the process.
#![cfg(target_os = "linux")]

mod every_store;

use std::os::fd::AsRawFd;

use dlock::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use every_store::{EveryStore, LIMIT, works};

/// Nothing can be opened as long as this lives.
struct NoneLeft {
    limit: Rlimit,
    /// What became free in between, and is kept.
    _kept: Vec<std::fs::File>,
}

impl NoneLeft {
    fn now() -> Self {
        let limit = getrlimit(Resource::Nofile);
        // The lowest number that is free is the next one; those above are not given out either.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let current = Some(u64::try_from(next).unwrap());
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
        let mut kept = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            kept.push(file);
        }
        Self { limit, _kept: kept }
    }
}

impl Drop for NoneLeft {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.limit).unwrap();
    }
}

fn passes(what: &str, error: &Error) {
    assert!(error.is_retryable(), "{what}: {error}");
}

#[tokio::test]
async fn a_passing_lack_of_descriptors_at_the_first_use_is_a_retryable_error_and_leaves_nothing_broken() {
    // Of the process: dlock's own threads.
    let none_left = NoneLeft::now();
    let error = dlock::connect("memory:").await.map(drop).unwrap_err();
    drop(none_left);
    passes("memory", &error);
    works("memory", &dlock::connect("memory:").await.unwrap()).await;

    let stores = EveryStore::start();
    let urls = &stores.urls;
    // Not each one is refused: a connection that ends meanwhile leaves its descriptor to the next.
    let mut refusals = 0;
    for url in urls {
        // At the start, and what was there is used again.
        let none_left = NoneLeft::now();
        let refused = dlock::connect(url).await;
        drop(none_left);
        if let Err(error) = &refused {
            passes(url, error);
            refusals += 1;
        }
        drop(refused);
        let locks = dlock::connect(url).await.unwrap();
        works(url, &locks).await;
        // Nothing of it is closed while there is none left.
        locks.shutdown(LIMIT).await.unwrap();
        drop(locks);
        if url.starts_with("sqlite") {
            continue;
        }
        // At the first use of what was built before.
        let more = if url.contains('?') { "&" } else { "?" };
        let locks = dlock::connect(&format!("{url}{more}connect=lazy")).await.unwrap();
        let none_left = NoneLeft::now();
        for _ in 0..3 {
            if let Err(error) = locks.lock("k").try_acquire().await {
                passes(url, &error);
                refusals += 1;
            }
        }
        drop(none_left);
        works(url, &locks).await;
        locks.shutdown(LIMIT).await.unwrap();
    }
    assert!(refusals >= urls.len(), "{refusals} of {urls:?}");
}
