//! The program, end to end: small sales with real processes.

use std::process::{Command, Output};

use serde_json::Value;

fn flash_sale(options: &[&str]) -> Output {
    match Command::new(env!("CARGO_BIN_EXE_flash-sale")).args(options).output() {
        Ok(output) => output,
        Err(error) => panic!("cannot start flash-sale: {error}"),
    }
}

/// A sale of 60 vouchers by 2 workers to 160 customers.
fn small_sale(more: &[&str]) -> (Output, Vec<Value>) {
    let options = ["--json", "--stock", "60", "--customers", "160", "--workers", "2", "--lease", "1000"];
    let output = flash_sale(&[&options[..], more].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = match serde_json::from_str(&text) {
        Ok(document) => document,
        Err(error) => panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)),
    };
    let rounds = document["rounds"].as_array().cloned().unwrap_or_default();
    assert_eq!(rounds.len(), 4, "{text}");
    (output, rounds)
}

#[test]
fn a_locked_sale_is_exact_although_workers_die_and_freeze_and_an_unlocked_one_loses_updates() {
    is_exact(&[]);
}

#[cfg(feature = "postgres")]
#[test]
fn a_sale_with_locks_in_postgres_is_exact() {
    let server =
        dlock_rig::servers::postgres::PostgresServer::start().unwrap_or_else(|error| panic!("{error}"));
    is_exact(&["--locks", &format!("{}&migrate=true", server.url())]);
}

#[cfg(feature = "mysql")]
#[test]
fn a_sale_with_locks_in_mariadb_is_exact() {
    let server = dlock_rig::servers::mysql::MysqlServer::start().unwrap_or_else(|error| panic!("{error}"));
    is_exact(&["--locks", &format!("{}?migrate=true", server.url())]);
}

/// The sale with these options loses updates without locks, and none with them.
fn is_exact(options: &[&str]) {
    let (output, rounds) = small_sale(options);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{log}", output.status);

    let [unlocked, locked, incidents, segments] = &rounds[..] else { panic!("{rounds:?}") };
    assert!(unlocked["lost_updates"].as_i64() > Some(0), "without a lock nothing was lost: {unlocked}");
    assert!(unlocked["oversold"].as_i64() > Some(0), "without a lock nothing was oversold: {unlocked}");
    for round in [locked, incidents, segments] {
        assert_eq!(round["sold"], 60, "{round}\n{log}");
        assert_eq!(round["left"], 0, "{round}\n{log}");
        assert_eq!(round["lost_updates"], 0, "{round}\n{log}");
        assert_eq!(round["oversold"], 0, "{round}\n{log}");
    }
    assert!(incidents["refused"].as_i64() > Some(0), "the frozen worker's write: {incidents}\n{log}");
    assert!(segments["against_one_lock"].as_f64() > Some(0.0), "{segments}\n{log}");
    assert!(incidents["takeover_ms"].as_f64() > Some(0.0), "{incidents}\n{log}");
}

#[test]
fn locks_in_memory_are_refused_with_the_reason() {
    let output = flash_sale(&["--locks", "memory:"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("processes of their own") && text.contains("sqlite:///"), "{text}");
}

#[test]
fn locks_that_cannot_be_reached_end_the_sale_with_an_error_and_no_table() {
    let output = flash_sale(&[
        "--locks",
        "sqlite:///no/such/directory/locks.db",
        "--stock",
        "20",
        "--customers",
        "20",
    ]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
