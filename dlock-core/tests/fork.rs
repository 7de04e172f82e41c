//! What locks do in a child made by `fork`. One program without a test runner, since only the thread that forks lives
//! on in the child.

use std::io::{Read, Write};
use std::time::Duration;

use dlock_core::backend::Backoff;
use dlock_core::{Ended, ErrorKind, Locks, Memory};
use fork::{Fork, WEXITSTATUS, WIFEXITED};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it comes")
}

async fn renewed(locks: &Locks) {
    let before = locks.stats().renewals;
    let renewal = async {
        while locks.stats().renewals == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    in_time(renewal).await;
}

/// The parent's locks are refused, and new ones work.
async fn child(old: Locks, guards: [dlock_core::Guard; 2]) {
    let [released, dropped] = guards;
    let held = released.held();
    assert!(!held.is_held() && !held.is_at_risk());
    assert_eq!([held.remaining(), released.remaining()], [Some(Duration::ZERO); 2]);
    assert_eq!(in_time(held.ended()).await, Ended::Lost);
    in_time(dropped.lost()).await;
    let errors = [
        held.check().expect_err("the parent has it"),
        dropped.check().expect_err("the parent has it"),
        old.lock("other").acquire().await.expect_err("nobody would renew it"),
        old.inspect("k").await.expect_err("the connections are the parent's"),
        old.shutdown(Duration::from_secs(5)).await.expect_err("there is nothing of ours"),
        released.release().await.expect_err("it is the parent's"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().contains("before the process forked"), "{error}");
    }
    drop(dropped);
    let memory = Memory::new();
    let locks = Locks::builder(memory.clone()).with_lease(Duration::from_millis(300)).build().expect("locks");
    let guard = locks.lock("k").acquire().await.expect("it is free");
    renewed(&locks).await;
    guard.check().expect("it is held");
    drop(guard);
    locks.shutdown(Duration::from_secs(20)).await.expect("it is given back");
    assert_eq!(memory.held(), 0);
}

fn pauses() -> String {
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
    format!("{:?}", [(); 8].map(|()| backoff.next_pause()))
}

fn pauses_of_a_child() -> String {
    let (mut from_child, mut to_parent) = std::io::pipe().expect("a pipe");
    match fork::fork().expect("a child") {
        Fork::Child => std::process::exit(i32::from(write!(to_parent, "{}", pauses()).is_err())),
        Fork::Parent(child) => {
            drop(to_parent);
            let mut told = String::new();
            from_child.read_to_string(&mut told).expect("text");
            let status = fork::waitpid(child).expect("it ends");
            assert!(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed: {status}");
            told
        }
    }
}

/// The workers of a server that forks before it serves would otherwise ask all at once, again and again.
fn the_children_of_one_parent_do_not_pause_for_the_same_times() {
    // If the thread had a source, its children would have copies of it from now on.
    let before = pauses();
    let mut all = [before, pauses_of_a_child(), pauses_of_a_child(), pauses()];
    all.sort();
    assert!(all.windows(2).all(|two| two[0] != two[1]), "{all:#?}");
}

/// Its parent is in that body.
fn a_child_goes_on_in_no_body_of_its_parent_and_enters_none_of_its_locks() {
    let locks = Locks::new(Memory::new());
    let lock = locks.lock("k");
    let is_child = std::cell::Cell::new(false);
    let parents = runtime();
    let ran = parents.block_on(lock.run(async {
        match fork::fork().expect("a child") {
            Fork::Parent(child) => {
                let status = fork::waitpid(child).expect("it ends");
                assert!(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed: {status}");
            }
            Fork::Child => {
                is_child.set(true);
                let error = lock.acquire().await.map(|_| ()).expect_err("the parent has it");
                if error.kind() != ErrorKind::Closed {
                    std::process::exit(2);
                }
                tokio::task::yield_now().await;
                std::process::exit(3);
            }
        }
    }));
    if is_child.get() {
        let is_refused = ran.is_err_and(|error| error.kind() == ErrorKind::Closed);
        std::process::exit(if is_refused { 0 } else { 4 });
    }
    ran.expect("it was held all the time");
}

fn main() {
    a_child_goes_on_in_no_body_of_its_parent_and_enters_none_of_its_locks();
    the_children_of_one_parent_do_not_pause_for_the_same_times();
    let memory = Memory::new();
    let locks = Locks::builder(memory.clone()).with_lease(Duration::from_millis(300)).build().expect("locks");
    let parents = runtime();
    let guards = parents.block_on(async {
        let guards = [locks.lock("a").acquire().await, locks.lock("b").acquire().await];
        guards.map(|guard| guard.expect("it is free"))
    });
    match fork::fork().expect("a child") {
        Fork::Child => {
            // Its threads are not here, so that it cannot be ended.
            std::mem::forget(parents);
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                runtime().block_on(child(locks, guards));
            }));
            std::process::exit(i32::from(ran.is_err()));
        }
        Fork::Parent(child) => {
            let status = fork::waitpid(child).expect("it ends");
            assert!(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed: {status}");
            parents.block_on(async {
                renewed(&locks).await;
                for guard in guards {
                    guard.release().await.expect("it was kept all the time");
                }
            });
            assert_eq!(memory.held(), 0);
        }
    }
}
