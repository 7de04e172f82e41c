//! Those who stand in line for a key: beside programs that know nothing of it, when they die, and in crowds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Claim, Grant};
use dlock_core::{Backend, Guard, Lock, Locks, Requirement};
use dlock_rig::proxy::Loss;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlOptions, PostgresOptions};

use crate::by_hand::{busy, granted, request};
use crate::support::{Db, on_both, on_stepped, once, take, until};

/// Rows of those who stand in line.
fn in_line<D: Db>(db: &D) -> usize {
    let (from, to) =
        if D::KEY == "key" { ("decode('fc', 'hex')", "decode('fd', 'hex')") } else { ("X'FC'", "X'FD'") };
    let rows = format!("SELECT count(*) FROM dlock WHERE {0} >= {from} AND {0} < {to}", D::KEY);
    db.query(&rows).parse().unwrap()
}

fn fair(locks: &Locks, key: &str) -> Lock {
    locks.lock(key).with_fairness(true)
}

/// One that waits for its turn, and is driven by hand.
async fn waiter<B: Backend>(backend: &B, key: &str) -> B::Claim {
    let mut request = request(key, Duration::from_secs(30)).await;
    (request.fair, request.waits) = (true, true);
    backend.claim(request)
}

/// Asks until it has its turn.
async fn turn(claim: &mut impl Claim) -> Grant {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match claim.attempt().await.unwrap() {
            Attempt::Granted(grant) => return grant,
            Attempt::Busy(_) => assert!(Instant::now() < end, "it has no turn"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn stands<D: Db>(db: &D, lock: Lock, already: usize) -> tokio::task::JoinHandle<Guard> {
    let task = tokio::spawn(async move { lock.acquire().await.unwrap_or_else(|error| panic!("{error}")) });
    until("its place", || in_line(db) == already + 1).await;
    task
}

on_both! {
    async fn of_two_hundred_in_line_those_who_died_are_skipped_and_the_others_have_their_turns<D: Db>(db: D) {
        const ALL: usize = 200;
        let backend = db.backend().await;
        let mut holder = waiter(&backend, "k").await;
        let mut last = granted(holder.attempt().await.unwrap());
        let mut line = Vec::new();
        for _ in 0..ALL {
            let mut claim = waiter(&backend, "k").await;
            let _ = busy(claim.attempt().await.unwrap());
            line.push(claim);
        }
        assert_eq!(in_line(&db), ALL);
        let is_dead = |place: usize| place.is_multiple_of(7) || (40..60).contains(&place);
        // The others are heard of for as long as it takes the places of the dead to end.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            for (_, claim) in line.iter_mut().enumerate().filter(|(place, _)| !is_dead(*place)) {
                let _ = busy(claim.attempt().await.unwrap());
            }
        }
        let _ = holder.withdraw().await.unwrap();
        let mut alive: Vec<_> =
            line.into_iter().enumerate().filter(|(place, _)| !is_dead(*place)).map(|(_, claim)| claim).collect();
        let mut behind = alive.split_off(1);
        behind.reverse();
        let mut next = alive.pop();
        while let Some(mut claim) = next {
            let grant = turn(&mut claim).await;
            assert!(grant.fence > last.fence, "{grant:?} after {last:?}");
            last = grant;
            next = behind.pop();
            if let Some(next) = &mut next {
                let _ = busy(next.attempt().await.unwrap());
            }
            // Those far behind are heard of meanwhile.
            if behind.len().is_multiple_of(16) {
                for claim in &mut behind {
                    let _ = busy(claim.attempt().await.unwrap());
                }
            }
            let _ = claim.withdraw().await.unwrap();
        }
        assert_eq!((in_line(&db), db.held()), (0, 0), "nothing is left of them");
    }

    async fn nobody_gets_past_the_line_neither_at_a_release_nor_when_a_lease_has_ended<D: Db>(db: D) {
        let (ours, theirs) = (db.locks().await, db.locks().await);
        // Of one that asks for no turn.
        let guard = take(&ours, "k").await;
        let first = stands(&db, fair(&theirs, "k"), 0).await;
        guard.release().await.unwrap();
        let mut tried = 0;
        while !first.is_finished() {
            assert!(once(&ours, "k").try_acquire().await.unwrap().is_none() || first.is_finished());
            tried += 1;
        }
        assert!(tried > 0 || first.is_finished());
        first.await.unwrap().release().await.unwrap();
        // Of one that died.
        let backend = db.backend().await;
        let mut silent = backend.claim(request("k", Duration::from_millis(1_500)).await);
        let _ = granted(silent.attempt().await.unwrap());
        let mut waits = waiter(&backend, "k").await;
        let _ = busy(waits.attempt().await.unwrap());
        let end = Instant::now() + Duration::from_millis(1_900);
        while Instant::now() < end {
            assert!(once(&ours, "k").try_acquire().await.unwrap().is_none());
            assert!(ours.lock_all(["k", "other"]).with_wait(dlock_core::Wait::No).acquire().await.is_err());
        }
        let _ = turn(&mut waits).await;
        let _ = waits.withdraw().await.unwrap();
        take(&ours, "k").await.release().await.unwrap();
    }

    async fn a_line_of_the_dead_keeps_others_out_for_a_few_seconds_and_no_longer<D: Db>(db: D) {
        let backend = db.backend().await;
        let mut holder = backend.claim(request("k", Duration::from_secs(3_600)).await);
        let _ = granted(holder.attempt().await.unwrap());
        for _ in 0..3 {
            let _ = busy(waiter(&backend, "k").await.attempt().await.unwrap());
        }
        let _ = holder.withdraw().await.unwrap();
        let locks = db.locks().await;
        assert!(once(&locks, "k").try_acquire().await.unwrap().is_none(), "it is kept for them");
        // Also for one that asks for no turn.
        take(&locks, "k").await.release().await.unwrap();
        fair(&locks, "k").acquire().await.unwrap().release().await.unwrap();
    }

    async fn who_stands_in_line_is_nobody_who_holds_it_and_is_not_pruned<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = Locks::new(backend.clone());
        let mut holder = backend.claim(request("k", Duration::from_secs(30)).await);
        let fence = granted(holder.attempt().await.unwrap()).fence;
        let mut waits = waiter(&backend, "k").await;
        let _ = busy(waits.attempt().await.unwrap());
        assert_eq!(locks.inspect("k").await.unwrap().unwrap().fence, fence);
        let held = locks.holders().await.unwrap();
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].1.fence, fence);
        assert_eq!(locks.occupancy("k").await.unwrap().holders.len(), 1);
        let _ = holder.withdraw().await.unwrap();
        // It has its turn, and has not taken it.
        assert!(locks.inspect("k").await.unwrap().is_none());
        assert!(locks.holders().await.unwrap().is_empty() && locks.occupancy("k").await.unwrap().holders.is_empty());
        assert!(!locks.force_release("k").await.unwrap(), "nobody has it");
        assert_eq!(D::prune(&backend, Duration::from_secs(60)).await.unwrap(), 0);
        assert_eq!(in_line(&db), 1);
        let grant = turn(&mut waits).await;
        assert!(grant.fence > fence);
        // One that died yesterday is pruned.
        let _ = busy(waiter(&backend, "k").await.attempt().await.unwrap());
        let expires = if D::KEY == "key" { "expires - interval '1 day'" } else { "expires - 86400000000" };
        db.query(&format!("UPDATE dlock SET expires = {expires} WHERE fence = 1"));
        assert_eq!(D::prune(&backend, Duration::from_secs(60)).await.unwrap(), 1);
        assert_eq!(in_line(&db), 0);
        let _ = waits.withdraw().await.unwrap();
    }

    async fn programs_that_call_the_functions_and_those_of_an_earlier_version_do_no_harm<D: Db>(db: D) {
        let backend = db.backend().await;
        let (ours, is_postgres) = (db.locks().await, D::KEY == "key");
        let mine = if is_postgres { "decode(repeat('ab', 16), 'hex')" } else { "UNHEX(REPEAT('ab', 16))" };
        // As functions.sql and procedures.sql, and version 0.1, take and release.
        let (now, later) = if is_postgres {
            ("clock_timestamp()", "clock_timestamp() + interval '30 s'")
        } else {
            let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
            (now, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 30000000")
        };
        let key = D::KEY;
        let old_take = format!(
            "UPDATE dlock SET token = {mine}, expires = {later}, fence = fence + 1, holder = 'old' WHERE {key} = 'k' AND (token IS NULL OR expires <= {now})"
        );
        let old_release = format!("UPDATE dlock SET token = NULL WHERE {key} = 'k' AND token = {mine}");
        let has_it = format!("SELECT count(*) FROM dlock WHERE {key} = 'k' AND holder LIKE 'old%' AND token IS NOT NULL");
        take(&ours, "k").await.release().await.unwrap();
        db.query(&old_take);
        let mut waits = waiter(&backend, "k").await;
        let _ = busy(waits.attempt().await.unwrap());
        // It leaves the row to whoever comes first, who is in line here.
        db.query(&old_release);
        let first = turn(&mut waits).await;
        let mut second = waiter(&backend, "k").await;
        let _ = busy(second.attempt().await.unwrap());
        let _ = waits.withdraw().await.unwrap();
        // What is kept for the second one is taken for them.
        db.query(&old_take);
        assert_eq!(db.query(&has_it), "0");
        assert!(turn(&mut second).await.fence > first.fence);
        let _ = second.withdraw().await.unwrap();
        db.query(&old_take);
        assert_eq!(db.query(&has_it), "1");
        db.query(&old_release);
    }

    async fn a_line_goes_on_whichever_reply_is_lost<D: Db>(db: D) {
        let ours = Locks::new(db.backend().await);
        let proxy = db.proxy();
        let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
        let theirs = Locks::builder(backend).with_wait(Duration::from_secs(20)).build().unwrap();
        take(&theirs, "a").await.release().await.unwrap();
        // That of taking the place, and of the turn.
        for loss in [Loss::Cut, Loss::Silence] {
            let guard = take(&ours, "k").await;
            let before = proxy.lost();
            proxy.lose_reply(1, "QUERY", loss);
            let first = stands(&db, fair(&theirs, "k").with_request_timeout(Duration::from_secs(1)), 0).await;
            proxy.wait_until_lost(before + 1).await;
            let second = stands(&db, fair(&ours, "k"), 1).await;
            proxy.lose_reply(1, "QUERY", loss);
            guard.release().await.unwrap();
            let guard = first.await.unwrap();
            assert!(!second.is_finished(), "it is the second");
            guard.check().unwrap();
            guard.release().await.unwrap();
            second.await.unwrap().release().await.unwrap();
            until("nothing is left", || in_line(&db) == 0 && db.held() == 0).await;
        }
    }

    // Whoever is inside counts by what is no lock.
    async fn a_crowd_of_all_modes_some_of_whom_give_up_never_meets_inside<D: Db>(db: D) {
        let processes = [db.locks().await, db.locks().await, db.locks().await];
        let inside = Arc::new(AtomicI64::new(0));
        let tasks = (0..18_usize).map(|task| {
            let (locks, inside) = (processes[task % 3].clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for round in 0..8 {
                    let lock = match (task + round) % 6 {
                        0 => locks.lock("k"),
                        1 => once(&locks, "k"),
                        2 => locks.lock("k").read(),
                        3 => fair(&locks, "k").with_wait(Duration::from_millis(20)),
                        _ => fair(&locks, "k"),
                    };
                    let weight = if (task + round) % 6 == 2 { 1 } else { 1_000 };
                    let giving_up = Duration::from_millis(3 + 7 * (task as u64 % 4));
                    let taken = if (task + round).is_multiple_of(5) {
                        tokio::time::timeout(giving_up, lock.acquire()).await.ok()
                    } else {
                        Some(lock.acquire().await)
                    };
                    let Some(Ok(mut guard)) = taken else { continue };
                    let before = inside.fetch_add(weight, Ordering::SeqCst);
                    assert!(before == 0 || weight == 1 && before < 1_000, "{before} beside {weight}");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    match round % 3 {
                        0 => drop(guard),
                        1 if weight == 1_000 && (task + round) % 6 == 0 => {
                            guard.downgrade().await.unwrap();
                            guard.release().await.unwrap();
                        }
                        _ => guard.release().await.unwrap(),
                    }
                }
            })
        });
        for task in futures_util::future::join_all(tasks).await {
            task.unwrap();
        }
        for locks in &processes {
            until("what is left to do", || locks.stats().background == 0).await;
        }
        assert_eq!(in_line(&db), 0);
        take(&processes[0], "k").await.release().await.unwrap();
    }

    async fn a_server_that_ends_all_sessions_again_and_again_keeps_no_line_waiting<D: Db>(db: D) {
        let processes = [db.locks().await, db.locks().await];
        let inside = Arc::new(AtomicI64::new(0));
        let tasks: Vec<_> = (0..8_usize)
            .map(|task| {
                let (locks, inside) = (processes[task % 2].clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..4 {
                        let guard = fair(&locks, "k").acquire().await.unwrap_or_else(|error| panic!("{error}"));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "beside another one");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        // What was lost on the way is made up for.
                        drop(guard);
                    }
                })
            })
            .collect();
        while tasks.iter().any(|task| !task.is_finished()) {
            db.disconnect_all();
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    async fn a_place_is_kept_while_the_server_stands_still<D: Db>(db: D) {
        let (ours, theirs) = (db.locks().await, db.locks().await);
        let guard = take(&ours, "k").await;
        let first = stands(&db, fair(&theirs, "k"), 0).await;
        let second = stands(&db, fair(&ours, "k"), 1).await;
        db.pause();
        tokio::time::sleep(Duration::from_millis(500)).await;
        db.resume();
        guard.release().await.unwrap();
        let guard = first.await.unwrap();
        assert!(!second.is_finished(), "it is the second");
        guard.release().await.unwrap();
        second.await.unwrap().release().await.unwrap();
    }

    async fn one_who_waits_for_its_turn_keeps_readers_out_after_a_downgrade<D: Db>(db: D) {
        let locks = db.locks().await;
        locks.require(&[Requirement::Downgrade]).unwrap();
        let mut guard = take(&locks, "k").await;
        let waits = stands(&db, fair(&locks, "k"), 0).await;
        guard.downgrade().await.unwrap();
        // As any writer, from when it has asked once more.
        until("it was heard of", || {
            db.query("SELECT count(*) FROM dlock WHERE holder = ''").parse::<usize>().unwrap() > 0
        })
        .await;
        assert!(locks.lock("k").read().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        waits.await.unwrap().release().await.unwrap();
    }
}

mod stepped {
    use super::*;

    on_stepped! {
        async fn whichever_way_the_clock_is_set_nobody_in_line_is_left_behind<D: Db>(db: D) {
            let processes = [db.locks().await, db.locks().await];
            let hour = Duration::from_secs(3_600);
            for forward in [true, false] {
                let guard = take(&processes[0], "k").await;
                let mut line = Vec::new();
                for place in 0..3 {
                    line.push(stands(&db, fair(&processes[place % 2], "k"), place).await);
                }
                let mut last = guard.fence();
                if forward { db.clock().ahead(hour) } else { db.clock().behind(hour) }
                drop(guard);
                let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
                for waiter in line {
                    let tell = tell.clone();
                    tokio::spawn(async move { tell.send(waiter.await.unwrap()) });
                }
                drop(tell);
                while let Some(guard) = told.recv().await {
                    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
                    last = guard.fence();
                    guard.release().await.unwrap();
                }
            }
        }
    }
}

/// The functions that other programs call, beside a line.
#[tokio::test(flavor = "multi_thread")]
async fn the_functions_for_other_programs_find_the_key_of_a_line_taken() {
    async fn check<D: Db>(db: D, take: &str) {
        let backend = db.backend().await;
        let mut holder = backend.claim(request("k", Duration::from_secs(30)).await);
        let _ = granted(holder.attempt().await.unwrap());
        let mut waits = waiter(&backend, "k").await;
        let _ = busy(waits.attempt().await.unwrap());
        let _ = holder.withdraw().await.unwrap();
        assert!(matches!(&*db.query(take), "" | "NULL"));
        let _ = turn(&mut waits).await;
        let _ = waits.withdraw().await.unwrap();
        assert!(db.query(take).parse::<i64>().is_ok(), "nobody stands in line");
    }
    let postgres = <PostgresServer as Db>::start();
    drop(postgres.backend().await);
    let pool = sqlx::PgPool::connect(&postgres.url()).await.unwrap();
    let functions = PostgresOptions::from_url(&postgres.url()).unwrap().functions();
    sqlx::raw_sql(sqlx::AssertSqlSafe(functions)).execute(&pool).await.unwrap();
    check(postgres, "SELECT dlock_take('k', decode(repeat('ab', 16), 'hex'), '30 seconds', 'other')").await;
    let mysql = <MysqlServer as Db>::start();
    drop(mysql.backend().await);
    let pool = sqlx::MySqlPool::connect(&mysql.url()).await.unwrap();
    for statement in MysqlOptions::from_url(&mysql.url()).unwrap().procedures() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    check(mysql, "CALL dlock_take('k', UNHEX(REPEAT('ab', 16)), 30000, 'other')").await;
}
