//! Instruments that panic whenever something is measured, or already when they are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, ManualClock, Memory, Wait};
use dlock_quorum::Quorum;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{
    Counter, Histogram, HistogramBuilder, InstrumentBuilder, InstrumentProvider, Meter, SyncInstrument,
    UpDownCounter,
};

use super::{STRIKE, eventually, surround};

const LEASE: Duration = Duration::from_secs(30);

/// Counts how often it panicked.
#[derive(Clone, Default)]
struct Panicking {
    struck: Arc<AtomicUsize>,
    at_once: bool,
}

impl Panicking {
    fn strike(&self) -> ! {
        self.struck.fetch_add(1, Ordering::SeqCst);
        std::panic::panic_any(STRIKE)
    }

    fn instrument(&self) -> Arc<Self> {
        if self.at_once {
            self.strike()
        }
        Arc::new(self.clone())
    }

    fn locks(&self, backend: impl dlock_core::Backend) -> Locks {
        Locks::builder(backend).with_meter(Meter::new(Arc::new(self.clone()))).build().unwrap()
    }
}

impl<T> SyncInstrument<T> for Panicking {
    fn measure(&self, _: T, _: &[KeyValue]) {
        self.strike()
    }
}

impl InstrumentProvider for Panicking {
    fn u64_counter(&self, _: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
        Counter::new(self.instrument())
    }

    fn i64_up_down_counter(&self, _: InstrumentBuilder<'_, UpDownCounter<i64>>) -> UpDownCounter<i64> {
        UpDownCounter::new(self.instrument())
    }

    fn u64_histogram(&self, _: HistogramBuilder<'_, Histogram<u64>>) -> Histogram<u64> {
        Histogram::new(self.instrument())
    }

    fn f64_histogram(&self, _: HistogramBuilder<'_, Histogram<f64>>) -> Histogram<f64> {
        Histogram::new(self.instrument())
    }
}

#[tokio::test]
async fn locks_are_taken_renewed_lost_and_released_whatever_the_meter_does() {
    surround();
    for at_once in [false, true] {
        let meter = Panicking { at_once, ..Panicking::default() };
        let clock = ManualClock::stopped();
        let memory = Memory::with_clock(clock.clock());
        let locks = meter.locks(memory.clone());
        let guard = locks.lock("k").acquire().await.unwrap();
        for n in 1..=3 {
            clock.advance(LEASE / 3);
            eventually("a renewal", || locks.stats().renewals >= n).await;
            guard.check().unwrap();
        }
        assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
        let lock = locks.lock("k").with_wait(Wait::Forever);
        let waiter = tokio::spawn(async move { lock.run(async { 7 }).await });
        tokio::task::yield_now().await;
        drop(guard);
        assert_eq!(waiter.await.unwrap().unwrap(), 7);
        locks.lock("k").run(async { locks.lock("k").run(async {}).await }).await.unwrap().unwrap();
        locks.lock_all(["a", "b"]).acquire().await.unwrap().release().await.unwrap();
        memory.faults().drop_replies(1);
        locks.lock("unknown").acquire().await.unwrap().release().await.unwrap();
        let lost = locks.lock("lost").acquire().await.unwrap();
        memory.delete("lost");
        clock.advance(LEASE / 3);
        tokio::time::timeout(LEASE, lost.lost()).await.expect("the loss is noticed");
        assert_eq!(lost.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
        locks.shutdown(LEASE).await.unwrap();
        assert_eq!((memory.held(), locks.stats().background), (0, 0));
        let struck = meter.struck.load(Ordering::SeqCst);
        assert!(struck >= if at_once { 1 } else { 20 }, "it panicked {struck} times");
    }
}

#[tokio::test]
async fn nodes_are_asked_for_their_votes_whatever_the_meter_does() {
    surround();
    let meter = Panicking::default();
    let nodes = [Memory::new(), Memory::new(), Memory::new()];
    let locks = meter.locks(Quorum::builder(nodes.clone()).with_durable_nodes().build().unwrap());
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    eventually("the clean-up", || nodes.iter().all(|node| node.held() == 0)).await;
    assert!(meter.struck.load(Ordering::SeqCst) >= 3);
}
