//! The program, end to end, with real processes.

use std::process::Command;

#[cfg(feature = "postgres")]
use dlock_rig::servers::{pgbouncer::PgBouncer, postgres::PostgresServer};

/// Runs the program, and returns what it printed.
fn deploy(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_migrate")).args(options).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn each_migration_is_applied_once_although_a_replica_dies(options: &[&str]) {
    let text = deploy(&[options, &["--lease", "1000"]].concat());
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("is killed in the middle"), 1, "{text}");
    assert_eq!(count(": applies 2 "), 2, "what was rolled back is done again: {text}");
    assert_eq!(count(": applied "), 4, "{text}");
    assert_eq!(count(": ready, after 0 migrations"), 3, "{text}");
    assert_eq!(count(": ready, after 3 migrations"), 1, "{text}");
}

#[test]
fn each_migration_is_applied_once_to_a_file_although_a_replica_dies() {
    each_migration_is_applied_once_although_a_replica_dies(&[]);
}

#[cfg(feature = "postgres")]
#[test]
fn each_migration_is_applied_once_to_a_server_although_a_replica_dies() {
    let server = PostgresServer::start().unwrap();
    // The lock's statements go through a pooler of transactions, where an advisory lock of the session excludes nobody.
    let pooler = PgBouncer::start(&server).unwrap();
    let locks = format!("{}&migrate=true&statements=simple", pooler.url());
    each_migration_is_applied_once_although_a_replica_dies(&["--database", &server.url(), "--locks", &locks]);
}
