//! What administrators and neighbours do to a server, or to its table, while locks are held.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Backend, ErrorKind, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions,
};

use tokio::task::JoinSet;

use crate::support::{Db, is_error, on_both, once, take, until};

/// Ends all sessions of a server, again and again.
struct Storm(Arc<AtomicBool>, Option<std::thread::JoinHandle<u64>>);

impl Storm {
    fn begin(kill: impl Fn() -> usize + Send + 'static, pause: Duration) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut killed = 0;
            while !stop.load(Ordering::Acquire) {
                killed += kill() as u64;
                std::thread::sleep(pause);
            }
            killed
        });
        Self(ends, Some(thread))
    }

    fn end(mut self) -> u64 {
        self.0.store(true, Ordering::Release);
        self.1.take().unwrap().join().unwrap()
    }
}

/// Tasks of two processes that want one key: the fences in the order of the grants, how often two were inside, and the
/// errors.
async fn crowd(processes: &[Locks], time: Duration) -> (Vec<u64>, u64, Vec<String>) {
    let (inside, overlaps) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let fences = Arc::new(std::sync::Mutex::new(Vec::new()));
    let errors = Arc::new(std::sync::Mutex::new(Vec::new()));
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for locks in processes.iter().flat_map(|locks| std::iter::repeat_n(locks, 3)) {
        let (locks, inside, overlaps) = (locks.clone(), Arc::clone(&inside), Arc::clone(&overlaps));
        let (fences, errors) = (Arc::clone(&fences), Arc::clone(&errors));
        tasks.push(tokio::spawn(async move {
            while begun.elapsed() < time {
                let guard = match locks.lock("hot").acquire().await {
                    Ok(guard) => guard,
                    Err(error) => {
                        errors.lock().unwrap().push(error.to_string());
                        continue;
                    }
                };
                fences.lock().unwrap().push(guard.fence().unwrap().get());
                if inside.fetch_add(1, Ordering::SeqCst) > 0 && guard.check().is_ok() {
                    overlaps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let _ = guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let (fences, errors) = (fences.lock().unwrap().clone(), errors.lock().unwrap().clone());
    (fences, overlaps.load(Ordering::SeqCst), errors)
}

fn repeated(fences: &[u64]) -> usize {
    fences.len() - fences.iter().collect::<HashSet<_>>().len()
}

fn locks(backend: impl Backend) -> Locks {
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(4)).with_wait(Duration::from_secs(20));
    locks.build().unwrap()
}

on_both! {
    async fn a_storm_that_ends_all_sessions_costs_no_lease_row<D: Db>(db: D) {
        let processes = [locks(db.backend().await), locks(db.backend().await)];
        let kept = take(&processes[0], "kept").await;
        let db = Arc::new(db);
        let storm = Storm::begin({ let db = Arc::clone(&db); move || db.disconnect_all() }, Duration::from_millis(20));
        let (fences, overlaps, errors) = crowd(&processes, Duration::from_millis(1_500)).await;
        let killed = storm.end();
        assert_eq!(errors, [""; 0]);
        assert!(killed > 3 && !fences.is_empty());
        assert_eq!((overlaps, repeated(&fences)), (0, 0));
        assert!(fences.is_sorted(), "in the order of the grants");
        kept.check().unwrap();
        kept.release().await.unwrap();
        until("all withdrawals", || processes.iter().all(|locks| locks.stats().background == 0)).await;
        until("every lock is free", || db.held() == 0).await;
    }

    async fn rights_that_are_taken_away_are_named_and_those_that_are_given_back_count_at_once<D: Db>(db: D) {
        db.backend().await;
        db.make_user("app", "SELECT, INSERT, UPDATE");
        let user = if D::KEY == "key" { "app" } else { "app@'%'" };
        let locks = locks(D::connect(&db.url_as("app", "right")).await.unwrap());
        take(&locks, "a").await.release().await.unwrap();
        for right in ["SELECT", "INSERT", "UPDATE"] {
            db.query(&format!("REVOKE {right} ON dlock FROM {user}"));
            let connected = D::connect(&db.url_as("app", "right")).await;
            is_error(connected, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
            let taken = once(&locks, &format!("new {right}")).acquire().await;
            is_error(taken, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
            db.query(&format!("GRANT {right} ON dlock TO {user}"));
            take(&locks, "a").await.release().await.unwrap();
        }
        let guard = take(&locks, "a").await;
        db.query(&format!("REVOKE UPDATE ON dlock FROM {user}"));
        is_error(guard.release().await, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
        db.query(&format!("GRANT UPDATE ON dlock TO {user}"));
        // The lease ends it.
        take(&locks, "a").await.release().await.unwrap();
    }

    async fn one_that_waits_and_a_release_outlive_a_table_that_is_away_for_a_while<D: Db>(db: D) {
        let locks = db.locks().await;
        let other = db.locks().await;
        let rename = |from: &str, to: &str| match D::KEY {
            "key" => db.query(&format!("ALTER TABLE {from} RENAME TO {to}")),
            _ => db.query(&format!("RENAME TABLE {from} TO {to}")),
        };
        let held = take(&other, "a").await;
        let lock = locks.lock("a");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until("the waiter to find it taken", || locks.health().last_contact.is_some()).await;
        rename("dlock", "away");
        let released = held.release().await;
        is_error(released, ErrorKind::InvalidConfig, &["there is no table"]);
        until("the release to be tried again", || other.stats().failed_withdrawals > 0).await;
        rename("away", "dlock");
        waiter.await.unwrap().unwrap().release().await.unwrap();
        until("the release", || other.stats().background == 0).await;
        assert_eq!((db.held(), other.stats().abandoned), (0, 0));
    }

    async fn many_who_want_a_lock_log_in_a_few_times_only_where_the_password_was_changed<D: Db>(db: D) {
        db.backend().await;
        db.make_user("app", "SELECT, INSERT, UPDATE");
        let locks = locks(D::connect(&db.url_as("app", "right")).await.unwrap());
        take(&locks, "a").await.release().await.unwrap();
        let set = |password: &str| match D::KEY != "key" {
            true => db.query(&format!("ALTER USER app@'%' IDENTIFIED BY '{password}'")),
            false => db.query(&format!("ALTER ROLE app PASSWORD '{password}'")),
        };
        set("new");
        db.disconnect_all();
        let (mut denied, before) = (0, db.refused_log_ins());
        for n in 0..300 {
            let error = once(&locks, &format!("{n}")).acquire().await.expect_err("the password is wrong");
            denied += usize::from(error.kind() == ErrorKind::Denied);
        }
        assert!(denied > 200, "{denied}");
        let failed = db.refused_log_ins() - before;
        assert!((1..denied / 2).contains(&failed), "{failed} log-ins of {denied} were refused");
        set("right");
        let mut taken = None;
        let mut tries = JoinSet::new();
        until("a log-in", || {
            while let Some(tried) = tries.try_join_next() {
                match tried.unwrap() {
                    Ok(guard) => taken = Some(guard),
                    Err(error) => assert_eq!(dlock_core::Error::kind(&error), ErrorKind::Denied, "{error}"),
                }
            }
            if taken.is_none() && tries.is_empty() {
                let lock = once(&locks, "a");
                tries.spawn(async move { lock.acquire().await });
            }
            taken.is_some()
        })
        .await;
        taken.unwrap().release().await.unwrap();
    }

    async fn a_question_is_asked_again_when_its_connection_has_ended<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = locks(backend.clone());
        let guard = take(&locks, "a").await;
        for _ in 0..2 {
            assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
            db.disconnect_all();
            assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
            db.disconnect_all();
            assert_eq!(D::holders(&backend).await.unwrap().len(), 1);
        }
        guard.release().await.unwrap();
    }

    async fn rows_that_are_emptied_end_the_locks_and_fences_go_on<D: Db>(db: D) {
        let locks = locks(db.backend().await);
        let guard = take(&locks, "a").await;
        let fence = guard.fence();
        db.query("TRUNCATE TABLE dlock");
        guard.lost().await;
        let next = take(&locks, "a").await;
        assert!(next.fence() > fence);
        next.release().await.unwrap();
        // Readers, permits and those in line as well, on connections that have granted some before.
        let all: [fn(&Locks) -> dlock_core::Lock; 2] =
            [|locks| locks.lock("b").read(), |locks| locks.lock("b").with_fairness(true)];
        let theirs = db.locks().await;
        for lock in all {
            lock(&locks).acquire().await.unwrap().release().await.unwrap();
            db.query("TRUNCATE TABLE dlock");
            let guard = lock(&locks).acquire().await.unwrap();
            assert!(theirs.lock("b").try_acquire().await.unwrap().is_none(), "two hold it");
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
        let permits = |locks: &Locks| locks.semaphore("c", 1);
        permits(&locks).acquire().await.unwrap().release().await.unwrap();
        db.query("TRUNCATE TABLE dlock");
        let guard = permits(&locks).acquire().await.unwrap();
        assert!(permits(&theirs).try_acquire().await.unwrap().is_none(), "more than there are");
        guard.release().await.unwrap();
        db.query("DROP TABLE dlock");
        is_error(once(&locks, "a").acquire().await, ErrorKind::InvalidConfig, &["there is no table"]);
        let again = db.backend().await;
        take(&locks, "a").await.release().await.unwrap();
        drop(again);
    }
}

/// Sessions end with their connection: another may come in before the holder knows, and fences tell them apart.
async fn storm_of_sessions(processes: &[Locks], kill: impl Fn() -> usize + Send + 'static) {
    let storm = Storm::begin(kill, Duration::from_millis(50));
    let (fences, _, errors) = crowd(processes, Duration::from_millis(1_500)).await;
    let killed = storm.end();
    assert_eq!(errors, [""; 0]);
    assert!(killed > 3 && !fences.is_empty());
    assert_eq!(repeated(&fences), 0);
    until("all withdrawals", || processes.iter().all(|locks| locks.stats().background == 0)).await;
    for locks in processes {
        take(locks, "hot").await.release().await.unwrap();
        assert_eq!(locks.inspect("hot").await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_postgres_go_on_after_a_storm() {
    let server = Arc::new(<PostgresServer as Db>::start());
    let url = server.url();
    PostgresOptions::from_url(&url).unwrap().migrate().await.unwrap();
    let kill = |server: &Arc<PostgresServer>| {
        let server = Arc::clone(server);
        move || server.disconnect_all()
    };
    let both = [
        locks(PostgresSessions::connect(&url).await.unwrap()),
        locks(PostgresSessions::connect(&url).await.unwrap()),
    ];
    storm_of_sessions(&both, kill(&server)).await;
    let both = [
        locks(PostgresRowLocks::connect(&url).await.unwrap()),
        locks(PostgresRowLocks::connect(&url).await.unwrap()),
    ];
    storm_of_sessions(&both, kill(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_mysql_go_on_after_a_storm() {
    let server = Arc::new(<MysqlServer as Db>::start());
    let url = server.url();
    MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
    let kill = |server: &Arc<MysqlServer>| {
        let server = Arc::clone(server);
        move || server.disconnect_all()
    };
    let both = [
        locks(MysqlSessions::connect(&url).await.unwrap()),
        locks(MysqlSessions::connect(&url).await.unwrap()),
    ];
    storm_of_sessions(&both, kill(&server)).await;
    let both = [
        locks(MysqlRowLocks::connect(&url).await.unwrap()),
        locks(MysqlRowLocks::connect(&url).await.unwrap()),
    ];
    storm_of_sessions(&both, kill(&server)).await;
}

/// Where the server ignores the case of tables, two spellings are one table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_spellings_of_a_table_are_one_where_the_server_ignores_case() {
    let server = MysqlServer::options().setting("lower-case-table-names", "1").start().unwrap();
    let url = |table: &str| format!("{}?table={table}", server.url());
    let (upper, lower) = (url("Locks"), url("locks"));
    MysqlOptions::from_url(&upper).unwrap().migrate().await.unwrap();
    let held = |a: Locks, b: Locks| async move {
        let guard = take(&a, "a").await;
        is_error(once(&b, "a").acquire().await, ErrorKind::Busy, &[]);
        assert_eq!(b.inspect("a").await.unwrap().unwrap().fence, guard.fence());
        guard.release().await.unwrap();
        take(&b, "a").await.release().await.unwrap();
    };
    held(locks(Mysql::connect(&upper).await.unwrap()), locks(Mysql::connect(&lower).await.unwrap())).await;
    held(
        locks(MysqlSessions::connect(&upper).await.unwrap()),
        locks(MysqlSessions::connect(&lower).await.unwrap()),
    )
    .await;
    held(
        locks(MysqlRowLocks::connect(&upper).await.unwrap()),
        locks(MysqlRowLocks::connect(&lower).await.unwrap()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_rebuilds_the_table_of_postgres_holds_locks_up_and_ends_none() {
    let server = <PostgresServer as Db>::start();
    let locks = Locks::builder(server.backend().await)
        .with_lease(Duration::from_secs(3))
        .with_wait(Duration::from_secs(20));
    let locks = locks.build().unwrap();
    let guard = take(&locks, "a").await;
    for change in [
        "VACUUM FULL dlock",
        "CLUSTER dlock USING dlock_pkey",
        "REINDEX TABLE dlock",
        "ALTER TABLE dlock ADD COLUMN note text",
        "ALTER TABLE dlock DROP COLUMN note",
        "ALTER TABLE dlock SET (fillfactor = 90)",
        "VACUUM FREEZE dlock",
        "BEGIN; LOCK TABLE dlock IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(0.5); COMMIT",
        "DISCARD ALL",
        "ANALYZE dlock",
        "ALTER TABLE dlock ALTER COLUMN holder TYPE varchar(4000)",
        "ALTER TABLE dlock ALTER COLUMN holder TYPE text",
    ] {
        server.query(change);
        take(&locks, "b").await.release().await.unwrap_or_else(|error| panic!("{change}: {error}"));
        let renewals = locks.stats().renewals;
        until("a renewal", || locks.stats().renewals > renewals).await;
        guard.check().unwrap();
    }
    guard.release().await.unwrap();
}

/// A statement that waits for the table knows nothing of its client: a session for each request that was given up would
/// take all that the server has, from everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_locked_table_holds_up_leave_no_sessions_on_postgresql() {
    let server = <PostgresServer as Db>::start();
    drop(server.backend().await);
    // With the default patience for connections: one that is opened prepares a statement of the table, and waits too.
    let backend = Postgres::connect(&server.url()).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(3)).build().unwrap();
    let pool = server.pool(1);
    let mut rebuilds = pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE dlock IN ACCESS EXCLUSIVE MODE").execute(&mut *rebuilds).await.unwrap();
    let waiter = |number: usize| {
        let lock = locks.lock(format!("k{number}")).with_wait(Duration::from_secs(60));
        tokio::spawn(async move { lock.acquire().await?.release().await })
    };
    let waiters: Vec<_> = (0..10).map(waiter).collect();
    let waits =
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' AND wait_event_type = 'Lock'";
    let mut seen = HashSet::new();
    until("sessions to end with their requests", || {
        let waiting: HashSet<String> = server.query(waits).lines().map(str::to_owned).collect();
        assert!(waiting.len() < 60, "{} sessions of one process", waiting.len());
        seen.extend(waiting.iter().cloned());
        seen.len() - waiting.len() >= 10
    })
    .await;
    rebuilds.rollback().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

/// Nor does one that waits for a row, on MariaDB and MySQL for 50 s if nothing else is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_locked_row_holds_up_leave_few_sessions_on_mysql() {
    let server = <MysqlServer as Db>::start();
    drop(server.backend().await);
    let backend = Mysql::connect(&server.url()).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(3)).build().unwrap();
    take(&locks, "k").await.release().await.unwrap();
    let pool = server.pool(1);
    let keeps = MysqlServer::lock_rows(&pool).await;
    let lock = locks.lock("k").with_wait(Duration::from_secs(60));
    let waiter = tokio::spawn(async move { lock.acquire().await?.release().await });
    let waits = "SELECT id FROM information_schema.processlist \
                 WHERE command IN ('Query', 'Execute') AND id <> CONNECTION_ID()";
    until("requests to wait for the row again and again", || {
        let waiting = server.query(waits).lines().count();
        assert!(waiting < 12, "{waiting} sessions wait for one row");
        let so_far = server.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'");
        so_far
            .rsplit('\t')
            .next()
            .and_then(|count| count.parse::<u64>().ok())
            .is_some_and(|count| count >= 16)
    })
    .await;
    drop(keeps);
    waiter.await.unwrap().unwrap();
}
