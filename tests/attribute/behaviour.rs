//! What the attribute does when it runs: exclusion, waiting, loss, fences, nesting, and how it finds its backend.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory, with};
use dlock::{Error, ErrorKind, Fence, Held, Locks, Memory, distributed_lock};
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Barrier, Notify, oneshot};

#[derive(Default)]
struct Counter {
    inside: AtomicU32,
    most: AtomicU32,
    total: AtomicU32,
}

impl Counter {
    async fn pass(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.total.fetch_add(1, Ordering::SeqCst);
    }
}

#[distributed_lock(key = "room_<room>", backend = "memory", wait = "forever")]
async fn pass(room: u8, counter: &Counter) -> Result<(), Error> {
    counter.pass().await;
    Ok(())
}

/// Holds the lock from the moment it says so until it is asked to go.
#[distributed_lock(key = "room_<room>", backend = "memory")]
async fn stay(room: u8, entered: &Notify, leave: &Notify) -> Result<(), Error> {
    entered.notify_one();
    leave.notified().await;
    Ok(())
}

#[distributed_lock(key = "room_<room>", backend = "memory", wait = "no")]
async fn enter_now(room: u8) -> Result<&'static str, Error> {
    Ok("entered")
}

#[distributed_lock(key = "room_<room>", backend = "memory", wait = "100ms")]
async fn enter_soon(room: u8) -> Result<&'static str, Error> {
    Ok("entered")
}

/// Runs `meanwhile` while another caller holds the lock of room 1.
async fn while_occupied<F: Future>(meanwhile: F) -> F::Output {
    let (entered, leave) = (Notify::new(), Notify::new());
    let (stayed, output) = tokio::join!(stay(1, &entered, &leave), async {
        entered.notified().await;
        let output = meanwhile.await;
        leave.notify_one();
        output
    });
    stayed.expect("the lock was free");
    output
}

