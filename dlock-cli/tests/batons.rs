//! Locks that a script carries from step to step, as its users meet them: real processes over a real store.

mod support;

use std::os::unix::fs::PermissionsExt;

use dlock_rig::servers::redis::RedisServer;
use support::{Running, Store, until};

/// What is in the directory beside the database.
fn files(store: &Store) -> Vec<String> {
    let entries = std::fs::read_dir(store.path("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.contains("locks.db")).collect();
    names.sort();
    names
}

fn is_free(store: &Store, key: &str) -> bool {
    store.run(key, &["--wait", "0"], "true").done().code == 0
}

fn acquire(store: &Store, path: &str) {
    let taken = store.dlock(["baton", "acquire", "--key", "order", "--for", "1h", path]).done();
    assert_eq!(taken.code, 0, "{}", taken.err);
}

#[test]
fn a_lock_is_taken_in_one_step_kept_in_a_file_and_released_in_another() {
    let store = Store::new();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    let taken = store.dlock(["baton", "acquire", "--key", "order", "--for", "1h", path]).done();
    assert_eq!(taken.code, 0, "{}", taken.err);
    assert!(taken.out.starts_with("order is kept until 20") && taken.out.contains("59m"), "{}", taken.out);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let busy = store.run("order", &["--wait", "0"], "true").done();
    assert_eq!(busy.code, 75, "{}", busy.err);
    let secret = std::fs::read_to_string(&file).unwrap();
    let token = secret.trim().rsplit(':').nth(1).unwrap();
    let shown = store.plain(&["baton", "show", path]).done();
    assert!(shown.out.starts_with("order is kept") && !shown.out.contains(token), "{}", shown.out);

    let again = store.dlock(["baton", "acquire", "--key", "other", path]).done();
    assert_eq!(again.code, 64, "what is there is not overwritten: {}", again.err);
    // A time that cannot be kept is refused before the lock is taken over.
    for wrong in [["baton", "renew", "--for", "0s", path], ["baton", "renew", "--for", "25h", path]] {
        let refused = store.dlock(wrong).done();
        assert_eq!(refused.code, 64, "{}", refused.err);
        assert!(refused.err.contains("50ms to 24h"), "{}", refused.err);
    }
    let renewed = store.dlock(["baton", "renew", "--for", "2h", path]).done();
    assert_eq!(renewed.code, 0, "{}", renewed.err);
    assert!(renewed.out.contains("1h 59m"), "{}", renewed.out);
    // The text of before is worthless, and who tries it touches nothing.
    let stale = store.dlock(["baton", "release", "-"]).say(&secret).done();
    assert_eq!(stale.code, 79, "{}", stale.err);
    assert!(stale.err.contains("order") && !stale.err.contains(token), "{}", stale.err);
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 75);

    let released = store.dlock(["baton", "release", path]).done();
    assert_eq!(released.code, 0, "{}", released.err);
    assert!(!file.exists());
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
}

#[test]
fn a_command_runs_under_the_lock_of_a_baton_with_a_higher_fence_and_the_lock_is_kept_on_or_released() {
    let store = Store::new();
    let path = store.path("order.baton").to_str().unwrap().to_owned();
    let taken = store.dlock(["--json", "baton", "acquire", "--key", "order", &path]).done();
    let number = |out: &str| {
        let digits: String = out.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    };
    let fence =
        taken.out.split("\"fence\":").nth(1).and_then(|rest| rest.split(',').next()).map(number).unwrap();
    let script = "echo $DLOCK_KEY; echo $DLOCK_FENCE";
    let exec = |options: &[&str]| {
        let front = ["baton", "exec"].into_iter().chain(options.iter().copied());
        store.dlock(front.chain([path.as_str(), "--", "/bin/sh", "-c", script])).done()
    };
    let kept = exec(&["--keep", "1h"]);
    assert_eq!(kept.code, 0, "{}", kept.err);
    // The standard output is the command's.
    let lines: Vec<&str> = kept.out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "order"), "{}", kept.out);
    assert!(kept.err.starts_with("dlock: order is kept until"), "{}", kept.err);
    let second = number(lines[1]);
    assert!(second > fence, "{second} after {fence}");
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 75);
    let last = exec(&[]);
    assert!(number(last.out.lines().nth(1).unwrap()) > second, "{}", last.out);
    assert!(!store.path("order.baton").exists());
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
}

#[test]
fn a_lock_that_nobody_comes_for_ends_with_its_time_and_its_baton_makes_nothing_anew() {
    let store = Store::new();
    let path = store.path("order.baton").to_str().unwrap().to_owned();
    let taken = store.dlock(["baton", "acquire", "--key", "order", "--for", "100ms", &path]).done();
    assert_eq!(taken.code, 0, "{}", taken.err);
    assert_eq!(store.run("order", &["--wait", "60s"], "true").done().code, 0);
    let late = store.dlock(["baton", "renew", &path]).done();
    assert_eq!(late.code, 79, "{}", late.err);
    assert!(
        late.err.contains("order.baton was left as it is") && store.path("order.baton").exists(),
        "{}",
        late.err
    );
    assert_eq!(files(&store), ["order.baton"]);
    assert_eq!(store.dlock(["ls"]).done().out.matches("order").count(), 0);
}

