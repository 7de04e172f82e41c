//! Locks that are handed over: what the row keeps for those who wait, and what nobody takes over.

use std::time::Duration;

use dlock_core::backend::{Busy, Mode, Withdrawal};
use dlock_core::{Backend, Claim, ErrorKind, Key, Locks, Token};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlOptions, Postgres, PostgresOptions};

use crate::by_hand::{busy, granted, request};
use crate::support::{Db, is_error, on_both, take, until};

const LEASE: Duration = Duration::from_secs(30);

/// A claim that takes over what was left under this token.
async fn taker<B: Backend>(backend: &B, left: Token) -> B::Claim {
    let mut request = request("k", LEASE).await;
    request.takes_over = Some(left);
    backend.claim(request)
}

/// A claim, and the token under which it leaves its key.
async fn giver<B: Backend>(backend: &B, key: &str) -> (B::Claim, Token) {
    let request = request(key, LEASE).await;
    let left = request.token.left_behind();
    (backend.claim(request), left)
}

/// One that waits for its turn.
async fn stands<B: Backend>(backend: &B) -> B::Claim {
    let mut request = request("k", LEASE).await;
    (request.fair, request.waits) = (true, true);
    let mut claim = backend.claim(request);
    let _ = busy(claim.attempt().await.unwrap());
    claim
}

/// Whatever else stands there, or nothing: all rows are as before.
async fn takes_nothing<D: Db>(db: &D, backend: &D::Backend, left: Token) -> Busy {
    let rows = if D::KEY == "key" {
        "SELECT string_agg(dlock::text, ' ' ORDER BY key) FROM dlock"
    } else {
        "SELECT GROUP_CONCAT(HEX(`key`), COALESCE(HEX(token), '-'), fence, expires, HEX(holder) ORDER BY `key`) FROM dlock"
    };
    let before = db.query(rows);
    let found = busy(taker(backend, left).await.attempt().await.unwrap());
    assert_eq!(db.query(rows), before);
    found
}

on_both! {
    async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before<D: Db>(db: D) {
        let (ours, theirs) = (db.backend().await, db.backend().await);
        let ((mut giver, left), mut waiter) = (giver(&ours, "k").await, theirs.claim(request("k", LEASE).await));
        let first = granted(giver.attempt().await.unwrap()).fence;
        let mark = if D::KEY == "key" { "awaited::int" } else { "RIGHT(holder, 8) = ' awaited'" };
        let is_marked = || db.query(&format!("SELECT {mark} FROM dlock WHERE {} = 'k'", D::KEY)) == "1";
        // It may be told for nothing.
        let waiting = async {
            loop {
                let _ = busy(waiter.attempt().await.unwrap());
                waiter.changed().await.unwrap();
            }
        };
        tokio::select! {
            () = waiting => {}
            () = until("a mark", is_marked) => {}
        }
        assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
        let mut taker = taker(&theirs, left).await;
        assert!(granted(taker.attempt().await.unwrap()).fence > first);
        assert_eq!(taker.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
    }

    async fn who_stands_in_line_has_its_turn_after_whoever_took_the_lock_over<D: Db>(db: D) {
        let backend = db.backend().await;
        let (mut giver, left) = giver(&backend, "k").await;
        let _ = granted(giver.attempt().await.unwrap());
        let mut first_in_line = stands(&backend).await;
        let _ = giver.leave(LEASE).await.unwrap();
        let mut taker = taker(&backend, left).await;
        let last = granted(taker.attempt().await.unwrap()).fence;
        assert_eq!(taker.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
        let mut newcomer = backend.claim(request("k", LEASE).await);
        let _ = busy(newcomer.attempt().await.unwrap());
        let turn = granted(first_in_line.attempt().await.unwrap());
        assert!(turn.fence > last);
        assert!(first_in_line.withdraw().await.unwrap().removed);
    }

    async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for_in_whatever_order<D: Db>(db: D) {
        let (backend, key) = (db.backend().await, Key::new("k").unwrap());
        let (mut giver, left) = giver(&backend, "k").await;
        let _ = granted(giver.attempt().await.unwrap());
        let mut earliest = LEASE * 4;
        for time in [LEASE * 4, LEASE * 60, LEASE * 2, LEASE * 4] {
            assert_eq!(giver.leave(time).await.unwrap(), Withdrawal::REMOVED);
            earliest = earliest.min(time);
            let remaining = backend.inspect(&key).await.unwrap().and_then(|holder| holder.expires_in);
            assert!(remaining <= Some(earliest) && remaining > Some(earliest / 2), "{remaining:?} of {earliest:?}");
        }
        let _ = giver.leave(Duration::from_millis(1)).await.unwrap();
        let _ = giver.leave(LEASE).await.unwrap();
        until("its end", || db.query(&format!("SELECT count(*) FROM dlock WHERE expires > {}", now::<D>())) == "0").await;
        assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::ABSENT);
        let _ = busy(taker(&backend, left).await.attempt().await.unwrap());
    }

    async fn nothing_but_what_was_left_is_taken_over<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = Locks::builder(backend.clone()).with_label("other").with_lease(LEASE).build().unwrap();
        let (mut giver, left) = giver(&backend, "k").await;
        assert!(takes_nothing(&db, &backend, left).await.holder.is_none(), "there is no row");
        let _ = granted(giver.attempt().await.unwrap());
        let held = takes_nothing(&db, &backend, left).await;
        assert_eq!(held.holder.unwrap().label.as_deref(), Some("tests"), "it is not left yet");
        let _ = giver.withdraw().await.unwrap();
        assert!(takes_nothing(&db, &backend, left).await.holder.is_none(), "it is free");
        let reader = locks.lock("k").read().acquire().await.unwrap();
        let holder = takes_nothing(&db, &backend, left).await.holder.unwrap();
        assert_eq!((holder.mode, holder.label.as_deref()), (Mode::Shared, Some("other")));
        reader.release().await.unwrap();
        let permit = locks.semaphore("k", 2).acquire().await.unwrap();
        let holder = takes_nothing(&db, &backend, left).await.holder.unwrap();
        assert_eq!(holder.mode, Mode::Permits { of: 2, take: 1 });
        permit.release().await.unwrap();
        assert!(takes_nothing(&db, &backend, left).await.holder.is_none(), "it is a semaphore");
    }
}

