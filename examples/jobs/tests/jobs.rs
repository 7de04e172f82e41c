//! The program, end to end, with real processes.

use std::process::Command;

#[cfg(feature = "redis")]
use dlock_rig::servers::redis::RedisServer;

fn each_firing_runs_once_although_a_replica_dies(options: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_jobs"))
        .args(["--firings", "2", "--lease", "3000", "--every", "2"])
        .args(options)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // It fails by itself when a job ran twice, or began twice without a cause.
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("is killed in the middle").count(), 1, "{text}");
    let mut ran: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(": ran ")).map(|(_, firing)| firing).collect();
    for job in ["invoices", "report"] {
        assert!(ran.iter().filter(|firing| firing.starts_with(job)).count() >= 2, "{text}");
    }
    ran.sort_unstable();
    let all = ran.len();
    ran.dedup();
    assert_eq!(ran.len(), all, "{text}");
}

#[test]
fn each_firing_runs_once_with_a_file_although_a_replica_dies() {
    each_firing_runs_once_although_a_replica_dies(&[]);
}

#[cfg(feature = "redis")]
#[test]
fn each_firing_runs_once_with_a_server_although_a_replica_dies() {
    let server = RedisServer::start().unwrap();
    each_firing_runs_once_although_a_replica_dies(&["--locks", &server.url()]);
}