#[test]
fn what_is_no_baton_and_what_cannot_be_written_is_said_and_no_lock_stays() {
    let store = Store::new();
    let file = store.path("text");
    std::fs::write(&file, "secret text\n").unwrap();
    let wrong = store.dlock(["baton", "renew", file.to_str().unwrap()]).done();
    assert_eq!(wrong.code, 64);
    assert!(wrong.err.contains("holds no baton") && !wrong.err.contains("secret"), "{}", wrong.err);
    let missing = store.dlock(["baton", "release", "/nowhere/baton"]).done();
    assert_eq!(missing.code, 64, "{}", missing.err);
    let lost = store.dlock(["baton", "acquire", "--key", "order", "/nowhere/baton"]).done();
    assert_eq!(lost.code, 64, "{}", lost.err);
    assert!(lost.err.contains("cannot be written"), "{}", lost.err);
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
    let pipe = store.dlock(["baton", "acquire", "--key", "order", "-"]).done();
    assert_eq!(pipe.code, 0, "{}", pipe.err);
    let released = store.dlock(["baton", "release", "-"]).say(&pipe.out).done();
    assert_eq!(released.code, 0, "{}", released.err);
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
}

#[test]
fn an_acquire_makes_its_file_before_it_waits_and_removes_it_when_it_gets_no_lock() {
    let store = Store::new();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    let mut holder = store.holding("order");
    let busy = store.dlock(["baton", "acquire", "--key", "order", "--wait", "0", path]).done();
    assert_eq!((busy.code, file.exists()), (75, false), "{}", busy.err);

    let waiting = store.dlock(["baton", "acquire", "--key", "order", "--wait", "forever", path]).start();
    until("the file to be made", || file.exists());
    let other = store.dlock(["baton", "acquire", "--key", "other", path]).done();
    assert_eq!(other.code, 64, "{}", other.err);
    assert!(other.err.contains("is there already") && is_free(&store, "other"), "{}", other.err);
    // Not INT, which a shell may have had ignored where these tests run in the background.
    waiting.signal(15);
    let ended = waiting.wait();
    assert_eq!((ended.code, file.exists()), (143, false), "{}", ended.err);
    // What came in its place is another one's.
    let waiting = store.dlock(["baton", "acquire", "--key", "order", "--wait", "forever", path]).start();
    until("the file to be made", || file.exists());
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "other").unwrap();
    holder.finish();
    assert_eq!(holder.wait().code, 0);
    let replaced = waiting.wait();
    assert_eq!(replaced.code, 70, "{}", replaced.err);
    assert!(replaced.err.contains("the lock was released"), "{}", replaced.err);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "other");
    assert!(is_free(&store, "order"));
}

#[test]
fn where_no_file_can_be_made_beside_the_baton_nothing_is_taken_over() {
    let store = Store::new();
    // A longer name is none that the file system takes, whoever asks.
    let file = store.path(&"n".repeat(255));
    let path = file.to_str().unwrap();
    acquire(&store, path);
    let renewed = store.dlock(["baton", "renew", path]).done();
    assert_eq!(renewed.code, 64, "{}", renewed.err);
    let run = store.dlock(["baton", "exec", "--keep", "1h", path, "--", "true"]).done();
    assert_eq!(run.code, 64, "{}", run.err);
    assert!(run.err.contains("cannot be written"), "{}", run.err);
    let released = store.dlock(["baton", "release", path]).done();
    assert_eq!(released.code, 0, "{}", released.err);
    assert!(files(&store).is_empty(), "{:?}", files(&store));
}

#[test]
fn where_the_disk_has_no_room_for_a_baton_no_lock_is_taken_and_none_is_lost() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    // No file may grow, as on a full disk.
    let full = |task: &[&str]| {
        store.dlock(task.iter().copied()).by_shell("trap '' XFSZ; ulimit -f 0; exec \"$@\"").done()
    };
    let none = full(&["baton", "acquire", "order", path]);
    assert_eq!(none.code, 64, "{}", none.err);
    assert!(none.err.contains("cannot be written") && is_free(&store, "order"), "{}", none.err);
    assert!(files(&store).is_empty(), "{:?}", files(&store));

    acquire(&store, path);
    let text = std::fs::read_to_string(&file).unwrap();
    for task in [&["baton", "renew", path][..], &["baton", "exec", "--keep", "1h", path, "--", "true"]] {
        let kept = full(task);
        assert_eq!(kept.code, 64, "{task:?}: {}", kept.err);
        assert_eq!(files(&store), ["order.baton"], "{task:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{task:?}");
    }
    let released = full(&["baton", "release", path]);
    assert_eq!((released.code, file.exists()), (0, false), "{}", released.err);
}

