//! Locks that are held for long.

use std::time::Duration;

use dlock_rig::servers::redis::RedisServer;

use crate::support::{held, locks, until};

#[tokio::test]
async fn a_thousand_renewals_never_give_more_than_a_lease_and_lose_nothing() {
    const LOCKS: usize = 25;
    let server = RedisServer::start().unwrap();
    let lease = Duration::from_millis(600);
    let locks = locks(&server.url(), lease).await;
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    let clients = || server.info("connected_clients");
    until("the first renewals", || locks.stats().renewals >= 25).await;
    let connections = clients();
    let mut longest = 0;
    until("a thousand renewals", || {
        longest = longest.max(server.command::<u64>(&["PTTL", "dlock:room_7"]));
        locks.stats().renewals >= 1000
    })
    .await;
    assert!(u128::from(longest) <= lease.as_millis(), "{longest} ms");
    assert_eq!(clients(), connections, "renewals open no connections");
    assert_eq!((locks.stats().lost, locks.stats().held), (0, LOCKS));
    for guard in guards {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(held(&server), [""; 0]);
}
