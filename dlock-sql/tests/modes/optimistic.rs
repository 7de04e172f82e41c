//! Optimistic writes.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_sql::{Optimistic, OptimisticError};
use sqlx::Row;

use crate::support::on_each;

const TABLE: &str =
    "CREATE TABLE stock (id bigint PRIMARY KEY, amount bigint NOT NULL, version int NOT NULL);
    INSERT INTO stock VALUES (1, 60, 0), (2, 0, 0)";

/// Does this before it returns.
fn now(doing: impl Future<Output = ()>) {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(doing));
}

on_each! { [postgres Postgres, mysql MySql, sqlite Sqlite] {
    async fn no_write_of_many_at_once_is_lost(db) {
        db.run(TABLE).await;
        let stock = Optimistic::<D>::on_version("stock", "id", "version").unwrap().with_tries(1_000);
        let mut sellers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (stock, pool) = (stock.clone(), db.pool.clone());
            sellers.spawn(async move {
                for _ in 0..10 {
                    let sold = stock.modify(&pool, 1_i64, |row, set| {
                        let left = row.try_get::<i64, _>("amount")? - 1;
                        set.push("amount = ").push_bind(left);
                        Ok(left)
                    });
                    sold.await.unwrap();
                }
            });
        }
        sellers.join_all().await;
        assert_eq!(db.number("SELECT amount FROM stock WHERE id = 1").await, 0);
        assert_eq!(db.number("SELECT count(*) FROM stock WHERE id = 1 AND version = 60").await, 1);
        assert_eq!(db.number("SELECT count(*) FROM stock WHERE id = 2 AND version = 0").await, 1);
    }

    async fn a_change_without_assignments_writes_nothing(db) {
        db.run(TABLE).await;
        for stock in [
            Optimistic::<D>::on_version("stock", "id", "version").unwrap(),
            Optimistic::<D>::on_value("stock", "id", "amount").unwrap(),
        ] {
            let left = stock.modify(&db.pool, 1_i64, |row, _| Ok(row.try_get::<i64, _>("amount")?));
            assert_eq!(left.await.unwrap(), 60);
        }
        assert_eq!(db.number("SELECT count(*) FROM stock WHERE amount = 60 AND version = 0").await, 1);
    }

    async fn the_stock_itself_can_be_compared_and_is_never_oversold(db) {
        db.run(TABLE).await;
        let stock = Optimistic::<D>::on_value("stock", "id", "amount").unwrap().with_tries(1_000);
        let mut sellers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (stock, pool) = (stock.clone(), db.pool.clone());
            sellers.spawn(async move {
                let mut sold = 0;
                loop {
                    let one = stock.modify(&pool, 1_i64, |row, set| {
                        let left = row.try_get::<i64, _>("amount")? - 1;
                        if left < 0 {
                            return Err("sold out".into());
                        }
                        set.push("amount = ").push_bind(left);
                        Ok(())
                    });
                    match one.await {
                        Ok(()) => sold += 1,
                        Err(OptimisticError::Refused(cause)) => {
                            assert_eq!(cause.to_string(), "sold out");
                            return sold;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        assert_eq!(sellers.join_all().await.into_iter().sum::<i32>(), 60);
        assert_eq!(db.number("SELECT amount FROM stock WHERE id = 1").await, 0);
    }

    async fn who_always_loses_is_told_of_the_conflict_after_the_given_number_of_tries(db) {
        db.run(TABLE).await;
        let stock = Optimistic::<D>::on_version("stock", "id", "version").unwrap();
        let stock = stock.with_tries(3).with_pause(Duration::from_millis(1));
        let mut tries = 0;
        let outcome = stock.modify(&db.pool, 1_i64, |_, set| {
            tries += 1;
            // Somebody else is always faster.
            now(db.run("UPDATE stock SET version = version + 1"));
            set.push("amount = 0");
            Ok(())
        });
        let error = outcome.await.unwrap_err();
        assert!(matches!(&error, OptimisticError::Conflict { table, tries: 3 } if table.contains("stock")), "{error}");
        assert!(error.to_string().contains("conflict") && error.to_string().contains("3 times"), "{error}");
        assert_eq!(tries, 3);
        assert_eq!(db.number("SELECT amount FROM stock WHERE id = 1").await, 60);
    }

    async fn one_attempt_in_a_transaction_says_whether_somebody_else_was_first(db) {
        db.run(TABLE).await;
        let stock = Optimistic::<D>::on_version("stock", "id", "version").unwrap();
        let mut connection = db.pool.acquire().await.unwrap();
        let first = stock.attempt(&mut connection, 1_i64, |_, set| {
            set.push("amount = 1");
            Ok("written")
        });
        assert_eq!(first.await.unwrap(), Some("written"));
        let stale = Optimistic::<D>::on_value("stock", "id", "amount").unwrap();
        let lost = stale.attempt(&mut connection, 1_i64, |row, set| {
            assert_eq!(row.try_get::<i64, _>("amount")?, 1);
            now(db.run("UPDATE stock SET amount = 7"));
            set.push("amount = 2");
            Ok(())
        });
        assert_eq!(lost.await.unwrap(), None);
        assert_eq!(db.number("SELECT amount FROM stock WHERE id = 1").await, 7);
    }

    async fn a_missing_row_and_a_missing_table_are_told_apart_from_a_conflict(db) {
        db.run(TABLE).await;
        let change = |_: &<D as sqlx::Database>::Row, set: &mut sqlx::QueryBuilder<D>| {
            set.push("amount = 1");
            Ok(())
        };
        let stock = Optimistic::<D>::on_version("stock", "id", "version").unwrap();
        let missing = stock.modify(&db.pool, 3_i64, change).await.unwrap_err();
        assert!(matches!(missing, OptimisticError::Missing { .. }), "{missing}");
        let nothing = Optimistic::<D>::on_version("nothing", "id", "version").unwrap();
        match nothing.modify(&db.pool, 1_i64, change).await.unwrap_err() {
            OptimisticError::Database(error) => assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}"),
            other => panic!("{other}"),
        }
    }
}}
