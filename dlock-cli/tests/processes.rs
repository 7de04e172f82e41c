//! What a command has started ends with it, wherever it went.

mod support;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{Store, minds_signals, until};

/// A lease that lives until a command has spoken. That it was taken away is found out after a third of it.
const LEASE: &str = "6s";

/// A script that starts what leaves its group, and its parents, and heeds no TERM; then says its own process id. The
/// file has that of what has left.
fn escaping(file: &Path) -> String {
    format!(
        "(setsid sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.01; done' &); \
         while ! [ -e {0} ]; do sleep 0.01; done; echo $$; while :; do sleep 0.02; done",
        file.display()
    )
}

#[test]
fn what_left_the_group_and_the_parents_is_ended_with_a_lock_that_is_lost() {
    let store = Store::new();
    let escaped = store.path("escaped");
    let script = escaping(&escaped);
    let mut running = store.run("k", &["--lease", LEASE, "--grace", "100ms"], &script).start();
    running.line();
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    // It ends when nobody has its output open.
    assert_eq!(running.wait().code, 79);
    store.outlives(&escaped);
}

#[test]
fn what_left_the_group_and_the_parents_is_ended_with_a_program_that_is_killed() {
    let store = Store::new();
    let escaped = store.path("escaped");
    let script = escaping(&escaped);
    let mut running = store.run("k", &["--grace", "100ms"], &script).start();
    let pid: u32 = running.line().trim().parse().unwrap();
    running.signal(9);
    until("the command to be dead", || !store.is_alive(pid));
    store.outlives(&escaped);
}

#[test]
fn what_a_command_leaves_behind_that_ends_by_itself_runs_on() {
    let store = Store::new();
    let escaped = store.path("escaped");
    let script = format!(
        "(setsid sh -c 'sleep 0.3; echo > {}' > /dev/null 2>&1 < /dev/null &); exit 0",
        escaped.display()
    );
    assert_eq!(store.run("k", &[], &script).done().code, 0);
    until("it to have run on", || escaped.exists());
}

#[test]
fn what_left_a_run_within_a_run_is_ended_with_the_lock_of_the_outer_one() {
    let store = Store::new();
    let escaped = store.path("escaped");
    let script = escaping(&escaped);
    let inner = [
        env!("CARGO_BIN_EXE_dlock"),
        "--locks",
        store.url(),
        "run",
        "--key",
        "in",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let outer = ["run", "--key", "out", "--lease", LEASE, "--grace", "100ms", "--"];
    let mut running = store.dlock(outer.into_iter().chain(inner)).start();
    running.line();
    assert_eq!(store.dlock(["release", "--force", "--yes", "out"]).done().code, 0);
    assert_eq!(running.wait().code, 79);
    store.outlives(&escaped);
}

#[test]
fn a_command_is_ended_with_a_lock_that_is_lost_whether_anybody_reads_what_is_said_or_not() {
    for reads in ["no further", "no more"] {
        let store = Store::new();
        let escaped = store.path("escaped");
        let (reader, errors) = UnixStream::pair().unwrap();
        if reads == "no further" {
            errors.set_nonblocking(true).unwrap();
            while (&errors).write(&[b'x'; 4096]).is_ok() {}
            while (&errors).write(b"x").is_ok() {}
            errors.set_nonblocking(false).unwrap();
        } else {
            reader.shutdown(std::net::Shutdown::Both).unwrap();
        }
        let script = escaping(&escaped);
        let run = store.run("k", &["--lease", LEASE, "--grace", "100ms"], &script);
        let mut running = run.errors(OwnedFd::from(errors)).start();
        running.line();
        assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
        assert_eq!(running.wait().code, 79, "{reads}");
        store.outlives(&escaped);
        drop(reader);
    }
}

#[test]
fn a_signal_to_all_of_its_processes_leaves_the_one_that_guards_the_command() {
    let store = Store::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut running = store.run("k", &["--grace", "100ms"], script).start();
    let pid: u32 = running.line().trim().parse().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid())).unwrap();
    let guardian = children.split_whitespace().find(|child| **child != pid.to_string()).unwrap();
    until("it to mind signals", || minds_signals(guardian));
    for number in ["-1", "-2", "-15", "-20"] {
        assert!(Command::new("kill").args([number, guardian]).status().unwrap().success());
    }
    running.signal(15);
    running.signal(9);
    until("the command to be dead", || !store.is_alive(pid));
}

#[test]
fn how_a_command_ended_is_known_also_where_the_end_of_children_was_to_be_ignored() {
    let store = Store::new();
    let ignoring = r#"exec env --ignore-signal=CHLD "$@""#;
    assert_eq!(store.run("k", &[], "exit 3").by_shell(ignoring).done().code, 3);
    assert_eq!(store.run("j", &["--once", "1h"], "exit 0").by_shell(ignoring).done().code, 0);
    assert_eq!(store.run("j", &["--once", "1h"], "exit 0").done().code, 80, "it was done");
}

