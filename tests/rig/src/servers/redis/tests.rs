use super::*;

#[test]
fn a_restart_loses_everything_unless_the_server_keeps_it() {
    let mut forgetful = RedisServer::start().unwrap();
    let mut durable = RedisServer::options().append_only("always").start().unwrap();
    for server in [&mut forgetful, &mut durable] {
        server.command::<()>(&["SET", "key", "value"]);
        server.restart().unwrap();
    }
    assert_eq!(forgetful.keys(), [""; 0]);
    assert_eq!(durable.keys(), ["key"]);
}

#[test]
fn a_password_and_users_with_limited_rights_are_asked_for() {
    let server =
        RedisServer::options().password("secret").user("reader", "pw", &["~open:*", "+get"]).start().unwrap();
    server.command::<()>(&["SET", "closed", "1"]);
    let nobody = Client::open(format!("redis://{}", server.address())).unwrap();
    let refused =
        nobody.get_connection().and_then(|mut it| redis::cmd("GET").arg("open:1").query::<()>(&mut it));
    assert!(refused.unwrap_err().to_string().contains("NOAUTH"));
    let mut reader = Client::open(server.url_as("reader", "pw")).unwrap().get_connection().unwrap();
    assert_eq!(redis::cmd("GET").arg("open:1").query::<Option<String>>(&mut reader), Ok(None));
    assert!(redis::cmd("GET").arg("closed").query::<()>(&mut reader).is_err());
    assert!(redis::cmd("SET").arg("open:1").arg(1).query::<()>(&mut reader).is_err());
}

#[test]
fn a_frozen_server_carries_out_what_it_was_sent_once_it_thaws() {
    let server = RedisServer::start().unwrap();
    let mut connection = server.admin();
    connection.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    server.pause();
    assert!(redis::cmd("SET").arg("late").arg(1).query::<()>(&mut connection).unwrap_err().is_timeout());
    server.resume();
    assert_eq!(server.keys(), ["late"]);
}

#[test]
fn a_step_of_the_servers_clock_ends_leases() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    server.command::<()>(&["SET", "key", "value", "PX", "30000"]);
    server.clock().behind(Duration::from_secs(60));
    let left: i64 = server.command(&["PTTL", "key"]);
    assert!((80_000..=90_000).contains(&left), "{left}");
    server.clock().ahead(Duration::from_secs(60));
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_tls_server_is_reached_with_its_authority_only() {
    let server = RedisServer::options().tls().start().unwrap();
    let cli = Program { name: "redis-cli", package: "redis-tools" };
    let port = server.tls_port.unwrap().to_string();
    let authority = server.certificates().authority().to_str().unwrap();
    let ping =
        |options: &[&str]| cli.run(["-h", "localhost", "-p", &port].iter().chain(options).chain(&["PING"]));
    assert_eq!(ping(&["--tls", "--cacert", authority]).unwrap(), "PONG\n");
    assert!(ping(&["--tls"]).is_err(), "an unknown authority");
    assert!(ping(&[]).is_err(), "no encryption");
}

#[test]
fn calls_are_counted_by_the_server() {
    let server = RedisServer::start().unwrap();
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    server.command::<()>(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "n"]);
    let calls = server.command_calls();
    assert_eq!((calls.get("eval"), calls.get("incr")), (Some(&1), Some(&1)));
}

#[test]
fn a_cluster_moves_slots_and_fails_over() {
    let mut cluster = RedisCluster::start().unwrap();
    let (old, other) = (cluster.master_of("room"), (cluster.master_of("room") + 1) % 3);
    cluster.command_at::<()>("room", &["SET", "room", "1"]);
    let migration = cluster.begin_migration("room", other);
    cluster.migrate_keys(migration);
    let asked = cluster.nodes()[old].try_command::<String>(&["GET", "room"]).unwrap_err();
    assert_eq!(asked.code(), Some("ASK"));
    cluster.finish_migration(migration);
    assert_eq!(cluster.master_of("room"), other);
    assert_eq!(cluster.command_at::<String>("room", &["GET", "room"]), "1");

    cluster.handoff(other).unwrap();
    let promoted = cluster.master_of("room");
    assert_eq!(promoted, cluster.partner_of(other));
    cluster.node_mut(promoted).kill();
    cluster.wait_for_failover(promoted).unwrap();
    assert_eq!(cluster.master_of("room"), other);
    assert_eq!(cluster.keys(), ["room"]);
}

#[test]
fn sentinels_promote_the_replica_of_a_dead_master() {
    let mut watched = RedisSentinel::start_with(RedisServer::options().password("secret")).unwrap();
    assert_eq!(watched.master(), Some(0));
    watched.servers()[0].command::<()>(&["SET", "key", "1"]);
    watched.servers()[0].wait_for_a_replica().unwrap();
    watched.server_mut(0).kill();
    watched.wait_for_failover(0).unwrap();
    assert_eq!(watched.servers()[1].keys(), ["key"]);
}

#[test]
fn a_connection_that_a_signal_interrupted_is_told_from_one_that_failed() {
    let error = |kind| redis::RedisError::from(std::io::Error::from(kind));
    assert!(is_interrupted(&error(std::io::ErrorKind::Interrupted)));
    assert!(!is_interrupted(&error(std::io::ErrorKind::ConnectionRefused)));
}
