//! Readers on sessions of PostgreSQL, and on locked rows.

use std::time::{Duration, Instant};

use dlock_core::backend::Mode;
use dlock_core::{Backend, ErrorKind, Guard, Locks, Requirement};
use dlock_rig::proxy::{Loss, Proxy};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresSessions};
use sqlx::{Connection, PgConnection};

use crate::kept::{
    Kind, LONG, MysqlRow, PostgresRow, PostgresSession, error_of, locks, on_each_kind, over, soon, take,
    until,
};
use crate::support::{Child, is_waiting};

/// Each test once for each kind that has readers.
macro_rules! on_each_that_reads {
    ($($(#[$doc:meta])* async fn $name:ident<K: Kind>() $body:block)*) => {
        $($(#[$doc])* async fn $name<K: Kind>() $body)*
        on_each_kind!(@kind postgres_session PostgresSession $($name)*);
        on_each_kind!(@kind postgres_row PostgresRow $($name)*);
        on_each_kind!(@kind mysql_row MysqlRow $($name)*);
    };
}
pub(crate) use on_each_that_reads;

pub(crate) async fn read(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).read().acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn can_read(locks: &Locks, key: &str) -> bool {
    let tried = locks.lock(key).read().try_acquire().await.unwrap();
    let can = tried.is_some();
    if let Some(guard) = tried {
        guard.release().await.unwrap();
    }
    can
}

pub(crate) async fn can_write(locks: &Locks, key: &str) -> bool {
    let tried = locks.lock(key).try_acquire().await.unwrap();
    let can = tried.is_some();
    if let Some(guard) = tried {
        guard.release().await.unwrap();
    }
    can
}

on_each_that_reads! {
    async fn readers_of_two_processes_are_known_each_and_exclude_writers_until_the_last_has_left<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        ours.require(&[Requirement::Shared]).unwrap();
        let wrote = take(&ours, "a").await;
        let before = wrote.fence();
        wrote.release().await.unwrap();
        let guards = [read(&ours, "a").await, read(&theirs, "a").await, read(&ours, "a").await];
        let mut fences: Vec<_> = guards.iter().map(Guard::fence).collect();
        assert!(fences.iter().all(|fence| *fence > before), "{fences:?} after {before:?}");
        let mut seen = theirs.occupancy("a").await.unwrap().holders;
        assert!(seen.iter().all(|holder| holder.mode == Mode::Shared), "{seen:?}");
        let mut listed = ours.holders().await.unwrap();
        assert!(listed.iter().all(|(key, holder)| key.as_str() == "a" && holder.mode == Mode::Shared), "{listed:?}");
        seen.sort_by_key(|holder| holder.fence);
        listed.sort_by_key(|(_, holder)| holder.fence);
        fences.sort();
        assert_eq!(seen.iter().map(|holder| holder.fence).collect::<Vec<_>>(), fences);
        assert_eq!(listed.iter().map(|(_, holder)| holder.fence).collect::<Vec<_>>(), fences);
        assert!(seen.iter().all(|holder| holder.pid == Some(std::process::id())), "{seen:?}");
        for guard in guards {
            assert!(!can_write(&ours, "a").await && !can_write(&theirs, "a").await);
            assert!(can_read(&theirs, "a").await);
            guard.release().await.unwrap();
        }
        let after = take(&theirs, "a").await;
        assert!(after.fence() > fences.pop().unwrap());
        let seen = ours.inspect("a").await.unwrap().unwrap();
        assert_eq!((seen.mode, seen.fence), (Mode::Exclusive, after.fence()));
        assert!(!can_read(&theirs, "a").await && !can_read(&ours, "a").await);
        after.release().await.unwrap();
        until("nothing is left", || K::held(&server) == 0).await;
        assert!(theirs.holders().await.unwrap().is_empty());
        assert_eq!(theirs.inspect("a").await.unwrap(), None);
    }

    async fn a_writer_that_waits_on_the_server_keeps_new_readers_out_and_is_let_in_before_them<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let third = locks::<K>(&server, LONG).await;
        let before = read(&ours, "a").await;
        let mut writing = Box::pin(async { theirs.lock("a").acquire().await });
        assert!(is_waiting(&mut writing).await);
        assert!(!can_read(&ours, "a").await && !can_read(&third, "a").await);
        let mut reading = Box::pin(async { third.lock("a").read().acquire().await });
        assert!(is_waiting(&mut reading).await);
        before.release().await.unwrap();
        let wrote = soon("the writer", &mut writing).await.unwrap();
        assert!(is_waiting(&mut reading).await);
        let fence = wrote.fence();
        wrote.release().await.unwrap();
        let guard = soon("the reader", reading).await.unwrap();
        assert!(guard.fence() > fence);
        guard.release().await.unwrap();
        until("nothing is left", || K::held(&server) == 0).await;
    }

    async fn a_reader_whose_process_is_killed_frees_the_writer<K: Kind>() {
        let server = K::start(&[]);
        let locks = locks::<K>(&server, LONG).await;
        for _ in 0..2 {
            let mut reader = Child::play(&format!("{}-read", K::ROLE), &K::url(&server));
            assert_eq!(reader.line(), "held");
            assert!(can_read(&locks, "a").await);
            let mut writing = Box::pin(async { locks.lock("a").acquire().await });
            assert!(is_waiting(&mut writing).await);
            let killed = Instant::now();
            reader.kill();
            let guard = soon("the lock", writing).await.unwrap();
            assert!(killed.elapsed() < LONG / 10, "{:?}, but there is no lease to wait for", killed.elapsed());
            guard.release().await.unwrap();
            // What the dead one has left counts for nothing.
            let guard = read(&locks, "a").await;
            assert_eq!(locks.occupancy("a").await.unwrap().holders.len(), 1);
            guard.release().await.unwrap();
        }
    }

    async fn a_reader_whose_reply_is_lost_holds_it_once_and_keeps_nobody_out_after_its_release<K: Kind>() {
        let server = K::start(&[]);
        let theirs = locks::<K>(&server, LONG).await;
        let fates: [fn(&Proxy); 2] =
            [|proxy| proxy.lose_reply(1, "", Loss::Cut), |proxy| proxy.lose_reply(1, "", Loss::Silence)];
        for fate in fates {
            for releases in [false, true] {
                let proxy = K::proxy(&server);
                let ours = over::<K>(&K::url_through(&server, proxy.address()), Duration::from_secs(6)).await;
                read(&ours, "a").await.release().await.unwrap();
                let other = read(&theirs, "a").await;
                if !releases {
                    fate(&proxy);
                }
                let guard = soon("the lock", ours.lock("a").read().acquire()).await.unwrap();
                assert!(guard.fence() > other.fence());
                if releases {
                    fate(&proxy);
                }
                other.check().unwrap();
                other.release().await.unwrap();
                let _ = soon("the release", guard.release()).await;
                let next = soon("the lock of a writer", theirs.lock("a").acquire()).await.unwrap();
                assert!(!can_read(&ours, "a").await);
                next.release().await.unwrap();
                until("all withdrawals", || ours.stats().background == 0).await;
            }
        }
        until("every lock is free", || K::held(&server) == 0).await;
    }

    async fn a_reader_that_is_dropped_while_it_waits_leaves_nothing<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let guard = take(&ours, "a").await;
        for _ in 0..3 {
            let mut reading = Box::pin(async { theirs.lock("a").read().acquire().await });
            assert!(is_waiting(&mut reading).await);
            assert_eq!(K::waiting(&server), 1);
            drop(reading);
            until("nobody waits any more", || K::waiting(&server) == 0).await;
        }
        guard.release().await.unwrap();
        until("nothing is left", || theirs.stats().background == 0 && K::held(&server) == 0).await;
        take(&ours, "a").await.release().await.unwrap();
    }

    async fn a_forced_release_ends_the_sessions_of_all_readers<K: Kind>() {
        let server = K::start(&[]);
        let all = [locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await];
        let guards = [read(&all[0], "a").await, read(&all[1], "a").await];
        assert!(all[2].force_release("a").await.unwrap());
        take(&all[2], "a").await.release().await.unwrap();
        for guard in guards {
            soon("the loss", guard.lost()).await;
            error_of(guard.release().await, ErrorKind::NotHeld);
        }
    }
}

/// The number of a lock, by which other programs can take it too.
pub(crate) async fn number_of(locks: &Locks, server: &PostgresServer, key: &str) -> i64 {
    let guard = take(locks, key).await;
    let number = server.query(
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'",
    );
    guard.release().await.unwrap();
    number.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_of_other_programs_on_the_same_number_are_respected() {
    let server = PostgresSession::start(&[]);
    let locks = locks::<PostgresSession>(&server, LONG).await;
    let number = number_of(&locks, &server, "a").await;
    let mut other = PgConnection::connect(&server.url()).await.unwrap();
    let run = |what: &str| sqlx::AssertSqlSafe(format!("SELECT {what}({number})"));
    sqlx::query(run("pg_advisory_lock_shared")).execute(&mut other).await.unwrap();
    assert!(can_read(&locks, "a").await && !can_write(&locks, "a").await);
    let seen = locks.inspect("a").await.unwrap().unwrap();
    assert_eq!((seen.mode, seen.pid, seen.fence), (Mode::Shared, None, None));
    let mut writing = Box::pin(async { locks.lock("a").acquire().await });
    assert!(is_waiting(&mut writing).await);
    sqlx::query(run("pg_advisory_unlock_shared")).execute(&mut other).await.unwrap();
    soon("the writer", writing).await.unwrap().release().await.unwrap();
    sqlx::query(run("pg_advisory_lock")).execute(&mut other).await.unwrap();
    assert!(!can_read(&locks, "a").await);
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().mode, Mode::Exclusive);
    let mut reading = Box::pin(async { locks.lock("a").read().acquire().await });
    assert!(is_waiting(&mut reading).await);
    sqlx::query(run("pg_advisory_unlock")).execute(&mut other).await.unwrap();
    soon("the reader", reading).await.unwrap().release().await.unwrap();
}

/// Also not one of another program, which stands in the queue of the server for the lock itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_writer_that_waits_gets_in_between_by_a_downgrade() {
    let server = PostgresSession::start(&[]);
    let (ours, theirs) =
        (locks::<PostgresSession>(&server, LONG).await, locks::<PostgresSession>(&server, LONG).await);
    let number = number_of(&ours, &server, "a").await;
    for foreign in [false, true] {
        let mut guard = take(&ours, "a").await;
        let fence = guard.fence();
        let mut other = PgConnection::connect(&server.url()).await.unwrap();
        let wait = sqlx::AssertSqlSafe(format!("SELECT pg_advisory_lock({number})"));
        let mut writing = Box::pin(async {
            if foreign {
                sqlx::query(wait).execute(&mut other).await.unwrap();
                other.close().await.unwrap();
            } else {
                take(&theirs, "a").await.release().await.unwrap();
            }
        });
        assert!(is_waiting(&mut writing).await);
        guard.downgrade().await.unwrap();
        assert_eq!((guard.mode(), guard.fence()), (Mode::Shared, fence));
        assert!(is_waiting(&mut writing).await, "it is read");
        guard.check().unwrap();
        let seen = theirs.occupancy("a").await.unwrap().holders;
        assert_eq!(
            seen.iter().map(|seen| (seen.mode, seen.fence)).collect::<Vec<_>>(),
            [(Mode::Shared, fence)]
        );
        assert_eq!(seen[0].pid, Some(std::process::id()));
        guard.release().await.unwrap();
        soon("the writer", writing).await;
        until("nothing is left", || PostgresSession::held(&server) == 0).await;
    }
}

