//! The command line of `dlock`: where keys, waits and prefixes are written, and what is said to what is wrong.

mod support;

use std::process::Command;

use support::{Done, Store, lines};

fn failed(done: &Done, code: u8, says: &[&str]) {
    assert_eq!((done.code, done.out.as_str()), (code, ""), "{}", done.err);
    for part in says {
        assert!(done.err.contains(part), "{part} is missing in: {}", done.err);
    }
}

#[test]
fn a_key_is_an_argument_or_an_option_and_is_not_given_twice() {
    let store = Store::new();
    let command = ["--", "/bin/sh", "-c", "echo $DLOCK_KEY"];
    for key in [&["k"][..], &["-k", "k"], &["--key", "k"], &["--key=k"], &["-n", "k"], &["k", "-w", "5s"]] {
        let done = store.dlock(["run"].iter().chain(key).chain(&command).copied()).done();
        assert_eq!((done.code, done.out.as_str()), (0, "k\n"), "{key:?}: {}", done.err);
        let path = store.path("baton");
        let baton = ["baton", "acquire"].iter().chain(key).copied().chain([path.to_str().unwrap()]);
        let kept = store.dlock(baton).done();
        assert_eq!((kept.code, kept.out.starts_with("k is kept")), (0, true), "{key:?}: {}", kept.err);
        assert_eq!(store.dlock(["baton", "release", path.to_str().unwrap()]).done().code, 0);
    }
    for key in [&["k"][..], &["-k", "k"], &["--key", "k"]] {
        for task in [&["inspect"][..], &["release", "--force", "--yes"], &["leader", "resign", "--yes"]] {
            let done = store.dlock(task.iter().chain(key).copied()).done();
            assert_eq!((done.code, done.out.starts_with("nobody ")), (0, true), "{task:?}: {}", done.err);
        }
    }
    let twice = ["leave out --key", "\"a\""];
    for task in [
        &["run", "a", "--key", "b", "--", "true"][..],
        &["baton", "acquire", "a", "FILE", "-k", "b"],
        &["inspect", "a", "-k", "a"],
        &["release", "--force", "a", "-k", "b"],
        &["leader", "watch", "a", "-k", "b"],
    ] {
        failed(&store.dlock(task.iter().copied()).done(), 64, &twice);
    }
    for task in [&["run", "--", "true"][..], &["inspect"], &["release", "--force"]] {
        failed(&store.dlock(task.iter().copied()).done(), 64, &["<KEY|--key <KEY>>"]);
    }
    failed(&store.dlock(["baton", "acquire", "FILE"]).done(), 64, &["dlock baton acquire KEY FILE"]);
}

#[test]
fn waits_have_the_short_options_of_flock_and_their_unit() {
    let store = Store::new();
    let mut running = store.holding("k");
    for wait in [&["-n"][..], &["--no-wait"], &["-w", "50ms"], &["-w", "0"], &["-w", "0s"]] {
        let task = ["run"].iter().chain(wait).chain(&["k", "--", "echo", "it ran"]).copied();
        failed(&store.dlock(task).done(), 75, &[&running.pid().to_string()]);
    }
    let path = store.path("baton");
    failed(&store.dlock(["baton", "acquire", "-n", "k", path.to_str().unwrap()]).done(), 75, &["held by"]);
    failed(&store.dlock(["run", "-w", "5", "k", "--", "true"]).done(), 64, &["5s for seconds"]);
    failed(&store.dlock(["run", "-n", "-w", "5s", "k", "--", "true"]).done(), 64, &["cannot be used with"]);
    running.finish();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn what_does_not_run_since_another_one_does_is_kept_quiet_and_no_error_is() {
    let store = Store::new();
    let run = |options: &[&str]| store.run("k", options, "echo it ran").done();
    let mut running = store.holding("k");
    for (options, code, is_said) in [
        (&["-n"][..], 75, true),
        (&["-n", "-q"], 75, false),
        (&["-n", "-E", "3"], 3, true),
        (&["-w", "50ms", "--quiet", "--skip-code", "0"], 0, false),
    ] {
        let done = run(options);
        let said = lines(&done.err).len();
        assert_eq!((done.code, done.out.as_str(), said), (code, "", usize::from(is_said)), "{options:?}");
    }
    running.finish();
    assert_eq!(running.wait().code, 0);
    assert_eq!(run(&["--once", "1h"]).out, "it ran\n");
    for (options, code) in [(&["--skip-code", "0"][..], 0), (&[], 80)] {
        let done = run(&[&["--once", "1h", "-q"], options].concat());
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (code, "", ""), "{options:?}");
    }
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    let quiet = store.run("k", &["-q"], "echo wrong >&2; exit 3").done();
    assert_eq!((quiet.code, quiet.err.as_str()), (3, "wrong\n"), "the command's own are its own");
    let away = store.plain(&["--locks", "redis://127.0.0.1:1/", "run", "-q", "-n", "k", "--", "true"]).done();
    failed(&away, 69, &["no connection"]);
}

