//! Majorities of real servers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Guard, Held, Locks, Result};
use dlock_quorum::{Quorum, QuorumBuilder};
use dlock_redis::{Redis, RedisBuilder};
use dlock_rig::servers::redis::RedisServer;
use tokio::task::JoinSet;

use crate::support::HOUR;

const KEY: &str = "room_7";

const LEASE: Duration = Duration::from_millis(1_500);
const LONGEST: Duration = Duration::from_secs(2);

/// Asks for the lock once.
async fn try_take(locks: &Locks) -> Result<Option<Guard>> {
    locks.lock(KEY).try_acquire().await
}

/// Takes the lock, which is free. A busy machine may be late with most answers, and is asked again.
async fn take(locks: &Locks) -> Guard {
    let mut late = 0;
    loop {
        match try_take(locks).await {
            Ok(Some(guard)) => return guard,
            // What the try before took may not be withdrawn yet.
            Ok(None) if late > 0 => tokio::time::sleep(LEASE / 10).await,
            Ok(None) => panic!("it is free"),
            Err(error) => assert!(error.is_retryable() && late < 20, "it can be asked for: {error}"),
        }
        late += 1;
        assert!(late < 100, "it is free");
    }
}

fn servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start().expect("redis-server starts")).collect()
}

/// As another process would reach these servers.
async fn builder(urls: &[String]) -> QuorumBuilder {
    builder_of(urls, Redis::builder).await.with_longest_lease(LONGEST)
}

async fn builder_of(urls: &[String], redis: impl Fn(&str) -> RedisBuilder) -> QuorumBuilder {
    let mut nodes = Vec::new();
    for url in urls {
        let mut late = 0;
        let node = loop {
            match redis(url).with_connect_timeout(Duration::from_millis(200)).connect().await {
                Ok(node) => break node,
                // A busy machine may be late.
                Err(error) => assert!(error.is_retryable() && late < 20, "it is there: {error}"),
            }
            late += 1;
        };
        nodes.push(node);
    }
    Quorum::builder(nodes)
}

/// As somebody would who trusts that no server forgets, and hears of nothing before the next renewal.
async fn unchecked(urls: &[String]) -> Locks {
    let untold = builder_of(urls, |url| Redis::builder(url).with_tracking(0)).await;
    locks_of(untold.with_longest_lease(HOUR).with_durable_nodes(), HOUR)
}

fn locks(builder: QuorumBuilder) -> Locks {
    locks_of(builder, LEASE)
}

fn locks_of(builder: QuorumBuilder, lease: Duration) -> Locks {
    let quorum = builder.build().expect("a sound quorum");
    Locks::builder(quorum).with_lease(lease).with_request_timeout(LEASE / 2).build().expect("sound options")
}

async fn bootstrap(urls: &[String]) {
    let quorum = builder(urls).await.build().expect("a sound quorum");
    quorum.bootstrap().await.expect("all servers are there");
}

