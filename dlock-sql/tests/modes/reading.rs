//! Readers, and those who wait or count a grant, when something happens to one of them.

use std::time::{Duration, Instant};

use dlock_core::backend::{Mode, Withdrawal};
use dlock_core::{Backend, Claim};
use dlock_rig::proxy::Loss;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::Postgres;
use sqlx::{Connection, MySqlConnection, PgConnection};

use crate::by_hand::{busy, granted, request};
use crate::kept::{
    Kind, LONG, MysqlRow, PostgresRow, PostgresSession, locks, on_each_kind, over, soon, take, until,
};
use crate::readers::{can_read, can_write, on_each_that_reads, read};
use crate::support::Child;

/// A URL by which no fences are counted.
fn without_fences<K: Kind>(server: &K::Server) -> String {
    format!("{}&fences=false", K::url(server))
}

on_each_that_reads! {
    /// It has the turn, and its session lives.
    async fn a_waiter_whose_process_is_stopped_keeps_readers_out_for_a_time_only<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let guard = take(&ours, "a").await;
        let mut stopped = Child::play(K::ROLE, &K::url(&server));
        until("it waits on the server", || K::waiting(&server) == 1).await;
        stopped.stop();
        guard.release().await.unwrap();
        assert!(!can_read(&ours, "a").await, "somebody waits");
        let (first, second) = tokio::join!(read(&ours, "a"), read(&theirs, "a"));
        for guard in [first, second] {
            guard.release().await.unwrap();
        }
        stopped.kill();
        until("the one that was stopped has gone", || K::waiting(&server) == 0).await;
        take(&theirs, "a").await.release().await.unwrap();
    }

    /// Nobody polls the claim, as nobody does while its task is kept busy otherwise.
    async fn a_waiter_that_does_not_ask_when_the_lock_is_free_has_its_turn_no_longer<K: Kind>() {
        let server = K::start(&[]);
        let ours = locks::<K>(&server, LONG).await;
        let backend = K::connect(&K::url(&server)).await.unwrap();
        let guard = take(&ours, "a").await;
        let mut waiter = backend.claim(request("a", LONG).await);
        for _ in 0..2 {
            busy(waiter.attempt().await.unwrap());
            tokio::select! {
                told = waiter.changed() => panic!("{told:?} while it is held"),
                () = until("it waits on the server", || K::waiting(&server) == 1) => {}
            }
        }
        guard.release().await.unwrap();
        soon("a reader", async {
            while !can_read(&ours, "a").await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        // It comes back, and gets in line.
        let guard = take(&ours, "a").await;
        busy(waiter.attempt().await.unwrap());
        tokio::select! {
            told = waiter.changed() => panic!("{told:?} while it is held"),
            () = until("it waits on the server", || K::waiting(&server) == 1) => {}
        }
        guard.release().await.unwrap();
        soon("the release", waiter.changed()).await.unwrap();
        granted(waiter.attempt().await.unwrap());
        assert!(!can_read(&ours, "a").await);
        assert_eq!(waiter.withdraw().await.unwrap(), Withdrawal::REMOVED);
        until("nothing is left", || K::held(&server) == 0).await;
    }

    /// A stopped process has the turn by then.
    async fn a_reader_that_has_given_its_turn_up_asks_without_it<K: Kind>() {
        let server = K::start(&[]);
        let ours = locks::<K>(&server, LONG).await;
        let backend = K::connect(&K::url(&server)).await.unwrap();
        let guard = take(&ours, "a").await;
        let mut reads = request("a", LONG).await;
        reads.mode = Mode::Shared;
        let mut reader = backend.claim(reads);
        for _ in 0..2 {
            busy(reader.attempt().await.unwrap());
            tokio::select! {
                told = reader.changed() => panic!("{told:?} while it is held"),
                () = until("it waits on the server", || K::waiting(&server) == 1) => {}
            }
        }
        let mut stopped = Child::play(K::ROLE, &K::url(&server));
        until("the other one waits too", || K::waiting(&server) == 2).await;
        stopped.stop();
        guard.release().await.unwrap();
        until("the other one has the turn", || K::waiting(&server) == 0).await;
        busy(reader.attempt().await.unwrap());
        stopped.kill();
        assert_eq!(reader.withdraw().await.unwrap(), Withdrawal::ABSENT);
        take(&ours, "a").await.release().await.unwrap();
    }
}

/// Ends the session whose transaction has locked a row while its grant is being counted.
trait BetweenLockAndCount: Kind {
    type Blocker;
    /// Has the count of a key wait.
    async fn block(server: &Self::Server) -> Self::Blocker;
    /// Ends the session when another one waits for the count.
    async fn end_session(server: &Self::Server, blocker: &Self::Blocker);
}

impl BetweenLockAndCount for MysqlRow {
    type Blocker = (MySqlConnection, String);

    async fn block(server: &Self::Server) -> Self::Blocker {
        let mut on = MySqlConnection::connect(&server.url()).await.unwrap();
        let lock = "BEGIN; SELECT 1 FROM dlock WHERE `key` = X'FF61' FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut on).await.unwrap();
        let id: i64 =
            sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(&mut on).await.unwrap();
        (on, id.to_string())
    }

    async fn end_session(server: &Self::Server, (_, blocker): &Self::Blocker) {
        let of = |state: &str| {
            server.query(&format!(
                "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx
                WHERE trx_state = '{state}' AND trx_mysql_thread_id <> {blocker}"
            ))
        };
        until("the count waits", || !of("LOCK WAIT").is_empty() && !of("RUNNING").is_empty()).await;
        server.query(&format!("KILL CONNECTION {}", of("RUNNING")));
        until("the session has ended", || of("RUNNING").is_empty()).await;
    }
}

impl BetweenLockAndCount for PostgresRow {
    type Blocker = (PgConnection, String);

    async fn block(server: &Self::Server) -> Self::Blocker {
        let mut on = PgConnection::connect(&server.url()).await.unwrap();
        let lock = "BEGIN; SELECT FROM dlock WHERE key = decode('ff61', 'hex') FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut on).await.unwrap();
        let id: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut on).await.unwrap();
        (on, id.to_string())
    }

    async fn end_session(server: &Self::Server, (_, blocker): &Self::Blocker) {
        let of = |state: &str| {
            server.query(&format!("SELECT pid FROM pg_stat_activity WHERE {state} AND pid <> {blocker}"))
        };
        let (waits, keeps) = ("wait_event_type = 'Lock'", "state = 'idle in transaction'");
        until("the count waits", || !of(waits).is_empty() && !of(keeps).is_empty()).await;
        server.query(&format!("SELECT pg_terminate_backend({})", of(keeps)));
        until("the session has ended", || of(keeps).is_empty()).await;
    }
}

