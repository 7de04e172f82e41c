//! Optimistic writes that compare the time of the last change.

use dlock_core::ErrorKind;
use dlock_sql::{Dialect, Optimistic, OptimisticError};
use sqlx::Row;

use crate::support::{mysql, on_each, postgres};

/// A column that keeps microseconds.
struct Column {
    kind: &'static str,
    /// The first microsecond of 2100.
    far: &'static str,
    long_ago: &'static str,
    /// What it has, and the database's clock, in microseconds since 1970.
    micros: &'static str,
    now: &'static str,
}

const FAR: i64 = 4_102_444_800_000_000;

const POSTGRES: Column = Column {
    kind: "timestamptz",
    far: "'2100-01-01 00:00:00+00'",
    long_ago: "'1900-03-01 00:00:00+00'",
    micros: "CAST(EXTRACT(epoch FROM changed) * 1000000 AS bigint)",
    now: "CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
};

/// What can be compared on a database.
fn columns<D: Dialect>() -> Vec<Column> {
    match D::BACKEND {
        "postgres" => vec![
            POSTGRES,
            Column { kind: "timestamptz(6)", ..POSTGRES },
            Column { kind: "timestamp", far: "'2100-01-01'", long_ago: "'1900-03-01'", ..POSTGRES },
            Column { kind: "timestamp(6)", far: "'2100-01-01'", long_ago: "'1900-03-01'", ..POSTGRES },
        ],
        "mysql" => vec![Column {
            kind: "DATETIME(6)",
            far: "'2100-01-01'",
            long_ago: "'1900-03-01'",
            micros: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', changed)",
            now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        }],
        _ => vec![Column {
            kind: "integer",
            far: "4102444800000000",
            long_ago: "-1",
            micros: "changed",
            now: "CAST(round(unixepoch('subsec') * 1000) AS integer) * 1000",
        }],
    }
}

fn table<D: Dialect>(name: &str, kind: &str, value: &str) -> String {
    // SQLite has a type for each value.
    let null = if D::BACKEND == "mysql" { "NULL" } else { "" };
    format!(
        "CREATE TABLE {name} (id bigint PRIMARY KEY, amount bigint NOT NULL, changed {kind} {null}); \
         INSERT INTO {name} VALUES (1, 60, {value})"
    )
}

/// Does this before it returns.
fn now(doing: impl Future<Output = ()>) {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(doing));
}

