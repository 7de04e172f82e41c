//! What several hold at a time, beside programs that know nothing of it, and beside rows of earlier times.

use std::time::Duration;

use dlock_core::backend::{Administration, Mode};
use dlock_core::{Backend, Claim, ErrorKind, Key, Locks};

use crate::by_hand::request;
use crate::mixing;
use crate::support::{Other, Site, granted};

async fn locks(site: &Site) -> Locks {
    Locks::new(site.backend().await)
}

#[tokio::test]
async fn who_looks_at_the_row_of_a_key_alone_finds_it_taken_as_long_as_any_of_its_readers_is_there() {
    let site = Site::new();
    let locks = locks(&site).await;
    let taken = "SELECT count(*) FROM dlock WHERE key = CAST('k' AS BLOB) AND token IS NOT NULL";
    let lasts = "SELECT (SELECT max(expires) FROM dlock WHERE key > x'fd') \
                 <= (SELECT expires FROM dlock WHERE key = CAST('k' AS BLOB))";
    let long = locks.lock("k").read().with_lease(Duration::from_secs(600)).acquire().await.unwrap();
    let short = locks.lock("k").read().acquire().await.unwrap();
    assert_eq!((site.number(taken).await, site.number(lasts).await), (1, 1));
    long.release().await.unwrap();
    assert_eq!((site.number(taken).await, site.number(lasts).await), (1, 1));
    let ends_soon =
        "SELECT max(expires) - min(expires) FROM dlock WHERE key = CAST('k' AS BLOB) OR key > x'fd'";
    assert_eq!(
        site.number(ends_soon).await,
        0,
        "the row of the key is kept for no longer than those that are left"
    );
    short.release().await.unwrap();
    assert_eq!(site.number(taken).await, 0);
    assert_eq!(
        site.number("SELECT count(*) FROM dlock WHERE key > x'fd'").await,
        0,
        "nothing is left of them"
    );
}

#[tokio::test]
async fn what_a_program_takes_away_that_knows_nothing_of_readers_is_taken_from_all_of_them() {
    let site = Site::new();
    let (ours, theirs) = (locks(&site).await, locks(&site).await);
    let (lock, permits) = (ours.lock("k").read(), ours.semaphore("s", 2));
    let guards = [lock.acquire().await.unwrap(), permits.acquire().await.unwrap()];
    site.execute("UPDATE dlock SET token = NULL, fence = fence + 1 WHERE key > x'' AND key < x'fd'").await;
    // What is left of them counts for nobody.
    let writer = theirs.lock("k").try_acquire().await.unwrap().expect("it is free");
    let all = theirs.semaphore("s", 3).take(3).try_acquire().await.unwrap().expect("they are free");
    for guard in guards {
        assert!(guard.fence() < writer.fence().max(all.fence()));
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    }
    writer.check().unwrap();
    writer.release().await.unwrap();
    // Nor do they come back with the next ones.
    let reader = theirs.lock("k").read().acquire().await.unwrap();
    assert_eq!(theirs.occupancy("k").await.unwrap().holders.len(), 1);
    assert_eq!(theirs.occupancy("s").await.unwrap().taken(), 3);
    reader.release().await.unwrap();
    assert!(theirs.lock("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn rows_of_what_is_shared_or_remembered_are_not_pruned() {
    let site = Site::new();
    let backend = site.backend().await;
    let locks = Locks::new(backend.clone());
    let reader = locks.lock("k").read().acquire().await.unwrap();
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    locks.semaphore("remembered", 4).acquire().await.unwrap().release().await.unwrap();
    backend.prune(Duration::ZERO).await.unwrap();
    reader.check().unwrap();
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.semaphore("s", 2).available().await.unwrap(), 1);
    let other = locks.semaphore("remembered", 5).acquire().await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    assert_eq!(locks.holders().await.unwrap().len(), 2);
    reader.release().await.unwrap();
    permit.release().await.unwrap();
}

#[tokio::test]
async fn keys_that_begin_alike_do_not_share_their_readers() {
    let site = Site::new();
    let locks = locks(&site).await;
    let longest = "k".repeat(512);
    let keys = ["k", "kk", "k\u{1}", &longest, "\u{10ffff}", "%", "k'"];
    let mut guards = Vec::new();
    for key in keys {
        guards.push(locks.lock(key).read().acquire().await.unwrap());
    }
    for (n, key) in keys.iter().enumerate() {
        let found = locks.occupancy(*key).await.unwrap();
        assert_eq!(found.holders.len(), 1, "{key:?}");
        assert_eq!(found.holders[0].fence, guards[n].fence());
        let listed = locks.holders().await.unwrap();
        assert_eq!(listed.iter().filter(|(listed, _)| listed.as_str() == *key).count(), 1, "{key:?}");
    }
    for (key, guard) in keys.iter().zip(guards) {
        assert!(locks.lock(*key).try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        locks.lock(*key).try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_cancelled_anywhere_leaves_connections_on_which_others_go_on() {
    let site = Site::new();
    let (ours, theirs) = (locks(&site).await, locks(&site).await);
    for n in 0..60 {
        let lock = ours.lock("k").read();
        let task = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_micros(n * 25)).await;
        task.abort();
        drop(task.await);
        // On the same connections, and on those of another process.
        ours.lock("other").acquire().await.unwrap().release().await.unwrap();
        theirs.lock("other").acquire().await.unwrap().release().await.unwrap();
    }
    theirs.lock("k").with_wait(Duration::from_secs(20)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn processes_of_which_some_are_killed_share_a_lock_and_a_semaphore_and_none_is_where_it_must_not_be() {
    let site = Site::new();
    drop(site.backend().await);
    let start = || Other::start_mute("mix", &site.path);
    mixing::some_are_killed(site.directory.path(), start).await;
}

#[tokio::test]
async fn a_key_that_was_a_semaphore_until_somebody_freed_it_has_readers_and_downgrades_like_any_other() {
    let site = Site::new();
    let (ours, theirs) = (locks(&site).await, locks(&site).await);
    let permit = ours.semaphore("k", 4).acquire().await.unwrap();
    assert!(theirs.force_release("k").await.unwrap());
    let readers = [ours.lock("k").read(), theirs.lock("k").read()];
    for round in 0..2 {
        let mut writer = None;
        if round > 0 {
            // One that was taken in one statement, which leaves the rows beside it as they are.
            let _old = ours.semaphore("k", 4).acquire().await.unwrap();
            assert!(theirs.force_release("k").await.unwrap());
            let mut guard = ours.lock("k").acquire().await.unwrap();
            guard.downgrade().await.unwrap();
            writer = Some(guard);
        }
        let one = readers[0].try_acquire().await.unwrap().expect("it may be read");
        let other = readers[1].try_acquire().await.unwrap().expect("by others too");
        assert_eq!(theirs.occupancy("k").await.unwrap().permits, None);
        for guard in [one, other].into_iter().chain(writer) {
            guard.release().await.unwrap();
        }
    }
    assert_eq!(permit.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test]
async fn permits_whose_grant_was_lost_on_its_way_are_adopted_also_after_a_resize() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut request = request("k", Duration::from_secs(30)).await;
    request.mode = Mode::Permits { of: 4, take: 1 };
    let mut claim = backend.claim(request);
    let first = granted(claim.attempt().await.unwrap());
    assert_eq!(backend.resize(Key::new("k").unwrap(), 8).await.unwrap(), Some(4));
    let again = granted(claim.attempt().await.unwrap());
    assert_eq!(again.fence, first.fence);
}
