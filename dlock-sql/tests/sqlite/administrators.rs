//! What administrators see and do.

use dlock_core::Locks;

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