/// When somebody else gets the lock that `guard` holds on two of three servers, of which one then forgets it.
async fn second_grant(check: bool) -> (Guard, Guard) {
    let mut servers = servers(3);
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    bootstrap(&urls).await;
    let (ours, theirs) = if check {
        (locks(builder(&urls).await), locks(builder(&urls).await))
    } else {
        // The second grant comes at once then, and two holders last until the next renewal of the first.
        (unchecked(&urls).await, unchecked(&urls).await)
    };
    let away = take(&Locks::new(Redis::connect(&urls[1]).await.expect("it is there"))).await;
    let guard = take(&ours).await;
    servers[2].restart().expect("it starts again, with nothing");
    // Not before, or a renewal would give the lock to this one too.
    away.release().await.expect("it was held");
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(20), "nobody ever gets it");
        if let Ok(Some(second)) = try_take(&theirs).await {
            return (guard, second);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_empty_right_after_a_grant_makes_no_second_holder() {
    let (first, second) = second_grant(true).await;
    assert_eq!(first.check().unwrap_err().kind(), ErrorKind::Lost, "two holders");
    second.check().expect("it is the holder now");
    let (first, second) = second_grant(false).await;
    first
        .check()
        .and(second.check())
        .expect("without the check there are two holders, or this test shows nothing");
}

/// What goes on while servers fail.
#[derive(Default)]
struct Record {
    done: AtomicBool,
    sections: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    overlaps: AtomicU64,
    /// Who was let in last, by key.
    inside: [Mutex<Option<Held>>; 4],
}

async fn work(locks: Locks, record: Arc<Record>, sections: u64) {
    while record.sections.load(Ordering::SeqCst) < sections {
        let key = fastrand::usize(..record.inside.len());
        match locks.lock(format!("section{key}")).with_wait(Duration::from_secs(5)).acquire().await {
            Ok(guard) => {
                let held = guard.held();
                let before = record.inside[key].lock().expect("no panic").replace(held.clone());
                if before.is_some_and(|before| before.is_held()) && held.is_held() {
                    record.overlaps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
                record.sections.fetch_add(1, Ordering::SeqCst);
                if guard.check().is_err() {
                    record.lost.fetch_add(1, Ordering::SeqCst);
                }
                // One that is not confirmed is made up for in the background.
                let _ = guard.release().await;
            }
            Err(_) => {
                record.refused.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    record.done.store(true, Ordering::SeqCst);
}

/// Never touches more than two of five at a time, one that has not voted again yet included.
fn fail_minorities(mut servers: Vec<RedisServer>, record: &Record, least: u32) -> (Vec<RedisServer>, u32) {
    let mut faults = 0;
    let mut restarted = Instant::now() - LONGEST * 2;
    while faults < least || !record.done.load(Ordering::SeqCst) {
        let first = fastrand::usize(..servers.len());
        let second = (first + fastrand::usize(1..servers.len())) % servers.len();
        let all_vote = restarted.elapsed() > LONGEST + Duration::from_millis(300);
        match fastrand::u8(..4) {
            0 if all_vote => {
                servers[first].restart().expect("it starts again, with nothing");
                restarted = Instant::now();
                faults += 1;
            }
            1 | 2 if all_vote => {
                servers[first].pause();
                servers[second].pause();
                std::thread::sleep(Duration::from_millis(fastrand::u64(10..60)));
                servers[first].resume();
                servers[second].resume();
                faults += 2;
            }
            _ => {
                servers[second].pause();
                std::thread::sleep(Duration::from_millis(fastrand::u64(10..60)));
                servers[second].resume();
                faults += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(fastrand::u64(5..40)));
    }
    (servers, faults)
}

/// Set `DLOCK_SOAK` for the figures of the documentation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_minority_never_let_two_in() {
    let (sections, least) = if std::env::var_os("DLOCK_SOAK").is_some() { (20_000, 300) } else { (600, 15) };
    let servers = servers(5);
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    bootstrap(&urls).await;
    let record = Arc::new(Record::default());
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let process = locks(builder(&urls).await);
        for _ in 0..2 {
            workers.spawn(work(process.clone(), Arc::clone(&record), sections));
        }
    }
    let failing = Arc::clone(&record);
    let faults = tokio::task::spawn_blocking(move || fail_minorities(servers, &failing, least));
    workers.join_all().await;
    let (servers, faults) = faults.await.expect("the servers were there");
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    eprintln!(
        "{faults} faults, {} sections, {} refused, {} lost, {} overlaps",
        count(&record.sections),
        count(&record.refused),
        count(&record.lost),
        count(&record.overlaps)
    );
    assert_eq!(count(&record.overlaps), 0);
    let started = Instant::now();
    let left = |server: &RedisServer| server.keys().iter().filter(|key| key.contains("section")).count();
    while servers.iter().map(left).sum::<usize>() > 0 {
        assert!(started.elapsed() < LEASE * 4, "locks were left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
