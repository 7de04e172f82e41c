//! A subscriber that panics at every span and event, on every thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_core::{ErrorKind, Locks, Memory, Wait};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{STRIKE, eventually, surround};

pub(super) struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dlock"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        // Others are made, so that what is done with them panics too.
        static RELEASES: AtomicUsize = AtomicUsize::new(0);
        if span.metadata().name() == "dlock.release"
            && RELEASES.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        {
            std::panic::panic_any(STRIKE)
        }
        Id::from_u64(7)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        std::panic::panic_any(STRIKE)
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        std::panic::panic_any(STRIKE)
    }

    fn clone_span(&self, _: &Id) -> Id {
        std::panic::panic_any(STRIKE)
    }

    fn event(&self, _: &Event<'_>) {
        std::panic::panic_any(STRIKE)
    }

    fn enter(&self, _: &Id) {
        std::panic::panic_any(STRIKE)
    }

    fn exit(&self, _: &Id) {
        std::panic::panic_any(STRIKE)
    }

    fn try_close(&self, _: Id) -> bool {
        std::panic::panic_any(STRIKE)
    }
}

#[tokio::test]
async fn a_cancelled_acquire_is_cleaned_up() {
    surround();
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    memory.faults().drop_replies(1);
    let lock = locks.lock("k").with_rechecks(0).with_wait(Wait::No);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Unknown);
    eventually("the clean-up", || memory.held() == 0 && locks.stats().background == 0).await;
}

#[tokio::test]
async fn a_body_returns_and_its_lock_is_released_whatever_becomes_of_their_spans() {
    surround();
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    for n in 0..4 {
        assert_eq!(locks.lock("k").run(async { n }).await.unwrap(), n);
        assert_eq!(locks.lock_all(["a", "b"]).run(async { n }).await.unwrap(), n);
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test]
async fn a_body_that_panics_inside_its_span_gives_the_lock_back() {
    surround();
    let memory = Memory::new();
    let lock = Locks::new(memory.clone()).lock("k");
    let body = tokio::spawn(async move { lock.run(async { std::panic::panic_any(STRIKE) }).await });
    assert!(body.await.unwrap_err().is_panic());
    eventually("the release", || memory.held() == 0).await;
}
