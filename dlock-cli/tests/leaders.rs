//! Who leads, as the program sees it.

mod support;

use std::time::Duration;

use support::{Store, lines};

/// Leads in this process.
async fn lead(store: &Store) -> (dlock::Locks, dlock::Term) {
    let builder = dlock::from_url(store.url()).await.unwrap();
    let locks = builder.with_lease(Duration::from_secs(6)).with_label("orders").build().unwrap();
    let term = locks.election("billing").campaign().next().await.unwrap();
    (locks, term)
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_listed_and_locks_are_not() {
    let store = Store::new();
    let empty = store.dlock(["leader", "ls"]).done();
    assert_eq!((empty.code, empty.out.as_str()), (0, "nobody leads\n"), "{}", empty.err);
    let (locks, term) = lead(&store).await;
    let guard = locks.lock("room_7").acquire().await.unwrap();
    let table = store.dlock(["leader", "ls"]).done();
    assert_eq!(lines(&table.out).len(), 2, "{}", table.out);
    assert!(table.out.contains("billing") && table.out.contains("orders"), "{}", table.out);
    let document = store.dlock(["leader", "ls", "--json"]).done().json();
    let leaders = document["leaders"].as_array().unwrap();
    assert_eq!((leaders.len(), leaders[0]["fence"].as_u64()), (1, term.number()));
    assert!(leaders[0]["candidate"].is_string(), "{document}");
    guard.release().await.unwrap();
    term.resign().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_says_each_change_until_it_has_said_enough() {
    let store = Store::new();
    let watching = ["leader", "watch", "billing", "--every", "50ms", "--times", "3", "--json"];
    let mut watch = store.dlock(watching).start();
    let said = |line: String| serde_json::from_str::<serde_json::Value>(&line).unwrap();
    assert!(said(watch.line())["leader"].is_null());
    let (_locks, term) = lead(&store).await;
    assert_eq!(said(watch.line())["leader"]["fence"].as_u64(), term.number());
    term.resign().await.unwrap();
    assert!(said(watch.line())["leader"].is_null());
    assert_eq!(watch.wait().code, 0);
    let wrong = store.dlock(["leader", "watch", "billing", "--every", "1ms"]).done();
    assert_eq!(wrong.code, 64, "{}", wrong.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_is_taken_away_after_a_yes_and_a_lock_is_left_alone() {
    let store = Store::new();
    let nobody = store.dlock(["leader", "resign", "billing", "--yes"]).done();
    assert_eq!((nobody.code, nobody.out.as_str()), (0, "nobody leads billing\n"), "{}", nobody.err);
    let (locks, term) = lead(&store).await;
    let refused = store.dlock(["leader", "resign", "billing"]).say("n\n").done();
    assert_eq!(refused.code, 77, "{}", refused.err);
    assert!(refused.err.contains("both act"), "{}", refused.err);
    term.check().unwrap();
    let document = store.dlock(["leader", "resign", "billing", "--yes", "--json"]).done().json();
    assert_eq!((&document["resigned"], document["leader"]["fence"].as_u64()), (&true.into(), term.number()));
    term.lost().await;
    assert!(term.check().is_err());
    let guard = locks.lock("room_7").acquire().await.unwrap();
    let lock = store.dlock(["leader", "resign", "room_7", "--yes"]).done();
    assert_eq!(lock.code, 75, "{}", lock.err);
    guard.check().unwrap();
}

/// Also where the same process leads again.
#[tokio::test(flavor = "multi_thread")]
async fn a_term_that_began_while_the_operator_was_asked_is_left_alone() {
    let store = Store::new();
    let (locks, term) = lead(&store).await;
    let mut resign = store.dlock(["leader", "resign", "billing"]).start();
    assert!(resign.asks().contains("billing is led by"));
    term.resign().await.unwrap();
    let next = locks.election("billing").campaign().next().await.unwrap();
    resign.answer("y\n");
    let left = resign.wait();
    assert_eq!(left.code, 75, "{}{}", left.out, left.err);
    assert!(left.err.contains("another term, by now; nothing was changed"), "{}", left.err);
    next.check().unwrap();
    let mut resign = store.dlock(["--json", "leader", "resign", "billing"]).start();
    assert!(resign.asks().contains("billing is led by"));
    next.resign().await.unwrap();
    resign.answer("y\n");
    let left = resign.wait();
    assert_eq!((left.code, &left.json()["resigned"]), (0, &false.into()), "{}", left.err);
}
