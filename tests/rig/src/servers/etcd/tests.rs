use super::*;

use crate::proxy::{Grpc, Loss, Proxy};

/// A lease of this many seconds.
fn lease(admin: &EtcdAdministrator, seconds: u64) -> i64 {
    let said = admin.ctl(&["lease", "grant", &seconds.to_string()]);
    let id = said.split(' ').nth(1).unwrap();
    u64::from_str_radix(id, 16).unwrap().cast_signed()
}

fn put_with(admin: &EtcdAdministrator, lease: i64, key: &str, value: &str) {
    drop(admin.ctl(&["put", &format!("--lease={lease:x}"), "--", key, value]));
}

#[test]
fn the_administrator_sees_and_changes_keys() {
    let server = EtcdServer::start().unwrap();
    let admin = server.admin();
    admin.put("rooms/b", "a \"quoted\"\nline \\ ");
    admin.put("rooms/a", "");
    admin.put("rooms/b", "1");
    admin.put("roomy", "-");
    let b = admin.entry("rooms/b").unwrap();
    assert_eq!((&*b.value, b.mod_revision - b.create_revision, b.lease), ("1", 2, None));
    assert_eq!(admin.keys("rooms/"), ["rooms/b", "rooms/a"], "in the order of their creation");
    assert_eq!(admin.revision(), b.mod_revision + 1);
    assert!(admin.delete("rooms/b"));
    assert!(!admin.delete("rooms/b"));
    assert_eq!(admin.entry("rooms/b"), None);
    admin.put("rooms/b", "a \"quoted\"\nline \\ ");
    assert_eq!(admin.entry("rooms/b").unwrap().value, "a \"quoted\"\nline \\ ");
    assert_eq!(admin.watches(), 0);
    assert_eq!((admin.calls()["Put"], admin.calls()["DeleteRange"]), (5, 2));
}

#[test]
fn a_restart_keeps_keys_and_leases() {
    let mut server = EtcdServer::start().unwrap();
    let mine = lease(&server.admin(), 600);
    put_with(&server.admin(), mine, "mine", "kept");
    server.restart().unwrap();
    let admin = server.admin();
    let entry = admin.entry("mine").unwrap();
    assert_eq!((&*entry.value, entry.lease), ("kept", Some(mine)));
    assert_eq!(admin.leases(), [mine]);
    admin.revoke(mine);
    assert_eq!((admin.entry("mine"), admin.leases()), (None, vec![]));
}

#[test]
fn a_frozen_server_answers_once_it_thaws() {
    let server = EtcdServer::start().unwrap();
    let admin = server.admin();
    server.pause();
    assert!(admin.health(EARLY_ANSWER).is_err());
    server.resume();
    assert_eq!(admin.entry("a"), None);
}

#[test]
fn a_server_with_users_refuses_others_and_lets_them_write_where_they_may() {
    let server = EtcdServer::options().password("secret").user("ann", "pw", &["rooms/"]).start().unwrap();
    server.admin().put("hall", "1");
    let address = format!("--endpoints={}", server.address());
    let as_who = |words: &[&str]| {
        let mut all = vec![&*address];
        all.extend(words);
        Program { name: "etcdctl", package: "etcd-client" }.run(all)
    };
    assert!(as_who(&["put", "rooms/1", "1"]).is_err());
    assert!(as_who(&["--user=ann:wrong", "put", "rooms/1", "1"]).is_err());
    assert!(as_who(&["--user=ann:pw", "put", "hall", "1"]).unwrap_err().to_string().contains("denied"));
    as_who(&["--user=ann:pw", "put", "rooms/1", "1"]).unwrap();
    assert_eq!(server.url(), format!("etcd://root:secret@{}", server.address()));
}

#[test]
fn a_server_with_tls_proves_itself() {
    let server = EtcdServer::options().tls().start().unwrap();
    let endpoint = server.tls_url().replace("etcd+tls", "https");
    let authority = format!("--cacert={}", server.certificates().authority().display());
    let ctl = Program { name: "etcdctl", package: "etcd-client" };
    ctl.run([&format!("--endpoints={endpoint}"), &authority, "put", "a", "1"]).unwrap();
    assert_eq!(server.admin().entry("a").unwrap().value, "1");
    let unknown = [&format!("--endpoints={endpoint}"), "--command-timeout=2s", "put", "a", "2"];
    assert!(ctl.run(unknown).is_err(), "nobody else signed it");
}

