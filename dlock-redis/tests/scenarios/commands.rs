//! What the operations cost, counted on the wire and at the server.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock_core::Locks;
use dlock_rig::proxy::{Direction, Flow};
use tokio::task::JoinSet;

use crate::support::{LONG, Proxied, over, soon, until};
use dlock_redis::Redis;

/// What went over the wire since the last look.
struct Wire<'a> {
    on: &'a Proxied,
    before: BTreeMap<String, u64>,
}

impl<'a> Wire<'a> {
    fn of(on: &'a Proxied) -> Self {
        Self { on, before: on.proxy.requests() }
    }

    fn sent(&mut self) -> BTreeMap<String, u64> {
        let now = self.on.proxy.requests();
        let sent =
            now.iter().map(|(name, count)| (name.clone(), count - self.before.get(name).unwrap_or(&0)));
        let sent = sent.filter(|(_, count)| *count > 0).collect();
        self.before = now;
        sent
    }
}

fn scripts(count: u64) -> BTreeMap<String, u64> {
    [("EVALSHA".to_owned(), count)].into_iter().filter(|(_, count)| *count > 0).collect()
}

async fn warm(on: &Proxied) -> Locks {
    let locks = on.locks(LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    // The connection for renewals is opened in the background, and each asks for the role.
    until("both connections", || on.proxy.requests().get("HELLO").is_some_and(|asked| *asked >= 4)).await;
    locks
}

#[tokio::test]
async fn an_acquire_and_a_release_are_one_request_each_and_re_entry_is_none() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    let mut wire = Wire::of(&on);
    locks
        .scope(async {
            let guard = locks.lock("room").acquire().await.unwrap();
            assert_eq!(wire.sent(), scripts(1));
            let nested = locks.lock("room").acquire().await.unwrap();
            nested.release().await.unwrap();
            assert_eq!(wire.sent(), scripts(0));
            guard.release().await.unwrap();
            assert_eq!(wire.sent(), scripts(1));
        })
        .await;
}

#[tokio::test]
async fn the_server_runs_the_least_commands_for_a_grant_and_a_release() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    on.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    let mut calls = on.server.command_calls();
    for admin in ["config|resetstat", "info", "hello", "client|setinfo"] {
        calls.remove(admin);
    }
    assert_eq!(calls.remove("evalsha"), Some(2));
    // A write less where the counter keeps up with the clock by itself.
    assert!(calls.values().sum::<u64>() <= 6, "{calls:?}");
}

#[tokio::test]
async fn a_busy_lock_is_one_request_for_who_does_not_wait() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    let _holder = locks.lock("room").acquire().await.unwrap();
    let mut wire = Wire::of(&on);
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    assert!(wire.sent().values().sum::<u64>() <= 1);
}

#[tokio::test]
async fn many_locks_are_renewed_in_a_few_requests() {
    const LOCKS: u64 = 200;
    let on = Proxied::start();
    let locks = over(Redis::connect(&on.url()).await.unwrap(), Duration::from_secs(3));
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    let mut wire = Wire::of(&on);
    let before = locks.stats().renewals;
    until("three renewals of each", || locks.stats().renewals >= before + 3 * LOCKS).await;
    let requests = wire.sent().get("EVALSHA").copied().unwrap_or(0);
    // The engine spreads renewals; those that are due within the same moment go out together.
    assert!(requests <= LOCKS, "{requests} requests for {} renewals", 3 * LOCKS);
    for guard in &guards {
        guard.check().unwrap();
    }
}

/// Has two hundred tasks wait for a lock that somebody else releases and takes again so many times. Returns how many
/// requests all of them made from the first release on.
async fn requests_of_two_hundred_waiters(others: usize) -> u64 {
    let on = Proxied::start();
    let (ours, theirs) = (warm(&on).await, on.locks(LONG).await);
    let first = theirs.lock("room").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = ours.lock("room").with_wait(LONG);
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    until("somebody to listen", || !on.server.channels().is_empty()).await;
    let mut wire = Wire::of(&on);
    first.release().await.unwrap();
    for _ in 0..others {
        let guard = theirs.lock("room").with_wait(LONG).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    soon("everybody's turn", async { while waiters.join_next().await.is_some() {} }).await;
    let published = on.server.command_calls().get("publish").copied().unwrap_or(0);
    assert!(published <= WAITERS + others as u64 + 3, "{published} messages");
    let sent = wire.sent();
    sent.values().sum()
}

const WAITERS: u64 = 200;

#[tokio::test]
async fn a_handoff_among_two_hundred_waiters_is_at_most_two_requests() {
    let sent = requests_of_two_hundred_waiters(0).await;
    assert!(sent <= 2 * (WAITERS + 1), "{sent} requests for {WAITERS} handoffs");
}

#[tokio::test]
async fn a_handoff_between_two_processes_is_at_most_three_requests() {
    let others = 50;
    let (sent, handoffs) = (requests_of_two_hundred_waiters(others).await, WAITERS + others as u64);
    assert!(sent <= 3 * (handoffs + 1), "{sent} requests for {handoffs} handoffs");
}

#[tokio::test]
async fn a_full_call_goes_out_while_another_one_is_under_way() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    let mut wire = Wire::of(&on);
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let mut takers = JoinSet::new();
    // One alone, and two calls of 32.
    for number in 0..65 {
        let lock = locks.lock(format!("room_{number}"));
        takers.spawn(async move { lock.acquire().await.unwrap() });
    }
    let mut sent = 0;
    until("all requests", || {
        sent += wire.sent().get("EVALSHA").copied().unwrap_or(0);
        sent == 3
    })
    .await;
    on.proxy.mend();
    assert_eq!(soon("the locks", takers.join_all()).await.len(), 65);
}
