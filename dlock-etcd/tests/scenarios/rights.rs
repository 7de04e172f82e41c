//! Users and their rights, certificates, and a database whose space is used up.

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_etcd::Etcd;
use dlock_rig::servers::etcd::EtcdServer;

use crate::support::{locks, soon, until_in_line, wait_for};

#[tokio::test]
async fn a_user_of_the_prefix_can_do_everything_there_and_nothing_elsewhere() {
    let server =
        EtcdServer::options().password("secret").user("shop", "hunter2", &["dlock/"]).start().unwrap();
    let url = server.url_as("shop", "hunter2");
    let ours = locks(&url).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&ours, "room");
    until_in_line(&server.admin(), "room", 2).await;
    guard.release().await.unwrap();
    soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
    ours.semaphore("seats", 2).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(ours.holders().await.unwrap().len(), 0);
    assert!(!ours.diagnose().await.unwrap().is_empty());
    let elsewhere = Etcd::builder(&url).with_prefix("other").build().unwrap();
    let error = Locks::new(elsewhere).lock("room").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for (user, password) in [("shop", "wrong"), ("nobody", "hunter2")] {
        let error = Etcd::connect(&server.url_as(user, password)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let anybody = format!("etcd://{}", server.address());
    assert_eq!(Etcd::connect(&anybody).await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_database_without_space_grants_nothing_says_so_and_lets_holders_go_on() {
    let server = EtcdServer::options().quota(2 << 20).start().unwrap();
    let (admin, ours) = (server.admin(), locks(&server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let text = "x".repeat(100_000);
    while admin.alarms().is_empty() {
        let _ = admin.try_ctl(&["put", "filler", &text]);
    }
    let error = ours.lock("other").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("etcdctl alarm disarm"), "{error}");
    let findings = ours.diagnose().await.unwrap();
    assert!(findings.iter().any(|finding| finding.subject == "space"), "{findings:?}");
    guard.check().unwrap();
    guard.release().await.unwrap();
    admin.compact();
    admin.defragment();
    admin.disarm();
    soon("the lock", ours.lock("other").acquire()).await.unwrap().release().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_over_tls_is_verified() {
    let server = EtcdServer::options().tls().start().unwrap();
    let builder = Etcd::builder(&server.tls_url())
        .with_root_certificate(std::fs::read(server.certificates().authority()).unwrap());
    let ours = Locks::new(builder.connect().await.unwrap());
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    let error = Etcd::connect(&server.tls_url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
