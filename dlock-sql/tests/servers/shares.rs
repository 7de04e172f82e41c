//! What several hold at a time, beside programs that know nothing of it, in all isolations, and in crowds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::pgbouncer::PgBouncer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlOptions, Postgres, PostgresOptions};

use crate::mixing;
use crate::support::{Db, is_error, on_both, once, take, until};

/// Rows beside those of keys.
fn beside<D: Db>(db: &D) -> String {
    let first = if D::KEY == "key" { "decode('fd', 'hex')" } else { "X'FD'" };
    db.query(&format!("SELECT count(*) FROM dlock WHERE {} >= {first}", D::KEY))
}

pub(crate) async fn read(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).read().acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn permits(locks: &Locks, key: &str, of: u32, take: u32) -> Guard {
    locks.semaphore(key, of).take(take).acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

on_both! {
    async fn the_row_of_a_key_is_taken_as_long_as_any_of_its_readers_is_there_and_no_longer<D: Db>(db: D) {
        let locks = db.locks().await;
        let key = D::KEY;
        let taken = format!("SELECT count(*) FROM dlock WHERE {key} = 'k' AND token IS NOT NULL");
        let lasts = format!(
            "SELECT count(*) FROM dlock WHERE {key} = 'k' AND expires >= (SELECT max(expires) FROM dlock WHERE {key} <> 'k' AND token IS NOT NULL)"
        );
        let long = locks.lock("k").read().with_lease(Duration::from_secs(600)).acquire().await.unwrap();
        let short = read(&locks, "k").await;
        assert_eq!((db.query(&taken), db.query(&lasts)), ("1".to_owned(), "1".to_owned()));
        long.release().await.unwrap();
        assert_eq!((db.query(&taken), db.query(&lasts)), ("1".to_owned(), "1".to_owned()));
        let ends = format!("SELECT count(DISTINCT expires) FROM dlock WHERE {key} <> ''");
        assert_eq!(db.query(&ends), "1", "the row of the key is kept for no longer than those that are left");
        short.release().await.unwrap();
        assert_eq!((db.query(&taken), beside(&db)), ("0".to_owned(), "0".to_owned()), "nothing is left of them");
    }

    async fn what_a_program_takes_away_that_knows_nothing_of_readers_is_taken_from_all_of_them<D: Db>(db: D) {
        let (ours, theirs) = (db.locks().await, db.locks().await);
        let guards = [read(&ours, "k").await, permits(&ours, "s", 2, 1).await];
        db.query(&format!("UPDATE dlock SET token = NULL, fence = fence + 1 WHERE {0} = 'k' OR {0} = 's'", D::KEY));
        // What is left of them counts for nobody.
        let writer = take(&theirs, "k").await;
        let all = permits(&theirs, "s", 3, 3).await;
        for guard in guards {
            assert!(guard.fence() < writer.fence().max(all.fence()));
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
        }
        writer.check().unwrap();
        writer.release().await.unwrap();
        // Nor do they come back with the next ones.
        let reader = read(&theirs, "k").await;
        assert_eq!(theirs.occupancy("k").await.unwrap().holders.len(), 1);
        assert_eq!(theirs.occupancy("s").await.unwrap().taken(), 3);
        reader.release().await.unwrap();
        assert!(theirs.lock("k").try_acquire().await.unwrap().is_some());
    }

    async fn rows_of_what_is_shared_or_remembered_are_not_pruned_and_others_are<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = Locks::new(backend.clone());
        let (reader, permit) = (read(&locks, "k").await, permits(&locks, "s", 2, 1).await);
        permits(&locks, "remembered", 4, 1).await.release().await.unwrap();
        // As if a reader had died yesterday, and the key were not used since.
        std::mem::forget(read(&locks, "dead").await);
        let expires = if D::KEY == "key" { "expires - interval '1 day'" } else { "expires - 86400000000" };
        let dead = format!("holder LIKE '%several=0' AND {} = 'dead'", D::KEY);
        db.query(&format!(
            "UPDATE dlock SET expires = {expires}, fence = fence - 86400000000 WHERE {dead} OR fence = (SELECT fence FROM (SELECT fence FROM dlock WHERE {dead}) AS d)"
        ));
        assert!(D::prune(&backend, Duration::from_secs(3_600)).await.unwrap() >= 1);
        reader.check().unwrap();
        assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
        assert_eq!(locks.semaphore("s", 2).available().await.unwrap(), 1);
        is_error(locks.semaphore("remembered", 5).acquire().await, ErrorKind::Conflict, &["has 4 permits"]);
        assert_eq!(locks.holders().await.unwrap().len(), 2);
        reader.release().await.unwrap();
        permit.release().await.unwrap();
        take(&locks, "dead").await.release().await.unwrap();
    }

    async fn keys_that_begin_alike_or_are_as_long_as_can_be_do_not_share_their_readers<D: Db>(db: D) {
        let locks = db.locks().await;
        let longest = "k".repeat(512);
        let keys = ["k", "kk", "k\u{1}", &longest, "\u{10ffff}", "%", "k'", "k several=4"];
        let mut guards = Vec::new();
        for key in keys {
            guards.push(read(&locks, key).await);
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

    // Each takes, releases and is refused in the isolation that the server sets for all.
    async fn whatever_isolation_is_the_default_no_writer_is_beside_anybody<D: Db>(db: D) {
        drop(db.backend().await);
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            if D::KEY == "key" {
                db.query(&format!("ALTER SYSTEM SET default_transaction_isolation = '{}'", level.to_lowercase()));
                db.query("SELECT pg_reload_conf()");
                let in_force = || db.query("SHOW default_transaction_isolation") == level.to_lowercase();
                until("the level is in force", in_force).await;
            } else {
                db.query(&format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"));
            }
            let processes = [db.locks().await, db.locks().await];
            let (inside, free) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(3)));
            let tasks = (0..12_usize).map(|task| {
                let (locks, inside, free) = (processes[task % 2].clone(), Arc::clone(&inside), Arc::clone(&free));
                tokio::spawn(async move {
                    for round in 0..8 {
                        let guard = match (task + round) % 4 {
                            0 => {
                                let guard = take(&locks, "k").await;
                                assert_eq!(inside.fetch_add(1_000, Ordering::SeqCst), 0, "beside a writer");
                                tokio::task::yield_now().await;
                                inside.fetch_sub(1_000, Ordering::SeqCst);
                                guard
                            }
                            1 => {
                                let guard = permits(&locks, "s", 3, 2).await;
                                assert!(free.fetch_sub(2, Ordering::SeqCst) >= 2, "more than there are");
                                tokio::task::yield_now().await;
                                free.fetch_add(2, Ordering::SeqCst);
                                guard
                            }
                            _ => {
                                let guard = read(&locks, "k").await;
                                assert!(inside.fetch_add(1, Ordering::SeqCst) < 1_000, "beside a writer");
                                tokio::task::yield_now().await;
                                inside.fetch_sub(1, Ordering::SeqCst);
                                guard
                            }
                        };
                        guard.release().await.unwrap();
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap_or_else(|error| panic!("{level}: {error}"));
            }
            assert_eq!(beside(&db), "0", "{level}");
        }
    }

    async fn who_has_no_right_to_delete_rows_is_told_so_and_leaves_nothing<D: Db>(db: D) {
        let theirs = db.locks().await;
        db.make_user("few", "SELECT, INSERT, UPDATE");
        db.make_user("enough", "SELECT, INSERT, UPDATE, DELETE");
        let few = Locks::new(D::connect(&db.url_as("few", "right")).await.unwrap());
        take(&few, "a").await.release().await.unwrap();
        is_error(few.lock("k").read().acquire().await, ErrorKind::Denied, &["DELETE", "readers and permits"]);
        is_error(few.semaphore("k", 2).acquire().await, ErrorKind::Denied, &["DELETE"]);
        assert!(theirs.lock("k").try_acquire().await.unwrap().is_some());
        let enough = Locks::new(D::connect(&db.url_as("enough", "right")).await.unwrap());
        read(&enough, "r").await.release().await.unwrap();
        assert_eq!(beside(&db), "0");
    }

    async fn two_hundred_who_read_and_write_a_few_keys_get_in_each_others_way_without_harm<D: Db>(db: D) {
        let mut processes = vec![db.locks().await];
        for _ in 0..3 {
            processes.push(db.locks().await);
        }
        let inside: Arc<Vec<AtomicI64>> = Arc::new((0..3).map(|_| AtomicI64::new(0)).collect());
        let tasks = (0..200_usize).map(|task| {
            let (locks, inside) = (processes[task % 4].clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for round in 0..2 {
                    let (n, key) = (task % 3, ["a", "b", "c"][task % 3]);
                    let lock = locks.lock(key).with_wait(Duration::from_secs(90));
                    let (guard, weight) = match (task + round) % 10 {
                        0 => (lock.acquire().await, 1_000),
                        _ => (lock.read().acquire().await, 1),
                    };
                    let guard = guard.unwrap_or_else(|error| panic!("{error}"));
                    let before = inside[n].fetch_add(weight, Ordering::SeqCst);
                    assert!(if weight == 1 { before < 1_000 } else { before == 0 }, "{before} beside {weight}");
                    tokio::task::yield_now().await;
                    inside[n].fetch_sub(weight, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!((db.held(), beside(&db)), (0, "0".to_owned()));
    }

    async fn many_readers_are_renewed_together_and_a_writer_follows_them<D: Db>(db: D) {
        let (ours, theirs) = (db.backend().await, db.locks().await);
        let ours = Locks::builder(ours).with_lease(Duration::from_secs(4)).build().unwrap();
        let mut guards = Vec::new();
        for n in 0..300 {
            guards.push(read(&ours, if n % 3 == 0 { "k" } else { "other" }).await);
        }
        let renewals = ours.stats().renewals;
        until("renewals of all", || ours.stats().renewals >= renewals + 600).await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()));
        assert_eq!(theirs.occupancy("k").await.unwrap().holders.len(), 100);
        is_error(once(&theirs, "k").acquire().await, ErrorKind::Busy, &[]);
        for guard in guards {
            guard.release().await.unwrap();
        }
        take(&theirs, "k").await.release().await.unwrap();
        assert_eq!((db.held(), beside(&db)), (0, "0".to_owned()));
    }

    async fn processes_of_which_some_are_killed_share_a_lock_and_a_semaphore_and_none_is_where_it_must_not_be<D: Db>(db: D) {
        drop(db.backend().await);
        let directory = tempfile::tempdir().unwrap();
        let start = || children::start(&db.url(), directory.path());
        mixing::some_are_killed(directory.path(), start).await;
        // What the killed ones had is back within a lease, and the time that a busy machine takes.
        let locks = db.locks().await;
        take(&locks, "k").await.release().await.unwrap();
        permits(&locks, "s", 3, 3).await.release().await.unwrap();
    }
}

/// Processes of their own.
mod children {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use dlock_core::Locks;
    use dlock_sql::{Mysql, Postgres};

    use crate::mixing;

    const URL: &str = "DLOCK_TEST_URL";
    const LOGS: &str = "DLOCK_TEST_LOGS";

    pub(super) fn start(url: &str, logs: &Path) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shares::children::a_child_process_plays_its_role", "--test-threads=1"])
            .env(URL, url)
            .env(LOGS, logs)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn a_child_process_plays_its_role() {
        let (Ok(url), Ok(logs)) = (std::env::var(URL), std::env::var(LOGS)) else { return };
        let lease = Duration::from_secs(2);
        let locks = if url.starts_with("mysql") {
            Locks::builder(Mysql::connect(&url).await.unwrap()).with_lease(lease).build()
        } else {
            Locks::builder(Postgres::connect(&url).await.unwrap()).with_lease(lease).build()
        };
        mixing::mix(&locks.unwrap(), Path::new(&logs)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_find_the_key_taken_while_it_is_read_and_readers_find_it_taken_by_them() {
    let postgres = <PostgresServer as Db>::start();
    let locks = postgres.locks().await;
    let functions = PostgresOptions::from_url(&postgres.url()).unwrap().functions();
    let pool = sqlx::PgPool::connect(&postgres.url()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(functions)).execute(&pool).await.unwrap();
    let ask = "SELECT coalesce(dlock_take('k', decode('0123456789abcdef0123456789abcdef', 'hex'), '9 s', 'x')::text, 'no')";
    let reader = read(&locks, "k").await;
    assert_eq!(postgres.query(ask), "no");
    reader.release().await.unwrap();
    let fence: u64 = postgres.query(ask).parse().unwrap();
    is_error(locks.lock("k").read().with_wait(Wait::No).acquire().await, ErrorKind::Busy, &[]);
    is_error(locks.semaphore("k", 2).acquire().await, ErrorKind::Conflict, &["as a lock"]);
    postgres.query("SELECT dlock_release('k', decode('0123456789abcdef0123456789abcdef', 'hex'))");
    assert!(read(&locks, "k").await.fence().unwrap().get() > fence);

    let mysql = <MysqlServer as Db>::start();
    let locks = mysql.locks().await;
    let pool = sqlx::MySqlPool::connect(&mysql.url()).await.unwrap();
    for statement in MysqlOptions::from_url(&mysql.url()).unwrap().procedures() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    let ask = "CALL dlock_take('k', X'0123456789abcdef0123456789abcdef', 9000, 'x')";
    let reader = read(&locks, "k").await;
    assert_eq!(mysql.query(ask), "NULL");
    reader.release().await.unwrap();
    let fence: u64 = mysql.query(ask).parse().unwrap();
    is_error(locks.lock("k").read().with_wait(Wait::No).acquire().await, ErrorKind::Busy, &[]);
    mysql.query("CALL dlock_release('k', X'0123456789abcdef0123456789abcdef')");
    assert!(read(&locks, "k").await.fence().unwrap().get() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_permits_work_behind_a_pooler_without_prepared_statements() {
    let server = <PostgresServer as Db>::start();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}&statements=simple&migrate=true", pooler.url());
    let ours = Locks::builder(Postgres::connect(&url).await.unwrap()).with_lease(Duration::from_secs(2));
    let (ours, theirs) = (ours.with_label("$1 \\ '").build().unwrap(), server.locks().await);
    let guards = [read(&ours, "$1'").await, read(&theirs, "$1'").await, permits(&ours, "s", 2, 2).await];
    let renewals = ours.stats().renewals;
    until("renewals", || ours.stats().renewals >= renewals + 4).await;
    for guard in guards {
        guard.check().unwrap();
        let kind = if guard.key() == "s" { ErrorKind::Conflict } else { ErrorKind::Busy };
        is_error(once(&theirs, guard.key()).acquire().await, kind, &[]);
        guard.release().await.unwrap();
    }
    take(&theirs, "$1'").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_work_on_a_server_that_logs_statements() {
    let server = MysqlServer::options().setting("log-bin", "log").setting("binlog-format", "STATEMENT");
    let server = server.setting("server-id", "1").start().unwrap();
    let locks = server.locks().await;
    let (one, other) = (read(&locks, "k").await, read(&locks, "k").await);
    is_error(once(&locks, "k").acquire().await, ErrorKind::Busy, &[]);
    one.release().await.unwrap();
    other.release().await.unwrap();
    permits(&locks, "s", 2, 2).await.release().await.unwrap();
    assert_eq!(beside(&server), "0");
}
