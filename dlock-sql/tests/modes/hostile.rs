//! What administrators, settings and proxies do to the connections that keep locks, or wait for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_rig::servers::pgbouncer::PgBouncer;
use dlock_rig::servers::postgres::PostgresServer;
use tokio::task::JoinSet;

use crate::kept::{
    Kind, LONG, MysqlRow, MysqlSession, PostgresRow, PostgresSession, locks, on_each_kind, over, soon, take,
    until,
};

/// What an administrator does to one session of dlock's after the other, whatever it is doing.
#[derive(Clone, Copy)]
enum Act {
    Cancel,
    Kill,
}

fn act<K: Kind>(server: &K::Server, act: Act, random: &mut fastrand::Rng) -> bool {
    if K::ROLE.starts_with("postgres") {
        let function = if matches!(act, Act::Kill) { "pg_terminate_backend" } else { "pg_cancel_backend" };
        let one =
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' ORDER BY random() LIMIT 1";
        return K::query(server, &format!("SELECT {function}(pid) FROM ({one}) AS one")) == "t";
    }
    let all = K::query(server, "SHOW PROCESSLIST");
    let sessions: Vec<_> = all.lines().filter(|line| line.contains("127.0.0.1:")).collect();
    let Some(one) = random.choice(sessions).and_then(|line| line.split_whitespace().next()) else {
        return false;
    };
    let what = if matches!(act, Act::Kill) { "CONNECTION" } else { "QUERY" };
    // It may have ended since.
    K::query(server, &format!("KILL {what} {one}"));
    true
}

/// Tasks of two processes take three keys again and again while somebody meddles: no fence is given twice, nobody sees
/// an error, and nothing is left.
async fn go_on_under<K: Kind>(server: &Arc<K::Server>, what: Act) {
    let both = [locks::<K>(server, LONG).await, locks::<K>(server, LONG).await];
    let ends = Arc::new(AtomicBool::new(false));
    let meddler = std::thread::spawn({
        let (server, ends) = (Arc::clone(server), Arc::clone(&ends));
        move || {
            let (mut random, mut acts) = (fastrand::Rng::with_seed(7), 0);
            while !ends.load(Ordering::Acquire) {
                acts += usize::from(act::<K>(&server, what, &mut random));
            }
            acts
        }
    });
    let fences: Arc<Mutex<HashMap<usize, Vec<u64>>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for task in 0..12_usize {
        let (locks, fences) = (both[task % 2].clone(), Arc::clone(&fences));
        tasks.spawn(async move {
            while begun.elapsed() < Duration::from_millis(1_500) {
                let guard = take(&locks, &format!("k{}", task / 2 % 3)).await;
                fences.lock().unwrap().entry(task / 2 % 3).or_default().push(guard.fence().unwrap().get());
                tokio::task::yield_now().await;
                let _ = guard.release().await;
            }
        });
    }
    soon("the end", tasks.join_all()).await;
    ends.store(true, Ordering::Release);
    let acts = meddler.join().unwrap();
    let fences = std::mem::take(&mut *fences.lock().unwrap());
    println!("{acts} times, {} grants", fences.values().map(Vec::len).sum::<usize>());
    assert!(acts > 0);
    for (key, mut of) in fences {
        let count = of.len();
        of.sort_unstable();
        of.dedup();
        assert_eq!(of.len(), count, "a fence of k{key} was given twice");
    }
    until("all withdrawals", || both.iter().all(|locks| locks.stats().background == 0)).await;
    until("every lock is free", || K::held(server) == 0 && K::waiting(server) == 0).await;
    for n in 0..3 {
        take(&both[n % 2], &format!("k{n}")).await.release().await.unwrap();
    }
}

on_each_kind! {
    async fn sessions_that_are_ended_one_by_one_at_random_leave_nothing<K: Kind>() {
        go_on_under::<K>(&Arc::new(K::start(&[])), Act::Kill).await;
    }

    async fn statements_that_are_cancelled_at_random_leave_nothing<K: Kind>() {
        go_on_under::<K>(&Arc::new(K::start(&[])), Act::Cancel).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_of_sessions_that_is_restarted_ends_the_locks_that_it_kept() {
    let server = PostgresServer::start().unwrap();
    let mut pooler = PgBouncer::of_sessions(&server).unwrap();
    let url = format!("{}&migrate=true", pooler.url());
    let lease = Duration::from_secs(6);
    let (sessions, rows) =
        (over::<PostgresSession>(&url, lease).await, over::<PostgresRow>(&url, lease).await);
    let others = over::<PostgresSession>(&PostgresSession::url(&server), LONG).await;
    let other_rows = over::<PostgresRow>(&PostgresRow::url(&server), LONG).await;
    for (through, direct) in [(&sessions, &others), (&rows, &other_rows)] {
        let guard = take(through, "a").await;
        pooler.restart().unwrap();
        soon("the loss", guard.lost()).await;
        let next = take(direct, "a").await;
        assert!(next.fence() > guard.fence());
        next.release().await.unwrap();
        take(through, "a").await.release().await.unwrap();
    }
}
