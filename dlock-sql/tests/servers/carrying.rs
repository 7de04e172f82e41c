//! Locks that are handed over: what the row keeps for those who wait, and what nobody takes over.

use dlock_core::backend::Withdrawal;
use dlock_core::{Backend, Claim, ErrorKind, Locks, Token};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlOptions, Postgres, PostgresOptions};

use crate::by_hand::{busy, granted, request};
use crate::carried::{self, LEASE, giver, taker};
use crate::support::{Db, is_error, on_both, take};

/// One that waits for its turn.
async fn stands<B: Backend>(backend: &B) -> B::Claim {
    let mut request = request("k", LEASE).await;
    (request.fair, request.waits) = (true, true);
    let mut claim = backend.claim(request);
    let _ = busy(claim.attempt().await.unwrap());
    claim
}

/// All that is stored.
fn rows<D: Db>(db: &D) -> String {
    db.query(if D::KEY == "key" {
        "SELECT string_agg(dlock::text, ' ' ORDER BY key) FROM dlock"
    } else {
        "SELECT GROUP_CONCAT(HEX(`key`), COALESCE(HEX(token), '-'), fence, expires, HEX(holder) ORDER BY `key`) FROM dlock"
    })
}

on_both! {
    async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before<D: Db>(db: D) {
        let mark = db.mark_of_waiters();
        let backends = (db.backend().await, db.backend().await);
        let is_marked = async || db.query(&mark) == "1";
        carried::whoever_took_a_lock_over_is_told_of_those_who_wait_since_before(backends, is_marked).await;
    }

    async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for<D: Db>(db: D) {
        carried::what_was_left_ends_at_the_earliest_time_that_was_asked_for(db.backend().await).await;
    }

    async fn nothing_but_what_was_left_is_taken_over<D: Db>(db: D) {
        carried::nothing_but_what_was_left_is_taken_over(db.backend().await, async || rows(&db)).await;
    }

    async fn a_late_request_for_a_share_changes_nothing<D: Db>(db: D) {
        carried::a_late_request_for_a_share_changes_nothing(db.backend().await, async || rows(&db)).await;
    }

    async fn who_stands_in_line_behind_a_reader_comes_after_the_taker_or_the_end_of_the_baton<D: Db>(db: D) {
        let backend = db.backend().await;
        carried::who_stands_in_line_behind_a_reader_comes_after_the_taker_or_the_end_of_the_baton(backend).await;
    }

    async fn who_stands_in_line_has_its_turn_after_whoever_took_the_lock_over<D: Db>(db: D) {
        let backend = db.backend().await;
        let (mut giver, left) = giver(&backend).await;
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
        let (mut giver, left) = giver(&backend).await;
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
