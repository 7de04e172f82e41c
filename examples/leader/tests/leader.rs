//! The program, end to end, with real processes.

use std::process::Command;

#[test]
fn the_next_replica_leads_when_the_leader_is_killed_and_when_it_stops() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_leader")).args(["--lease", "3000"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // It fails by itself when two lead, or when a term is not later than the one before.
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let leaders = |when: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(when));
        lines
            .filter_map(|line| line.split_whitespace().find(|word| word.ends_with(':')))
            .map(str::to_owned)
            .collect()
    };
    let mut led = leaders(": leads, term");
    assert_eq!(led.len(), 3, "{text}");
    led.sort();
    led.dedup();
    assert_eq!(led.len(), 3, "each leads once: {text}");
    assert_eq!(text.lines().filter(|line| line.contains("is killed while it leads")).count(), 1, "{text}");
}