#[test]
fn a_small_quota_is_used_up_and_comes_back_with_compaction_and_defragmentation() {
    let mut server = EtcdServer::options().quota(256 << 10).start().unwrap();
    let admin = server.admin();
    let value = "x".repeat(16 << 10);
    let full = (0..64).find_map(|_| admin.try_ctl(&["put", "big", &value]).err()).unwrap().to_string();
    assert!(full.contains("database space exceeded"), "{full}");
    assert_eq!(admin.alarms().len(), 1);
    // It starts all the same.
    server.restart().unwrap();
    let compacted = admin.compact();
    assert_eq!(admin.revision(), compacted);
    admin.defragment();
    admin.disarm();
    assert_eq!(admin.alarms(), [""; 0]);
    admin.put("big", "1");
    let early = admin.try_ctl(&["get", "big", &format!("--rev={}", compacted - 1)]).unwrap_err();
    assert!(early.to_string().contains("compacted"), "{early}");
}

#[test]
fn a_cluster_survives_its_leader_and_takes_it_back() {
    let mut cluster = EtcdCluster::start().unwrap();
    cluster.admin().put("a", "1");
    let first = cluster.leader().unwrap();
    cluster.server_mut(first).kill();
    let second = cluster.wait_for_leader().unwrap();
    assert_ne!(first, second);
    cluster.admin().put("a", "2");
    cluster.server_mut(first).restart().unwrap();
    assert_eq!(cluster.servers()[first].admin().entry("a").unwrap().value, "2");
}

#[test]
fn a_leader_that_is_parted_from_the_others_is_replaced_and_follows_once_they_are_joined() {
    let cluster = EtcdCluster::start().unwrap();
    let first = cluster.isolate_leader().unwrap();
    let second = cluster.wait_for_leader().unwrap();
    assert_ne!(first, second);
    cluster.servers()[second].admin().put("a", "1");
    let alone = &cluster.servers()[first].admin();
    assert!(alone.try_ctl(&["--command-timeout=1s", "get", "a"]).is_err(), "it has no majority");
    assert!(alone.health(EARLY_ANSWER).is_err());
    cluster.heal();
    cluster.wait_for_leader().unwrap();
    let end = std::time::Instant::now() + START;
    while alone.health(EARLY_ANSWER).is_err() {
        assert!(std::time::Instant::now() < end, "it stays alone");
    }
    assert_eq!(alone.entry("a").unwrap().value, "1");
}

#[test]
fn a_cluster_that_is_far_apart_answers_late() {
    let cluster = EtcdCluster::start().unwrap();
    cluster.delay(Duration::from_millis(100));
    let begin = std::time::Instant::now();
    cluster.servers()[0].admin().put("a", "1");
    assert!(begin.elapsed() >= Duration::from_millis(200), "there and back");
    cluster.heal();
    assert_eq!(
        cluster.wait_for_leader().and_then(|_| cluster.servers()[1].admin().try_ctl(&["get", "a"])).unwrap(),
        "a\n1\n"
    );
}

#[test]
fn a_server_reads_the_clock_that_the_test_sets() {
    let mut server = EtcdServer::options().stepped_clock().start().unwrap();
    let year = |server: &EtcdServer| {
        let last = server.output().lines().rfind(|line| line.contains("\"ts\":\"")).unwrap().to_owned();
        last.split("\"ts\":\"").nth(1).unwrap()[..4].parse::<i32>().unwrap()
    };
    let now = year(&server);
    let lease = lease(&server.admin(), 600);
    server.clock().ahead(Duration::from_secs(40 * 366 * 86_400));
    server.admin().compact();
    let end = std::time::Instant::now() + START;
    while year(&server) < now + 40 {
        assert!(std::time::Instant::now() < end, "{}", server.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.admin().leases(), [lease], "leases go by the time since the start");
    server.clock().right();
    server.restart().unwrap();
    assert_eq!(server.admin().leases(), [lease]);
}

#[test]
fn a_proxy_tells_requests_apart_and_loses_the_reply_of_one() {
    let server = EtcdServer::start().unwrap();
    let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
    let through = EtcdAdministrator::of(proxy.address(), None);
    through.put("a", "1");
    assert_eq!(through.entry("a").unwrap().value, "1");
    let lease = lease(&through, 600);
    through.ctl(&["lease", "keep-alive", "--once", &format!("{lease:x}")]);
    proxy.lose_reply(2, "PUT", Loss::Cut);
    through.put("a", "2");
    assert!(through.try_ctl(&["put", "a", "3"]).is_err());
    assert_eq!((proxy.lost(), server.admin().entry("a").unwrap().value), (1, "3".to_owned()));
    proxy.lose_request(1, "PUT");
    assert!(through.try_ctl(&["put", "a", "4"]).is_err());
    assert_eq!((proxy.lost(), server.admin().entry("a").unwrap().value), (2, "3".to_owned()));
    let seen = [("LEASEGRANT", 1), ("LEASEKEEPALIVE", 1), ("PUT", 4), ("RANGE", 1)];
    assert_eq!(proxy.requests(), seen.map(|(name, count)| (name.to_owned(), count)).into());
}