#[tokio::test]
async fn calls_with_the_same_key_run_one_after_another() {
    on_memory(async |locks| {
        let counter = &Counter::default();
        let (a, b, c) = tokio::join!(pass(1, counter), pass(1, counter), pass(1, counter));
        a.and(b).and(c).expect("each had its turn");
        assert_eq!(counter.total.load(Ordering::SeqCst), 3);
        assert_eq!(counter.most.load(Ordering::SeqCst), 1);
        assert!(!is_held(&locks, "room_1").await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_several_threads_run_one_after_another() {
    let counter = std::sync::Arc::new(Counter::default());
    on_memory(async |_| {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let counter = std::sync::Arc::clone(&counter);
                tokio::spawn(dlock::in_current_scope(async move { pass(1, &counter).await }))
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic").expect("it waits for its turn");
        }
    })
    .await;
    assert_eq!(counter.total.load(Ordering::SeqCst), 8);
    assert_eq!(counter.most.load(Ordering::SeqCst), 1);
}

#[distributed_lock(key = "room_<room>", backend = "memory")]
async fn meet(room: u8, barrier: &Barrier) -> Result<(), Error> {
    barrier.wait().await;
    Ok(())
}

#[tokio::test]
async fn calls_with_different_keys_run_at_the_same_time() {
    on_memory(async |_| {
        let barrier = Barrier::new(2);
        let (one, two) = tokio::join!(meet(1, &barrier), meet(2, &barrier));
        assert!(one.is_ok() && two.is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_does_not_wait_is_told_that_the_lock_is_busy() {
    on_memory(async |_| {
        let error = while_occupied(enter_now(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(error.key(), Some("room_1"));
        assert_eq!(while_occupied(enter_now(2)).await.expect("another room"), "entered");
        assert_eq!(enter_now(1).await.expect("free again"), "entered");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_as_long_as_its_attribute_says() {
    on_memory(async |_| {
        let started = tokio::time::Instant::now();
        let error = while_occupied(enter_soon(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
    })
    .await;
}

#[distributed_lock(
    key = "room_<room>",
    backend = "memory",
    wait = "no",
    on_busy = Ok(format!("{name} was turned away from {room}"))
)]
async fn turned_away(room: u8, name: String, ran: &AtomicU32) -> Result<String, Error> {
    ran.fetch_add(1, Ordering::SeqCst);
    Ok(name)
}

#[distributed_lock(key = "room_<room>", backend = "memory", wait = "1ms", on_busy = Err(Refused(describe(room).await?)))]
async fn refused(room: u8) -> Result<(), Refused> {
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Refused(String);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

async fn describe(room: u8) -> Result<String, Refused> {
    tokio::task::yield_now().await;
    Ok(format!("room {room} is taken"))
}

#[tokio::test]
async fn on_busy_is_returned_and_the_body_does_not_run() {
    on_memory(async |_| {
        let ran = AtomicU32::new(0);
        let answer = while_occupied(turned_away(1, "ann".to_owned(), &ran)).await;
        assert_eq!(answer.expect("busy is no error here"), "ann was turned away from 1");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        assert_eq!(turned_away(1, "bob".to_owned(), &ran).await.expect("free"), "bob");
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    })
    .await;
}

#[distributed_lock(key = "room_<room>", backend = "memory", wait = "no", on_busy = |error| {
    let why = error.kind();
    tokio::task::yield_now().await;
    // It is its own `on_busy` that finds this one's error, and this body its own.
    let inner = turned_away(room, name, ran).await?;
    free(&mut vec![inner, format!("{why:?}")]).await
})]
async fn asks_elsewhere(room: u8, name: String, ran: &AtomicU32) -> Result<String, Error> {
    ran.fetch_add(1, Ordering::SeqCst);
    Ok(name)
}

#[distributed_lock(key = "nobody else's", backend = "memory", wait = "no", on_busy = Ok("busy".to_owned()))]
async fn free(parts: &mut Vec<String>) -> Result<String, Error> {
    parts.push("free".to_owned());
    Ok(parts.join(", "))
}

#[tokio::test]
async fn on_busy_may_wait_and_call_functions_with_an_on_busy_of_their_own() {
    on_memory(async |_| {
        let ran = AtomicU32::new(0);
        let busy = while_occupied(asks_elsewhere(1, "ann".to_owned(), &ran)).await;
        assert_eq!(busy.expect("the values of on_busy"), "ann was turned away from 1, Busy, free");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        assert_eq!(asks_elsewhere(1, "ann".to_owned(), &ran).await.expect("a free lock"), "ann");
    })
    .await;
}

#[tokio::test]
async fn on_busy_also_answers_when_waiting_took_too_long() {
    on_memory(async |_| {
        let answer = while_occupied(refused(1)).await;
        assert_eq!(answer, Err(Refused("room 1 is taken".to_owned())));
        assert_eq!(refused(1).await, Ok(()));
    })
    .await;
}

#[distributed_lock(key = "away", backend = "memory", on_busy = Ok("busy"))]
async fn away() -> Result<&'static str, Error> {
    Ok("ran")
}

#[distributed_lock(key = "away", backend = "memory", on_unavailable = "run", guard = held)]
async fn runs_anyway() -> Result<(Option<Fence>, ErrorKind), Error> {
    Ok((held.fence(), held.check().expect_err("there is no lock").kind()))
}

#[distributed_lock(key = "away", backend = "memory", on_unavailable = "error", recheck = true)]
async fn does_not_run() -> Result<(), Error> {
    panic!("without the lock")
}

#[tokio::test(start_paused = true)]
async fn a_body_runs_without_its_lock_only_where_the_attribute_says_so() {
    let memory = Memory::new();
    with(memory.clone(), async |_| {
        memory.faults().set_unavailable(true);
        assert!(
            away().await.is_err_and(|error| error.kind() != ErrorKind::Busy),
            "it is not busy, it is away"
        );
        assert!(does_not_run().await.is_err());
        assert_eq!(runs_anyway().await.expect("it runs"), (None, ErrorKind::NotHeld));
    })
    .await;
}

#[distributed_lock(key = "lease", backend = "memory", lease = "7m")]
async fn with_lease(locks: &Locks) -> Result<Option<Duration>, Error> {
    Ok(locks.inspect("lease").await?.and_then(|holder| holder.expires_in))
}

#[tokio::test]
async fn the_lease_is_the_one_of_the_attribute() {
    on_memory(async |locks| {
        let left = with_lease(&locks).await.expect("free").expect("it is held");
        assert!(left > Duration::from_mins(6) && left <= Duration::from_mins(7), "{left:?}");
    })
    .await;
}

#[distributed_lock(key = "least", backend = "memory", hold_at_least = "7m")]
async fn at_most_every_seven_minutes() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn a_key_stays_taken_for_as_long_as_the_attribute_says() {
    on_memory(async |locks| {
        at_most_every_seven_minutes().await.expect("free");
        let holder = locks.inspect("least").await.expect("it answers").expect("it is still taken");
        let left = holder.expires_in.expect("it ends");
        assert!(holder.left_behind, "nobody holds it: {holder:?}");
        assert!(left > Duration::from_mins(6) && left <= Duration::from_mins(7), "{left:?}");
    })
    .await;
}

const LONGEST: Duration = Duration::from_millis(60);

#[distributed_lock(key = "longest", backend = "memory", lease = "50ms", max_hold = { LONGEST })]
async fn goes_on_for_ever() -> Result<(), Error> {
    pending().await
}

#[tokio::test]
async fn a_body_ends_when_its_lock_was_held_for_as_long_as_the_attribute_allows() {
    on_memory(async |_| {
        let error = goes_on_for_ever().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("max_hold"), "{error}");
    })
    .await;
}

#[distributed_lock(key = "recheck", backend = "memory", recheck = true)]
async fn asks_again() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "no recheck", backend = "memory", recheck = false)]
async fn asks_once() -> Result<(), Error> {
    panic!("without knowing whether it has the lock")
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_looked_into_unless_the_attribute_says_not_to() {
    let memory = Memory::new();
    with(memory.clone(), async |_| {
        memory.faults().drop_replies(1);
        asks_again().await.expect("the second request finds out that the first one took it");
        memory.faults().drop_replies(1);
        assert_eq!(asks_once().await.unwrap_err().kind(), ErrorKind::Unknown);
    })
    .await;
}

#[distributed_lock(key = "lost", backend = "memory")]
async fn aborted(entered: oneshot::Sender<()>, reached: &AtomicU32) -> Result<(), Error> {
    reached.store(1, Ordering::SeqCst);
    entered.send(()).expect("somebody waits for it");
    let () = pending().await;
    reached.store(2, Ordering::SeqCst);
    Ok(())
}

#[distributed_lock(key = "lost", backend = "memory", on_lost = "continue", guard = held)]
async fn carries_on(entered: oneshot::Sender<()>) -> Result<ErrorKind, Error> {
    entered.send(()).expect("somebody waits for it");
    held.lost().await;
    tokio::task::yield_now().await;
    Ok(held.check().expect_err("it is lost").kind())
}

#[tokio::test]
async fn a_lost_lock_aborts_the_body_at_its_await() {
    let memory = Memory::new();
    with(memory.clone(), async |_| {
        let (entered, has_entered) = oneshot::channel();
        let reached = AtomicU32::new(0);
        let (result, ()) = tokio::join!(aborted(entered, &reached), async {
            has_entered.await.expect("the body runs");
            assert!(memory.lose("lost"));
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(reached.load(Ordering::SeqCst), 1);
    })
    .await;
}

#[tokio::test]
async fn a_body_that_continues_is_told_of_the_loss() {
    let memory = Memory::new();
    with(memory.clone(), async |_| {
        let (entered, has_entered) = oneshot::channel();
        let (result, ()) = tokio::join!(carries_on(entered), async {
            has_entered.await.expect("the body runs");
            assert!(memory.lose("lost"));
        });
        assert_eq!(result.expect("the body's own answer"), ErrorKind::Lost);
    })
    .await;
}

#[distributed_lock(key = "fence", backend = "memory", guard = held)]
async fn fence() -> Result<Fence, Error> {
    held.check()?;
    Ok(held.fence().expect("the backend has fences"))
}

#[distributed_lock(key = "fence", backend = "memory", guard = outer)]
async fn nested() -> Result<(Held, Fence), Error> {
    let inner = fence().await?;
    outer.check()?;
    assert_eq!(outer.fence(), Some(inner));
    Ok((outer, inner))
}

#[distributed_lock(key = "second", backend = "memory", guard = outer)]
#[distributed_lock(key = "first", backend = "memory", guard = inner)]
async fn both(locks: &Locks) -> Result<(Fence, Fence), Error> {
    assert!(is_held(locks, "first").await && is_held(locks, "second").await);
    assert_eq!((inner.key(), outer.key()), (Some("first"), Some("second")));
    Ok((inner.fence().expect("it has one"), outer.fence().expect("it has one")))
}

#[tokio::test]
async fn each_grant_has_a_higher_fence() {
    on_memory(async |_| {
        let (first, second) = (fence().await.expect("free"), fence().await.expect("free"));
        assert!(second.supersedes(first) && !first.supersedes(second), "{first:?} {second:?}");
    })
    .await;
}

#[tokio::test]
async fn a_nested_call_enters_again_under_the_same_fence() {
    on_memory(async |locks| {
        let (held, inside) = nested().await.expect("it does not wait for itself");
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::NotHeld, "it was released");
        assert!(!is_held(&locks, "fence").await);
        assert!(fence().await.expect("free").supersedes(inside));
    })
    .await;
}

#[tokio::test]
async fn two_attributes_take_two_locks_and_give_both_back() {
    on_memory(async |locks| {
        let (inner, outer) = both(&locks).await.expect("both are free");
        assert!(outer.supersedes(inner), "the attribute below is taken first");
        assert!(!is_held(&locks, "first").await && !is_held(&locks, "second").await);
    })
    .await;
}

#[distributed_lock(key = "source")]
async fn by_default() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "source", backend = "macro behaviour")]
async fn by_name(locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, "source").await)
}

#[distributed_lock(key = "source", locks = given)]
async fn by_expression(given: &Locks, other: &Locks) -> Result<(bool, bool), Error> {
    Ok((is_held(given, "source").await, is_held(other, "source").await))
}

#[tokio::test]
async fn the_backend_is_given_or_overridden_or_registered() {
    let error = by_name(&Locks::new(Memory::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownBackend);
    assert!(error.to_string().contains("macro behaviour"), "{error}");

    let registered = Locks::new(Memory::new());
    dlock::register("macro behaviour", registered.clone()).expect("the name is free");
    assert!(by_name(&registered).await.expect("it is registered"));
    by_default().await.expect("the only one is the default");

    let other = Locks::new(Memory::new());
    let call = async { (by_name(&registered).await, by_name(&other).await) };
    let (in_registered, in_other) = dlock::with_backend("macro behaviour", other.clone(), call).await;
    assert!(!in_registered.expect("free") && in_other.expect("free"));

    let given = dlock::with_backend("macro behaviour", other.clone(), by_expression(&registered, &other));
    assert_eq!(given.await.expect("free"), (true, false));
}

#[distributed_lock(key = "<name>", backend = "memory")]
async fn named(name: &str) -> Result<(), Error> {
    panic!("the body of {name} ran")
}

#[tokio::test]
async fn a_key_that_no_lock_can_have_is_an_error_and_the_body_does_not_run() {
    on_memory(async |_| {
        for name in ["", "\0", &"x".repeat(513)] {
            assert_eq!(named(name).await.unwrap_err().kind(), ErrorKind::InvalidKey);
        }
    })
    .await;
}

#[distributed_lock(key = "cancelled", backend = "memory")]
async fn waits_forever() -> Result<(), Error> {
    pending().await
}

#[tokio::test]
async fn a_cancelled_call_leaves_the_lock_free() {
    on_memory(async |locks| {
        tokio::select! {
            biased;
            _ = waits_forever() => unreachable!("it never returns"),
            () = async {
                while !is_held(&locks, "cancelled").await {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        let guard = locks.lock("cancelled").acquire().await.expect("it was given back");
        guard.release().await.expect("it is ours");
    })
    .await;
}

#[distributed_lock(key = "page_<id>", mode = "read", backend = "memory", wait = "no")]
async fn read_page<F: Future>(id: u64, meanwhile: F) -> Result<F::Output, Error> {
    Ok(meanwhile.await)
}

#[distributed_lock(key = "page_<id>", mode = "write", backend = "memory", wait = "no")]
async fn write_page(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[tokio::test]
async fn readers_run_side_by_side_and_no_writer_beside_them() {
    on_memory(|_| async {
        let inner = read_page(7, async { write_page(7).await.unwrap_err().kind() });
        assert_eq!(inner.await.unwrap(), ErrorKind::Deadlock, "a reader would wait for itself");
        let (ready, done) = (Barrier::new(2), Notify::new());
        let other = async {
            ready.wait().await;
            let beside =
                (read_page(7, async {}).await.is_ok(), write_page(7).await.map_err(|error| error.kind()));
            done.notify_one();
            beside
        };
        let reading = read_page(7, async {
            ready.wait().await;
            done.notified().await;
        });
        let (reading, beside) = tokio::join!(reading, other);
        reading.unwrap();
        assert_eq!(beside, (true, Err(ErrorKind::Busy)));
        assert_eq!(write_page(7).await.unwrap(), 7);
    })
    .await;
}

#[distributed_lock(key = "gpu", permits = 3, take = <gpus>, backend = "memory", wait = "no")]
async fn train<F: Future>(gpus: u32, meanwhile: F) -> Result<F::Output, Error> {
    Ok(meanwhile.await)
}

#[distributed_lock(key = "gpu", permits = 3, backend = "memory", wait = "no")]
async fn infer() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "gpu", permits = 4, take = { 1 + 1 }, backend = "memory", wait = "no")]
async fn misjudge() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn as_many_run_as_there_are_permits_and_a_call_has_as_many_as_it_needs() {
    on_memory(|_| async {
        let kinds = train(2, async {
            infer().await.unwrap();
            (train(2, async {}).await.unwrap_err().kind(), misjudge().await.unwrap_err().kind())
        });
        assert_eq!(kinds.await.unwrap(), (ErrorKind::Deadlock, ErrorKind::Conflict));
        train(3, async {}).await.unwrap();
        for absurd in [0, 4, u32::MAX] {
            assert_eq!(train(absurd, async {}).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
    })
    .await;
}
