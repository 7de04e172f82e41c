use super::*;

#[test]
fn what_was_written_survives_a_crash_and_not_the_next_server() {
    let mut server = PostgresServer::start().unwrap();
    server.query("CREATE TABLE a (b int); INSERT INTO a VALUES (7)");
    server.restart().unwrap();
    assert_eq!(server.query("SELECT b FROM a"), "7");
    drop(server);
    let other = PostgresServer::start().unwrap();
    assert!(other.try_query("SELECT b FROM a").unwrap_err().to_string().contains("does not exist"));
}

#[test]
fn passwords_of_other_users_are_checked() {
    let server = PostgresServer::start().unwrap();
    server.query("CREATE USER shop PASSWORD 'right'");
    assert_eq!(psql(&server.url_as("shop", "right"), "SELECT current_user").unwrap(), "shop");
    let error = psql(&server.url_as("shop", "wrong"), "SELECT 1").unwrap_err();
    assert!(error.to_string().contains("password authentication failed"), "{error}");
}

#[test]
fn a_frozen_server_answers_once_it_thaws() {
    let server = PostgresServer::start().unwrap();
    server.pause();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| server.query("SELECT 5"));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!answer.is_finished() && !server.is_running());
        server.resume();
        assert_eq!(answer.join().unwrap(), "5");
    });
}

#[test]
fn the_clock_can_be_stepped() {
    let server = PostgresServer::options().stepped_clock().start().unwrap();
    let now = || server.query("SELECT extract(epoch FROM clock_timestamp())::bigint").parse::<i64>().unwrap();
    let before = now();
    server.clock().ahead(Duration::from_secs(3600));
    assert!((3600..3660).contains(&(now() - before)));
}

#[test]
fn a_standby_follows_its_primary_and_can_take_its_place() {
    let primary = PostgresServer::options().setting("synchronous_commit", "remote_apply").start().unwrap();
    let standby = primary.standby().unwrap();
    primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.query("SELECT pg_reload_conf(), pg_sleep(0.2)");
    primary.query("CREATE TABLE a (b int)");
    assert_eq!(standby.query("SELECT count(*) FROM a"), "0");
    assert!(standby.try_query("INSERT INTO a VALUES (1)").unwrap_err().to_string().contains("read-only"));
    standby.promote();
    standby.query("INSERT INTO a VALUES (1)");
}
