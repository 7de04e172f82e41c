//! Processes that read, write and take permits, some of which are killed, and what they have written down.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use dlock_core::{Locks, Wait};

/// Nanoseconds since the machine started: a time that compares between processes.
pub(crate) fn boot_time() -> i64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    time.tv_sec() * 1_000_000_000 + time.tv_nsec()
}

/// Reads, writes and takes permits in turn, and writes down when, with which fence.
pub(crate) async fn mix(locks: &Locks, logs: &Path) {
    let (until, mut log) = (Instant::now() + Duration::from_secs(4), String::new());
    while Instant::now() < until {
        let (kind, taken) = [("read", 1), ("write", 1), ("permits", 1), ("permits", 2)][fastrand::usize(..4)];
        let guard = match kind {
            "read" => locks.lock("k").read().with_wait(Wait::Forever).acquire().await,
            "write" => locks.lock("k").with_wait(Wait::Forever).acquire().await,
            _ => locks.semaphore("s", 3).take(taken).with_wait(Wait::Forever).acquire().await,
        };
        let (guard, begin) = (guard.unwrap(), boot_time());
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
        let end = boot_time();
        if guard.check().is_ok() {
            writeln!(log, "{kind} {taken} {} {begin} {end}", guard.fence().unwrap()).unwrap();
            std::fs::write(logs.join(format!("log-{}", std::process::id())), &log).unwrap();
        }
        drop(guard.release().await);
    }
}

struct Section {
    kind: String,
    taken: i64,
    fence: u64,
    begin: i64,
    end: i64,
}

/// Has four processes that `start` mix, of which two are killed and followed by others, and checks that none was where
/// it must not be.
pub(crate) async fn some_are_killed(logs: &Path, start: impl Fn() -> std::process::Child) {
    let mut others: Vec<_> = (0..4).map(|_| start()).collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(900)).await;
        let mut killed = others.swap_remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
        others.push(start());
    }
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    check(&sections(logs));
}

fn sections(logs: &Path) -> Vec<Section> {
    let mut sections = Vec::new();
    for file in std::fs::read_dir(logs).unwrap().flatten() {
        if !file.file_name().to_string_lossy().starts_with("log-") {
            continue;
        }
        for line in std::fs::read_to_string(file.path()).unwrap().lines() {
            let mut words = line.split(' ');
            let kind = words.next().unwrap().to_owned();
            let numbers: Vec<i64> = words.map(|word| word.parse().unwrap()).collect();
            let [taken, fence, begin, end] = numbers[..] else { continue };
            sections.push(Section { kind, taken, fence: fence.unsigned_abs(), begin, end });
        }
    }
    sections
}

fn check(sections: &[Section]) {
    assert!(sections.len() > 30, "{} sections", sections.len());
    for (n, one) in sections.iter().enumerate() {
        let overlaps = |other: &&Section| other.begin < one.end && one.begin < other.end;
        let others = sections.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, other)| other);
        if one.kind == "permits" {
            // Whoever began last among those that overlap sees all of them.
            let at_begin = |other: &&Section| {
                other.kind == "permits" && other.begin <= one.begin && one.begin < other.end
            };
            let taken: i64 = others.filter(at_begin).map(|other| other.taken).sum();
            assert!(taken + one.taken <= 3, "{} permits", taken + one.taken);
        } else if one.kind == "write" {
            for other in others.filter(|other| other.kind != "permits") {
                assert!(!overlaps(&other), "a {} beside a writer", other.kind);
                assert_eq!(other.fence < one.fence, other.end <= one.begin, "a fence of a {}", other.kind);
            }
        }
    }
}
