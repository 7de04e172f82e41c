//! What a command has started ends with it, wherever it went.

mod support;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{Store, until};

/// A script that starts what leaves its group, and its parents, and heeds no TERM; then says its own process id.
fn escaping(beat: &Path) -> String {
    format!(
        "(setsid sh -c 'trap \"\" TERM; while :; do echo >> {0}; sleep 0.01; done' &); \
         while ! [ -e {0} ]; do sleep 0.01; done; echo $$; while :; do sleep 0.02; done",
        beat.display()
    )
}

fn stands_still(beat: &Path) {
    let length = || std::fs::metadata(beat).map_or(0, |file| file.len());
    until("what it started to be dead", || {
        let before = length();
        std::thread::sleep(Duration::from_millis(100));
        length() == before
    });
}

#[test]
fn what_left_the_group_and_the_parents_is_ended_with_a_lock_that_is_lost() {
    let store = Store::new();
    let beat = store.path("beat");
    let script = escaping(&beat);
    let mut running = store.run("k", &["--lease", "1s", "--grace", "100ms"], &script).start();
    running.line();
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    // It ends when nobody has its output open.
    assert_eq!(running.wait().code, 79);
    stands_still(&beat);
}

#[test]
fn what_left_the_group_and_the_parents_is_ended_with_a_program_that_is_killed() {
    let store = Store::new();
    let beat = store.path("beat");
    let script = escaping(&beat);
    let mut running = store.run("k", &["--lease", "1s", "--grace", "100ms"], &script).start();
    let pid: u32 = running.line().trim().parse().unwrap();
    running.signal(9);
    until("the command to be dead", || !store.is_alive(pid));
    stands_still(&beat);
}

#[test]
fn what_a_command_leaves_behind_that_ends_by_itself_runs_on() {
    let store = Store::new();
    let beat = store.path("beat");
    let script = format!(
        "(setsid sh -c 'sleep 0.3; echo > {}' > /dev/null 2>&1 < /dev/null &); exit 0",
        beat.display()
    );
    assert_eq!(store.run("k", &[], &script).done().code, 0);
    until("it to have run on", || beat.exists());
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
fn shell(store: &Store, terminal: File, shell: &str, command: &str) -> Child {
    let dlock = [env!("CARGO_BIN_EXE_dlock"), "--locks", store.url(), "run", "--key", "k", "--lease", "1s"];
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
    let beat = store.path("beat");
    let (_master, terminal) = terminal();
    let command = format!("while :; do echo >> {}; sleep 0.01; done & wait", beat.display());
    // It goes on when the program has ended: the end of a session's leader would end all of it.
    let script = "\"$@\"; echo $? > code.new; mv code.new code; while ! [ -e end ]; do sleep 0.02; done";
    let mut running = shell(&store, terminal, script, &command);
    until("it to run", || beat.exists());
    assert_eq!(store.dlock(["release", "--force", "--yes", "k"]).done().code, 0);
    until("the program to end", || store.path("code").exists());
    assert_eq!(std::fs::read_to_string(store.path("code")).unwrap(), "79\n");
    stands_still(&beat);
    std::fs::write(store.path("end"), "").unwrap();
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_command_asks_the_terminal_also_where_its_input_is_a_pipe() {
    let store = Store::new();
    let (mut master, terminal) = terminal();
    let command = "echo > asks; read word < /dev/tty; echo $word > said.new; mv said.new said";
    let mut running = shell(&store, terminal, "echo piped | \"$@\"", command);
    until("it to ask", || store.path("asks").exists());
    master.write_all(b"secret\n").unwrap();
    until("it to be answered", || store.path("said").exists());
    assert_eq!(std::fs::read_to_string(store.path("said")).unwrap(), "secret\n");
    assert!(running.wait().unwrap().success());
}
