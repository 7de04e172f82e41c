//! Nodes, and quorums of them.

use std::time::Duration;

use dlock_core::{Clock, Error, ErrorKind, Guard, Locks, Memory, Result};
use dlock_quorum::{Quorum, QuorumBuilder, QuorumVotes};

pub(crate) const KEY: &str = "k";

/// So many independent nodes.
pub(crate) fn nodes(count: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::new()).collect()
}

/// The same on one clock.
pub(crate) fn nodes_on(clock: &Clock, count: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::with_clock(clock.clone())).collect()
}

/// A quorum of nodes that never forget.
pub(crate) fn durable(nodes: &[Memory]) -> QuorumBuilder {
    Quorum::builder(nodes.to_vec()).with_durable_nodes()
}

/// Locks on it, as one process has them.
pub(crate) fn process(nodes: &[Memory]) -> Locks {
    Locks::new(durable(nodes).build().expect("a sound quorum"))
}

/// With a lease that is short enough to see its renewals.
pub(crate) fn short(nodes: &[Memory], lease: Duration) -> Locks {
    let quorum = durable(nodes).build().expect("a sound quorum");
    Locks::builder(quorum).with_lease(lease).build().expect("sound options")
}

/// Asks for the lock once.
pub(crate) async fn try_take(locks: &Locks) -> Result<Option<Guard>> {
    locks.lock(KEY).try_acquire().await
}

/// Takes the lock, which is free.
pub(crate) async fn take(locks: &Locks) -> Guard {
    try_take(locks).await.expect("it can be asked for").expect("it is free")
}

/// Asks again and again until `test` holds. Blocks the thread: the keeper has its own, and time may be stopped here.
#[track_caller]
pub(crate) fn until(what: &str, mut test: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !test() {
        assert!(std::time::Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nobody has anything on any of these nodes any more, soon.
#[track_caller]
pub(crate) fn left_with_nothing(nodes: &[Memory]) {
    until("giving everything back", || nodes.iter().all(|node| node.held() == 0));
}

/// How many nodes took part, by an error that says that it was no majority.
#[track_caller]
pub(crate) fn votes(error: &Error) -> QuorumVotes {
    assert_eq!(error.kind(), ErrorKind::QuorumNotReached, "{error}");
    assert!(error.is_retryable() && !error.is_busy());
    let source = std::error::Error::source(error).expect("it says how many took part");
    *source.downcast_ref::<QuorumVotes>().expect("it says how many took part")
}
