//! Writes that refuse stale fences.

use dlock_core::{ErrorKind, Fence};
use dlock_sql::{FenceColumn, FencedCell};

use crate::support::{is_waiting, on_each};

#[test]
fn names_that_could_end_a_statement_are_refused() {
    for wrong in ["", "a b", "a;b", "a\"", "a`", "a.b.c", "9a"] {
        let error = FencedCell::<sqlx::Postgres>::new(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong:?}");
        assert!(FenceColumn::<sqlx::MySql>::new(wrong).is_err(), "{wrong:?}");
    }
    assert!(FencedCell::<sqlx::Postgres>::new("shop.fences").is_ok());
}

on_each! { [postgres Postgres, mysql MySql, sqlite Sqlite] {
    async fn a_stale_fence_is_refused_and_its_transaction_writes_nothing(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run("CREATE TABLE stock (id int, amount int); INSERT INTO stock VALUES (1, 10)").await;
        let sell = async |fence: u64, resource: &str| {
            let mut transaction = db.pool.begin().await.unwrap();
            cell.admit(&mut transaction, resource, Fence::new(fence)).await?;
            sqlx::query("UPDATE stock SET amount = amount - 1").execute(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            Ok::<(), dlock_core::Error>(())
        };
        sell(7, "stock:1").await.unwrap();
        sell(7, "stock:1").await.unwrap();
        sell(9, "stock:1").await.unwrap();
        let error = sell(8, "stock:1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("the fence 8 is stale") && error.to_string().contains("stock:1"), "{error}");
        sell(9, "stock:1").await.unwrap();
        // Others are not concerned, and names count by their bytes.
        sell(1, "stock:2").await.unwrap();
        sell(1, "STOCK:1").await.unwrap();
        sell(1, "stock:1 ").await.unwrap();
        assert_eq!(db.number("SELECT count(*) FROM stock WHERE amount = 3").await, 1);
    }

    async fn a_fence_of_a_transaction_that_was_rolled_back_does_not_count(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        let mut transaction = db.pool.begin().await.unwrap();
        cell.admit(&mut transaction, "a", Fence::new(9)).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut transaction = db.pool.begin().await.unwrap();
        cell.admit(&mut transaction, "a", Fence::new(8)).await.unwrap();
        transaction.commit().await.unwrap();
    }

    async fn nobody_else_is_admitted_until_the_transaction_ends(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        let mut new = db.pool.begin().await.unwrap();
        cell.admit(&mut new, "a", Fence::new(9)).await.unwrap();
        let (of_old, pool) = (cell.clone(), db.pool.clone());
        let mut stale = tokio::spawn(async move {
            let mut old = pool.begin().await.unwrap();
            of_old.admit(&mut old, "a", Fence::new(8)).await
        });
        assert!(is_waiting(&mut stale).await, "the old writer was answered before the new one was done");
        new.commit().await.unwrap();
        assert_eq!(stale.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    }

    async fn a_column_for_the_fence_refuses_stale_writers_in_one_update(db) {
        db.run("CREATE TABLE stock (id bigint, amount bigint, fence bigint); INSERT INTO stock VALUES (42, 5, NULL)").await;
        let column = FenceColumn::<D>::new("fence").unwrap();
        let sell = async |fence: u64| {
            let mut update = sqlx::QueryBuilder::<D>::new("UPDATE stock SET amount = amount - 1, ");
            column.push_assignment(&mut update, Fence::new(fence));
            update.push(" WHERE id = ").push_bind(42_i64).push(" AND ");
            column.push_predicate(&mut update, Fence::new(fence));
            update.build().execute(&db.pool).await.unwrap().rows_affected()
        };
        assert_eq!([sell(7).await, sell(6).await, sell(7).await, sell(8).await, sell(7).await], [1, 0, 1, 1, 0]);
        assert_eq!(db.number("SELECT amount FROM stock").await, 2);
    }
}}

#[tokio::test]
async fn a_missing_table_is_named_as_such() {
    let db = crate::support::sqlite().await;
    let cell = FencedCell::<sqlx::Sqlite>::new("nothing").unwrap();
    let mut transaction = db.pool.begin().await.unwrap();
    let error = cell.admit(&mut transaction, "a", Fence::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    for part in ["no such table", "table \"nothing\"", "run FencedCell::migrate"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = cell.admit(&mut transaction, "a", Fence::new(u64::MAX)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("the fence {} is above", u64::MAX)), "{error}");
    assert!(db.server.path().exists());
}

/// The second error of an aborted transaction says nothing of the first.
#[tokio::test]
async fn a_migration_that_fails_says_why_also_where_the_transaction_cannot_be_asked_any_more() {
    let db = crate::support::postgres().await;
    db.run("CREATE TABLE fences (name bytea NOT NULL PRIMARY KEY, number bigint NOT NULL)").await;
    db.run("CREATE ROLE app; GRANT CREATE ON SCHEMA public TO app; GRANT SELECT ON fences TO app").await;
    let mut transaction = db.pool.begin().await.unwrap();
    sqlx::query("SET LOCAL ROLE app").execute(&mut *transaction).await.unwrap();
    let cell = FencedCell::<sqlx::Postgres>::new("fences").unwrap();
    let error = cell.migrate(&mut transaction).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for part in ["must be owner", "current transaction is aborted", "column version", "table \"fences\""] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}
