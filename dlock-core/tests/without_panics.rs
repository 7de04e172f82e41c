//! Runtimes without timers, and futures that change runtimes, in a program that ends at its first panic, as one does
//! that is built with `panic = "abort"`.

use std::sync::Once;
use std::task::{Context, Waker};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Locks, Memory, Wait};
use dlock_quorum::Quorum;
use pollster::block_on;
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn end_at_a_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            eprintln!("{panic}");
            std::process::abort();
        }));
    });
}

/// Without timers, and without I/O.
fn bare() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// Whatever waits, or may have to.
async fn all_of_it(memory: &Memory, ours: &Locks, theirs: &Locks) {
    let lock = ours.lock("k").with_wait(SHORT).with_request_timeout(Duration::from_secs(1));
    let held = theirs.lock("k").acquire().await.unwrap();
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(ours.lock_all(["j", "k"]).try_acquire().await.unwrap().is_none());
    let (taken, released) = futures_util::future::join(ours.lock("k").acquire(), held.release()).await;
    released.unwrap();
    // A second one waits in the line of this process.
    let mut taken = taken.unwrap();
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
    memory.faults().set_delay(Duration::from_millis(2));
    taken.check().unwrap();
    assert!(ours.inspect("k").await.unwrap().is_some());
    taken.downgrade().await.unwrap();
    taken.release().await.unwrap();
    memory.faults().set_delay(Duration::ZERO);
    memory.faults().set_hanging(true);
    let tried = lock.clone().with_request_timeout(SHORT).try_acquire().await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unknown);
    memory.faults().set_hanging(false);
    ours.lock("s").with_wait(SHORT).segmented(2).run(async |_| {}).await.unwrap();
}

fn whole_life(memory: &Memory, ours: &Locks, theirs: &Locks) {
    let run = async {
        all_of_it(memory, ours, theirs).await;
        for locks in [ours, theirs] {
            locks.drain(LONG).await.unwrap();
            locks.shutdown(LONG).await.unwrap();
        }
    };
    bare().block_on(run);
}

#[test]
fn all_waits_end_in_time_in_a_runtime_without_timers() {
    end_at_a_panic();
    let memory = Memory::new();
    whole_life(&memory, &Locks::new(memory.clone()), &Locks::new(memory.clone()));
}

#[test]
fn a_quorum_waits_in_a_runtime_without_timers() {
    end_at_a_panic();
    let nodes = [Memory::new(), Memory::new(), Memory::new()];
    let locks = [(); 2].map(|()| {
        Locks::new(
            Quorum::builder(nodes.clone()).with_durable_nodes().with_node_timeout(SHORT / 6).build().unwrap(),
        )
    });
    bare().block_on(async {
        let held = locks[0].lock("k").acquire().await.unwrap();
        nodes[0].faults().set_hanging(true);
        let lock = locks[1].lock("k");
        assert_eq!(
            lock.clone().with_wait(SHORT * 4).acquire().await.unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        let (taken, released) = futures_util::future::join(lock.acquire(), held.release()).await;
        released.unwrap();
        taken.unwrap().release().await.unwrap();
    });
}

type Acquiring = std::pin::Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

fn is_pending(acquiring: &mut Acquiring) -> bool {
    acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// The one that waits first, and one behind it.
fn waiting(locks: &Locks) -> [Acquiring; 2] {
    [(); 2].map(|()| {
        let lock = locks.lock("k").with_wait(Wait::Forever);
        let acquiring: Acquiring = Box::pin(async move { lock.acquire().await });
        acquiring
    })
}

#[test]
fn an_acquire_goes_on_in_another_runtime_or_in_none_when_its_own_has_ended() {
    end_at_a_panic();
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory));
    let held = block_on(theirs.lock("k").acquire()).unwrap();
    let [mut first, mut second] = waiting(&ours);
    let begun_in = Builder::new_current_thread().enable_all().build().unwrap();
    begun_in.block_on(async { assert!(is_pending(&mut first) && is_pending(&mut second)) });
    assert!(is_pending(&mut first) && is_pending(&mut second));
    drop(begun_in);
    assert!(is_pending(&mut first) && is_pending(&mut second));
    bare().block_on(async { assert!(is_pending(&mut first) && is_pending(&mut second)) });
    block_on(held.release()).unwrap();
    drop(block_on(first).unwrap());
    drop(bare().block_on(second).unwrap());
}

#[test]
fn a_request_that_waits_for_its_answer_goes_on_in_another_runtime() {
    end_at_a_panic();
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    memory.faults().set_hanging(true);
    let [mut first, _] = waiting(&locks);
    let begun_in = Builder::new_current_thread().enable_all().build().unwrap();
    begun_in.block_on(async { assert!(is_pending(&mut first)) });
    drop(begun_in);
    assert!(is_pending(&mut first));
    memory.faults().set_hanging(false);
    drop(bare().block_on(first).unwrap());
}

#[test]
fn what_was_begun_outside_of_a_runtime_goes_on_in_one() {
    end_at_a_panic();
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory));
    let held = block_on(theirs.lock("k").acquire()).unwrap();
    let [mut first, mut second] = waiting(&ours);
    assert!(is_pending(&mut first) && is_pending(&mut second));
    block_on(held.release()).unwrap();
    drop(bare().block_on(first).unwrap());
    drop(Builder::new_current_thread().enable_all().build().unwrap().block_on(second).unwrap());
}