#[test]
fn lists_are_narrowed_to_a_prefix_and_say_what_else_is_held_where_it_fits_nothing() {
    let store = Store::new();
    let mut running = [store.holding("room_7"), store.holding("room_8"), store.holding("till")];
    let keys = |task: &[&str]| {
        let document = store.dlock(["--json"].iter().chain(task).copied()).done().json();
        let held: Vec<_> =
            document["held"].as_array().unwrap().iter().map(|held| held["key"].clone()).collect();
        (held, document["others"].as_u64())
    };
    let rooms = (vec!["room_7".into(), "room_8".into()], Some(1));
    assert_eq!(keys(&["ls", "room_"]), rooms);
    assert_eq!(keys(&["watch", "--times", "1", "room_"]), rooms);
    assert_eq!(keys(&["ls", "gpu"]), (vec![], Some(3)));
    assert_eq!(keys(&["ls"]).1, None);
    let table = store.dlock(["ls", "till"]).done().out;
    assert_eq!((lines(&table).len(), table.contains("room_")), (2, false), "{table}");
    for task in [&["ls", "gpu"][..], &["watch", "--times", "1", "gpu"]] {
        let none = store.dlock(task.iter().copied()).done();
        assert_eq!((none.code, none.out.contains("0 of 3 held locks begin with gpu")), (0, true), "{none:?}");
    }
    for one in &mut running {
        one.finish();
    }
}

#[test]
fn what_is_wrong_on_the_command_line_is_answered_by_what_to_write() {
    let store = Store::new();
    for (task, says) in [
        (&["acquire", "k"][..], "dlock run KEY -- COMMAND"),
        (&["room_7", "--", "true"], "dlock run KEY -- COMMAND"),
        (&["unlock", "k"], "dlock release --force KEY"),
        (&["list"], "dlock ls"),
        (&["lss"], "'ls'"),
        (&["status", "k"], "dlock inspect KEY"),
        (&["run", "k", "true"], "write `--` before the command, as in dlock run KEY -- COMMAND"),
        (&["run", "-n", "k", "true", "-x"], "write `--` before the command, as in dlock run KEY -- COMMAND"),
        (&["run", "k"], "were not provided:\n  <COMMAND>..."),
        (&["run", "--once", "0s", "k", "--", "true"], "'--once <WINDOW>': use 1ms to 30days"),
        (&["run", "--once", "31days", "k", "--", "true"], "'--once <WINDOW>': use 1ms to 30days"),
        (&["run", "--once", "25h", "--on-crash", "skip", "k", "--", "true"], "--once may be 50ms to 24h"),
        (&["run", "--lease", "10ms", "k", "--", "true"], "'--lease <TIME>': use 50ms to 24h"),
        (&["watch", "--every", "1ns", "--times", "1"], "'--every <TIME>': use 10ms to 1h"),
        (&["watch", "--every", "18446744073709551615s", "--times", "1"], "'--every <TIME>': use 10ms to 1h"),
        (&["ls", "redis://h/"], "this is a URL; write --locks before it"),
        (&["run", "--lease", "30", "k", "--", "true"], "30s for seconds"),
    ] {
        let done = store.dlock(task.iter().copied()).done();
        failed(&done, 64, &[says]);
        assert!(done.err.matches(says).count() == 1, "said twice: {}", done.err);
    }
}

