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
fn a_connection_that_a_signal_interrupted_is_told_from_one_that_failed() {
    let error = |kind| redis::RedisError::from(std::io::Error::from(kind));
    assert!(is_interrupted(&error(std::io::ErrorKind::Interrupted)));
    assert!(!is_interrupted(&error(std::io::ErrorKind::ConnectionRefused)));
}
