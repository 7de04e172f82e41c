//! Keys that are locked as lease rows, by sessions and as locked rows: one way at a time has a key.

mod moments;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dlock_core::{Backend, Error, ErrorKind, Guard, Lock, Locks, Requirement, Wait};
use dlock_rig::proxy::{Direction, Flow, Mysql as MysqlProtocol, Pgwire, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    Mysql, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks, PostgresSessions,
};
use sqlx::Connection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::Child;

/// How each way calls itself.
const WAYS: [&str; 3] = ["mode=lease", "mode=session", "mode=row"];
const LIMIT: Duration = Duration::from_secs(90);

async fn granted(lock: Lock) -> Guard {
    lock.acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

async fn refused(lock: Lock) -> Error {
    let error = lock.acquire().await.map(|guard| guard.fence()).expect_err("it is held in another way");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    error
}

/// The lock as soon as it is not held in another way any more.
async fn granted_soon(lock: Lock) -> Guard {
    let end = Instant::now() + LIMIT;
    loop {
        match lock.acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.kind() == ErrorKind::Conflict && Instant::now() < end, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The pairs of different ways, by their places.
fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..3).flat_map(|one| (0..3).map(move |other| (one, other))).filter(|(one, other)| one != other)
}

/// The statements that the documentation has for going back to an earlier version of dlock on this server.
fn going_back(server: &str) -> String {
    let blocks = include_str!("../../../docs/backends/sql.md").split("```");
    let block = blocks.into_iter().find(|block| block.contains("UPDATE dlock SET token = NULL")).unwrap();
    let lines = block.lines().skip_while(|line| !line.starts_with(&format!("-- {server}"))).skip(1);
    lines.take_while(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// How a key may be held besides alone.
fn shared(locks: &Locks, key: &str) -> Vec<Lock> {
    let can_read = locks.require(&[Requirement::Shared]).is_ok();
    can_read.then(|| locks.lock(key).read()).into_iter().collect()
}

macro_rules! ways {
    ($($name:ident: $server:ident, $protocol:ident, [$($backend:ident),*], $migrate:literal, $roles:expr, $marked:literal,
        $old:expr, $pairs:expr;)*) => {$(
        mod $name {
            use super::*;

            async fn all(url: &str) -> [Locks; 3] {
                [$(Locks::new($backend::connect(&format!("{url}{}", $migrate)).await.unwrap())),*]
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_key_that_is_held_is_refused_in_the_other_ways_and_their_fences_go_on() {
                let server = $server::start().unwrap();
                let all = all(&server.url()).await;
                for (one, other) in pairs() {
                    let key = format!("{one} {other}");
                    let (first, second) = (&all[one], &all[other]);
                    let mut last = None;
                    for (holds, asks, ours, theirs) in [(first, second, one, other), (second, first, other, one), (first, second, one, other)] {
                        let guard = granted(holds.lock(&key)).await;
                        assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
                        for lock in [vec![asks.lock(&key), asks.lock(&key)], shared(asks, &key)].concat() {
                            let error = refused(lock).await.to_string();
                            assert!(error.contains(WAYS[ours]) && error.contains(WAYS[theirs]), "{error}");
                        }
                        assert_eq!(asks.inspect(&key).await.unwrap(), None);
                        assert!(asks.holders().await.unwrap().is_empty());
                        asks.force_release(&key).await.unwrap();
                        let seen = holds.inspect(&key).await.unwrap().expect("it is held still");
                        assert_eq!(seen.fence, guard.fence());
                        guard.check().unwrap();
                        last = guard.fence();
                        guard.release().await.unwrap_or_else(|error| panic!("{error}"));
                    }
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_key_that_is_read_or_a_semaphore_is_refused_in_the_other_ways() {
                let server = $server::start().unwrap();
                let all = all(&server.url()).await;
                for (one, other) in pairs() {
                    let key = format!("{one} {other}");
                    for lock in shared(&all[one], &key) {
                        let guards = [granted(lock.clone()).await, granted(lock).await];
                        for lock in [vec![all[other].lock(&key)], shared(&all[other], &key)].concat() {
                            refused(lock).await;
                        }
                        let [one_more, last] = guards;
                        one_more.release().await.unwrap();
                        refused(all[other].lock(&key)).await;
                        let fence = last.fence();
                        last.release().await.unwrap();
                        let next = granted(all[other].lock(&key)).await;
                        assert!(next.fence() > fence);
                        next.release().await.unwrap();
                    }
                }
                let [leases, others @ ..] = &all;
                let permit = leases.semaphore("s", 2).acquire().await.unwrap();
                let held = granted(others[0].lock("t")).await;
                for locks in others {
                    refused(locks.lock("s")).await;
                }
                let acquired = leases.semaphore("t", 2).acquire().await.map(drop);
                for refused in [acquired, leases.resize_semaphore("t", 3).await.map(drop)] {
                    let error = refused.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    assert!(error.to_string().contains(WAYS[1]), "{error}");
                }
                held.release().await.unwrap();
                assert_eq!(leases.resize_semaphore("t", 3).await.unwrap(), None);
                leases.semaphore("t", 2).acquire().await.unwrap().release().await.unwrap();
                // The number of permits is known for a day, and nobody has one.
                permit.release().await.unwrap();
                for locks in others {
                    let held = granted(locks.lock("s")).await;
                    assert_eq!(leases.semaphore("s", 2).acquire().await.unwrap_err().kind(), ErrorKind::Conflict);
                    held.release().await.unwrap();
                    let permits = leases.semaphore("s", 3);
                    let two = [permits.acquire().await.unwrap(), permits.acquire().await.unwrap()];
                    refused(locks.lock("s")).await;
                    for permit in two {
                        permit.release().await.unwrap();
                    }
                }
            }

            /// What a forced release of an earlier version does to the row of a key that sessions have.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_key_that_an_earlier_version_has_freed_by_force_is_marked_again_or_refused() {
                let server = $server::start().unwrap();
                let [leases, others @ ..] = all(&server.url()).await;
                let force = || {
                    server.query(concat!("UPDATE dlock SET token = NULL, fence = fence + 1 WHERE ", $marked));
                };
                for locks in others {
                    granted(locks.lock("a")).await.release().await.unwrap();
                    force();
                    // Nobody has it.
                    for lock in [vec![locks.lock("a")], shared(&locks, "a")].concat() {
                        let held = granted(lock).await;
                        refused(leases.lock("a")).await;
                        held.release().await.unwrap();
                        force();
                    }
                    let leased = granted(leases.lock("a")).await;
                    refused(locks.lock("a")).await;
                    leased.release().await.unwrap();
                    // It is held, and this one does not learn of it.
                    let held = granted(locks.lock("a")).await;
                    force();
                    let leased = granted(leases.lock("a")).await;
                    assert!(leased.fence() > held.fence());
                    held.release().await.unwrap();
                    for lock in [vec![locks.lock("a")], shared(&locks, "a")].concat() {
                        refused(lock).await;
                    }
                    leased.release().await.unwrap();
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn keys_that_change_their_way_at_once_over_a_slow_link_leave_the_other_locks_confirmed() {
                let server = $server::start().unwrap();
                let proxy = Proxy::speaking($protocol::default(), server.address()).unwrap();
                let [leases, ..] = all(&server.url()).await;
                let [_, sessions, _] = all(&server.url_through(proxy.address())).await;
                for n in 0..64 {
                    granted(leases.lock(n.to_string())).await.release().await.unwrap();
                }
                // The connection is given up after 4 s without an answer: less than a round trip for each key.
                let held = granted(sessions.lock("held").with_lease(Duration::from_secs(12))).await;
                for direction in [Direction::ToServer, Direction::ToClient] {
                    proxy.set(direction, Flow::Delay(Duration::from_millis(75)));
                }
                let mut tasks = JoinSet::new();
                for n in 0..64 {
                    let lock = sessions.lock(n.to_string()).with_request_timeout(Duration::from_secs(15));
                    tasks.spawn(granted(lock));
                }
                let mut guards = Vec::new();
                while let Some(guard) = tasks.join_next().await {
                    guards.push(guard.unwrap());
                    held.check().unwrap();
                }
                proxy.mend();
                for guard in guards {
                    guard.release().await.unwrap();
                }
                held.release().await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_was_held_by_a_process_that_was_killed_is_free_in_the_other_ways() {
                let server = $server::start().unwrap();
                let all = all(&server.url()).await;
                for (one, other) in pairs() {
                    let mut child = Child::play($roles[one], &server.url());
                    assert_eq!(child.line(), "held");
                    refused(all[other].lock("a")).await;
                    let before = all[one].inspect("a").await.unwrap().unwrap().fence;
                    child.kill();
                    let guard = granted_soon(all[other].lock("a")).await;
                    assert!(guard.fence() > before, "{:?} after {before:?}", guard.fence());
                    refused(all[one].lock("a")).await;
                    guard.release().await.unwrap();
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn those_who_take_a_key_in_all_ways_at_once_are_never_two_and_fences_ascend() {
                let server = $server::start().unwrap();
                let (inside, last, over) =
                    (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
                let grants = Arc::new([const { AtomicUsize::new(0) }; 3]);
                let mut tasks = JoinSet::new();
                for process in 0..2 {
                    for (way, locks) in all(&server.url()).await.into_iter().enumerate() {
                        let (inside, last, over) = (Arc::clone(&inside), Arc::clone(&last), Arc::clone(&over));
                        let grants = Arc::clone(&grants);
                        tasks.spawn(async move {
                            while !over.load(SeqCst) {
                                let lock = locks.lock("a");
                                match lock.try_acquire().await {
                                    Ok(Some(guard)) => {
                                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two holders");
                                        let fence = guard.fence().unwrap().get();
                                        let before = last.swap(fence, SeqCst);
                                        assert!(before < fence, "{fence} by {} after {before}", WAYS[way]);
                                        sleep(Duration::from_millis(process)).await;
                                        guard.check().unwrap();
                                        inside.fetch_sub(1, SeqCst);
                                        guard.release().await.unwrap();
                                        grants[way].fetch_add(1, SeqCst);
                                        sleep(Duration::from_millis(5)).await;
                                    }
                                    Ok(None) => {}
                                    // Deadlocks of the server are tried again a few times.
                                    Err(error) => assert!(
                                        matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unavailable),
                                        "{error}"
                                    ),
                                }
                                tokio::task::yield_now().await;
                            }
                        });
                    }
                }
                let (end, least) = (Instant::now() + LIMIT, Instant::now() + Duration::from_secs(10));
                while Instant::now() < least || grants.iter().any(|grants| grants.load(SeqCst) < 20) {
                    assert!(Instant::now() < end, "{grants:?}");
                    assert_eq!(tasks.len(), 6);
                    if let Some(ended) = tasks.try_join_next() {
                        ended.unwrap();
                    }
                    sleep(Duration::from_millis(50)).await;
                }
                over.store(true, SeqCst);
                while let Some(ended) = tasks.join_next().await {
                    ended.unwrap();
                }
                println!("{grants:?}");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn keys_of_an_earlier_version_are_moved_when_they_are_first_locked() {
                let server = $server::start().unwrap();
                let [leases, others @ ..] = all(&server.url()).await;
                for (locks, count) in others.iter().flat_map(|locks| [(locks, 1), (locks, 2)]) {
                    let before = granted(locks.lock("a")).await;
                    let fence = before.fence();
                    before.release().await.unwrap();
                    for statement in &$old[..count] {
                        server.query(statement);
                    }
                    let taken = "SELECT count(*) FROM dlock WHERE token IS NOT NULL";
                    assert_eq!(server.query(taken), "0", "as an earlier version has it");
                    // That of the key, and that of the sessions or locked rows.
                    let fences = server.query("SELECT fence FROM dlock WHERE fence > 0 ORDER BY fence");
                    assert!(fences.lines().all(|one| one == fence.unwrap().get().to_string()), "{fences}");
                    let guard = granted(locks.lock("a")).await;
                    assert!(guard.fence() > fence);
                    refused(leases.lock("a")).await;
                    guard.release().await.unwrap();
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_pair_costs_what_it_costs_without_other_ways() {
                let server = $server::start().unwrap();
                let proxy = Proxy::speaking($protocol::default(), server.address()).unwrap();
                let all = all(&server.url_through(proxy.address())).await;
                let sent = || proxy.requests().values().sum::<u64>();
                let mut costs = Vec::new();
                for locks in &all {
                    let pair = async |key: String| {
                        let before = sent();
                        granted(locks.lock(key)).await.release().await.unwrap();
                        sent() - before
                    };
                    for n in 0..4 {
                        pair(format!("warm {n}")).await;
                    }
                    pair("known".to_owned()).await;
                    let mut least = [u64::MAX; 2];
                    // Signs of life count, too.
                    for n in 0..4 {
                        least[0] = least[0].min(pair("known".to_owned()).await);
                        least[1] = least[1].min(pair(format!("new {} {n}", costs.len())).await);
                    }
                    costs.push(least);
                }
                assert_eq!(costs, $pairs, "known keys and new ones, as lease rows, by sessions and as locked rows");
            }
        }
    )*};
}

ways! {
    postgres: PostgresServer, Pgwire, [Postgres, PostgresSessions, PostgresRowLocks], "&migrate=true",
        ["postgres-lease", "postgres-session", "postgres-row"],
        r"key = 'a' AND token = '\xFB68656C6420656C736577686572652E'",
        [going_back("PostgreSQL"), "DELETE FROM dlock WHERE key = 'a'".to_owned()],
        [[2, 2], [2, 2], [2, 5]];
    mysql: MysqlServer, MysqlProtocol, [Mysql, MysqlSessions, MysqlRowLocks], "?migrate=true",
        ["mysql-lease", "mysql-session", "mysql-row"],
        "`key` = 'a' AND token = X'FB68656C6420656C736577686572652E'",
        [going_back("MariaDB"), "DELETE FROM dlock WHERE `key` = 'a'".to_owned()],
        [[2, 4], [2, 6], [4, 10]];
}

/// The places between keys stay open for others while one of them is pruned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_a_key_of_sessions_of_mysql_keeps_nobody_from_making_another_one() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    let rows = Arc::new(Mysql::connect(&url).await.unwrap());
    let leases = Locks::new(Mysql::connect(&url).await.unwrap());
    let sessions = Locks::new(MysqlSessions::connect(&url).await.unwrap());
    granted(sessions.lock("m")).await.release().await.unwrap();
    server.query("UPDATE dlock SET fence = fence - 3600000000 WHERE `key` = X'FF6D'");
    server.query("DELETE FROM dlock WHERE `key` = 'm'");
    let mut keeps = sqlx::MySqlConnection::connect(&server.url()).await.unwrap();
    // Less than the server lets the deletion wait, unless this machine stands still.
    for n in 0..5 {
        let mut transaction = keeps.begin().await.unwrap();
        let keep = "SELECT * FROM dlock WHERE `key` = X'FF6D' FOR UPDATE";
        sqlx::query(keep).execute(&mut *transaction).await.unwrap();
        let pruning = tokio::spawn({
            let rows = Arc::clone(&rows);
            async move { rows.prune(Duration::ZERO).await }
        });
        let waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
        let end = Instant::now() + LIMIT;
        while server.query(waits) == "0" {
            assert!(Instant::now() < end && !pruning.is_finished());
            // InnoDB looks at its transactions anew only where nothing asked for a tenth of a second.
            sleep(Duration::from_millis(120)).await;
        }
        granted(leases.lock(format!("m{n}"))).await.release().await.unwrap();
        let is_beside = !pruning.is_finished();
        transaction.rollback().await.unwrap();
        pruning.await.unwrap().unwrap();
        if is_beside {
            return;
        }
    }
    panic!("each waited until the deletion was over");
}

/// Asks for a key at one moment by many claims of one backend.
async fn all_are_refused<B: Backend + Clone>(backend: B) {
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        tasks.spawn(refused(Locks::new(backend.clone()).lock("a").with_wait(Wait::No)));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_for_which_one_asks_are_all_refused_where_the_key_is_held_in_another_way() {
    let db = crate::support::postgres().await;
    let url = format!("{}&migrate=true", db.server.url());
    let held = granted(Locks::new(PostgresSessions::connect(&url).await.unwrap()).lock("a")).await;
    all_are_refused(PostgresRowLocks::connect(&url).await.unwrap()).await;
    all_are_refused(PostgresOptions::from_pool(&db.pool).connect().await.unwrap()).await;
    held.release().await.unwrap();
}
