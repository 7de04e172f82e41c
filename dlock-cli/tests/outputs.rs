//! Commands whose output cannot be written: a device that is full, and a reader that has gone.

mod support;

use std::process::Stdio;

use dlock_rig::servers::redis::RedisServer;
use support::{Done, Store};

/// Runs the command with its standard output on a full device.
#[track_caller]
fn full(store: &Store, task: &[&str]) -> Done {
    store.dlock(task.iter().copied()).by_shell("exec \"$@\" > /dev/full").done()
}

/// The command is done, and standard error has the output that was lost.
#[track_caller]
fn done_unheard(store: &Store, task: &[&str], output: &str) {
    let done = full(store, task);
    assert_eq!(done.code, 0, "{task:?}: {}", done.err);
    assert!(done.err.starts_with("dlock: standard output cannot be written: No space left"), "{}", done.err);
    assert!(done.err.contains(output), "{task:?}: {}", done.err);
}

fn is_free(store: &Store, key: &str) -> bool {
    store.run(key, &["--wait", "0"], "true").done().code == 0
}

fn keep(store: &Store, key: &str, path: &str) {
    let kept = store.dlock(["baton", "acquire", "--for", "1h", key, path]).done();
    assert_eq!(kept.code, 0, "{}", kept.err);
}

/// Makes the standard output a pipe whose reader has gone.
const TO_NOBODY: &str = "mkfifo pipe; exec 3<>pipe 4>pipe 3>&-; exec \"$@\" >&4";

#[test]
fn a_baton_that_is_written_to_its_file_is_no_failure_where_the_output_is_lost() {
    let store = Store::new();
    let file = store.path("order.baton");
    let path = file.to_str().unwrap();
    done_unheard(&store, &["baton", "acquire", "order", path], "order is kept until 2");
    assert!(!is_free(&store, "order"));
    let first = std::fs::read_to_string(&file).unwrap();
    done_unheard(&store, &["--json", "baton", "renew", path], "order is kept until 2");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), first);
    let unread = store.dlock(["baton", "renew", path]).by_shell(TO_NOBODY).done();
    assert_eq!((unread.code, unread.err.as_str()), (0, ""));
    // What is only to be shown was not shown.
    assert_eq!(full(&store, &["baton", "show", path]).code, 70);
    assert_eq!(full(&store, &["inspect", "order"]).code, 70);
    assert_eq!(full(&store, &["baton", "release", path]).code, 0);
    assert!(is_free(&store, "order") && !file.exists());
}

#[test]
fn a_baton_whose_only_text_is_lost_is_no_lock_any_more() {
    let store = Store::new();
    let lost = full(&store, &["baton", "acquire", "order", "-"]);
    assert_eq!(lost.code, 70, "{}", lost.err);
    assert!(lost.err.contains("the lock was released"), "{}", lost.err);
    assert!(is_free(&store, "order"));
    let baton = store.dlock(["baton", "acquire", "order", "-"]).done().out;
    let lost = store.dlock(["baton", "renew", "-"]).by_shell("exec \"$@\" > /dev/full").say(&baton).done();
    assert_eq!(lost.code, 70, "{}", lost.err);
    assert!(lost.err.contains("the lock was released"), "{}", lost.err);
    assert!(is_free(&store, "order"));
    let lost = store.dlock(["baton", "acquire", "order", "-"]).by_shell(TO_NOBODY).done();
    assert_eq!(lost.code, 70, "{}", lost.err);
    assert!(is_free(&store, "order"));
}

#[test]
fn a_lock_that_was_taken_away_is_no_failure_where_the_output_is_lost() {
    let store = Store::new();
    keep(&store, "order", store.path("order.baton").to_str().unwrap());
    done_unheard(&store, &["release", "--force", "--yes", "order"], "released order");
    assert!(is_free(&store, "order"));
    done_unheard(&store, &["--json", "release", "--force", "--yes", "order"], "nobody holds order");
    done_unheard(&store, &["leader", "resign", "--yes", "order"], "nobody leads order");
}

#[test]
fn what_is_set_up_on_servers_is_no_failure_where_the_output_is_lost() {
    let store = Store::new();
    let missing = format!("sqlite://{}", store.path("missing.db").display());
    done_unheard(&Store::at(&missing), &["migrate"], "the lock table was made");
    assert!(store.path("missing.db").exists());
    done_unheard(&store, &["semaphore", "resize", "gpu", "5"], "there is no semaphore gpu");

    let servers = [(); 3].map(|()| RedisServer::start().unwrap());
    let quorum = format!("quorum:{}", servers.each_ref().map(RedisServer::url).join("|"));
    let quorum = Store::at(&quorum);
    done_unheard(&quorum, &["quorum", "bootstrap", "--yes"], "node 3 votes");
    assert_eq!(quorum.dlock(["quorum", "show"]).done().code, 0);
}

#[test]
fn a_question_that_nobody_can_read_is_no_yes_and_no_success() {
    let store = Store::new();
    keep(&store, "order", store.path("order.baton").to_str().unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let asked = store.dlock(["release", "--force", "order"]).errors(Stdio::from(writer)).say("y\n").done();
    assert_eq!(asked.code, 70);
    assert!(!is_free(&store, "order"));
}