#[tokio::test]
async fn a_share_and_permits_that_a_service_handed_over_are_carried_on_as_such() {
    let store = Store::new();
    let locks = dlock::connect(store.url()).await.unwrap();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    let share = locks.lock("page").read().acquire().await.unwrap().hand_over().await.unwrap();
    let permits = locks.semaphore("gpu", 4).take(2).acquire().await.unwrap().hand_over().await.unwrap();
    for (baton, key, mode) in [(share, "page", "read"), (permits, "gpu", "permits")] {
        std::fs::write(&file, baton.to_text()).unwrap();
        let renewed = store.dlock(["baton", "renew", path]).done();
        assert_eq!(renewed.code, 0, "{}", renewed.err);
        let looks = format!("{} --locks {} --json inspect {key}", env!("CARGO_BIN_EXE_dlock"), store.url());
        let exec = ["baton", "exec", "--keep", "1h", path, "--", "/bin/sh", "-c", &looks];
        let ran = store.dlock(exec).done();
        assert_eq!((ran.code, &ran.json()["holder"]["mode"]), (0, &mode.into()), "{}", ran.err);
        let released = store.dlock(["baton", "release", path]).done();
        assert_eq!((released.code, file.exists()), (0, false), "{}", released.err);
        assert!(store.dlock(["inspect", key]).done().out.starts_with("nobody holds"), "{key}");
    }
}

#[test]
fn a_lock_is_kept_on_however_the_command_ends() {
    let store = Store::new();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    acquire(&store, path);
    let commands: [(&[&str], u8); 4] = [
        (&["/nowhere/command"], 127),
        (&["/"], 126),
        (&["/bin/sh", "-c", "kill -9 $$"], 137),
        // As an inner run may end.
        (&["/bin/sh", "-c", "exit 79"], 79),
    ];
    for keep in [&["--keep", "1h"][..], &[]] {
        for (command, code) in commands {
            if !file.exists() {
                acquire(&store, path);
            }
            let front = ["baton", "exec"].into_iter().chain(keep.iter().copied());
            let all = front.chain([path, "--"]).chain(command.iter().copied());
            let ended = store.dlock(all).done();
            assert_eq!(ended.code, code, "{command:?}: {}", ended.err);
            assert_eq!(is_free(&store, "order"), keep.is_empty(), "{command:?}");
            assert_eq!(file.exists(), !keep.is_empty(), "{command:?}");
        }
    }
}

#[test]
fn a_lock_that_is_not_kept_on_is_the_exit_code_unless_the_command_failed_and_no_file_stays() {
    let store = Store::new();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let unwritten = format!("rm {path}.*");
    let taken = format!("{dlock} --locks {} release --force --yes order > /dev/null", store.url());
    for (script, code, says) in [
        (unwritten.clone(), 70, "the lock was released"),
        (format!("{unwritten}; exit 3"), 3, "the lock was released"),
        (taken, 79, "order"),
    ] {
        acquire(&store, path);
        let run = store.dlock(["baton", "exec", "--keep", "1h", path, "--", "/bin/sh", "-c", &script]).done();
        assert_eq!(run.code, code, "{script}: {}", run.err);
        assert!(run.err.contains(says), "{}", run.err);
        assert!(is_free(&store, "order"), "{script}");
        assert!(files(&store).is_empty(), "{script}: {:?}", files(&store));
    }
    let pipe = store.dlock(["baton", "exec", "--keep", "1h", "-", "--", "true"]).say("dlock-baton:1:").done();
    assert_eq!(pipe.code, 64, "{}", pipe.err);
    assert!(pipe.err.contains("--keep needs a file"), "{}", pipe.err);
}

#[test]
fn a_signal_ends_what_waits_for_the_store_and_leaves_the_baton_as_it_was() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&format!("{}?connect=lazy", server.url()));
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    acquire(&store, path);
    let text = std::fs::read_to_string(&file).unwrap();
    server.pause();
    let tasks = [
        &["baton", "renew", path][..],
        &["baton", "release", path],
        &["baton", "exec", "--keep", "1h", path, "--", "true"],
    ];
    let waiting = tasks.map(|task| store.dlock(task.iter().copied()).start());
    for one in &waiting {
        one.waits_in_the_program();
        one.signal(15);
    }
    for (ended, task) in waiting.map(Running::wait).iter().zip(tasks) {
        assert_eq!(ended.code, 143, "{task:?}: {}", ended.err);
        assert!(ended.err.contains("the store does not answer"), "{task:?}: {}", ended.err);
    }
    assert_eq!(files(&store), ["order.baton"]);
    server.resume();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let released = store.dlock(["baton", "release", path]).done();
    assert_eq!(released.code, 0, "{}", released.err);
}
