//! Writes in the order of the data, whoever gets the lock when.

use std::time::{Duration, UNIX_EPOCH};

use dlock_core::{DataVersion, ErrorKind, Fence, VersionCheck};
use dlock_rig::proxy::{Loss, Mysql, Pgwire, Proxy};
use dlock_sql::{Dialect, FencedCell, VersionColumn};

use crate::support::{is_waiting, mysql, on_each, postgres};

const TABLE: &str = "CREATE TABLE price (id int, amount bigint); INSERT INTO price VALUES (1, 0)";
const AMOUNT: &str = "SELECT amount FROM price";

/// As it was before there were versions.
const FENCES_ALONE: [(&str, &str, &str); 3] = [
    (
        "postgres",
        "CREATE TABLE fences (name bytea NOT NULL PRIMARY KEY, number bigint NOT NULL)",
        "INSERT INTO fences (name, number) VALUES ('a', {fence}) ON CONFLICT (name) DO UPDATE SET \
         number = excluded.number WHERE fences.number <= excluded.number",
    ),
    (
        "mysql",
        "CREATE TABLE fences (name VARBINARY(512) NOT NULL PRIMARY KEY, number BIGINT NOT NULL) ENGINE = InnoDB",
        "INSERT INTO fences (name, number) VALUES ('a', {fence}) ON DUPLICATE KEY UPDATE \
         number = GREATEST(number, VALUES(number))",
    ),
    (
        "sqlite",
        "CREATE TABLE fences (name BLOB NOT NULL PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO fences (name, number) VALUES (x'61', {fence}) ON CONFLICT (name) DO UPDATE SET \
         number = excluded.number WHERE fences.number <= excluded.number",
    ),
];

/// The table of before, and the statement for a fence.
fn from_before<D: Dialect>(fence: u64) -> (&'static str, String) {
    let (_, table, raise) = FENCES_ALONE.iter().find(|(backend, ..)| *backend == D::BACKEND).unwrap();
    (table, raise.replace("{fence}", &fence.to_string()))
}

fn v(number: i64) -> DataVersion {
    DataVersion::new(number)
}

fn f(number: u64) -> Option<Fence> {
    Some(Fence::new(number))
}

fn older(stored: i64) -> VersionCheck {
    VersionCheck::Older { stored: v(stored) }
}

/// So many minutes past seven.
fn past_seven(minutes: u64) -> DataVersion {
    DataVersion::at(UNIX_EPOCH + Duration::from_secs(1_795_762_800 + minutes * 60)).unwrap()
}

/// Sets the price to the version, if that is newer.
macro_rules! written {
    ($db:expr, $cell:expr, $resource:expr, $version:expr, $fence:expr) => {{
        let mut transaction = $db.pool.begin().await.unwrap();
        match $cell.admit_newer(&mut transaction, $resource, $version, $fence).await {
            Ok(check) => {
                if check.is_accepted() {
                    let mut update = sqlx::QueryBuilder::<D>::new("UPDATE price SET amount = ");
                    update.push_bind($version.get());
                    update.build().execute(&mut *transaction).await.unwrap();
                }
                transaction.commit().await.unwrap();
                Ok(check)
            }
            Err(error) => {
                transaction.rollback().await.unwrap();
                Err(error)
            }
        }
    }};
}

