//! Futures that are dropped in the middle.

use std::time::Duration;

use dlock_rig::servers::redis::RedisServer;
use dlock_testkit::cancel::{Cut, every_await_point};

use crate::support::{LONG, held, locks, until};

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
