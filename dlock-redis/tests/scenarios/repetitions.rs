//! Replies that arrive twice, so that all later ones on their connection are one behind.

use std::time::Duration;

use dlock_core::{Fence, Guard, Locks};
use dlock_redis::Redis;
use dlock_rig::proxy::{Direction, Flow};
use tokio::task::JoinHandle;

use crate::support::{Proxied, locks, over, patient_for, soon, take, until};

/// Withdrawals whose connection is gone are repeated for as long as a lease. A third of it, as long as a request may
/// take, is longer than a busy machine takes to let two of them through in the order that the test is about.
const LEASE: Duration = Duration::from_secs(15);

fn asks(locks: &Locks, key: &str) -> JoinHandle<dlock_core::Result<Option<Guard>>> {
    let lock = locks.lock(key);
    tokio::spawn(async move { lock.try_acquire().await })
}

async fn no_grant_by_the_reply_to_another_request(form: &str) {
    let on = Proxied::start();
    let theirs = locks(&format!("{}{form}", on.server.url()), LEASE).await;
    let _guards = [take(&theirs, "busy").await, take(&theirs, "wanted").await];
    let redis = Redis::connect(&format!("{}{form}", on.url())).await.unwrap();
    let ours = patient_for(LEASE, redis, LEASE);
    take(&ours, "before").await.release().await.unwrap();
    let asked = || on.proxy.requests().get("EVALSHA").copied().unwrap_or(0);
    let (connections, asked_before) = (on.proxy.traffic().connections, asked());

    on.proxy.repeat_reply(1, "EVALSHA");
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let busy = asks(&ours, "busy");
    until("the first reply", || on.proxy.repeated() == 1).await;
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let free = asks(&ours, "free");
    until("the second request", || asked() > asked_before + 1).await;
    // Both get the first reply.
    on.proxy.set(Direction::ToClient, Flow::Pass);
    assert!(soon("the first reply", busy).await.unwrap().unwrap().is_none());
    let replaced = || on.proxy.traffic().connections > connections;
    until("the second reply", || free.is_finished() || replaced()).await;
    // This would get the reply to the second request, which is a grant.
    let wanted = asks(&ours, "wanted");
    until("the third request", || asked() > asked_before + 2 || replaced()).await;
    on.proxy.set(Direction::ToServer, Flow::Pass);
    let wanted = soon("the answer", wanted).await.unwrap().unwrap();
    assert!(wanted.is_none(), "somebody else has it: {wanted:?}");
    assert!(soon("the answer", free).await.unwrap().unwrap().is_some(), "nobody else has it");
}

#[tokio::test]
async fn the_reply_to_another_request_grants_no_lock() {
    no_grant_by_the_reply_to_another_request("").await;
}

#[tokio::test]
async fn the_reply_to_another_request_grants_no_lock_that_is_shared_with_redisson() {
    no_grant_by_the_reply_to_another_request("?redisson=true").await;
}

/// Makes two requests on one connection, the second of which gets the reply to the first.
async fn shifted<A, B>(
    (on, ours): (&Proxied, &Locks),
    first: impl Future<Output = A> + Send + 'static,
    second: impl Future<Output = B> + Send + 'static,
) -> (A, B)
where
    A: Send + 'static,
    B: Send + 'static,
{
    // The connection is open.
    ours.inspect("free").await.unwrap();
    let asked = || on.proxy.requests().values().sum::<u64>();
    let asked_before = asked();
    let repeated_before = on.proxy.repeated();
    on.proxy.repeat_reply(1, "EVAL");
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let first = tokio::spawn(first);
    until("the first reply", || on.proxy.repeated() > repeated_before).await;
    let second = tokio::spawn(second);
    until("the second request", || asked() > asked_before + 1).await;
    on.proxy.set(Direction::ToClient, Flow::Pass);
    (soon("the first answer", first).await.unwrap(), soon("the second answer", second).await.unwrap())
}

async fn administration_trusts_only_its_own_replies(form: &str) {
    let on = Proxied::start();
    let theirs = locks(&format!("{}{form}", on.server.url()), LEASE).await;
    let redis = Redis::connect(&format!("{}{form}", on.url())).await.unwrap();
    let ours = over(redis.clone(), LEASE);
    let fence = take(&ours, "before").await.fence().unwrap();
    assert!(redis.fenced_set("data", "new", Fence::new(fence.get() + 1)).await.unwrap());
    let release = |key: &'static str| {
        let ours = ours.clone();
        async move { ours.force_release(key).await }
    };
    let inspect = {
        let ours = ours.clone();
        async move { ours.inspect("free").await }
    };
    let list = {
        let ours = ours.clone();
        async move { ours.holders().await }
    };
    let write = async move { redis.fenced_set("data", "old", fence).await };

    let _held = take(&theirs, "a").await;
    let (first, second) = shifted((&on, &ours), release("a"), release("free")).await;
    assert!(first.unwrap() && !second.unwrap_or(false), "it released nothing");
    let _held = take(&theirs, "b").await;
    let (first, second) = shifted((&on, &ours), release("b"), write).await;
    assert!(first.unwrap() && !second.unwrap_or(false), "it wrote nothing");
    let _held = take(&theirs, "c").await;
    let (first, second) = shifted((&on, &ours), release("c"), inspect).await;
    assert!(first.unwrap() && second.is_err(), "nobody has it");
    let _held = [take(&theirs, "d").await, take(&theirs, "e").await];
    let (first, second) = shifted((&on, &ours), release("d"), list).await;
    assert!(first.unwrap() && second.is_err(), "not who has what");
}

#[tokio::test]
async fn administration_and_fenced_writes_trust_only_their_own_replies() {
    administration_trusts_only_its_own_replies("").await;
}

#[tokio::test]
async fn administration_of_locks_that_are_shared_with_redisson_trusts_only_its_own_replies() {
    administration_trusts_only_its_own_replies("?redisson=true").await;
}
