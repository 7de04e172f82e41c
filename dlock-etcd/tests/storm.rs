//! Many locks at once on servers and connections that fail all the time: at no moment do two hold one lock that exclude
//! each other, fences rise, and nothing is left in the end. Permits that come free in any way are news to who may take
//! them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::backend::{Administration as _, Attempt, Backend as _, Claim as _, Entropy, Mode};
use dlock_core::{Guard, Key, Locks, Wait};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow, Grpc, Proxy};
use dlock_rig::servers::etcd::{EtcdCluster, EtcdServer};
use dlock_testkit::claim_request;

const LEASE: Duration = Duration::from_secs(3);
const KEYS: u64 = 3;

#[derive(Default)]
struct Seen {
    holds: HashMap<u64, (String, Arc<Guard>)>,
    /// The highest fence of a writer, and that of anybody.
    fences: HashMap<String, (u64, u64)>,
    violations: Vec<String>,
    grants: u64,
}

fn is_reader(guard: &Guard) -> bool {
    guard.mode() == Mode::Shared
}

impl Seen {
    fn note(&mut self, id: u64, key: &str, guard: &Arc<Guard>) {
        self.grants += 1;
        let fence = guard.fence().unwrap().get();
        for (other, (of, held)) in &self.holds {
            let excludes = of == key && !(is_reader(guard) && is_reader(held));
            if excludes && held.check().is_ok() && guard.check().is_ok() {
                self.violations
                    .push(format!("{id} with {fence} beside {other} with {:?} on {key}", held.fence()));
            }
        }
        let (writer, any) = self.fences.entry(key.to_owned()).or_default();
        if guard.check().is_ok() {
            if fence <= if is_reader(guard) { *writer } else { *any } {
                self.violations.push(format!("the fence {fence} of {id} on {key} after {writer} and {any}"));
            }
            *any = fence.max(*any);
            if !is_reader(guard) {
                *writer = fence.max(*writer);
            }
        }
        self.holds.insert(id, (key.to_owned(), Arc::clone(guard)));
    }
}