on_each! { [postgres Postgres, mysql MySql, sqlite Sqlite] {
    async fn each_write_within_one_microsecond_changes_the_time(db) {
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, column.kind, column.far)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap().with_tries(1);
            // The clock stands still for all that the column has: it is in the future.
            for written in 1..=3 {
                let sold = stock.modify(&db.pool, 1_i64, |row, set| {
                    let left = row.try_get::<i64, _>("amount")? - 1;
                    set.push("amount = ").push_bind(left);
                    Ok(left)
                });
                assert_eq!(sold.await.unwrap(), 60 - written, "{}", column.kind);
                let micros = db.number(&format!("SELECT {} FROM {table_name}", column.micros)).await;
                assert_eq!(micros, FAR + written, "{}", column.kind);
            }
        }
    }

    async fn the_time_is_that_of_the_database_in_utc(db) {
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, column.kind, column.long_ago)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap().with_tries(1);
            let of_clock = format!("SELECT {}", column.now);
            for _ in 0..2 {
                let before = db.number(&of_clock).await;
                let written = stock.modify(&db.pool, 1_i64, |_, set| {
                    set.push("amount = 1");
                    Ok(())
                });
                written.await.unwrap();
                let micros = db.number(&format!("SELECT {} FROM {table_name}", column.micros)).await;
                let after = db.number(&of_clock).await;
                // Where two writes come within one tick of the clock, the second one is ahead of it.
                assert!((before..=after + 1).contains(&micros), "{}: {before}, {micros}, {after}", column.kind);
            }
        }
    }

    async fn no_write_of_many_at_once_is_lost(db) {
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, column.kind, column.far)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap().with_tries(1_000);
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
            assert_eq!(db.number(&format!("SELECT amount FROM {table_name}")).await, 0, "{}", column.kind);
            let micros = db.number(&format!("SELECT {} FROM {table_name}", column.micros)).await;
            assert_eq!(micros, FAR + 60, "{}", column.kind);
        }
    }

    async fn a_write_in_between_by_a_microsecond_is_noticed(db) {
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, column.kind, column.far)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap();
            let other = stock.clone();
            let mut connection = db.pool.acquire().await.unwrap();
            let lost = stock.attempt(&mut connection, 1_i64, |_, set| {
                now(async {
                    let theirs = other.modify(&db.pool, 1_i64, |_, set| {
                        set.push("amount = 7");
                        Ok(())
                    });
                    theirs.await.unwrap();
                });
                set.push("amount = 2");
                Ok(())
            });
            assert_eq!(lost.await.unwrap(), None, "{}", column.kind);
            assert_eq!(db.number(&format!("SELECT amount FROM {table_name}")).await, 7);
        }
    }

    async fn a_column_that_does_not_keep_microseconds_is_refused_before_anything_is_written(db) {
        let unfit: &[(&str, &str)] = match <D as Dialect>::BACKEND {
            "postgres" => &[
                ("timestamptz(0)", "now()"),
                ("timestamp(3)", "now()"),
                ("date", "now()"),
                ("time", "now()"),
                ("text", "now()"),
                ("bigint", "1"),
                ("interval", "'1 day'"),
            ],
            "mysql" => &[
                ("DATETIME", "NOW()"),
                ("DATETIME(3)", "NOW()"),
                ("DATETIME(5)", "NOW()"),
                ("TIMESTAMP", "NOW()"),
                ("TIMESTAMP(6)", "NOW(6)"),
                ("DATE", "NOW()"),
                ("VARCHAR(40)", "'2026-11-26 07:05:00.000000'"),
            ],
            _ => &[
                ("text", "'2026-11-26 07:05:00.000000'"),
                ("text", "CURRENT_TIMESTAMP"),
                ("real", "1.5"),
                ("blob", "x'00'"),
            ],
        };
        for (n, (kind, value)) in unfit.iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, kind, value)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap();
            let refused = stock.modify(&db.pool, 1_i64, |_, set| {
                set.push("amount = 1");
                Ok(())
            });
            match refused.await.unwrap_err() {
                OptimisticError::Database(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{kind}: {error}");
                    // What is no point in time at all, the server refuses by itself.
                    let error = error.to_string();
                    let says_so = error.contains("does not keep every microsecond; make it");
                    let refused = ["time", "text", "bigint"].contains(kind) && D::BACKEND == "postgres";
                    assert!(says_so || refused, "{kind}: {error}");
                    for part in ["changed", &table_name, D::TIMES.wanted] {
                        assert!(error.contains(part), "{kind}: {part}: {error}");
                    }
                }
                other => panic!("{kind}: {other}"),
            }
            assert_eq!(db.number(&format!("SELECT amount FROM {table_name}")).await, 60, "{kind}");
        }
    }

    async fn a_time_that_is_null_counts_as_missing(db) {
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            let infinite = if <D as Dialect>::BACKEND == "postgres" { "'infinity'" } else { "NULL" };
            for value in ["NULL", infinite] {
                db.run(&format!("DROP TABLE IF EXISTS {table_name}")).await;
                db.run(&table::<D>(&table_name, column.kind, value)).await;
                let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap();
                let missing = stock.modify(&db.pool, 1_i64, |_, set| {
                    set.push("amount = 1");
                    Ok(())
                });
                let error = missing.await.unwrap_err();
                assert!(matches!(error, OptimisticError::Missing { .. }), "{}: {error}", column.kind);
            }
        }
    }
}}

