//! Locks that a script carries from step to step, as its users meet them: real processes over a real store.

mod support;

use std::os::unix::fs::PermissionsExt;

use support::Store;

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
    let shown = store.dlock(["baton", "show", path]).done();
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
    let mut lines = kept.out.lines();
    assert_eq!(lines.next(), Some("order"));
    let second = number(lines.next().unwrap());
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
    assert_eq!(lost.code, 70, "{}", lost.err);
    assert!(lost.err.contains("the lock was released"), "{}", lost.err);
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
    let pipe = store.dlock(["baton", "acquire", "--key", "order", "-"]).done();
    assert_eq!(pipe.code, 0, "{}", pipe.err);
    let released = store.dlock(["baton", "release", "-"]).say(&pipe.out).done();
    assert_eq!(released.code, 0, "{}", released.err);
    assert_eq!(store.run("order", &["--wait", "0"], "true").done().code, 0);
}