fn now<D: Db>() -> &'static str {
    if D::KEY == "key" {
        "clock_timestamp()"
    } else {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_handed_over_by_statements_with_their_values_in_them() {
    let server = <PostgresServer as Db>::start();
    let simple = format!("{}&statements=simple", server.url());
    let locks = Locks::new(server.backend().await);
    let theirs = Locks::new(Postgres::connect(&simple).await.unwrap());
    let guard = take(&theirs, "$1 \\ '").await;
    let baton = guard.hand_over().await.unwrap();
    let next = theirs.take_over(&baton).await.unwrap();
    assert!(next.fence() > guard.fence());
    is_error(locks.take_over(&baton).await, ErrorKind::NotHeld, &[]);
    locks.take_over(&next.hand_over().await.unwrap()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_functions_for_other_programs_keep_what_those_who_wait_have_noted() {
    async fn check<D: Db>(db: D, [take_over, hand_over]: [&str; 2]) {
        let backend = db.backend().await;
        let (mut giver, left) = giver(&backend, "k").await;
        let _ = granted(giver.attempt().await.unwrap());
        let mut first_in_line = stands(&backend).await;
        let _ = giver.leave(LEASE).await.unwrap();
        let (theirs, next) = (Token::random().unwrap(), Token::random().unwrap());
        let call = |call: &str, baton: &Token, mine: &Token| {
            db.query(&call.replace("BATON", &baton.to_hex()).replace("MINE", &mine.to_hex()))
        };
        assert!(call(take_over, &left, &theirs).parse::<u64>().is_ok());
        assert_eq!(call(hand_over, &left, &theirs), theirs.left_behind().to_hex());
        let mut taker = taker(&backend, theirs.left_behind()).await;
        let last = granted(taker.attempt().await.unwrap()).fence;
        assert_eq!(taker.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
        let _ = busy(backend.claim(request("k", LEASE).await).attempt().await.unwrap());
        assert!(granted(first_in_line.attempt().await.unwrap()).fence > last);
        if D::KEY != "key" {
            // Of one that waits for no turn.
            db.query("UPDATE dlock SET holder = CONCAT('who', ' awaited') WHERE `key` = 'k'");
            let _ = first_in_line.leave(LEASE).await.unwrap();
            let left = db.query("SELECT LOWER(HEX(token)) FROM dlock WHERE `key` = 'k'");
            assert!(call(&take_over.replace("BATON", &left), &next, &next).parse::<u64>().is_ok());
            assert_eq!(db.query("SELECT holder FROM dlock WHERE `key` = 'k'"), "other awaited");
        }
    }
    let postgres = <PostgresServer as Db>::start();
    drop(postgres.backend().await);
    postgres.query(&PostgresOptions::from_url(&postgres.url()).unwrap().functions());
    let of_postgres = [
        "SELECT dlock_take_over('k', 'BATON', decode('MINE', 'hex'), '30 seconds', 'other')",
        "SELECT dlock_hand_over('k', decode('MINE', 'hex'), '30 seconds')",
    ];
    check(postgres, of_postgres).await;
    let mysql = <MysqlServer as Db>::start();
    drop(mysql.backend().await);
    let pool = sqlx::MySqlPool::connect(&mysql.url()).await.unwrap();
    for statement in MysqlOptions::from_url(&mysql.url()).unwrap().procedures() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    let of_mysql = [
        "CALL dlock_take_over('k', 'BATON', X'MINE', 30000, 'other')",
        "CALL dlock_hand_over('k', X'MINE', 30000)",
    ];
    check(mysql, of_mysql).await;
}
