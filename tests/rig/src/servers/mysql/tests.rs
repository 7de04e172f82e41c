use super::*;

#[test]
fn what_was_written_survives_a_crash_and_not_the_next_server() {
    let mut server = MysqlServer::start().unwrap();
    server.query("CREATE TABLE a (b int); INSERT INTO a VALUES (7)");
    server.restart().unwrap();
    assert_eq!(server.query("SELECT b FROM a"), "7");
    drop(server);
    let other = MysqlServer::start().unwrap();
    assert!(other.try_query("SELECT b FROM a").unwrap_err().to_string().contains("doesn't exist"));
}

#[test]
fn a_frozen_server_answers_once_it_thaws() {
    let server = MysqlServer::start().unwrap();
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
    let server = MysqlServer::options().stepped_clock().start().unwrap();
    let now = || server.query("SELECT unix_timestamp()").parse::<i64>().unwrap();
    let before = now();
    server.clock().ahead(Duration::from_secs(3600));
    assert!((3600..3660).contains(&(now() - before)));
}
