//! What may be the name of a lock.

use std::collections::BTreeSet;

use dlock_core::{ErrorKind, Key};

use super::cases;
use crate::conformance::expect::{error_of, give_back};
use crate::conformance::{Process, Stage};
use crate::keys::generated_keys;

cases! {
    invalid_keys_are_refused_without_a_request: Nothing, Easy;
    keys_that_look_alike_are_different_locks: Nothing, Busy;
    hostile_keys_are_only_names: Nothing, Busy;
    keys_of_the_full_length_differ_by_their_last_byte: Nothing, Easy;
    generated_keys_are_all_different_locks: Nothing, Busy;
}

/// Empty, too long, with a NUL.
async fn invalid_keys_are_refused_without_a_request(stage: Stage) {
    let process = stage.process().await;
    for key in
        [String::new(), "x".repeat(Key::MAX_LEN + 1), "é".repeat(Key::MAX_LEN), "a\0b".into(), "\0".into()]
    {
        let lock = process.locks.lock(&key);
        let error = error_of(lock.acquire().await, &[ErrorKind::InvalidKey]);
        assert!(!error.is_retryable());
        error_of(lock.try_acquire().await, &[ErrorKind::InvalidKey]);
        error_of(lock.run(async {}).await, &[ErrorKind::InvalidKey]);
        error_of(process.locks.inspect(&key).await, &[ErrorKind::InvalidKey]);
    }
    assert_eq!(process.wire.requests(), 0);
}

/// Takes all of `keys` at once; another process finds each held under just that name. Then gives them back.
async fn are_different_locks(stage: &Stage, keys: &BTreeSet<String>) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let mut left =
        with_each(&ours, keys.iter().cloned(), |ours, key| async move { ours.take(&key).await }).await;
    with_each(&theirs, keys.iter().cloned(), |theirs, key| async move { theirs.sees_held(&key).await }).await;
    let right = left.split_off(left.len() / 2);
    with_each(&ours, left, |_, guard| give_back(guard)).await;
    // What was released is free, and what was not is not.
    let released = keys.iter().take(keys.len() / 2).cloned();
    with_each(&theirs, released, |theirs, key| async move { give_back(theirs.take(&key).await).await }).await;
    with_each(&theirs, right, |theirs, guard| async move {
        theirs.sees_held(guard.key()).await;
        give_back(guard).await;
    })
    .await;
}

/// Does the same with each item, many at a time, so that a slow backend is done in time. The results are in order.
async fn with_each<I, T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    process: &Process,
    items: impl IntoIterator<Item = I>,
    each: impl Fn(Process, I) -> F,
) -> Vec<T> {
    let mut items = items.into_iter();
    let mut results = Vec::new();
    loop {
        let batch = items.by_ref().take(64).map(|item| tokio::spawn(each(process.clone(), item)));
        let batch: Vec<_> = batch.collect();
        if batch.is_empty() {
            return results;
        }
        for task in batch {
            match task.await {
                Ok(result) => results.push(result),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

/// Nothing is trimmed, folded, normalised or cut.
async fn keys_that_look_alike_are_different_locks(stage: Stage) {
    let base = stage.key();
    let alike = [
        "a",
        "A",
        "a ",
        " a",
        "a\t",
        "a\n",
        "\na",
        "a\r\n",
        "a.",
        "a/",
        "/a",
        "a//",
        "aa",
        "ä",
        "a\u{308}",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "SS",
        "ı",
        "i",
        "I",
        "İ",
        "ﬁ",
        "fi",
        "０",
        "0",
        "00",
        "1",
        "01",
        "1.0",
        "\u{200b}a",
        "a\u{200d}",
        "\u{feff}a",
        "К",
        "K",
        "\u{212a}",
        "ſ",
        "s",
        "S",
        "Ω",
        "\u{2126}",
        "å",
        "a\u{30a}",
        "\u{212b}",
        // Collations that know no characters of four bytes take all of them for one.
        "🔒",
        "🔑",
        "null",
        "NULL",
        "true",
        "-1",
    ];
    let keys: BTreeSet<_> = alike.iter().map(|tail| format!("{base}{tail}")).collect();
    assert_eq!(keys.len(), alike.len());
    are_different_locks(&stage, &keys).await;
}

/// Text that means something to a shell, a database, a path or a pattern means nothing here.
async fn hostile_keys_are_only_names(stage: Stage) {
    let base = stage.key();
    let hostile = [
        "'; DROP TABLE locks; --",
        "' OR '1'='1",
        "\"",
        "`",
        "\\",
        "\\0",
        "%",
        "_",
        "%_",
        "*",
        "?",
        "[a-z]",
        "{a}",
        "{}",
        "}{",
        "{{",
        "<id>",
        "$(id)",
        "$1",
        ":1",
        "?1",
        "@p",
        "#",
        "--",
        "/*",
        ";",
        "|",
        "&",
        "../../etc/passwd",
        "..",
        ".",
        "/",
        "//",
        "~",
        "a\r\nSET x 1\r\n",
        "\u{1}\u{2}\u{1f}\u{7f}",
        "\u{80}\u{9f}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{f8ff}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{10ffff}",
        "🔒",
        "👩‍👩‍👧",
        "\u{202e}abc",
        "zookeeper",
        "-lock-0000000001",
        "=",
        "a=b c=d",
        "\t",
    ];
    let mut keys: BTreeSet<_> = hostile.iter().map(|tail| format!("{base}{tail}")).collect();
    // Also as the whole name, where the store is ours alone or not: nobody else uses these.
    keys.extend(hostile.iter().map(|head| format!("{head}{base}")));
    are_different_locks(&stage, &keys).await;
}

/// Long keys are not cut off.
async fn keys_of_the_full_length_differ_by_their_last_byte(stage: Stage) {
    let base = stage.key();
    let stem = format!("{base}{}", "x".repeat(Key::MAX_LEN - base.len() - 1));
    let mut keys: BTreeSet<_> = ["a", "b", "A"].iter().map(|last| format!("{stem}{last}")).collect();
    keys.insert(stem.clone());
    keys.insert(stem[..stem.len() - 1].to_owned());
    assert!(keys.iter().any(|key| key.len() == Key::MAX_LEN));
    are_different_locks(&stage, &keys).await;
}

/// Any text: different bytes are different locks. That a backend has different names for different keys is a property
/// of a function, for its own tests; what is tried here is that the store takes such names apart.
async fn generated_keys_are_all_different_locks(stage: Stage) {
    let base = stage.key();
    let keys = generated_keys(200).iter().map(|tail| format!("{base}{tail}")).collect();
    are_different_locks(&stage, &keys).await;
}