#[test]
fn one_option_names_the_store_and_stands_above_the_variable() {
    let store = Store::new();
    let (path, away) = (store.path("url"), "redis://user:hunter2@127.0.0.1:1/");
    std::fs::write(&path, store.url()).unwrap();
    let path = path.to_str().unwrap();
    let says = ["each of --locks and --url-file names a store; give one of them, once"];
    for task in [
        &["--locks", away, "--url-file", path, "ls"][..],
        &["ls", "--url-file", path, "--locks", store.url()],
        &["--url-file", "missing", "ls", "--locks", away],
        &["--locks", away, "baton", "show", "--url-file", path, "FILE"],
        &["--locks", store.url(), "ls", "--locks=redis://user:hunter2@127.0.0.1:1/"],
        &["--url-file", path, "ls", "--url-file", path],
    ] {
        let done = store.plain(task).done();
        failed(&done, 64, &says);
        assert!(!done.err.contains("hunter2"), "{}", done.err);
    }
    for option in [["--locks", store.url()], ["--url-file", path]] {
        let listed = store.plain(&[option[0], option[1], "ls"]).env("DLOCK_URL", away).done();
        assert_eq!(listed.code, 0, "{}", listed.err);
    }
    assert_eq!(store.plain(&["ls"]).env("DLOCK_URL", away).done().code, 69);
    let of_the_command = ["run", "k", "--", "echo", "--locks", "--url-file"];
    let ran = store.dlock(of_the_command).done();
    assert_eq!((ran.code, ran.out.as_str()), (0, "--locks --url-file\n"), "{}", ran.err);
}

#[test]
fn a_shell_completes_commands_and_the_manual_has_a_page_for_each() {
    let store = Store::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = store.plain(&["completions", shell]).done();
        assert_eq!((script.code, script.err.as_str()), (0, ""));
        assert!(script.out.contains("baton") && script.out.contains("skip-code"), "{shell}");
        assert!(!script.out.contains("guard-a-command"), "{shell}: no command for users");
        std::fs::write(store.path(shell), script.out).unwrap();
    }
    let complete =
        "source ./bash; COMP_WORDS=(dlock d); COMP_CWORD=1; _dlock dlock d dlock; echo ${COMPREPLY[@]}";
    let bash = Command::new("bash").args(["-c", complete]).current_dir(store.path("")).output().unwrap();
    let words = String::from_utf8(bash.stdout).unwrap();
    assert_eq!((words.trim(), bash.stderr.as_slice()), ("doctor", &[][..]));
    let page = store.plain(&["man"]).done();
    assert!(page.code == 0 && page.out.contains(".TH dlock 1") && page.out.contains("78"), "{}", page.out);
    std::fs::create_dir(store.path("pages")).unwrap();
    assert_eq!(store.plain(&["man", "--to", "pages"]).done().code, 0);
    let run = std::fs::read_to_string(store.path("pages/dlock-run.1")).unwrap();
    assert!(run.contains("DLOCK_FENCE") && run.contains("no\\-wait"), "{run}");
    for (page, usage) in [("run", "KEY"), ("baton-exec", "FILE")] {
        let page = std::fs::read_to_string(store.path("pages").join(format!("dlock-{page}.1"))).unwrap();
        assert!(page.contains(&format!(" [OPTIONS] {usage} \\-\\- COMMAND...")), "{page}");
    }
    failed(&store.plain(&["man", "--to", "nowhere"]).done(), 70, &["No such file"]);
}

#[test]
fn a_key_may_begin_with_a_dash_and_no_tip_says_to_write_a_value_where_the_command_stands() {
    let store = Store::new();
    for options in [["-k", "-x"], ["--key", "--x y"], ["-k", "-"]] {
        let front = ["run", "-n"].into_iter().chain(options);
        let ran = store.dlock(front.chain(["--", "/bin/sh", "-c", "printf %s \"$DLOCK_KEY\""])).done();
        assert_eq!((ran.code, ran.out.as_str()), (0, options[1]), "{}", ran.err);
        assert_eq!(store.dlock(["inspect"].into_iter().chain(options)).done().code, 0);
    }
    for option in ["-w", "-E", "--lease"] {
        let wrong = store.dlock(["run", option, "-5s", "k", "--", "true"]).done();
        failed(&wrong, 64, &["unexpected argument '-5'"]);
        assert!(!wrong.err.contains("tip:"), "{}", wrong.err);
    }
}