/// One session has the lock once for all its readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_refused_takes_the_lock_from_no_other_of_its_process() {
    let server = PostgresSession::start(&[]);
    let (ours, theirs) =
        (locks::<PostgresSession>(&server, LONG).await, locks::<PostgresSession>(&server, LONG).await);
    let first = read(&ours, "a").await;
    server.query("UPDATE dlock SET fence = 9223372036854775807 WHERE key >= decode('ff', 'hex')");
    for _ in 0..2 {
        error_of(ours.lock("a").read().try_acquire().await, ErrorKind::InvalidConfig);
        assert!(!can_write_at_all(&theirs, "a").await, "the first one reads");
    }
    first.check().unwrap();
    first.release().await.unwrap();
    assert_eq!(ours.stats().lost, 0);
    until("nothing is left", || PostgresSession::held(&server) == 0).await;
}

/// Whether it is free, where no fence is left for it.
async fn can_write_at_all(locks: &Locks, key: &str) -> bool {
    match locks.lock(key).try_acquire().await {
        Ok(guard) => guard.is_some(),
        Err(error) => error.kind() != ErrorKind::Busy,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_delete_nobody_reads_and_all_write() {
    let server = PostgresServer::start().unwrap();
    let admin = format!("{}&migrate=true", server.url());
    drop(PostgresSessions::connect(&admin).await.unwrap());
    server.query("CREATE USER other PASSWORD 'other'; GRANT SELECT, INSERT, UPDATE ON dlock TO other");
    let locks = Locks::new(PostgresSessions::connect(&server.url_as("other", "other")).await.unwrap());
    let kept = take(&locks, "kept").await;
    error_of(locks.lock("a").read().try_acquire().await, ErrorKind::Denied);
    assert!(can_write(&locks, "a").await);
    kept.check().unwrap();
    kept.release().await.unwrap();
    server.query("GRANT DELETE ON dlock TO other");
    assert!(can_read(&locks, "a").await);
}

async fn reads_without_fences(all: [impl Backend; 2]) {
    let [ours, theirs] = all.map(Locks::new);
    let guards = [read(&ours, "a").await, read(&ours, "a").await, read(&theirs, "a").await];
    for guard in guards {
        assert_eq!(guard.fence(), None);
        assert!(!can_write(&ours, "a").await && !can_write(&theirs, "a").await);
        assert_eq!(ours.inspect("a").await.unwrap().unwrap().mode, Mode::Shared);
        guard.release().await.unwrap();
    }
    assert!(can_write(&ours, "a").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_without_fences_exclude_writers_and_write_nothing() {
    let (server, mysql) = (PostgresSession::start(&[]), MysqlRow::start(&[]));
    let url = format!("{}&fences=false", PostgresSession::url(&server));
    let open = || PostgresSession::connect(&url);
    let (one, other) = (open().await.unwrap(), open().await.unwrap());
    let locks = Locks::new(one.clone());
    let mut guard = take(&locks, "a").await;
    guard.downgrade().await.unwrap();
    assert!(can_read(&locks, "a").await && !can_write(&Locks::new(other.clone()), "a").await);
    guard.release().await.unwrap();
    reads_without_fences([one, other]).await;
    let open = || PostgresRow::connect(&url);
    reads_without_fences([open().await.unwrap(), open().await.unwrap()]).await;
    assert_eq!(
        server.query(
            "SELECT count(*) FROM dlock WHERE key >= decode('fb', 'hex') AND key <> decode('fe61', 'hex')"
        ),
        "0"
    );
    let url = format!("{}&fences=false", MysqlRow::url(&mysql));
    let open = || MysqlRow::connect(&url);
    reads_without_fences([open().await.unwrap(), open().await.unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_leaves_readers_that_live_and_deletes_what_dead_ones_left() {
    let server = PostgresSession::start(&[]);
    let leases = Postgres::connect(&PostgresSession::url(&server)).await.unwrap();
    let ours = locks::<PostgresSession>(&server, LONG).await;
    let mut dead = Child::play("postgres-session-read", &PostgresSession::url(&server));
    assert_eq!(dead.line(), "held");
    dead.kill();
    let lives = read(&ours, "b").await;
    let rows = || {
        server.query(
            "SELECT count(*) FROM dlock WHERE key >= decode('fb', 'hex') AND key < decode('fc', 'hex')",
        )
    };
    assert_eq!(rows(), "2");
    server.query("UPDATE dlock SET fence = fence - 3600000000 WHERE key >= decode('fb', 'hex')");
    until("the dead one is gone", || PostgresSession::held(&server) == 1).await;
    leases.prune(Duration::ZERO).await.unwrap();
    assert_eq!(rows(), "1");
    let seen = ours.inspect("b").await.unwrap().unwrap();
    assert_eq!((seen.mode, seen.pid), (Mode::Shared, Some(std::process::id())));
    lives.release().await.unwrap();
    assert_eq!(rows(), "0");
}
