//! URLs that contradict themselves, name what no server can have, or stand in the wrong place: what is said to them.

mod support;

use support::{Done, Store, lines};

fn list(url: &str) -> Done {
    Store::at(url).plain(&["ls"]).env("DLOCK_URL", url).done()
}

/// Asserts that a URL is refused before any server is asked: nothing listens at port 1.
#[track_caller]
fn refused(url: &str, says: &str) {
    let done = list(url);
    assert_eq!((done.code, done.out.as_str(), lines(&done.err).len()), (64, "", 1), "{url}: {}", done.err);
    assert!(done.err.contains(says), "{says} is missing in the answer to {url}: {}", done.err);
    assert!(!done.err.contains("hunter2") && done.err.len() < 2_000, "{}", done.err);
}

#[test]
fn what_a_url_says_in_two_places_is_refused_whether_they_agree_or_not() {
    for url in [
        "redis://127.0.0.1:1/3?db=5",
        "redis+sentinel://127.0.0.1:1/m/2?db=2",
        "redis://u:hunter2@127.0.0.1:1?user=v",
        "redis://:hunter2@127.0.0.1:1?pass=hunter3",
        "rediss+cluster://u@127.0.0.1:1?user=u",
    ] {
        refused(url, "twice");
    }
    // Where it stands once, it is taken from either place.
    for url in ["redis://u@127.0.0.1:1?pass=hunter2&db=1", "redis://127.0.0.1:1/0?user=u&pass=hunter2"] {
        assert_eq!(list(url).code, 69, "{url}");
    }
}

#[test]
fn a_parameter_that_the_server_of_the_url_does_not_have_is_refused_and_not_ignored() {
    for (url, says) in [
        ("redis+cluster://127.0.0.1:1?db=1", "no numbered databases"),
        ("redis+cluster://127.0.0.1:1?db=0", "no numbered databases"),
        ("redis://127.0.0.1:1?sentinel_pass=hunter2", "redis+sentinel://"),
        ("redis+cluster://127.0.0.1:1?sentinel_user=hunter2", "redis+sentinel://"),
        ("redis+unix:///run/x?sentinel_user=hunter2", "redis+sentinel://"),
        ("zk://127.0.0.1:1?root_certificate=/hunter2", "zk+tls://"),
        ("redis://127.0.0.1:1?min_replicas=4294967295", "0 to 1000"),
        ("redis://127.0.0.1:1/2147483648", "database"),
    ] {
        refused(url, says);
    }
}

#[test]
fn an_address_that_no_server_can_have_is_a_mistake_and_not_a_server_that_is_away() {
    let long = "x".repeat(200);
    for url in [
        "redis+unix:///run/a%00b",
        &format!("redis+unix:///{long}"),
        "postgres://u:hunter2@127.0.0.1:1/d?host=/a%00b",
        &format!("postgres://u:hunter2@127.0.0.1:1/d?host=/{long}"),
        "postgres://u%00x:hunter2@127.0.0.1:1/d",
        "postgres://u:hunter2@127.0.0.1:1/d%00x",
        "postgres://u:hunter2@127.0.0.1:1/d?application_name=a%00b",
        "mysql://u%00x:hunter2@127.0.0.1:1/d",
        "mysql://u:hunter2@127.0.0.1:1/d%00x",
        &format!("mysql://u:hunter2@127.0.0.1:1/d?socket=/{long}"),
        "mysql://u:hunter2@127.0.0.1:1/d?socket=",
    ] {
        refused(url, "configure on");
    }
    for url in [
        "postgres://u:hunter2@127.0.0.1:1,127.0.0.1:1/d",
        "postgres://u:hunter2@127.0.0.1,127.0.0.2:1/d",
        "postgres://u:hunter2@/d?port=1&host=127.0.0.1,127.0.0.2",
        "mysql://u:hunter2@127.0.0.1,127.0.0.2/d",
    ] {
        refused(url, "one host");
    }
}

#[test]
fn what_is_too_long_is_not_repeated() {
    let long = "x".repeat(100_000);
    for url in [
        format!("redis://127.0.0.1:1?prefix={long}"),
        format!("redis://{long}:1"),
        format!("zk://{long}:1"),
        format!("zk://127.0.0.1:1?base=/a//{long}"),
        format!("postgres://{long}:1/d"),
        format!("mysql://{long}:hunter2@127.0.0.1:1/d"),
        format!("sqlite:///{long}"),
        format!("quorum:redis://{long}:1|redis://127.0.0.1:1|redis://127.0.0.1:2"),
    ] {
        refused(&url, "long");
    }
}

#[test]
fn another_spelling_of_a_scheme_is_answered_with_what_to_write() {
    for (url, says) in [
        ("ZK+TLS://u:hunter2@h", "write zk+tls://"),
        ("Rediss+Cluster://:hunter2@h", "write rediss+cluster://"),
        ("REDIS+SENTINEL://:hunter2@h/m", "write redis+sentinel://"),
        ("redis-sentinel://:hunter2@h/m", "write redis+sentinel://"),
        ("redis-cluster://:hunter2@h", "write redis+cluster://"),
        ("valkeys://:hunter2@h", "write rediss://"),
        ("zookeeper+tls://u:hunter2@h", "write zk+tls://"),
    ] {
        refused(url, says);
    }
}

#[test]
fn a_url_in_the_place_of_its_file_is_not_repeated() {
    let store = Store::at("");
    for url in ["redis://:hunter2@h", "hunter2@h:6379", "quorum:redis://:hunter2@h|zk://h"] {
        let done = store.plain(&["--url-file", url, "ls"]).done();
        assert!(done.code == 64 && !done.err.contains("hunter2"), "{}", done.err);
        assert!(done.err.contains("--locks"), "{}", done.err);
    }
    let path = store.path("large");
    std::fs::write(&path, "x".repeat(10_000_000)).unwrap();
    let done = store.plain(&["--url-file", path.to_str().unwrap(), "ls"]).done();
    assert!(done.code == 64 && done.err.contains("too long"), "{}", done.err);
}
