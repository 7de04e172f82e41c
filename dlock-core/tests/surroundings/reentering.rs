//! A subscriber that uses dlock itself, for each event and span it hears of, on every thread.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, ManualClock, Memory, Wait};
use pollster::block_on;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{eventually, must_end};

const LEASE: Duration = Duration::from_secs(30);

/// What the subscriber uses, which is what the test uses.
static LOCKS: OnceLock<Locks> = OnceLock::new();
static HEARD: AtomicU64 = AtomicU64::new(0);
/// How often. What it releases it hears of again, without end.
const MOST: u64 = 2_000;

struct Reentering;

fn reenter() {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    let Some(locks) = LOCKS.get() else { return };
    if INSIDE.replace(true) {
        return;
    }
    let heard = HEARD.fetch_add(1, Ordering::SeqCst);
    if heard >= MOST {
        return;
    }
    let _ = locks.stats();
    let (own, shared) = (locks.lock_named(format!("template {heard}"), "own"), locks.lock("shared"));
    let (own, shared) = block_on(async { tokio::join!(own.try_acquire(), shared.try_acquire()) });
    drop((own, shared));
    INSIDE.set(false);
}

impl Subscriber for Reentering {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dlock"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        reenter();
        Id::from_u64(7)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        reenter();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        reenter();
    }

    fn enter(&self, _: &Id) {
        reenter();
    }

    fn exit(&self, _: &Id) {
        reenter();
    }

    fn try_close(&self, _: Id) -> bool {
        reenter();
        true
    }
}

#[test]
fn a_subscriber_may_use_the_locks_that_it_hears_of() {
    must_end(|| {
        tracing::subscriber::set_global_default(Reentering).expect("the only one");
        let clock = ManualClock::stopped();
        let memory = Memory::with_clock(clock.clock());
        let locks = LOCKS.get_or_init(|| Locks::new(memory.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // More than are distinguished, of which is warned.
        (0..300).for_each(|n| drop(locks.lock_named(format!("test's template {n}"), "k")));
        runtime.block_on(async {
            let lost = locks.lock("lost").acquire().await.unwrap();
            let shared = locks.lock("shared").with_wait(Wait::Forever);
            let (first, second) = tokio::join!(shared.run(async {}), shared.run(async {}));
            first.and(second).unwrap();
            memory.delete("lost");
            clock.advance(LEASE / 3);
            lost.lost().await;
            assert_eq!(lost.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
            drop(locks.lock_all(["a", "b"]).acquire().await.unwrap());
        });
        drop(block_on(locks.lock("last").acquire()).unwrap());
        eventually("the release, and what is heard of it", || {
            memory.held() == 0 && HEARD.load(Ordering::SeqCst) >= MOST
        });
        runtime.block_on(locks.shutdown(LEASE)).unwrap();
    });
}