async fn work(locks: Locks, ids: Arc<AtomicU64>, seen: Arc<Mutex<Seen>>, end: Instant) {
    let entropy = Entropy::new();
    let below = |most: u64| (entropy.fraction() * most as f64) as u64;
    while Instant::now() < end {
        let (id, key) = (ids.fetch_add(1, Ordering::Relaxed), format!("room{}", below(KEYS)));
        let lock = locks.lock(&key).with_wait(match below(4) {
            0 => Wait::No,
            _ => Wait::For(Duration::from_millis(200 + below(4_000))),
        });
        let acquiring =
            async { if below(3) == 0 { lock.clone().read().acquire().await } else { lock.acquire().await } };
        let limit = if below(3) == 0 { below(60) } else { 10_000 };
        let Ok(Ok(guard)) = tokio::time::timeout(Duration::from_millis(limit), acquiring).await else {
            tokio::time::sleep(Duration::from_millis(below(20))).await;
            continue;
        };
        let guard = Arc::new(guard);
        seen.lock().unwrap().note(id, &key, &guard);
        let hold = if below(6) == 0 { 4_000 } else { 30 };
        tokio::time::sleep(Duration::from_millis(below(hold))).await;
        seen.lock().unwrap().holds.remove(&id);
        if let Some(mut guard) = Arc::into_inner(guard) {
            if below(4) == 0 && !is_reader(&guard) {
                // Not noted as a hold meanwhile: its mode changes at a time that only the servers know.
                let _ = tokio::time::timeout(Duration::from_millis(below(300)), guard.downgrade()).await;
            }
            if below(4) > 0 {
                let _ = tokio::time::timeout(Duration::from_millis(below(200)), guard.release()).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_two_hold_one_lock_and_nothing_is_left() {
    let seconds = std::env::var("STORM").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let cluster = EtcdCluster::start().unwrap();
    let mut proxies = Vec::new();
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut own = Vec::new();
        for address in cluster.addresses() {
            own.push(Proxy::speaking(Grpc::default(), address).unwrap());
        }
        let addresses: Vec<_> = own.iter().map(Proxy::address).collect();
        let etcd = Etcd::connect(&cluster.url_through(&addresses)).await.unwrap();
        all.push(Locks::builder(etcd).with_lease(LEASE).build().unwrap());
        proxies.extend(own);
    }
    let (ids, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Seen::default())));
    let end = Instant::now() + Duration::from_secs(seconds);
    let workers: Vec<_> = (0..12)
        .map(|number| tokio::spawn(work(all[number % 3].clone(), ids.clone(), seen.clone(), end)))
        .collect();
    let entropy = Entropy::new();
    let below = |most: u64| (entropy.fraction() * most as f64) as u64;
    let mut frozen: Option<usize> = None;
    while Instant::now() < end {
        let proxy = &proxies[usize::try_from(below(9)).unwrap()];
        match below(20) {
            0..3 => proxy.cut(),
            3..5 => proxy.set(Direction::ToServer, Flow::Hold),
            5 => proxy.set(Direction::ToClient, Flow::Hold),
            6 => proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(below(900)))),
            7 => {
                if let Some(index) = frozen.take() {
                    cluster.servers()[index].resume();
                } else {
                    let index = usize::try_from(below(3)).unwrap();
                    cluster.servers()[index].pause();
                    frozen = Some(index);
                }
            }
            8..12 => proxy.mend(),
            _ => proxies.iter().for_each(Proxy::mend),
        }
        tokio::time::sleep(Duration::from_millis(below(250))).await;
    }
    proxies.iter().for_each(Proxy::mend);
    if let Some(index) = frozen {
        cluster.servers()[index].resume();
    }
    for worker in workers {
        tokio::time::timeout(Duration::from_secs(30), worker).await.expect("no request hangs").unwrap();
    }
    {
        let seen = seen.lock().unwrap();
        println!("{} grants of {} acquires", seen.grants, ids.load(Ordering::Relaxed));
        assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
        assert!(seen.grants > 20);
    }
    let begun = Instant::now();
    loop {
        let background: u64 = all.iter().map(|locks| u64::try_from(locks.stats().background).unwrap()).sum();
        let entries = cluster.admin().entries("dlock/");
        if background == 0 && entries.is_empty() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{background} {entries:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for locks in &all {
        for key in 0..KEYS {
            let guard = locks.lock(format!("room{key}")).with_wait(Wait::For(LEASE)).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
    }
}

/// Grants of permits, and those that a waiter found when it looked by itself, as it does after 5 s.
#[derive(Default)]
struct Grants {
    all: AtomicU64,
    without_news: AtomicU64,
    attempts: AtomicU64,
}

const PERMITS: u32 = 4;

/// Waits for permits until it has them, the time is up, or it fails.
async fn is_served(claim: &mut EtcdClaim, patience: Duration, grants: &Grants) -> bool {
    let end = Instant::now() + patience;
    let mut without_news = false;
    loop {
        grants.attempts.fetch_add(1, Ordering::Relaxed);
        let looked = Instant::now();
        match claim.attempt().await {
            Ok(Attempt::Granted(_)) => {
                grants.all.fetch_add(1, Ordering::Relaxed);
                grants.without_news.fetch_add(u64::from(without_news), Ordering::Relaxed);
                return true;
            }
            Ok(Attempt::Busy(_)) => {}
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                return false;
            }
        }
        if tokio::time::timeout(end.saturating_duration_since(Instant::now()), claim.changed()).await.is_err()
        {
            return false;
        }
        without_news = looked.elapsed() > Duration::from_millis(4_500);
    }
}

/// Takes permits again and again. A client that fails leaves some of what it has on the servers until its lease ends.
async fn take(etcd: Etcd, fails: bool, grants: Arc<Grants>, end: Instant) {
    let entropy = Entropy::new();
    let below = |most: u64| (entropy.fraction() * most as f64) as u64;
    while Instant::now() < end {
        let mut request = claim_request("room", if fails { LEASE } else { 10 * LEASE }, true).await.unwrap();
        request.mode = Mode::Permits { of: PERMITS, take: 1 + u32::try_from(below(3)).unwrap() };
        let mut claim = etcd.claim(request);
        let patience = if below(5) == 0 { below(2_000) } else { 30_000 };
        if is_served(&mut claim, Duration::from_millis(patience), &grants).await {
            tokio::time::sleep(Duration::from_millis(below(60))).await;
        }
        if !fails || below(8) > 0 {
            let _ = claim.withdraw().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_come_free_in_any_way_are_news_to_who_may_take_them() {
    let seconds = std::env::var("STORM").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let server = EtcdServer::start().unwrap();
    let (healthy, failing) = (Arc::new(Grants::default()), Arc::new(Grants::default()));
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut proxies, mut workers) = (Vec::new(), Vec::new());
    for number in 0..6 {
        let fails = number >= 3;
        let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
        let address = if fails { proxy.address() } else { server.address() };
        let etcd = Etcd::connect(&server.url_through(address)).await.unwrap();
        proxies.extend(fails.then_some(proxy));
        for _ in 0..3 {
            let grants = if fails { &failing } else { &healthy };
            workers.push(tokio::spawn(take(etcd.clone(), fails, Arc::clone(grants), end)));
        }
    }
    let operator = Etcd::connect(&server.url()).await.unwrap();
    let entropy = Entropy::new();
    let below = |most: u64| (entropy.fraction() * most as f64) as u64;
    let key = Key::new("room").unwrap();
    while Instant::now() < end {
        let proxy = &proxies[usize::try_from(below(3)).unwrap()];
        match below(12) {
            0 => proxy.cut(),
            1 => proxy.set(Direction::ToServer, Flow::Hold),
            2 => proxy.set(Direction::ToClient, Flow::Hold),
            3 => {
                // For those that wait: a claim that comes meanwhile is refused, as one of another number.
                let _ = operator.resize(key.clone(), 2 * PERMITS).await.unwrap();
                tokio::time::sleep(Duration::from_millis(below(250))).await;
                let _ = operator.resize(key.clone(), PERMITS).await.unwrap();
            }
            4 => drop(operator.force_release(key.clone(), None).await),
            5 => {
                let entries = server.admin().entries("dlock/room/");
                if let Some(entry) = entries.get(usize::try_from(below(12)).unwrap()) {
                    server.admin().delete(&entry.key);
                }
            }
            6 => {
                // Fails where nothing has changed since the last one.
                let revision = server.admin().revision().to_string();
                drop(server.admin().try_ctl(&["compaction", &revision]));
            }
            7 => proxy.mend(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(below(250))).await;
    }
    proxies.iter().for_each(Proxy::mend);
    for worker in workers {
        tokio::time::timeout(Duration::from_secs(60), worker).await.expect("no request hangs").unwrap();
    }
    for (who, grants) in [("healthy", &healthy), ("failing", &failing)] {
        let [all, without_news, attempts] =
            [&grants.all, &grants.without_news, &grants.attempts].map(|count| count.load(Ordering::Relaxed));
        println!("{who}: {all} grants, {without_news} of them without news, {attempts} attempts");
    }
    let (all, without_news) =
        (healthy.all.load(Ordering::Relaxed), healthy.without_news.load(Ordering::Relaxed));
    // A look of its own may come a moment before the news.
    assert!(all > 20 && without_news * 10 <= all, "{without_news} of {all}");
}