#[test]
fn a_program_that_was_replaced_while_it_waits_runs_its_command() {
    let store = Store::new();
    let mut first = store.holding("k");
    let copy = store.path("copy");
    let copied = format!("cp \"$1\" {0}; shift; exec {0} \"$@\"", copy.display());
    let waiting = store.run("k", &["--wait", "forever"], "exit 7").by_shell(&copied).start();
    let runs = || {
        std::fs::read_link(format!("/proc/{}/exe", waiting.pid())).is_ok_and(|file| file.ends_with("copy"))
    };
    until("the copy to run", runs);
    waiting.waits_in_the_program();
    std::fs::remove_file(copy).unwrap();
    first.finish();
    first.wait();
    let done = waiting.wait();
    assert_eq!(done.code, 7, "{}", done.err);
}

#[test]
fn a_program_that_waits_stops_and_goes_on() {
    let store = Store::new();
    let mut first = store.holding("k");
    let waiting = store.run("k", &["--wait", "forever"], "exit 7").start();
    waiting.waits_in_the_program();
    waiting.signal(20);
    until("it to stop", || store.state(waiting.pid()) == 'T');
    waiting.signal(18);
    first.finish();
    first.wait();
    assert_eq!(waiting.wait().code, 7);
}

#[test]
fn a_command_that_was_stopped_is_ended_by_a_signal_to_the_program() {
    let store = Store::new();
    let mut running = store.run("k", &[], "echo ready; kill -STOP $$; exit 7").start();
    running.says("ready");
    running.signal(15);
    assert_eq!(running.wait().code, 128 + 15);
}

/// A terminal: what is at its other end, and itself.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (File::from(master), File::options().read(true).write(true).open(name).unwrap())
}

/// A script in the foreground of a terminal, which says `"$@"` for the program with a command.
fn shell(store: &Store, terminal: File, shell: &str, lease: &str, command: &str) -> Child {
    let dlock = [env!("CARGO_BIN_EXE_dlock"), "--locks", store.url(), "run", "--key", "k", "--lease", lease];
    Command::new("setsid")
        .args(["--ctty", "--wait", "sh", "-c", shell, "sh"])
        .args(dlock)
        .args(["--grace", "100ms", "--", "sh", "-c", command])
        .current_dir(store.path(""))
        .stdin(terminal)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn what_a_command_in_the_foreground_of_a_terminal_has_started_is_ended_with_a_lock_that_is_lost() {
    let store = Store::new();
    let escaped = store.path("escaped");
    let (_master, terminal) = terminal();
    let command = format!(
        "sh -c 'echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.01; done' & wait",
        escaped.display()
    );
    // It goes on when the program has ended: the end of a session's leader would end all of it.
    let script = "\"$@\"; echo $? > code.new; mv code.new code; while ! [ -e end ]; do sleep 0.02; done";
    let mut running = shell(&store, terminal, script, LEASE, &command);
    until("it to run", || escaped.exists());
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    until("the program to end", || store.path("code").exists());
    assert_eq!(std::fs::read_to_string(store.path("code")).unwrap(), "79\n");
    store.outlives(&escaped);
    std::fs::write(store.path("end"), "").unwrap();
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_command_asks_the_terminal_also_where_its_input_is_a_pipe() {
    let store = Store::new();
    let (mut master, terminal) = terminal();
    let command = "echo > asks; read word < /dev/tty; echo $word > said.new; mv said.new said";
    let mut running = shell(&store, terminal, "echo piped | \"$@\"", "1h", command);
    until("it to ask", || store.path("asks").exists());
    master.write_all(b"secret\n").unwrap();
    until("it to be answered", || store.path("said").exists());
    assert_eq!(std::fs::read_to_string(store.path("said")).unwrap(), "secret\n");
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_job_in_the_background_that_asks_the_terminal_is_stopped_with_its_command_and_answered_in_the_foreground()
{
    let store = Store::new();
    let (mut master, terminal) = terminal();
    let script = "set -m; \"$@\" & echo $! > pid.new; mv pid.new pid; while ! [ -e go ]; do sleep 0.02; done; fg; true";
    let command = "read word < /dev/tty; echo $word > said.new; mv said.new said";
    let mut running = shell(&store, terminal, script, "1h", command);
    until("it to run", || store.path("pid").exists());
    let pid = std::fs::read_to_string(store.path("pid")).unwrap().trim().parse().unwrap();
    until("the job to be stopped", || store.state(pid) == 'T');
    std::fs::write(store.path("go"), "").unwrap();
    master.write_all(b"secret\n").unwrap();
    until("it to be answered", || store.path("said").exists());
    assert_eq!(std::fs::read_to_string(store.path("said")).unwrap(), "secret\n");
    assert!(running.wait().unwrap().success());
}