on_each! { [postgres Postgres, mysql MySql, sqlite Sqlite] {
    async fn data_of_seven_never_follows_data_of_five_past_seven_whoever_gets_the_lock_first(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        let (a, b) = (past_seven(0), past_seven(5));
        for (with_fence, late, early) in [(false, "1", "2"), (true, "3", "4")] {
            let fence = |number| with_fence.then(|| Fence::new(number));
            // B first: A gets the lock later, and has older data.
            assert_eq!(written!(db, cell, late, b, fence(1)).unwrap(), VersionCheck::Accepted);
            assert_eq!(written!(db, cell, late, a, fence(2)).unwrap(), VersionCheck::Older { stored: b });
            assert_eq!(db.number(AMOUNT).await, b.get());
            assert_eq!(written!(db, cell, early, a, fence(1)).unwrap(), VersionCheck::Accepted);
            assert_eq!(db.number(AMOUNT).await, a.get());
            assert_eq!(written!(db, cell, early, b, fence(2)).unwrap(), VersionCheck::Accepted);
            assert_eq!(db.number(AMOUNT).await, b.get());
        }
        // The fence alone has it the other way round: who had the lock last wins, with the older data.
        for (fence, data) in [(1, b), (2, a), (1, b)] {
            let mut transaction = db.pool.begin().await.unwrap();
            let admitted = cell.admit(&mut transaction, "5", Fence::new(fence)).await;
            if admitted.is_ok() {
                let update = format!("UPDATE price SET amount = {}", data.get());
                sqlx::QueryBuilder::<D>::new(update).build().execute(&mut *transaction).await.unwrap();
            }
            transaction.commit().await.unwrap();
        }
        assert_eq!(db.number(AMOUNT).await, a.get());
    }

    async fn versions_are_compared_over_all_64_bits_and_names_by_their_bytes(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        let grows = [i64::MIN, i64::MIN + 1, -10, -9, 0, 9, 10, (1 << 53) + 1, i64::MAX - 1, i64::MAX];
        for (at, &number) in grows.iter().enumerate() {
            assert_eq!(written!(db, cell, "a", v(number), None).unwrap(), VersionCheck::Accepted, "{number}");
            assert_eq!(written!(db, cell, "a", v(number), None).unwrap(), VersionCheck::AlreadyThere);
            for &lower in &grows[..at] {
                assert_eq!(written!(db, cell, "a", v(lower), None).unwrap(), older(number), "{lower}");
            }
            assert_eq!(db.number(AMOUNT).await, number);
        }
        for other in ["A", "a ", "b"] {
            assert!(written!(db, cell, other, v(0), None).unwrap().is_accepted(), "{other:?}");
        }
    }

    async fn fence_and_version_are_checked_together_and_what_is_refused_changes_neither(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        assert_eq!(written!(db, cell, "a", v(100), f(7)).unwrap(), VersionCheck::Accepted);
        assert_eq!(written!(db, cell, "a", v(101), f(7)).unwrap(), VersionCheck::Accepted, "the same grant");
        assert_eq!(written!(db, cell, "a", v(102), f(9)).unwrap(), VersionCheck::Accepted);
        // A holder that was overtaken, with newer data, and with the same.
        for version in [103, 102] {
            let error = written!(db, cell, "a", v(version), f(8)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(error.to_string().contains("the fence 8 is stale") && error.to_string().contains("\"a\""), "{error}");
        }
        // The holder of the moment, with older data.
        assert_eq!(written!(db, cell, "a", v(101), f(10)).unwrap(), older(102));
        assert_eq!(written!(db, cell, "a", v(102), f(10)).unwrap(), VersionCheck::AlreadyThere);
        assert_eq!(db.number("SELECT count(*) FROM fences WHERE version = 102 AND fence = 9").await, 1);
        assert_eq!(db.number(AMOUNT).await, 102);
        let highest = i64::MAX.unsigned_abs() - 1;
        assert_eq!(written!(db, cell, "a", v(103), f(highest)).unwrap(), VersionCheck::Accepted);
        for above in [highest + 1, u64::MAX] {
            let error = written!(db, cell, "a", v(104), f(above)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        }
    }

    async fn a_resource_is_written_in_one_way_and_the_others_are_refused_with_what_to_do(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        let by_fence = async |fence: u64| {
            let mut transaction = db.pool.begin().await.unwrap();
            cell.admit(&mut transaction, "a", Fence::new(fence)).await?;
            transaction.commit().await.unwrap();
            Ok::<_, dlock_core::Error>(VersionCheck::Accepted)
        };
        for way in ["fences", "versions", "both"] {
            let first = match way {
                "fences" => by_fence(7).await,
                "versions" => written!(db, cell, "a", v(7), None),
                _ => written!(db, cell, "a", v(7), f(7)),
            };
            assert!(first.unwrap().is_accepted(), "{way}");
            for other in ["fences", "versions", "both"] {
                let highest = i64::MAX.unsigned_abs() - 1;
                let outcome = match other {
                    "fences" => by_fence(highest).await,
                    "versions" => written!(db, cell, "a", v(99), None),
                    _ => written!(db, cell, "a", v(99), f(highest)),
                };
                if other == way {
                    assert!(outcome.unwrap().is_accepted(), "{way}");
                } else {
                    let error = outcome.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{way}, {other}: {error}");
                    assert!(error.to_string().contains("delete its row"), "{error}");
                }
                if way != "fences" {
                    // A program from before versions: nothing is raised, so that it sees a stale fence.
                    db.run(&from_before::<D>(highest).1).await;
                    assert_eq!(db.number("SELECT number FROM fences").await, i64::MAX, "{way}");
                }
            }
            db.run("DELETE FROM fences").await;
        }
    }

    async fn a_table_from_before_versions_has_them_once_it_is_migrated_and_keeps_its_fences(db) {
        let (table, raise) = from_before::<D>(7);
        db.run(table).await;
        db.run(&raise).await;
        db.run(TABLE).await;
        let cell = FencedCell::<D>::new("fences").unwrap();
        let by_fence = async |fence: u64| {
            let mut transaction = db.pool.begin().await.unwrap();
            let admitted = cell.admit(&mut transaction, "a", Fence::new(fence)).await;
            transaction.commit().await.unwrap();
            admitted
        };
        by_fence(8).await.unwrap();
        assert_eq!(by_fence(7).await.unwrap_err().kind(), ErrorKind::Lost);
        let error = written!(db, cell, "b", v(1), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("run FencedCell::migrate"), "{error}");
        for _ in 0..2 {
            cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        }
        assert_eq!(written!(db, cell, "b", v(1), None).unwrap(), VersionCheck::Accepted);
        assert_eq!(by_fence(7).await.unwrap_err().kind(), ErrorKind::Lost);
        db.run(&from_before::<D>(9).1).await;
        assert_eq!(by_fence(8).await.unwrap_err().kind(), ErrorKind::Lost);
        by_fence(9).await.unwrap();
    }

    async fn a_version_of_a_transaction_that_was_rolled_back_does_not_count(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        for before in [None, Some(7)] {
            if let Some(before) = before {
                assert!(written!(db, cell, "a", v(before), None).unwrap().is_accepted());
            }
            let mut transaction = db.pool.begin().await.unwrap();
            assert!(cell.admit_newer(&mut transaction, "a", v(9), None).await.unwrap().is_accepted());
            transaction.rollback().await.unwrap();
        }
        assert_eq!(written!(db, cell, "a", v(8), None).unwrap(), VersionCheck::Accepted);
    }

    async fn nobody_else_is_admitted_until_the_transaction_with_the_version_ends(db) {
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        for (old, new) in [(8, 9), (10, 11)] {
            let mut first = db.pool.begin().await.unwrap();
            assert!(cell.admit_newer(&mut first, "a", v(new), None).await.unwrap().is_accepted());
            let (of_old, pool) = (cell.clone(), db.pool.clone());
            let mut second = tokio::spawn(async move {
                let mut transaction = pool.begin().await.unwrap();
                of_old.admit_newer(&mut transaction, "a", v(old), None).await
            });
            assert!(is_waiting(&mut second).await, "the second writer was answered before the first was done");
            first.commit().await.unwrap();
            assert_eq!(second.await.unwrap().unwrap(), older(new));
        }
    }

    async fn of_many_writers_at_once_the_newest_data_stays_and_none_is_accepted_after_it(db) {
        const EACH: i64 = 12;
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        db.run("CREATE TABLE seen (place int, version bigint); INSERT INTO seen VALUES (0, -1)").await;
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let (cell, pool) = (cell.clone(), db.pool.clone());
            writers.spawn(async move {
                for n in 0..EACH {
                    // Each once, in an order of each writer's own.
                    let version = (n * 5 % EACH) * 8 + writer;
                    loop {
                        let mut transaction = pool.begin().await.unwrap();
                        match cell.admit_newer(&mut transaction, "a", v(version), None).await {
                            Ok(check) if check.is_accepted() => {
                                for statement in [
                                    format!("UPDATE price SET amount = {version}"),
                                    format!("INSERT INTO seen SELECT max(place) + 1, {version} FROM seen"),
                                ] {
                                    let mut statement = sqlx::QueryBuilder::<D>::new(statement);
                                    statement.build().execute(&mut *transaction).await.unwrap();
                                }
                                transaction.commit().await.unwrap();
                                break;
                            }
                            Ok(_) => break,
                            // A deadlock of two that make the row.
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                        }
                    }
                }
            });
        }
        writers.join_all().await;
        assert_eq!(db.number(AMOUNT).await, EACH * 8 - 1);
        let disorder = "SELECT count(*) FROM seen one JOIN seen next ON next.place = one.place + 1 \
            AND next.version <= one.version";
        assert_eq!(db.number(disorder).await, 0);
        assert_eq!(db.number("SELECT count(*) FROM seen one JOIN seen two ON one.place = two.place").await,
            db.number("SELECT count(*) FROM seen").await, "one after the other");
    }

    async fn a_column_for_the_version_refuses_older_data_in_one_update(db) {
        db.run("CREATE TABLE stock (id bigint, amount bigint, as_of bigint); INSERT INTO stock VALUES (42, 0, NULL)").await;
        let column = VersionColumn::<D>::new("as_of").unwrap();
        let set = async |version: i64| {
            let mut update = sqlx::QueryBuilder::<D>::new("UPDATE stock SET amount = amount + 1, ");
            column.push_assignment(&mut update, version);
            update.push(" WHERE id = ").push_bind(42_i64).push(" AND ");
            column.push_predicate(&mut update, version);
            update.build().execute(&db.pool).await.unwrap().rows_affected()
        };
        let changed = [set(-7).await, set(-8).await, set(-7).await, set(i64::MAX).await, set(0).await];
        assert_eq!(changed, [1, 0, 0, 1, 0]);
        assert_eq!(db.number("SELECT amount FROM stock WHERE as_of = 9223372036854775807").await, 2);
        assert!(VersionColumn::<D>::new("a b").is_err());
    }
}}

/// Loses the answer to a commit, and then the commit itself, and makes the transaction again.
macro_rules! commits_are_lost {
    ($database:ident, $db:expr, $wire:expr) => {{
        type D = sqlx::$database;
        let db = $db;
        let cell = FencedCell::<D>::new("fences").unwrap();
        cell.migrate(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
        db.run(TABLE).await;
        let proxy = Proxy::speaking($wire, db.server.address()).unwrap();
        let through = sqlx::Pool::<D>::connect_lazy(&db.server.url_through(proxy.address())).unwrap();
        for (version, reply, expected) in
            [(1, true, VersionCheck::AlreadyThere), (2, false, VersionCheck::Accepted)]
        {
            let mut transaction = through.begin().await.unwrap();
            assert!(cell.admit_newer(&mut transaction, "a", v(version), None).await.unwrap().is_accepted());
            let update = format!("UPDATE price SET amount = {version}");
            sqlx::QueryBuilder::<D>::new(update).build().execute(&mut *transaction).await.unwrap();
            match reply {
                true => proxy.lose_reply(1, "", Loss::Cut),
                false => proxy.lose_request(1, ""),
            }
            transaction.commit().await.unwrap_err();
            assert_eq!(written!(db, cell, "a", v(version), None).unwrap(), expected);
            assert_eq!(db.number(AMOUNT).await, version);
        }
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_was_lost_is_there_when_it_is_repeated_on_postgresql() {
    commits_are_lost!(Postgres, postgres().await, Pgwire::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_was_lost_is_there_when_it_is_repeated_on_mariadb() {
    commits_are_lost!(MySql, mysql().await, Mysql);
}

/// The database compares what is bound with what it has, whatever the type.
#[tokio::test]
async fn a_column_for_the_version_may_be_a_time_that_keeps_microseconds() {
    let db = mysql().await;
    db.run("CREATE TABLE price (id int, as_of DATETIME(6)); INSERT INTO price VALUES (1, NULL)").await;
    let column = VersionColumn::<sqlx::MySql>::new("price.as_of").unwrap();
    let set = async |minute: &str| {
        let time = format!("2026-11-26 07:{minute}");
        let mut update = sqlx::QueryBuilder::<sqlx::MySql>::new("UPDATE price SET ");
        column.push_assignment(&mut update, time.clone());
        update.push(" WHERE id = 1 AND ");
        column.push_predicate(&mut update, time);
        update.build().execute(&db.pool).await.unwrap().rows_affected()
    };
    let changed = [
        set("05:00.000001").await,
        set("00:00").await,
        set("05:00").await,
        set("05:00.000001").await,
        set("05:00.000002").await,
    ];
    assert_eq!(changed, [1, 0, 0, 0, 1]);
}
