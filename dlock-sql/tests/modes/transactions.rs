//! Locks that belong to the caller's transaction.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_sql::{Patience, RowKey, TransactionLocks, lock_query, lock_row};
use sqlx::Row;

use crate::support::{is_waiting, on_each};

const TABLE: &str =
    "CREATE TABLE stock (shop bigint, article varchar(20), amount bigint, PRIMARY KEY (shop, article));
    INSERT INTO stock VALUES (7, 'shirt', 10), (7, 'hat', 10)";

fn shirt<D: dlock_sql::Dialect>() -> RowKey<D>
where
    i64: for<'q> sqlx::Encode<'q, D> + sqlx::Type<D>,
    &'static str: for<'q> sqlx::Encode<'q, D> + sqlx::Type<D>,
{
    RowKey::new("shop", 7_i64).and("article", "shirt")
}

on_each! { [postgres Postgres, mysql MySql] {
    async fn a_row_that_another_transaction_has_is_busy_until_that_commits(db) {
        db.run(TABLE).await;
        let mut first = db.pool.begin().await.unwrap();
        lock_row(&mut first, "stock", shirt(), Patience::No).await.unwrap();
        let mut second = db.pool.begin().await.unwrap();
        let error = lock_row(&mut second, "stock", shirt(), Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let short = Patience::AtMost(Duration::from_millis(50));
        let error = lock_row(&mut second, "stock", shirt(), short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        // The transaction goes on, and another row is free.
        let hat = RowKey::new("shop", 7_i64).and("article", "hat");
        lock_row(&mut second, "stock", hat, Patience::No).await.unwrap();
        sqlx::query("UPDATE stock SET amount = 9 WHERE shop = 7 AND article = 'shirt'").execute(&mut *first).await.unwrap();
        first.commit().await.unwrap();
        lock_row(&mut second, "stock", shirt(), Patience::No).await.unwrap();
        let amount: i64 = sqlx::query_scalar("SELECT amount FROM stock WHERE article = 'shirt'")
            .fetch_one(&mut *second).await.unwrap();
        assert_eq!(amount, 9);
    }

    async fn the_rows_of_a_query_are_returned_and_locked(db) {
        db.run(TABLE).await;
        let query = |article: &'static str| {
            let mut query = sqlx::QueryBuilder::new("SELECT amount FROM stock WHERE article = ");
            query.push_bind(article);
            query
        };
        let mut first = db.pool.begin().await.unwrap();
        let rows = lock_query(&mut first, query("shirt"), &[], Patience::No).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get::<i64, _>(0)).collect::<Vec<_>>(), [10]);
        assert!(lock_query(&mut first, query("sock"), &[], Patience::No).await.unwrap().is_empty());
        let mut second = db.pool.begin().await.unwrap();
        let error = lock_query(&mut second, query("shirt"), &[], Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let short = Patience::AtMost(Duration::from_millis(50));
        let error = lock_query(&mut second, query("shirt"), &[], short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let error = lock_query(&mut second, query("hat"), &["st;ock"], Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }

    async fn a_missing_row_locks_nothing_and_says_so(db) {
        db.run(TABLE).await;
        let mut transaction = db.pool.begin().await.unwrap();
        let sock = RowKey::new("shop", 7_i64).and("article", "sock");
        let error = lock_row(&mut transaction, "stock", sock, Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
        let error = lock_row(&mut transaction, "st;ock", shirt(), Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let error = lock_row(&mut transaction, "nothing", shirt(), Patience::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }

    async fn who_waits_for_a_named_lock_gets_it_with_the_commit_and_sees_what_was_written(db) {
        db.run(TABLE).await;
        let locks = TransactionLocks::<D>::new("dlock_transactions").unwrap();
        locks.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        let mut first = db.pool.begin().await.unwrap();
        locks.lock(&mut first, "a", Patience::No).await.unwrap();
        locks.lock(&mut first, "a", Patience::No).await.unwrap();
        let (of_other, pool) = (locks.clone(), db.pool.clone());
        let mut waiting = tokio::spawn(async move {
            let mut second = pool.begin().await.unwrap();
            of_other.lock(&mut second, "a", Patience::AtMost(Duration::from_secs(20))).await.unwrap();
            sqlx::query_scalar::<_, i64>("SELECT amount FROM stock WHERE article = 'hat'")
                .fetch_one(&mut *second).await.unwrap()
        });
        assert!(is_waiting(&mut waiting).await, "two transactions have the same lock");
        sqlx::query("UPDATE stock SET amount = 3 WHERE article = 'hat'").execute(&mut *first).await.unwrap();
        assert!(!waiting.is_finished());
        first.commit().await.unwrap();
        assert_eq!(waiting.await.unwrap(), 3);
    }

    async fn a_named_lock_ends_with_a_rollback_and_is_busy_until_then(db) {
        let locks = TransactionLocks::<D>::new("dlock_transactions").unwrap();
        locks.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        // Once for a name that is new, once for one that is known.
        for _ in 0..2 {
            let mut first = db.pool.begin().await.unwrap();
            locks.lock(&mut first, "a", Patience::No).await.unwrap();
            let mut second = db.pool.begin().await.unwrap();
            let error = locks.lock(&mut second, "a", Patience::No).await.unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("a")), "{error}");
            let short = Patience::AtMost(Duration::from_millis(50));
            let error = locks.lock(&mut second, "a", short).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            locks.lock(&mut second, "A", Patience::No).await.unwrap();
            locks.lock(&mut second, "a ", Patience::No).await.unwrap();
            drop(first);
            locks.lock(&mut second, "a", Patience::AtMost(Duration::from_secs(20))).await.unwrap();
            second.commit().await.unwrap();
        }
    }

    async fn transactions_that_wait_for_each_other_are_told_to_run_again(db) {
        let locks = TransactionLocks::<D>::new("dlock_transactions").unwrap();
        locks.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        let crossed = async |one: &'static str, other: &'static str, both: &tokio::sync::Barrier| {
            let mut transaction = db.pool.begin().await.unwrap();
            locks.lock(&mut transaction, one, Patience::OfServer).await.unwrap();
            both.wait().await;
            let crossed = locks.lock(&mut transaction, other, Patience::OfServer).await;
            drop(transaction);
            crossed
        };
        let both = tokio::sync::Barrier::new(2);
        let (one, other) = tokio::join!(crossed("a", "b", &both), crossed("b", "a", &both));
        let failed: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].kind(), ErrorKind::Unavailable, "{}", failed[0]);
        assert!(failed[0].is_retryable());
    }
}}

#[tokio::test]
async fn of_the_tables_of_a_query_only_those_that_are_named_are_locked_where_the_database_can() {
    let tables = "CREATE TABLE shops (id bigint PRIMARY KEY); INSERT INTO shops VALUES (7)";
    let join = "SELECT amount FROM stock JOIN shops ON shops.id = stock.shop WHERE article = 'hat'";
    let db = crate::support::postgres().await;
    db.run(TABLE).await;
    db.run(tables).await;
    let mut first = db.pool.begin().await.unwrap();
    lock_query(&mut first, sqlx::QueryBuilder::new(join), &["stock"], Patience::No).await.unwrap();
    let mut second = db.pool.begin().await.unwrap();
    lock_row(&mut second, "shops", RowKey::new("id", 7_i64), Patience::No).await.unwrap();
    let hat = RowKey::new("shop", 7_i64).and("article", "hat");
    let error = lock_row(&mut second, "stock", hat, Patience::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");

    let db = crate::support::mysql().await;
    db.run(TABLE).await;
    db.run(tables).await;
    let mut first = db.pool.begin().await.unwrap();
    let query = sqlx::QueryBuilder::new(join);
    let error = lock_query(&mut first, query, &["stock"], Patience::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "MariaDB has no OF: {error}");
}

#[tokio::test]
async fn no_setting_of_the_users_session_is_left_changed() {
    let db = crate::support::postgres().await;
    let mut connection = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("SET lock_timeout = '7s'").execute(&mut *connection).await.unwrap();
    let locks = TransactionLocks::<sqlx::Postgres>::new("set").unwrap();
    let mut other = db.pool.begin().await.unwrap();
    locks.lock(&mut other, "busy", Patience::No).await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
    locks.lock(&mut transaction, "free", Patience::AtMost(Duration::from_millis(20))).await.unwrap();
    let setting = async |on: &mut sqlx::PgConnection| -> String {
        sqlx::query_scalar("SELECT current_setting('lock_timeout')").fetch_one(on).await.unwrap()
    };
    assert_eq!(setting(&mut transaction).await, "7s");
    locks.lock(&mut transaction, "busy", Patience::AtMost(Duration::from_millis(20))).await.unwrap_err();
    assert_eq!(setting(&mut transaction).await, "7s");
    transaction.commit().await.unwrap();
    assert_eq!(setting(&mut connection).await, "7s");

    let db = crate::support::mysql().await;
    let mut connection = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("SET innodb_lock_wait_timeout = 7").execute(&mut *connection).await.unwrap();
    let locks = TransactionLocks::<sqlx::MySql>::new("named").unwrap();
    locks.migrate(&mut connection).await.unwrap();
    let mut other = db.pool.begin().await.unwrap();
    locks.lock(&mut other, "busy", Patience::No).await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
    locks.lock(&mut transaction, "free", Patience::AtMost(Duration::from_secs(1))).await.unwrap();
    locks.lock(&mut transaction, "busy", Patience::No).await.unwrap_err();
    let setting = sqlx::query_scalar("SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)");
    let setting: i64 = setting.fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(setting, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_no_transaction_has_are_pruned() {
    let db = crate::support::mysql().await;
    let locks = TransactionLocks::<sqlx::MySql>::new("names").unwrap();
    let mut other = db.pool.acquire().await.unwrap();
    locks.migrate(&mut other).await.unwrap();
    let mut first = db.pool.begin().await.unwrap();
    locks.lock(&mut first, "a", Patience::OfServer).await.unwrap();
    for n in 0..3 {
        let mut second = db.pool.begin().await.unwrap();
        locks.lock(&mut second, &format!("b{n}"), Patience::No).await.unwrap();
        second.commit().await.unwrap();
    }
    assert_eq!(locks.prune(&mut other).await.unwrap(), 3);
    let mut second = db.pool.begin().await.unwrap();
    let error = locks.lock(&mut second, "a", Patience::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    first.commit().await.unwrap();
    locks.lock(&mut second, "a", Patience::No).await.unwrap();
    assert_eq!(locks.prune(&mut other).await.unwrap(), 0, "it is taken again");
    second.rollback().await.unwrap();
    assert_eq!(locks.prune(&mut other).await.unwrap(), 1);
    assert_eq!(db.number("SELECT count(*) FROM names").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_costs_one_round_trip_on_postgresql() {
    use dlock_rig::proxy::{Loss, Pgwire, Proxy};
    use sqlx::Connection;

    let db = crate::support::postgres().await;
    let proxy = Proxy::speaking(Pgwire::default(), db.server.address()).unwrap();
    let mut connection = sqlx::PgConnection::connect(&db.server.url_through(proxy.address())).await.unwrap();
    let locks = TransactionLocks::<sqlx::Postgres>::new("names").unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let limited = Patience::AtMost(Duration::from_secs(2));
    for patience in [Patience::No, Patience::OfServer, limited] {
        // The server has to know the statement first.
        locks.lock(&mut transaction, "a", patience).await.unwrap();
        proxy.lose_reply(2, "", Loss::Cut);
        locks.lock(&mut transaction, "b", patience).await.unwrap();
        assert_eq!(proxy.lost(), 0, "{patience:?} sent more than one request");
        proxy.mend();
    }
    let limit: String = sqlx::query_scalar("SHOW lock_timeout").fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(limit, "0", "it is as it was");
    transaction.commit().await.unwrap();
}
