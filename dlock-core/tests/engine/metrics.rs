//! Which counters an event adds to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Locks, Memory};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, InstrumentBuilder, InstrumentProvider, Meter, SyncInstrument};

/// What was added to each counter.
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

impl InstrumentProvider for Counted {
    fn u64_counter(&self, builder: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
        Counter::new(Arc::new(Named { name: builder.name.to_string(), counted: self.clone() }))
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
