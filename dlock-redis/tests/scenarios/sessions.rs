//! Sessions where servers do not agree.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_redis::Redis;
use dlock_rig::proxy::{Proxy, Resp};
use dlock_rig::servers::redis::RedisPair;

use crate::support::{Proxied, error_of, soon, until};

/// Connections of one address lead to the master and to a replica that has lost it, as behind a load balancer.
#[tokio::test]
async fn a_replica_that_lags_does_not_say_that_a_session_is_over() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let pair = RedisPair::start().unwrap();
    let redis = Redis::connect(&pair.master().url()).await.unwrap();
    let ours = Locks::builder(redis).with_session(TIMEOUT).build().unwrap();
    let guard = ours.lock("room").acquire().await.unwrap();
    until("the replica", || pair.replica().keys().contains(&"dlock:room".to_owned())).await;
    pair.black_hole_the_replication();
    let proxy = Proxy::speaking(Resp, pair.master().address()).unwrap();
    let redis = Redis::connect(&pair.master().url_through(proxy.address())).await.unwrap();
    let theirs = Locks::new(redis);
    // The connection of this runtime. That of dlock's own thread, which looks at the record, is opened later.
    assert!(theirs.lock("other").try_acquire().await.unwrap().is_some());
    proxy.retarget(pair.replica().address());
    error_of(theirs.lock("room").with_wait(TIMEOUT * 2).acquire().await, ErrorKind::TimedOut);
    guard.check().expect("its session lives");
    soon("the release", guard.release()).await.expect("nobody took it away");
}

/// The lease of the lock is hours, and no request is on its way for so long.
#[tokio::test]
async fn what_an_acquire_may_have_left_under_a_session_is_withdrawn_for_no_longer_than_without_one() {
    let proxied = Proxied::start();
    let redis = Redis::connect(&proxied.url()).await.unwrap();
    let locks = Locks::builder(redis)
        .with_lease(Duration::from_secs(3_600))
        .with_request_timeout(Duration::from_millis(500))
        .with_session(Duration::from_secs(20))
        .build()
        .unwrap();
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    proxied.proxy.black_hole();
    error_of(locks.lock("room").with_wait(Duration::from_secs(1)).acquire().await, ErrorKind::Unknown);
    // What was on its way may arrive, for all that is known here.
    proxied.proxy.cut();
    proxied.proxy.mend();
    locks.drain(Duration::from_secs(40)).await.expect("nothing can arrive any more");
}
