//! Commands that run once in a window, as their users meet them: real processes over a real store.

mod support;

use support::{Done, Store, lines, until};

/// Skipped, and what it said.
fn skipped(done: &Done) -> String {
    assert_eq!((done.code, done.out.as_str(), lines(&done.err).len()), (80, "", 1), "{}", done.err);
    done.err.clone()
}

#[test]
fn a_command_runs_once_in_its_window_and_who_skips_it_says_who_ran_it_when() {
    let store = Store::new();
    let report =
        |options: &[&str]| store.run("report", &[&["--once", "1h"], options].concat(), "echo sent").start();
    let first = report(&[]);
    let pid = first.pid();
    let first = first.wait();
    assert_eq!((first.code, first.out.as_str(), first.err.as_str()), (0, "sent\n", ""));
    let said = skipped(&report(&[]).wait());
    assert!(said.contains("skipped report: it was run by") && said.contains(&format!("{pid}@")), "{said}");
    assert!(said.contains(" ago; the window is open again in 59m"), "{said}");
    let quiet = report(&["--skip-code", "0"]).wait();
    assert_eq!((quiet.code, quiet.out.as_str()), (0, ""), "{}", quiet.err);
    assert_eq!(store.run("other", &["--once", "1h"], "true").done().code, 0);
    let asked = store.dlock(["release", "--force", "report"]).say("n\n").done();
    assert_eq!(asked.code, 77, "{}", asked.err);
    assert!(
        asked.err.contains("No process holds it any more") && !asked.err.contains("stopped"),
        "{}",
        asked.err
    );
    let opened = store.dlock(["release", "--force", "--yes", "report"]).done();
    assert_eq!(opened.code, 0, "{}", opened.err);
    assert_eq!(report(&[]).wait().code, 0);
}

#[test]
fn of_many_hosts_that_start_it_at_once_one_runs_it() {
    let store = Store::new();
    let log = store.path("log");
    let script = format!("echo ran >> {}; sleep 0.2", log.display());
    let all: Vec<_> = (0..6).map(|_| store.run("report", &["--once", "1h"], &script).start()).collect();
    let mut codes: Vec<_> = all.into_iter().map(|one| one.wait().code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 80, 80, 80, 80, 80]);
    assert_eq!(std::fs::read_to_string(log).unwrap(), "ran\n");
}

#[test]
fn a_command_that_fails_leaves_the_window_as_it_was_said() {
    let store = Store::new();
    assert_eq!(store.run("open", &["--once", "1h"], "exit 3").done().code, 3);
    assert_eq!(store.run("open", &["--once", "1h"], "true").done().code, 0);
    skipped(&store.run("open", &["--once", "1h"], "true").done());
    let closing = ["--once", "1h", "--on-error", "skip"];
    assert_eq!(store.run("closed", &closing, "exit 3").done().code, 3);
    skipped(&store.run("closed", &closing, "true").done());
    assert_eq!(store.dlock(["run", "--key", "none", "--once", "1h", "--", "/nowhere"]).done().code, 127);
    assert_eq!(store.run("none", &["--once", "1h"], "true").done().code, 0);
}

#[test]
fn who_waits_runs_the_command_of_a_host_that_died_and_skips_it_where_that_is_said() {
    let store = Store::new();
    let job = |key: &'static str, options: &[&'static str], script: &'static str| {
        store.run(key, &[&["--once", "1h", "--lease", "3s"], options].concat(), script).start()
    };
    let begin = "echo ready; exec sleep 60";
    let (mut again, mut never) = (job("again", &[], begin), job("never", &["--on-crash", "skip"], begin));
    again.says("ready");
    never.says("ready");
    let said = skipped(&job("never", &["--on-crash", "skip"], "true").wait());
    assert!(said.contains("skipped never: it is being run by"), "{said}");
    let waiting = job("again", &[], "echo again");
    waiting.waits_in_the_program();
    again.signal(9);
    never.signal(9);
    let again = waiting.wait();
    assert_eq!((again.code, again.out.as_str()), (0, "again\n"), "{}", again.err);
    skipped(&job("again", &[], "true").wait());
    skipped(&job("never", &["--on-crash", "skip", "--wait", "700ms"], "true").wait());
}

#[test]
fn the_command_is_stopped_when_its_lock_is_taken_away_and_may_run_again() {
    let store = Store::new();
    let script = "trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = store.run("report", &["--once", "1h", "--lease", "6s"], script).start();
    running.says("ready");
    assert_eq!(store.dlock(["release", "--force", "--yes", "report"]).done().code, 0);
    let done = running.wait();
    assert_eq!((done.code, done.out.as_str()), (79, "ready\nstopped\n"), "{}", done.err);
    assert_eq!(store.run("report", &["--once", "1h"], "true").done().code, 0);
}

#[test]
fn who_waits_for_a_run_ends_by_a_signal_and_leaves_nothing() {
    let store = Store::new();
    let mut running = store.run("report", &["--once", "1h"], "echo ready; read end; true").start();
    running.says("ready");
    let waiting = store.run("report", &["--once", "1h"], "echo it ran").start();
    waiting.waits_in_the_program();
    waiting.signal(15);
    let waiting = waiting.wait();
    assert_eq!((waiting.code, waiting.out.as_str()), (128 + 15, ""), "{}", waiting.err);
    let pid = running.pid();
    running.signal(15);
    assert_eq!(running.wait().code, 128 + 15, "the signal is passed on");
    until("it to be gone", || !store.is_alive(pid));
    assert_eq!(store.run("report", &["--once", "1h"], "true").done().code, 0, "a run that failed");
}

#[test]
fn options_that_contradict_each_other_run_nothing() {
    let store = Store::new();
    for options in [
        &["--once", "1h", "--read"][..],
        &["--once", "1h", "--fair"],
        &["--once", "1h", "--permits", "2"],
        &["--once", "0s"],
        &["--once", "31days"],
        &["--once", "hourly"],
        &["--once", "25h", "--on-crash", "skip"],
        &["--on-error", "skip"],
    ] {
        let done = store.run("report", options, "echo it ran").done();
        assert_eq!((done.code, done.out.as_str()), (64, ""), "{options:?}: {}", done.err);
        assert!(!done.err.contains("hold_at_least"), "{options:?}: {}", done.err);
    }
}
