//! When things are dropped: whatever belongs to the body goes before the lock does.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, with};
use dlock::{Error, Locks, Memory, distributed_lock};
use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// Writes down, when it is dropped, whether the lock is held at that moment.
struct Witness {
    name: &'static str,
    memory: Memory,
    log: Log,
}

type Log = Arc<Mutex<Vec<(&'static str, bool)>>>;

impl Drop for Witness {
    fn drop(&mut self) {
        self.log.lock().expect("no test panics with it").push((self.name, self.memory.held() == 1));
    }
}

struct Setup {
    memory: Memory,
    log: Log,
}

impl Setup {
    fn new() -> Self {
        Self { memory: Memory::new(), log: Log::default() }
    }

    fn witness(&self, name: &'static str) -> Witness {
        Witness { name, memory: self.memory.clone(), log: Arc::clone(&self.log) }
    }

    fn log(&self) -> Vec<(&'static str, bool)> {
        self.log.lock().expect("no test panics with it").clone()
    }
}

enum End {
    Return,
    Error,
    Early,
    Panic,
    Never,
}

#[derive(Debug, PartialEq)]
enum AppError {
    Lock,
    Body,
}

impl From<Error> for AppError {
    fn from(_: Error) -> Self {
        Self::Lock
    }
}

#[distributed_lock(key = "drop", backend = "memory")]
async fn work(end: End, used: Witness, _unused: Witness, _: Witness, local: Witness) -> Result<u8, AppError> {
    let _local = local;
    let result = match end {
        End::Return => Ok(1),
        End::Error => Err(AppError::Body),
        End::Early => return Ok(2),
        End::Panic => panic!("on purpose"),
        End::Never => pending().await,
    };
    let output = result?;
    drop(used);
    Ok(output)
}

#[distributed_lock(key = "drop", segments = 1, backend = "memory", guard = segment)]
async fn work_in_segments(end: End, used: Witness, mut unused: Witness, _: Witness) -> Result<u8, AppError> {
    let _local = Witness { name: "local", memory: unused.memory.clone(), log: Arc::clone(&used.log) };
    unused.name = "mutable";
    match end {
        End::Return => Ok(1),
        End::Error => Err(AppError::Body),
        End::Early => return Err(segment.exhausted().into()),
        End::Panic => panic!("on purpose"),
        End::Never => pending().await,
    }
}

#[tokio::test]
async fn arguments_of_a_segmented_function_are_dropped_before_the_last_segment_is_released() {
    for (end, expected, held) in [
        (End::Return, Ok(1), true),
        (End::Error, Err(AppError::Body), true),
        // No segment is held any more when all have said that they are exhausted.
        (End::Early, Err(AppError::Lock), false),
    ] {
        let setup = Setup::new();
        let call =
            work_in_segments(end, setup.witness("used"), setup.witness("unused"), setup.witness("wild"));
        assert_eq!(with(setup.memory.clone(), async |_| call.await).await, expected);
        let log = setup.log();
        let names: Vec<_> = log.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["local", "mutable", "used", "wild"]);
        assert_eq!(log[1..3], [("mutable", held), ("used", held)]);
        assert_eq!(log[3], ("wild", false), "the call returned after the release");
    }
}

#[tokio::test]
async fn a_segmented_function_that_panics_drops_its_arguments_before_the_release() {
    let setup = Setup::new();
    let (memory, wild) = (setup.memory.clone(), setup.witness("wild"));
    let call = work_in_segments(End::Panic, setup.witness("used"), setup.witness("unused"), wild);
    tokio::spawn(with(memory, async move |locks| {
        let result = tokio::spawn(dlock::with_backend("memory", locks.clone(), call)).await;
        assert!(result.is_err_and(|error| error.is_panic()));
        locks.lock("drop#0").acquire().await.expect("it was released").release().await.expect("it is ours");
    }))
    .await
    .expect("the segment is free");
    assert_dropped_under_the_lock(&setup, &["local", "mutable", "used", "wild"]);
}

fn call(setup: &Setup, end: End) -> impl Future<Output = Result<u8, AppError>> + use<> {
    work(end, setup.witness("used"), setup.witness("unused"), setup.witness("wild"), setup.witness("local"))
}

async fn freed(locks: &Locks) {
    locks.lock("drop").acquire().await.expect("it was given back").release().await.expect("it is ours");
}

/// The names in the order of their drop, all of them under the lock, except for the parameter without a name.
fn assert_dropped_under_the_lock(setup: &Setup, names: &[&str]) {
    let log = setup.log();
    assert_eq!(log.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    for (name, held) in log {
        assert!(held || name == "wild", "{name}");
    }
}

#[tokio::test]
async fn a_body_that_returned_has_dropped_everything_before_the_release() {
    let setup = Setup::new();
    let result = with(setup.memory.clone(), async |_| call(&setup, End::Return).await).await;
    assert_eq!(result, Ok(1));
    assert_eq!(setup.log().last(), Some(&("wild", false)), "the call returned after the release");
    assert_dropped_under_the_lock(&setup, &["used", "local", "unused", "wild"]);
}

#[tokio::test]
async fn an_error_and_an_early_return_drop_everything_before_the_release() {
    for (end, expected) in [(End::Error, Err(AppError::Body)), (End::Early, Ok(2))] {
        let setup = Setup::new();
        let result = with(setup.memory.clone(), async |_| call(&setup, end).await).await;
        assert_eq!(result, expected);
        assert_dropped_under_the_lock(&setup, &["local", "unused", "used", "wild"]);
        assert_eq!(setup.log().last(), Some(&("wild", false)), "the call returned after the release");
    }
}

#[tokio::test]
async fn a_panic_drops_everything_before_the_release() {
    let setup = Setup::new();
    let (memory, future) = (setup.memory.clone(), call(&setup, End::Panic));
    let task = tokio::spawn(with(memory, async move |locks| {
        let result = tokio::spawn(dlock::with_backend("memory", locks.clone(), future)).await;
        assert!(result.is_err_and(|error| error.is_panic()));
        freed(&locks).await;
    }));
    task.await.expect("the lock is free");
    assert_dropped_under_the_lock(&setup, &["local", "unused", "used", "wild"]);
}

#[tokio::test]
async fn a_cancelled_call_drops_everything_before_the_release() {
    let setup = Setup::new();
    with(setup.memory.clone(), async |locks| {
        let mut future = Box::pin(call(&setup, End::Never));
        std::future::poll_fn(|cx| {
            assert!(future.as_mut().poll(cx).is_pending());
            if setup.memory.held() == 1 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(setup.log(), []);
        drop(future);
        freed(&locks).await;
    })
    .await;
    assert_dropped_under_the_lock(&setup, &["local", "unused", "used", "wild"]);
}

#[tokio::test]
async fn a_lost_lock_drops_the_body_at_its_await() {
    let setup = Setup::new();
    with(setup.memory.clone(), async |locks| {
        let (result, ()) = tokio::join!(call(&setup, End::Never), async {
            while !is_held(&locks, "drop").await {
                tokio::task::yield_now().await;
            }
            assert!(setup.memory.lose("drop"));
        });
        assert_eq!(result, Err(AppError::Lock));
    })
    .await;
    let names: Vec<_> = setup.log().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["local", "unused", "used", "wild"]);
}