/// Two sessions with these settings write one row in turn.
macro_rules! sessions {
    ($database:ident, $db:expr, $settings:expr) => {{
        type D = sqlx::$database;
        let db = $db;
        for (n, column) in columns::<D>().iter().enumerate() {
            let table_name = format!("stock_{n}");
            db.run(&table::<D>(&table_name, column.kind, column.long_ago)).await;
            let stock = Optimistic::<D>::on_timestamp(&table_name, "id", "changed").unwrap();
            let micros = format!("SELECT {} FROM {table_name}", column.micros);
            let mut sessions = Vec::new();
            for settings in $settings {
                let mut session = db.pool.acquire().await.unwrap();
                let settings = sqlx::AssertSqlSafe(settings.to_owned());
                sqlx::raw_sql(settings).execute(&mut *session).await.unwrap();
                sessions.push(session);
            }
            // By the clock, which is the same for both, and then ahead of it.
            for (moved, ahead) in [(false, 0), (true, FAR)] {
                if moved {
                    db.run(&format!("UPDATE {table_name} SET changed = {}", column.far)).await;
                }
                let mut last = db.number(&micros).await;
                for round in 0..4 {
                    let before = db.number(&format!("SELECT {}", column.now)).await;
                    let session = &mut sessions[round % 2];
                    let written = stock.attempt(session, 1_i64, |_, set| {
                        set.push("amount = amount - 1");
                        Ok(())
                    });
                    assert_eq!(written.await.unwrap(), Some(()), "{}", column.kind);
                    let this = db.number(&micros).await;
                    let after = db.number(&format!("SELECT {}", column.now)).await;
                    assert!(this > last, "{}: {this} after {last}", column.kind);
                    if moved {
                        assert_eq!(this, ahead + 1 + round as i64, "{}", column.kind);
                    } else {
                        assert!(
                            (before..=after).contains(&this),
                            "{}: {before}, {this}, {after}",
                            column.kind
                        );
                    }
                    last = this;
                }
            }
            // One reads, and the other one writes in between.
            let (one, other) = sessions.split_at_mut(1);
            let lost = stock.attempt(&mut one[0], 1_i64, |_, set| {
                now(async {
                    let theirs = stock.attempt(&mut other[0], 1_i64, |_, set| {
                        set.push("amount = 7");
                        Ok(())
                    });
                    assert_eq!(theirs.await.unwrap(), Some(()));
                });
                set.push("amount = 2");
                Ok(())
            });
            assert_eq!(lost.await.unwrap(), None, "{}", column.kind);
        }
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_zones_of_sessions_do_not_matter_on_postgresql() {
    let settings = [
        "SET TIME ZONE 'America/New_York'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'",
        "SET TIME ZONE 'Asia/Kathmandu'; SET DateStyle = 'German'; SET IntervalStyle = 'iso_8601'",
    ];
    sessions!(Postgres, postgres().await, settings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_zones_of_sessions_do_not_matter_on_mariadb() {
    let settings = ["SET time_zone = '-11:00'", "SET time_zone = '+05:45', sql_mode = 'ANSI,TRADITIONAL'"];
    // The mode makes names of what is in double quotes, and backticks go on to be names.
    sessions!(MySql, mysql().await, settings);
}

/// The hour that comes twice when summer time ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_that_comes_twice_is_two_hours() {
    let db = postgres().await;
    db.run(&table::<sqlx::Postgres>("stock", "timestamptz", "'2026-10-25 00:59:59.999999+00'")).await;
    let stock = Optimistic::<sqlx::Postgres>::on_timestamp("stock", "id", "changed").unwrap();
    let mut session = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("SET TIME ZONE 'Europe/Berlin'").execute(&mut *session).await.unwrap();
    let lost = stock.attempt(&mut session, 1_i64, |_, set| {
        // Its text in Berlin is the same but for the offset.
        now(db.run("UPDATE stock SET changed = '2026-10-25 01:59:59.999999+00'"));
        set.push("amount = 2");
        Ok(())
    });
    assert_eq!(lost.await.unwrap(), None);
    assert_eq!(db.number("SELECT amount FROM stock").await, 60);
}
