//! What servers do not allow, and what others have left there.

use std::time::Duration;

use dlock_core::backend::Severity;
use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
use dlock_zk::{Acl, AuthId, Permission};
use tokio::task::JoinSet;
use zookeeper::{Acls, Client, CreateMode};

use crate::support::{
    LONG, Proxied, SHORT, builder, error_of, lock_nodes, locks, over, soon, until, until_in_line, wait_for,
};

/// A node of another library's client.
const FOREIGN: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

async fn free(locks: &Locks, key: &str) {
    soon("a free lock", locks.lock(key).acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_another_client_wrote_into_its_node_is_shown_in_part() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    free(&locks, "room").await;
    server.admin().create(FOREIGN, &[b'x'; 900_000], NodeKind::PersistentSequential);
    let busy = error_of(locks.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Busy);
    assert!(busy.to_string().len() < 5_000, "{} bytes", busy.to_string().len());
    let holder = locks.inspect("room").await.unwrap().unwrap();
    assert!(holder.label.is_some_and(|label| label.starts_with('x') && label.len() < 5_000));
}

#[tokio::test]
async fn a_node_that_may_not_be_deleted_is_named_and_goes_with_its_session() {
    let server = ZooKeeperServer::start().unwrap();
    let read_and_create = Acl::new(Permission::READ | Permission::CREATE, AuthId::anyone());
    let ours = over(builder(&server.url(), LONG).with_parent_acl([read_and_create]).connect().await.unwrap());
    let theirs = locks(&server, LONG).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let denied = error_of(guard.release().await, ErrorKind::Denied);
    assert!(denied.to_string().contains("/dlock/room"), "{denied}");
    let waiter = wait_for(&theirs, "room");
    until_in_line(server.admin(), "room", 2).await;
    drop(ours.shutdown(Duration::from_secs(5)).await);
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    assert_eq!(lock_nodes(server.admin()), 1);
}

#[tokio::test]
async fn a_session_that_may_not_make_its_own_node_is_found_by_doctor_and_grants_once_it_may() {
    let server = ZooKeeperServer::start().unwrap();
    let root = Client::connector().with_auth("digest", b"super:admin");
    let root = root.connect(&server.address().to_string()).await.unwrap();
    let may = |rights: Permission| [Acl::new(rights, AuthId::anyone())];
    let no_create = may(Permission::READ | Permission::WRITE | Permission::DELETE);
    for (path, acl) in [("/dlock", may(Permission::ALL)), ("/dlock/%sessions", no_create)] {
        root.create(path, b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    }
    let locks = locks(&server, LONG).await;
    let denied = error_of(locks.lock("room").acquire().await, ErrorKind::Denied);
    assert!(denied.to_string().contains("/dlock/%sessions"), "{denied}");
    let dangers = async || {
        let findings = locks.diagnose().await.unwrap();
        let dangers = findings.into_iter().filter(|finding| finding.severity == Severity::Danger);
        dangers.map(|finding| (finding.subject, finding.found)).collect::<Vec<_>>()
    };
    let found = dangers().await;
    assert!(found.iter().any(|(what, found)| *what == "rights" && found.contains("%sessions")), "{found:?}");
    root.set_acl("/dlock/%sessions", &may(Permission::ALL), None).await.unwrap();
    assert!(dangers().await.iter().all(|(what, _)| *what != "rights"));
    free(&locks, "room").await;
}

#[tokio::test]
async fn a_quota_that_is_used_up_refuses_acquires_and_takes_no_lock_away() {
    let server = ZooKeeperServer::options().property("zookeeper.enforceQuota", "true").start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    free(&locks, "hall").await;
    let admin = server.admin();
    admin.create("/zookeeper/quota/dlock", b"", NodeKind::Persistent);
    let now = 6;
    let limits = format!("count=-1,bytes=-1;byteHardLimit=-1;countHardLimit={now}");
    admin.create("/zookeeper/quota/dlock/zookeeper_stats", b"count=0,bytes=0", NodeKind::Persistent);
    admin.create("/zookeeper/quota/dlock/zookeeper_limits", limits.as_bytes(), NodeKind::Persistent);
    let mut guards = Vec::new();
    let refused = loop {
        match locks.lock(format!("key_{}", guards.len())).acquire().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
        assert!(guards.len() < 50, "the quota is not enforced");
    };
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    guard.check().unwrap();
    guard.release().await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    until("the clean-up", || lock_nodes(admin) == 0).await;
}

#[tokio::test]
async fn a_server_that_takes_no_second_connection_of_a_host_is_unavailable_and_keeps_the_first() {
    let server = ZooKeeperServer::options().setting("maxClientCnxns", "2").start().unwrap();
    let ours = locks(&server, LONG).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let second = locks(&server, LONG).await;
    let refused = builder(&server.url(), LONG).connect().await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    guard.check().unwrap();
    guard.release().await.unwrap();
    free(&second, "room").await;
}

#[tokio::test]
async fn a_session_whose_own_node_or_its_directory_is_deleted_makes_it_anew() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, SHORT).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let admin = server.admin();
    for whole_directory in [false, true] {
        let [own] = &admin.children("/dlock/%sessions")[..] else { panic!("one session") };
        let path = format!("/dlock/%sessions/{own}");
        let before = admin.node(&path).unwrap().czxid;
        admin.delete(&path);
        if whole_directory {
            admin.delete("/dlock/%sessions");
        }
        until("another node", || admin.node(&path).is_some_and(|node| node.czxid != before)).await;
    }
    until("trust", || guard.check().is_ok()).await;
    assert_eq!(locks.stats().lost, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_thousand_locks_and_as_many_waiters_outlast_the_loss_of_their_connection() {
    const LOCKS: usize = 1_000;
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    // More paths than the client library can watch again at once.
    let key = |number: usize| format!("{number:0200}");
    let mut tasks = JoinSet::new();
    for number in 0..LOCKS {
        let (held, awaited) = (ours.lock(key(number)), theirs.lock(key(LOCKS + number)));
        tasks.spawn(async move { (held.acquire().await.unwrap(), awaited.acquire().await.unwrap()) });
    }
    let (guards, others): (Vec<_>, Vec<_>) = soon("all locks", tasks.join_all()).await.into_iter().unzip();
    let waiters: Vec<_> = (0..LOCKS).map(|number| wait_for(&ours, &key(LOCKS + number))).collect();
    until("all waiters", || lock_nodes(on.server.admin()) == 3 * LOCKS as u64).await;
    let connects = on.proxy.requests()["CONNECT"];
    on.proxy.cut();
    until("the next connection", || on.proxy.requests()["CONNECT"] > connects).await;
    until("all locks", || guards.iter().all(|guard| guard.check().is_ok())).await;
    assert_eq!(ours.stats().lost, 0);
    drop((guards, others));
    for waiter in waiters {
        drop(soon("a lock", waiter).await.unwrap().unwrap());
    }
    until("the clean-up", || lock_nodes(on.server.admin()) == 0).await;
}

#[tokio::test]
async fn a_chroot_that_may_not_be_made_is_a_refusal_and_not_a_server_that_is_away() {
    let server = ZooKeeperServer::start().unwrap();
    let connect = async |tail: &str| {
        let url = format!("zk://{}{tail}?create_chroot=true", server.address());
        builder(&url, LONG).connect().await.map(drop)
    };
    let own = format!("zk://shop:secret@{}/shop?create_chroot=true", server.address());
    let ours = over(builder(&own, LONG).connect().await.unwrap());
    error_of(connect("/shop/app").await, ErrorKind::Denied);
    let theirs = over(builder(&server.url(), LONG).connect().await.unwrap());
    let guard = theirs.lock("room").acquire().await.unwrap();
    let node = &server.admin().children("/dlock/room")[0];
    let error = error_of(connect(&format!("/dlock/room/{node}/app")).await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("ephemeral"), "{error}");
    guard.release().await.unwrap();
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[cfg(feature = "sasl")]
#[tokio::test]
async fn who_logs_in_by_sasl_keeps_others_out_and_a_wrong_password_is_denied() {
    let jaas = std::env::temp_dir().join(format!("dlock-zk-{}.jaas", std::process::id()));
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    std::fs::write(&jaas, format!("Server {{ {module} required user_shop=\"secret\"; }};")).unwrap();
    let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
    let options = ZooKeeperServer::options()
        .property("java.security.auth.login.config", jaas.to_str().unwrap())
        .property("zookeeper.authProvider.1", provider);
    let server = options.start().unwrap();
    let login = |user: &str| builder(&format!("zk://{user}@{}/?sasl=digest-md5", server.address()), LONG);
    let ours = over(login("shop:secret").connect().await.unwrap());
    let guard = ours.lock("room").acquire().await.unwrap();
    let acl = server.admin().access("/dlock/room");
    assert_eq!(acl, [(31, "sasl:shop".to_owned())]);
    let theirs = locks(&server, LONG).await;
    error_of(theirs.lock("room").acquire().await, ErrorKind::Denied);
    error_of(login("shop:wrong").connect().await.map(drop), ErrorKind::Denied);
    guard.release().await.unwrap();
    std::fs::remove_file(jaas).unwrap();
}
