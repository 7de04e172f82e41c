//! What administrators see and do.

use dlock_core::{ErrorKind, Locks};

use crate::support::Site;

#[tokio::test]
async fn more_holders_than_one_answer_has_are_all_listed() {
    let site = Site::new();
    let backend = site.backend().await;
    let locks = Locks::new(backend);
    let guard = locks.lock("a").acquire().await.unwrap();
    // As the row that is there, under other keys.
    site.execute(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2100) \
         INSERT INTO dlock SELECT CAST('k' || n AS BLOB), token, fence, boot, expires, holder FROM dlock, n WHERE key = CAST('a' AS BLOB)",
    )
    .await;
    assert_eq!(locks.holders().await.unwrap().len(), 2_101);
    guard.check().unwrap();
}

#[tokio::test]
async fn a_forced_release_takes_the_lock_away_with_a_higher_fence() {
    let site = Site::new();
    let (admin, locks) = (site.locks().await, site.locks().await);
    let first = locks.lock("a").acquire().await.unwrap();
    assert!(admin.force_release("a").await.unwrap());
    assert!(!admin.force_release("a").await.unwrap(), "nobody has it any more");
    assert!(!admin.force_release("never").await.unwrap());
    assert_eq!(admin.force_release("").await.unwrap_err().kind(), ErrorKind::InvalidKey);
    let second = admin.lock("a").acquire().await.unwrap();
    assert!(second.fence().unwrap().get() > first.fence().unwrap().get() + 1);
    first.lost().await;
    assert_eq!(first.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    second.check().unwrap();
}
