//! The `dlock` program as its users meet it: real processes over a real store.

mod support;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::{Store, lines, until};

#[test]
fn an_empty_store_has_nothing_to_list_and_nobody_to_inspect() {
    let store = Store::new();
    let listed = store.dlock(["ls"]).done();
    assert_eq!((listed.code, listed.out.trim()), (0, "no lock is held"));
    let inspected = store.dlock(["inspect", "room_7"]).done();
    assert_eq!((inspected.code, inspected.out.trim()), (0, "nobody holds room_7"));
    let document = store.dlock(["--json", "ls"]).done().json();
    assert_eq!(document["backend"], "sqlite");
    assert_eq!(document["held"].as_array().unwrap().len(), 0);
    assert!(store.dlock(["--json", "inspect", "room_7"]).done().json()["holder"].is_null());
}

#[test]
fn what_a_command_holds_is_listed_while_it_runs_and_no_longer() {
    let store = Store::new();
    let mut running = store.holding("room_7");
    let listed = store.dlock(["ls"]).done();
    assert_eq!(listed.code, 0, "{}", listed.err);
    let line = lines(&listed.out).into_iter().find(|line| line.starts_with("room_7")).expect("a line for it");
    assert!(line.contains(&format!("{}@", running.pid())) && line.contains("dlock-cli"), "{line}");
    let document = store.dlock(["ls", "--json"]).done().json();
    let held = &document["held"][0];
    assert_eq!((held["key"].as_str(), held["pid"].as_u64()), (Some("room_7"), Some(running.pid().into())));
    assert!(held["fence"].as_u64().is_some_and(|fence| fence > 0));
    assert!(held["expires_in_ms"].as_u64().is_some_and(|left| left <= 30_000));
    assert!(held["since"].as_str().is_some_and(|since| since.ends_with('Z')));
    let inspected = store.dlock(["inspect", "room_7"]).done();
    assert!(inspected.out.contains(&format!("{}@", running.pid())), "{}", inspected.out);
    running.finish();
    assert_eq!(running.wait().code, 0);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held");
}

#[test]
fn the_exit_code_of_the_command_is_passed_through() {
    let store = Store::new();
    for code in [0, 1, 42, 255] {
        let done = store.run("k", &[], &format!("exit {code}")).done();
        assert_eq!(i32::from(done.code), code, "{}", done.err);
        assert_eq!(done.err, "");
    }
    assert_eq!(store.run("k", &[], "kill -KILL $$").done().code, 128 + 9);
    assert_eq!(store.dlock(["run", "--key", "k", "--", "/nowhere/command"]).done().code, 127);
    assert_eq!(store.dlock(["run", "--key", "k", "--", "/"]).done().code, 126);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held");
}

