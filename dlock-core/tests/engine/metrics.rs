//! Which counters an event adds to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Memory};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{
    Counter, Histogram, HistogramBuilder, InstrumentBuilder, InstrumentProvider, Meter, SyncInstrument,
};

/// What was added to each counter, and how often each histogram was recorded.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<HashMap<String, u64>>>);

struct Named {
    name: String,
    counted: Counted,
}

impl SyncInstrument<u64> for Named {
    fn measure(&self, value: u64, _: &[KeyValue]) {
        *self.counted.0.lock().unwrap().entry(self.name.clone()).or_default() += value;
    }
}

struct Recorded(Named);

impl SyncInstrument<u64> for Recorded {
    fn measure(&self, _: u64, labels: &[KeyValue]) {
        self.0.measure(1, labels);
    }
}

impl InstrumentProvider for Counted {
    fn u64_counter(&self, builder: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
        Counter::new(Arc::new(Named { name: builder.name.to_string(), counted: self.clone() }))
    }

    fn u64_histogram(&self, builder: HistogramBuilder<'_, Histogram<u64>>) -> Histogram<u64> {
        let named = Named { name: builder.name.to_string(), counted: self.clone() };
        Histogram::new(Arc::new(Recorded(named)))
    }
}

impl Counted {
    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

#[tokio::test]
async fn releases_in_the_background_that_fail_are_counted_until_one_succeeds() {
    let (counted, memory) = (Counted::default(), Memory::new());
    let meter = Meter::new(Arc::new(counted.clone()));
    let locks = Locks::builder(memory.clone()).with_meter(meter).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    memory.faults().set_unavailable(true);
    drop(guard);
    let failures = || counted.of("dlock.background_release.failures");
    let failed = async {
        while failures() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), failed).await.expect("a failure is counted");
    memory.faults().set_unavailable(false);
    locks.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn an_acquire_of_a_resizable_semaphore_is_counted_once_whatever_comes_of_it() {
    let counted = Counted::default();
    let meter = Meter::new(Arc::new(counted.clone()));
    let locks = Locks::builder(Memory::new()).with_meter(meter).build().unwrap();
    let gpus = locks.semaphore("gpus", 4).acquire().await.unwrap();
    let book = locks.lock("book").acquire().await.unwrap();
    let acquires = || counted.of("dlock.acquire.attempts");
    assert_eq!(acquires(), 2);
    drop(locks.semaphore("gpus", 2).resizable().acquire().await.unwrap());
    assert_eq!(acquires(), 3, "it was refused first, and then took what is stored");
    let refused = locks.semaphore("book", 2).resizable().try_acquire().await.unwrap_err();
    assert_eq!((refused.kind(), acquires()), (ErrorKind::Conflict, 4));
    drop((gpus, book));
}
