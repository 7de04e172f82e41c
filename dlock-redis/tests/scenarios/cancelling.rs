//! Futures that are dropped in the middle.

use std::time::Duration;

use dlock_rig::servers::redis::RedisServer;
use dlock_testkit::cancel::{Cut, every_await_point};
use tokio::task::JoinSet;

use crate::support::{LONG, Proxied, held, locks, until};

#[tokio::test]
async fn a_waiter_dropped_at_any_await_leaves_neither_a_lock_nor_a_channel() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let holder = theirs.lock("room").acquire().await.unwrap();
    let lock = ours.lock("room").with_wait(Duration::from_millis(150));
    let cuts = every_await_point(
        || lock.acquire(),
        async |_: Cut, output| assert!(output.is_none_or(|it| it.is_err())),
    )
    .await;
    assert!(cuts >= 4, "{cuts} cuts");
    holder.release().await.unwrap();
    until("the clean-up", || ours.stats().background == 0 && held(&server).is_empty()).await;
    until("the channels to be left", || server.channels().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_acquires_aborted_at_random_moments_leave_nothing() {
    let on = Proxied::start();
    // A real network takes its time, so that aborts hit every moment.
    on.proxy
        .set(dlock_rig::proxy::Direction::ToClient, dlock_rig::proxy::Flow::Delay(Duration::from_millis(2)));
    let locks = on.locks(LONG).await;
    for _ in 0..10 {
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            let lock = locks.lock(format!("room_{}", number % 40));
            tasks.spawn(async move {
                let guard = lock.acquire().await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                drop(guard);
            });
        }
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..300))).await;
            if fastrand::bool() {
                // Aborts whatever task comes next.
                tasks.abort_all();
                break;
            }
        }
        while tasks.join_next().await.is_some() {}
    }
    until("the clean-up", || {
        locks.stats().background == 0 && locks.stats().held == 0 && held(&on.server).is_empty()
    })
    .await;
    until("the channels to be left", || on.server.channels().is_empty()).await;
}