#[test]
fn the_command_has_its_arguments_its_input_and_the_fence() {
    let store = Store::new();
    let mut fences = Vec::new();
    for _ in 0..2 {
        let done = store
            .run("room 7", &[], r#"read word; echo "$DLOCK_KEY|$DLOCK_FENCE|$word""#)
            .say("hello\n")
            .done();
        let text = done.out.trim().to_owned();
        let parts: Vec<&str> = text.split('|').collect();
        assert_eq!((parts[0], parts[2]), ("room 7", "hello"), "{text} {}", done.err);
        fences.push(parts[1].parse::<u64>().expect("a fence"));
    }
    assert!(fences[1] > fences[0], "{fences:?}");
    let done = store.dlock(["run", "--key", "k", "--", "printf", "%s,", "a b", "--json", "-x"]).done();
    assert_eq!(done.out, "a b,--json,-x,");
}

#[test]
fn commands_under_one_key_never_run_side_by_side() {
    let store = Store::new();
    let log = store.path("log");
    let script = format!("echo begin >> {0}; sleep 0.05; echo end >> {0}", log.display());
    let running: Vec<_> = (0..5).map(|_| store.run("k", &["--wait", "forever"], &script).start()).collect();
    for one in running {
        assert_eq!(one.wait().code, 0);
    }
    let text = std::fs::read_to_string(log).unwrap();
    let pairs: Vec<_> = lines(&text);
    assert_eq!(pairs.len(), 10);
    assert!(pairs.chunks(2).all(|pair| pair == ["begin", "end"]), "{pairs:?}");
}

#[test]
fn who_does_not_get_the_lock_in_time_is_told_who_has_it_and_runs_nothing() {
    let store = Store::new();
    let mut running = store.holding("room_7");
    for wait in ["0", "50ms"] {
        let done = store.run("room_7", &["--wait", wait], "echo it ran").done();
        assert_eq!((done.code, done.out.as_str()), (75, ""), "{}", done.err);
        assert!(done.err.contains(&running.pid().to_string()), "{}", done.err);
        assert_eq!(lines(&done.err).len(), 1, "{}", done.err);
    }
    running.finish();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn commands_that_read_run_side_by_side_and_no_other_beside_them() {
    let store = Store::new();
    let reads = |what| store.run("page", &["--read", "--wait", "0"], what);
    let mut running = reads("echo ready; read end; true").start();
    running.says("ready");
    assert_eq!(reads("true").done().code, 0);
    assert_eq!(store.run("page", &["--wait", "0"], "true").done().code, 75);
    running.finish();
    assert_eq!(running.wait().code, 0);
    let mut running = store.holding("page");
    assert_eq!(reads("true").done().code, 75);
    running.finish();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn as_many_commands_run_at_a_time_as_there_are_permits_and_an_operator_changes_their_number() {
    let store = Store::new();
    let resize = |permits| store.dlock(["semaphore", "resize", "gpu", permits]).done();
    let unknown = resize("3");
    assert_eq!(
        (unknown.code, unknown.out.starts_with("there is no semaphore gpu")),
        (0, true),
        "{unknown:?}"
    );
    let takes = |of, take, what| store.run("gpu", &["--permits", of, "--take", take, "--wait", "0"], what);
    let mut running = takes("3", "2", "echo ready; read end; true").start();
    running.says("ready");
    assert_eq!(takes("3", "2", "true").done().code, 75);
    assert_eq!(takes("3", "1", "true").done().code, 0);
    let other = takes("4", "1", "true").done();
    assert_eq!(other.code, 64, "{}", other.err);
    assert_eq!(resize("4").out.trim(), "gpu has 4 permits, and had 3");
    assert_eq!(takes("4", "2", "true").done().code, 0);
    let document = store.dlock(["--json", "semaphore", "resize", "gpu", "5"]).done().json();
    assert_eq!((document["before"].as_u64(), document["permits"].as_u64()), (Some(4), Some(5)));
    running.finish();
    assert_eq!(running.wait().code, 0);
    let mut running = store.holding("page");
    let lock = store.dlock(["semaphore", "resize", "page", "2"]).done();
    assert_eq!(lock.code, 64, "a lock is no semaphore: {}", lock.err);
    running.finish();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn modes_that_exclude_each_other_are_refused_before_anything_runs() {
    let store = Store::new();
    for options in [
        &["--read", "--permits", "2"][..],
        &["--read", "--fair"],
        &["--permits", "2", "--fair"],
        &["--take", "2"],
        &["--permits", "0"],
        &["--permits", "2", "--take", "3"],
    ] {
        let done = store.run("k", options, "echo it ran").done();
        assert_eq!((done.code, done.out.as_str()), (64, ""), "{options:?}: {}", done.err);
    }
    assert_eq!(store.run("k", &["--fair"], "echo it ran").done().out, "it ran\n");
}

#[test]
fn signals_reach_the_command_and_what_it_started() {
    let store = Store::new();
    // A shell has what it starts in the background ignore INT.
    for (name, number, all) in [("TERM", 15, true), ("INT", 2, false), ("USR1", 10, true)] {
        let (mark, begun) = (store.path(name), store.path(&format!("{name}-begun")));
        // A shell that was just forked loses a signal.
        let background = format!(
            "(trap 'touch {}; exit' {name}; touch {begun}; while :; do sleep 0.02; done) & \
             while ! [ -e {begun} ]; do sleep 0.02; done;",
            mark.display(),
            begun = begun.display()
        );
        let script = format!(
            "trap 'echo got {name}; exit 7' {name}; {} echo ready; while :; do sleep 0.02; done",
            if all { &background } else { "" }
        );
        // Also where a script runs these tests in the background.
        let heard = r#"exec env --default-signal=INT "$@""#;
        let mut running = store.run("k", &[], &script).by_shell(heard).start();
        running.says("ready");
        running.signal(number);
        let done = running.wait();
        assert_eq!(done.code, 7, "{name}: {}", done.err);
        assert!(done.out.contains(&format!("got {name}")));
        if all {
            until("the signal to reach what it started", || mark.exists());
        }
    }
    let mut running = store.run("k", &[], "echo ready; exec sleep 60").start();
    running.says("ready");
    running.signal(15);
    assert_eq!(running.wait().code, 128 + 15);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held", "it was given back");
}

#[test]
fn a_command_survives_the_end_of_its_terminal_and_what_is_typed_where_that_was_to_be_ignored() {
    let store = Store::new();
    for number in [1, 2, 3] {
        let ignoring = format!("exec env --ignore-signal={number} \"$@\"");
        let mut running = store.run("k", &[], "echo ready; read end; exit 7").by_shell(&ignoring).start();
        running.says("ready");
        running.signal(number);
        // Passed on after the one before.
        running.signal(10);
        let done = running.wait();
        assert_eq!(done.code, 128 + 10, "{number}: {}", done.err);
    }
    // Also where these tests are run by nohup.
    let heard = r#"exec env --default-signal=HUP "$@""#;
    let mut running = store.run("k", &[], "echo ready; read end; exit 7").by_shell(heard).start();
    running.says("ready");
    running.signal(1);
    assert_eq!(running.wait().code, 128 + 1);
}

#[test]
fn a_signal_during_the_wait_ends_it_and_leaves_nothing() {
    let store = Store::new();
    let mut running = store.holding("k");
    let waiting = store.run("k", &["--wait", "forever"], "echo it ran").start();
    waiting.waits_in_the_program();
    waiting.signal(15);
    let done = waiting.wait();
    assert_eq!((done.code, done.out.as_str()), (128 + 15, ""), "{}", done.err);
    running.finish();
    assert_eq!(running.wait().code, 0);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held");
}

#[test]
fn the_command_is_stopped_when_the_lock_is_lost() {
    let store = Store::new();
    let script = "trap 'echo asked to end; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = store.run("k", &["--lease", "6s"], script).start();
    running.says("ready");
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    let done = running.wait();
    assert_eq!(done.code, 79, "{}", done.err);
    assert!(done.out.contains("asked to end"), "{}", done.out);
    let told = lines(&done.err).into_iter().filter(|line| line.starts_with("dlock: ")).count();
    assert!(done.err.contains("lost") && told == 1, "{}", done.err);
}

/// A script that heeds no TERM, and starts another of which the file has the process id; then says its own.
fn insisting(grandchild: &Path) -> String {
    format!(
        "trap '' TERM; sh -c 'echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.01; done' & \
         while ! [ -e {0} ]; do sleep 0.01; done; echo $$; while :; do sleep 0.02; done",
        grandchild.display()
    )
}

#[test]
fn a_command_that_does_not_end_when_the_lock_is_lost_is_killed_with_what_it_started() {
    let store = Store::new();
    let grandchild = store.path("grandchild");
    let script = insisting(&grandchild);
    let mut running = store.run("k", &["--lease", "6s", "--grace", "200ms"], &script).start();
    running.line();
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    assert_eq!(running.wait().code, 79);
    store.outlives(&grandchild);
}

#[test]
fn a_command_does_not_outlive_the_program_whatever_signal_ends_that() {
    let store = Store::new();
    for (name, number) in [("ALRM", 14), ("XCPU", 24), ("KILL", 9), ("RTMIN", 34)] {
        let grandchild = store.path(name);
        let script = insisting(&grandchild);
        let mut running = store.run(name, &["--grace", "50ms"], &script).start();
        let pid: u32 = running.line().trim().parse().unwrap();
        running.signal(number);
        until("the command to be dead", || !store.is_alive(pid));
        store.outlives(&grandchild);
    }
}

#[test]
fn a_command_is_stopped_and_goes_on_with_the_program() {
    let store = Store::new();
    // A shell that is starting something waits for that in the kernel, and is not seen stopped when both are: it has
    // nothing to start any more. USR1 ends what it waits for.
    let script = "trap 'echo went on; exit 3' USR1; sleep 600 & echo $$; wait";
    let mut running = store.run("k", &[], script).start();
    let pid: u32 = running.line().trim().parse().unwrap();
    running.signal(20);
    until("the command to stop", || store.state(pid) == 'T');
    until("the program to stop", || store.state(running.pid()) == 'T');
    running.signal(18);
    until("the command to go on", || store.state(pid) != 'T');
    running.signal(10);
    let done = running.wait();
    assert_eq!((done.code, done.out.contains("went on")), (3, true), "{}", done.err);
}

#[test]
fn a_command_does_not_see_the_url_unless_that_was_asked_for() {
    let store = Store::new();
    std::fs::write(store.path("url"), format!("{}\n", store.url())).unwrap();
    let task = ["run", "--key", "k"];
    let echo = ["--", "/bin/sh", "-c", "echo \"url=$DLOCK_URL$DLOCK_ORDERS_URL\""];
    let run = |options: &[&str]| {
        let all: Vec<_> = task.iter().chain(options).chain(&echo).copied().collect();
        store.plain(&all)
    };
    let hidden = run(&[]).env("DLOCK_URL", store.url()).env("DLOCK_ORDERS_URL", "redis://:secret@h/").done();
    assert_eq!((hidden.out.trim(), hidden.code), ("url=", 0), "{}", hidden.err);
    let asked = run(&["--keep-env"]).env("DLOCK_URL", store.url()).done();
    assert_eq!(asked.out.trim(), format!("url={}", store.url()));
    let file = run(&["--url-file", "url"]).done();
    assert_eq!((file.out.trim(), file.code), ("url=", 0), "{}", file.err);
    std::fs::write(store.path("url"), format!("\u{feff}{}\r\n", store.url())).unwrap();
    let marked = run(&["--url-file", "url"]).done();
    assert_eq!((marked.out.trim(), marked.code), ("url=", 0), "{}", marked.err);
    std::fs::write(store.path("url"), "\n").unwrap();
    let empty = run(&["--url-file", "url"]).done();
    assert_eq!((empty.out.as_str(), empty.code), ("", 64));
    assert!(empty.err.contains("url has no URL in its first line"), "{}", empty.err);
    let missing = run(&["--url-file", "nowhere"]).done();
    assert_eq!((missing.out.as_str(), missing.code), ("", 64), "{}", missing.err);
}

#[test]
fn a_release_by_force_is_asked_for_and_needs_a_yes() {
    let store = Store::new();
    let mut running = store.holding("room_7");
    for answer in ["", "n\n", "\n", "yo\n"] {
        let refused = store.dlock(["release", "--force", "room_7"]).say(answer).done();
        assert_eq!(refused.code, 77, "{answer:?}: {}", refused.err);
        assert!(refused.err.contains(&format!("process {}", running.pid())), "{}", refused.err);
        assert_eq!(store.dlock(["--json", "ls"]).done().json()["held"].as_array().unwrap().len(), 1);
    }
    let released = store.dlock(["release", "--force", "room_7"]).say("y\n").done();
    assert_eq!(released.code, 0, "{}", released.err);
    assert!(released.out.contains("released room_7"), "{}", released.out);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held");
    let again = store.dlock(["release", "--force", "--yes", "--json", "room_7"]).done();
    assert_eq!((again.code, &again.json()["released"]), (0, &false.into()));
    running.finish();
    running.wait();
    let without = store.dlock(["release", "room_7"]).done();
    assert_eq!(without.code, 64);
    assert!(without.err.contains("--force"), "{}", without.err);
}

#[test]
fn a_lock_that_changed_hands_while_it_was_asked_for_is_left_alone_also_where_there_are_no_fences() {
    let store = Store::new();
    let nodes: Vec<_> = (0..3).map(|n| format!("{}{n}", store.url())).collect();
    let quorum = Store::at(&format!("quorum:{}|?durable=true", nodes.join("|")));
    assert_eq!(quorum.run("makes-the-databases", &[], "true").done().code, 0);
    for store in [&store, &quorum] {
        let mut first = store.holding("k");
        let mut release = store.dlock(["release", "--force", "k"]).start();
        assert!(release.asks().contains("k is held by"));
        first.finish();
        assert_eq!(first.wait().code, 0);
        let mut second = store.holding("k");
        release.answer("y\n");
        let left = release.wait();
        assert_eq!(left.code, 75, "{}{}", left.out, left.err);
        assert!(left.err.contains("changed hands"), "{}", left.err);
        second.finish();
        assert_eq!(second.wait().code, 0, "it was not taken away");
    }
}

/// All of them would lose it.
#[test]
fn a_lock_that_another_reader_joined_or_that_was_released_while_it_was_asked_for_is_not_taken_from_anybody() {
    let store = Store::new();
    let read = || {
        let mut running = store.run("page", &["--read"], "echo ready; read end; true").start();
        running.says("ready");
        running
    };
    let mut first = read();
    let mut release = store.dlock(["release", "--force", "page"]).start();
    assert!(release.asks().contains("page is held by"));
    let mut second = read();
    release.answer("y\n");
    let left = release.wait();
    assert_eq!(left.code, 75, "{}{}", left.out, left.err);
    assert!(left.err.contains(&format!("process {}", second.pid())), "{}", left.err);
    assert!(left.err.contains("nothing was released"), "{}", left.err);
    let mut release = store.dlock(["--json", "release", "--force", "page"]).start();
    assert!(release.asks().contains("page is held by"));
    for reader in [&mut first, &mut second] {
        reader.finish();
    }
    assert_eq!((first.wait().code, second.wait().code), (0, 0), "neither lost it");
    release.answer("y\n");
    let left = release.wait();
    assert_eq!((left.code, &left.json()["released"]), (0, &false.into()), "{}", left.err);
}

#[test]
fn a_release_of_one_grant_leaves_a_later_one_alone() {
    let store = Store::new();
    let release = |fence: &str| store.dlock(["release", "--force", "--yes", "--fence", fence, "k"]).done();
    let mut running = store.holding("k");
    let inspected = store.dlock(["--json", "inspect", "k"]).done().json();
    let fence = inspected["holder"]["fence"].as_u64().unwrap();
    let refused = release(&(fence - 1).to_string());
    assert_eq!(refused.code, 75, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains(&format!("fence {fence}")), "{}", refused.err);
    assert_eq!(store.dlock(["--json", "ls"]).done().json()["held"].as_array().unwrap().len(), 1);
    assert_eq!(release(&fence.to_string()).code, 0);
    running.finish();
    assert_eq!(running.wait().code, 79);
}

#[test]
fn the_fence_grows_over_a_release_by_force() {
    let store = Store::new();
    let fence = |text: &str| text.trim().parse::<u64>().expect("a fence");
    let mut first = store.run("k", &[], "echo $DLOCK_FENCE; read end; true").start();
    let before = fence(&first.line());
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    assert!(fence(&store.run("k", &[], "echo $DLOCK_FENCE").done().out) > before);
    first.finish();
    assert_eq!(first.wait().code, 79, "the first holder is told at the end");
}

#[test]
fn watch_follows_what_is_held_until_a_signal_ends_it() {
    let store = Store::new();
    let heard = r#"exec env --default-signal=INT "$@""#;
    let mut watching = store.dlock(["--json", "watch", "--every", "20ms"]).by_shell(heard).start();
    let count = |line: &str| {
        let document: serde_json::Value = serde_json::from_str(line).expect("a document in each line");
        document["held"].as_array().expect("a list").len()
    };
    assert_eq!(count(&watching.line()), 0);
    let mut running = store.holding("room_7");
    while count(&watching.line()) == 0 {}
    running.finish();
    running.wait();
    while count(&watching.line()) == 1 {}
    watching.signal(2);
    assert_eq!(watching.wait().code, 0);
    let twice = store.dlock(["watch", "--every", "10ms", "--times", "2"]).done();
    assert_eq!((twice.code, twice.out.matches("no lock is held").count()), (0, 2), "{}", twice.out);
    assert!(!twice.out.contains('\u{1b}'), "no terminal, no escapes");
}

#[test]
fn in_a_terminal_watch_draws_over_itself_and_leaves_the_screen_as_it_was() {
    let store = Store::new();
    let mut running = store.holding("room_7");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    // Held open, so that the master can be read to the end of what was written.
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 10, ws_col: 30, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let ended = store.dlock(["watch", "--every", "10ms", "--times", "3"]).on(&terminal);
    assert!(ended.success());
    let mut screen = Vec::new();
    let mut master = File::from(master);
    let leave = b"\x1b[?25h\x1b[?1049l";
    while !screen.ends_with(leave) {
        let mut part = [0; 4096];
        let count = master.read(&mut part).unwrap();
        screen.extend_from_slice(&part[..count]);
    }
    let text = String::from_utf8_lossy(&screen);
    assert!(text.starts_with("\x1b[?1049h\x1b[?25l\x1b[H"), "{text:?}");
    assert_eq!(text.matches("\x1b[H").count(), 3, "{text:?}");
    assert!(text.contains("room_7"), "{text:?}");
    for line in text.split("\x1b[K") {
        let line = line.rsplit("\x1b[H").next().unwrap_or_default().trim_start_matches("\r").trim();
        assert!(line.starts_with('\x1b') || line.chars().count() <= 30, "{line:?} is too long");
    }
    running.finish();
    running.wait();
}

#[test]
fn wrong_and_unreachable_stores_are_one_line_and_a_code() {
    let store = Store::new();
    let missing = format!("sqlite://{}", store.path("missing.db").display());
    for (url, code) in [
        ("", 64),
        ("nonsense", 64),
        ("http://user:hunter2@127.0.0.1/", 64),
        ("memory:", 64),
        ("redis://user:hunter2@127.0.0.1:port/", 64),
        ("redis://user:hunter2@127.0.0.1:1/", 69),
        ("zk://user:hunter2@127.0.0.1:1/", 69),
        (missing.as_str(), 64),
    ] {
        for task in [&["ls"][..], &["inspect", "k"], &["watch"], &["release", "--force", "--yes", "k"]] {
            let done = store.plain(task).env("DLOCK_URL", url).done();
            assert_eq!(done.code, code, "{url} {task:?}: {}", done.err);
            assert_eq!((done.out.as_str(), lines(&done.err).len()), ("", 1), "{url} {task:?}: {}", done.err);
            assert!(!done.err.contains("hunter2"), "{}", done.err);
        }
    }
    assert!(!store.path("missing.db").exists(), "looking makes no database");
    let url = "redis://user:hunter2@h/";
    let (times, every) = (format!("--times={url}"), format!("--every={url}"));
    for task in [
        &[url][..],
        &["--lock", url, "ls"],
        &["ls", url],
        &["watch", "--times", url],
        &["watch", &times],
        &["--locks", "redis://h:1/", "watch", &every],
        &["--locks", "redis://user:other@h/", "ls", url],
        &["ls", "redis://h/?pass=hunter2"],
        &["ls", "redis:hunter2@h"],
    ] {
        let done = store.plain(task).done();
        assert!(done.code == 64 && !done.err.is_empty() && !done.err.contains("hunter2"), "{}", done.err);
    }
    let no_text = r#"exec "$@" "$(printf '\377')""#;
    for task in [&["ls"][..], &["inspect"], &["--locks", url, "ls"], &["--locks"]] {
        let done = store.plain(task).by_shell(no_text).done();
        assert!(done.code == 64 && !done.err.contains("panicked"), "{}", done.err);
        assert!(!done.err.contains("hunter2"), "{}", done.err);
    }
    let help = store.plain(&["--help"]).env("DLOCK_URL", "redis://user:hunter2@h/").done();
    assert_eq!(help.code, 0);
    assert!(help.out.contains("DLOCK_URL") && !help.out.contains("hunter2"), "{}", help.out);
}

#[test]
fn the_prefix_of_services_stands_before_the_keys_of_the_program_too() {
    let store = Store::new();
    let mut running = store.run("k", &[], "echo ready; read end; true").env("DLOCK_PREFIX", "shop:").start();
    running.says("ready");
    let keys = |prefix: &str| {
        let listed = store.dlock(["--json", "ls"]).env("DLOCK_PREFIX", prefix).done().json();
        listed["held"].as_array().unwrap().iter().map(|held| held["key"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((keys(""), keys("shop:"), keys("other:")), (vec!["shop:k".into()], vec!["k".into()], vec![]));
    let wrong = store.dlock(["ls"]).env("DLOCK_PREFIX", &"p".repeat(129)).done();
    assert_eq!(wrong.code, 64, "{}", wrong.err);
    assert!(wrong.err.contains("DLOCK_PREFIX"), "{}", wrong.err);
    running.finish();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn a_key_that_cannot_be_one_is_refused_before_anything_runs() {
    let store = Store::new();
    let done = store.run("", &[], "echo it ran").done();
    assert_eq!((done.code, done.out.as_str()), (64, ""), "{}", done.err);
    for wrong in [
        ["run", "--key", "k"].as_slice(),
        &["run", "--", "true"],
        &["run", "--key", "k", "--wait", "soon", "--", "true"],
        &["run", "--key", "k", "--grace", "500000000000years", "--", "true"],
    ] {
        assert_eq!(store.dlock(wrong.iter().copied()).done().code, 64, "{wrong:?}");
    }
}

#[test]
fn text_of_others_does_not_command_the_terminal() {
    let store = Store::new();
    let key = "a\u{1b}[2J\nb";
    let mut running = store.holding(key);
    for task in [&["ls"][..], &["inspect", key]] {
        let shown = store.dlock(task.iter().copied()).done();
        assert!(shown.out.contains("\\u{1b}[2J\\nb") && !shown.out.contains('\u{1b}'), "{:?}", shown.out);
    }
    assert_eq!(store.dlock(["--json", "ls"]).done().json()["held"][0]["key"], key);
    running.finish();
    running.wait();
}