/// Its fence may be the higher one.
async fn who_has_lost_the_row_while_its_grant_was_counted_is_not_granted_it<K: BetweenLockAndCount>(
    reads: bool,
) {
    let server = K::start(&[]);
    let ours = locks::<K>(&server, LONG).await;
    let theirs = over::<K>(&without_fences::<K>(&server), LONG).await;
    take(&ours, "a").await.release().await.unwrap();
    let blocker = K::block(&server).await;
    let lock = ours.lock("a");
    let lock = if reads { lock.read() } else { lock };
    let first = tokio::spawn(async move { lock.try_acquire().await });
    K::end_session(&server, &blocker).await;
    let second = take(&theirs, "a").await;
    drop(blocker);
    let first = soon("an answer", first).await.unwrap();
    assert!(!matches!(first, Ok(Some(_))), "two have it");
    second.check().unwrap();
    second.release().await.unwrap();
    until("nothing is left", || ours.stats().background == 0 && K::held(&server) == 0).await;
    take(&ours, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_has_lost_its_row_on_mariadb_while_its_grant_was_counted_is_not_granted_it() {
    who_has_lost_the_row_while_its_grant_was_counted_is_not_granted_it::<MysqlRow>(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_has_lost_its_row_on_mariadb_while_its_grant_was_counted_is_not_granted_it() {
    who_has_lost_the_row_while_its_grant_was_counted_is_not_granted_it::<MysqlRow>(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_has_lost_its_row_on_postgresql_while_its_grant_was_counted_is_not_granted_it() {
    who_has_lost_the_row_while_its_grant_was_counted_is_not_granted_it::<PostgresRow>(true).await;
}

/// What the session of the first attempt has written stands on the server for as long as that session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_mariadb_waits_for_nothing_that_an_attempt_of_its_own_has_left() {
    let server = MysqlRow::start(&[]);
    let proxy = MysqlRow::proxy(&server);
    let mut reads = request("a", Duration::from_secs(6)).await;
    reads.mode = Mode::Shared;
    let backend = MysqlRow::connect(&MysqlRow::url_through(&server, proxy.address())).await.unwrap();
    let mut claim = backend.claim(reads);
    granted(claim.attempt().await.unwrap());
    // The server learns nothing of it.
    proxy.strand();
    let mut again = claim.attempt().await;
    for _ in 0..4 {
        if again.is_err() {
            again = claim.attempt().await;
        }
    }
    granted(again.unwrap());
    assert_eq!(claim.withdraw().await.unwrap(), Withdrawal::REMOVED);
    proxy.cut();
    until("nothing is left", || MysqlRow::held(&server) == 0).await;
}

/// A trigger fails when the statement has done its work, which the locks of sessions survive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_failed_when_it_was_done_is_not_taken_for_one_that_changed_nothing() {
    let server = PostgresSession::start(&[]);
    let (ours, theirs) =
        (locks::<PostgresSession>(&server, LONG).await, locks::<PostgresSession>(&server, LONG).await);
    let mut guard = take(&ours, "a").await;
    server.query(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$;
        CREATE TRIGGER refuse AFTER INSERT ON dlock FOR EACH ROW
            WHEN (NEW.key >= decode('fb', 'hex') AND NEW.key < decode('fc', 'hex')) EXECUTE FUNCTION refuse()",
    );
    let downgraded = tokio::time::timeout(Duration::from_secs(3), guard.downgrade()).await;
    assert!(!matches!(downgraded, Ok(Ok(()))), "the trigger lets nothing be written");
    if guard.check().is_ok() {
        assert!(!can_write(&theirs, "a").await, "it counts as held");
    }
    server.query("DROP TRIGGER refuse ON dlock");
    drop(guard);
    take(&theirs, "a").await.release().await.unwrap();
}

/// One that fails before changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_without_the_right_to_delete_is_denied_and_changes_nothing() {
    let server = PostgresServer::start().unwrap();
    let admin = format!("{}&migrate=true", server.url());
    drop(dlock_sql::PostgresSessions::connect(&admin).await.unwrap());
    server.query("CREATE USER other PASSWORD 'other'; GRANT SELECT, INSERT, UPDATE ON dlock TO other");
    let locks = |url: String| async move {
        dlock_core::Locks::new(dlock_sql::PostgresSessions::connect(&url).await.unwrap())
    };
    let (ours, theirs) = (locks(server.url_as("other", "other")).await, locks(admin).await);
    let mut guard = take(&ours, "a").await;
    let downgrade = tokio::time::timeout(Duration::from_secs(2), guard.downgrade()).await;
    assert!(!matches!(downgrade, Ok(Ok(()))), "it may not delete what says who reads");
    guard.check().unwrap();
    assert!(!can_read(&theirs, "a").await);
    guard.release().await.unwrap();
    assert_eq!(server.query("SELECT count(*) FROM dlock WHERE key >= '\\xfb' AND key < '\\xfc'"), "0");
    assert!(can_write(&theirs, "a").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_leaves_the_fence_of_a_row_that_is_read() {
    let server = PostgresRow::start(&[]);
    let leases = Postgres::connect(&PostgresRow::url(&server)).await.unwrap();
    let ours = locks::<PostgresRow>(&server, LONG).await;
    let guards = [read(&ours, "a").await, read(&ours, "a").await];
    server.query("UPDATE dlock SET fence = fence - 3600000000 WHERE key >= decode('ff', 'hex')");
    leases.prune(Duration::ZERO).await.unwrap();
    assert_eq!(server.query("SELECT count(*) FROM dlock WHERE key = decode('ff61', 'hex')"), "1");
    for guard in guards {
        guard.release().await.unwrap();
    }
}

mod in_time {
    use super::*;

    on_each_that_reads! {
        async fn readers_that_wait_in_one_process_come_in_together_before_a_writer_that_came_later<K: Kind>() {
            let server = K::start(&[]);
            let all = [locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await];
            // With connections that are open.
            let guards = [read(&all[1], "a").await, read(&all[1], "a").await, read(&all[1], "a").await];
            for guard in guards {
                guard.release().await.unwrap();
            }
            let guard = take(&all[0], "a").await;
            let readers: Vec<_> = (0..6)
                .map(|_| {
                    let lock = all[1].lock("a").read();
                    tokio::spawn(async move { lock.acquire().await })
                })
                .collect();
            until("the first of them waits on the server", || K::waiting(&server) == 1).await;
            let lock = all[2].lock("a");
            let writing = tokio::spawn(async move { lock.acquire().await });
            until("the writer waits behind it", || K::waiting(&server) == 2).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            let mut guards = Vec::new();
            for reader in readers {
                guards.push(soon("a reader", reader).await.unwrap().unwrap());
            }
            // Later they would not respect the writer any more.
            assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
            assert!(!writing.is_finished(), "it is read");
            for guard in guards {
                guard.release().await.unwrap();
            }
            soon("the writer", writing).await.unwrap().unwrap().release().await.unwrap();
        }
    }

    /// Only readers look whether somebody waits.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_release_of_a_writer_does_not_wait_until_it_has_left_the_queue() {
        let server = PostgresSession::start(&[]);
        let ours = locks::<PostgresSession>(&server, LONG).await;
        let mut shortest = Duration::MAX;
        for _ in 0..5 {
            let proxy = PostgresSession::proxy(&server);
            let backend = PostgresSession::connect(&PostgresSession::url_through(&server, proxy.address()))
                .await
                .unwrap();
            let guard = take(&ours, "a").await;
            let mut waiter = backend.claim(request("a", LONG).await);
            busy(waiter.attempt().await.unwrap());
            tokio::select! {
                told = waiter.changed() => panic!("{told:?} while it is held"),
                () = until("it waits on the server", || PostgresSession::waiting(&server) == 1) => {}
            }
            guard.release().await.unwrap();
            soon("the release", waiter.changed()).await.unwrap();
            // The answer to what leaves the queue.
            proxy.lose_reply(1, "QUERY", Loss::Silence);
            granted(waiter.attempt().await.unwrap());
            proxy.wait_until_lost(1).await;
            let released = Instant::now();
            assert_eq!(waiter.withdraw().await.unwrap(), Withdrawal::REMOVED);
            shortest = shortest.min(released.elapsed());
        }
        assert!(shortest < Duration::from_millis(100), "{shortest:?}");
    }
}
