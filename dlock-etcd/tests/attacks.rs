//! Requests that arrive late, answers that prove nothing, and servers on which other things stand.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Backend, Claim, Renewed};
use dlock_core::{ErrorKind, Key, Locks, Wait};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow, Grpc, Loss, Proxy};
use dlock_rig::servers::etcd::{EtcdEntry, EtcdServer};
use dlock_testkit::claim_request;

/// One server, which two proxies make look like two.
struct Twice {
    server: EtcdServer,
    one: Proxy,
    other: Proxy,
}

impl Twice {
    fn start() -> Self {
        let server = EtcdServer::start().unwrap();
        let proxy = || Proxy::speaking(Grpc::default(), server.address()).unwrap();
        let (one, other) = (proxy(), proxy());
        Self { server, one, other }
    }

    async fn connect(&self) -> Etcd {
        let url = format!("etcd://{},{}", self.one.address(), self.other.address());
        Etcd::connect(&url).await.unwrap()
    }

    fn entries(&self, key: &str) -> Vec<EtcdEntry> {
        self.server.admin().entries(&format!("dlock/{key}/"))
    }
}

async fn claim(etcd: &Etcd, key: &str, lease: Duration, waits: bool) -> EtcdClaim {
    etcd.claim(claim_request(key, lease, waits).await.unwrap())
}

async fn granted(etcd: &Etcd, key: &str, lease: Duration) -> EtcdClaim {
    let mut claim = claim(etcd, key, lease, true).await;
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    claim
}

/// Puts leases whose streams of keep-alives go to the first server into the pool, and lets their proofs get too old for
/// a grant.
async fn fill_pool(etcd: &Etcd, lease: Duration, count: usize) {
    let mut claims = Vec::new();
    for at in 0..count {
        let mut claim = granted(etcd, &format!("another{at}"), lease).await;
        assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
        assert!(claim.withdraw().await.unwrap().removed);
        claims.push(claim);
    }
    drop(claims);
    tokio::time::sleep(lease / 7).await;
}

#[tokio::test]
async fn a_grant_that_was_carried_out_and_not_proven_is_withdrawn() {
    let on = Twice::start();
    let etcd = on.connect().await;
    let lease = Duration::from_secs(14);
    fill_pool(&etcd, lease, 1).await;
    on.one.set(Direction::ToServer, Flow::Hold);
    // Goes over to the other server; the stream of the lease does not.
    etcd.inspect(&Key::new("room").unwrap()).await.unwrap();
    let mut claim = claim(&etcd, "room", lease, true).await;
    assert_eq!(claim.attempt().await.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(on.entries("room").len(), 1, "it was carried out");
    assert!(!claim.is_clean());
    let withdrawal = claim.withdraw().await.unwrap();
    assert!(on.entries("room").is_empty(), "{withdrawal:?} of a key that stays");
    assert!(withdrawal.removed && claim.is_clean());
}

#[tokio::test]
async fn a_put_that_arrives_late_takes_a_lock_to_no_lease_that_nobody_renews() {
    let on = Twice::start();
    let lease = Duration::from_secs(6);
    for round in 0..6 {
        let (etcd, key) = (on.connect().await, format!("room{round}"));
        let mut claim = granted(&etcd, &key, lease).await;
        // Its lease is in the pool from here on.
        let _ = granted(&etcd, "another", lease).await.withdraw().await.unwrap();
        on.one.set(Direction::ToServer, Flow::Hold);
        // Each puts the key anew, under a lease of the pool: the first one by the first server, then by the other.
        assert_eq!(claim.downgrade().await.unwrap(), Renewed::Extended);
        assert_eq!(claim.downgrade().await.unwrap(), Renewed::Extended);
        let now = on.entries(&key);
        on.one.mend();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(on.entries(&key), now, "a request that was overtaken changed the key");
        assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
        let _ = claim.withdraw().await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_of_which_one_lease_ended_leaves_none_of_the_other_keys() {
    let on = Twice::start();
    let etcd = on.connect().await;
    let (lease, keys) = (Duration::from_secs(14), ["a", "b", "c"]);
    fill_pool(&etcd, lease, keys.len()).await;
    on.one.set(Direction::ToServer, Flow::Hold);
    etcd.inspect(&Key::new("room").unwrap()).await.unwrap();
    let mut claims = Vec::new();
    for key in keys {
        claims.push(claim(&etcd, key, lease, true).await);
    }
    let attempt = tokio::spawn(async move {
        let attempt = etcd.attempt_all(&mut claims.iter_mut().collect::<Vec<_>>()).await;
        (claims, attempt)
    });
    while on.entries("b").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The transaction was carried out; a keep-alive finds this.
    on.server.admin().revoke(on.entries("b")[0].lease.unwrap());
    on.one.mend();
    let (claims, attempt) = attempt.await.unwrap();
    assert_eq!(attempt.unwrap_err().kind(), ErrorKind::Unknown);
    for mut claim in claims {
        let _ = claim.withdraw().await.unwrap();
    }
    let left: Vec<_> = keys.into_iter().flat_map(|key| on.entries(key)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn what_stands_where_a_number_of_permits_would_is_a_conflict_and_no_lock_that_is_taken_for_ever() {
    let server = EtcdServer::start().unwrap();
    server.admin().put("dlock/room", "red walls");
    let locks = Locks::builder(Etcd::connect(&server.url()).await.unwrap())
        .with_wait(Wait::For(Duration::from_secs(3)))
        .build()
        .unwrap();
    let error = locks.lock("room").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = locks.semaphore("room", 3).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(server.admin().leases().len() <= 2, "no lease for each try");
}

/// A server whose tokens say of which revision of the rights they are.
fn with_lasting_tokens(directory: &std::path::Path) -> EtcdServer {
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (private, public) = (file("private"), file("public"));
    for words in
        [&["genrsa", "-out", &private, "2048"][..], &["rsa", "-in", &private, "-pubout", "-out", &public]]
    {
        let done = std::process::Command::new("openssl").args(words).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let tokens = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
    EtcdServer::options().password("secret").argument("auth-token", &tokens).start().unwrap()
}

#[tokio::test]
async fn rights_that_are_given_to_others_cost_nobody_a_lock() {
    let directory = std::env::temp_dir().join(format!("dlock-etcd-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let server = with_lasting_tokens(&directory);
    let locks = Locks::builder(Etcd::connect(&server.url()).await.unwrap())
        .with_lease(Duration::from_secs(6))
        .build()
        .unwrap();
    let guard = locks.lock("room").acquire().await.unwrap();
    drop(server.admin().ctl(&["user", "add", "another:secret"]));
    let waited = tokio::time::timeout(Duration::from_secs(8), guard.lost()).await;
    assert!(waited.is_err(), "it was lost: {:?}", guard.check());
    let other = locks.lock("another").with_wait(Wait::No).acquire().await.unwrap();
    other.release().await.unwrap();
    guard.release().await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Fills the database from many connections, until there is no space.
async fn fill(server: &EtcdServer) {
    let address = format!("http://{}", server.address());
    let fillers = (0..100).map(|number| {
        let address = address.clone();
        tokio::spawn(async move {
            let mut client = etcd_client::Client::connect([address], None).await.unwrap();
            let mut put = 0;
            while client.put(format!("filler/{number}/{put}"), "x".repeat(3_000), None).await.is_ok() {
                put += 1;
            }
        })
    });
    for filler in fillers.collect::<Vec<_>>() {
        filler.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_carried_out_although_there_was_no_space_is_withdrawn() {
    // The servers look at the space before a request goes to the log, and once more when it is carried out: then it
    // is refused, and carried out nevertheless.
    let options = EtcdServer::options().quota(20_000_000).argument("backend-batch-interval", "1s");
    let server = options.start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let attempts = (0..60).map(|number| {
        let etcd = etcd.clone();
        tokio::spawn(async move {
            loop {
                let mut claim = claim(&etcd, &format!("room{number}"), Duration::from_secs(60), true).await;
                let attempt = claim.attempt().await;
                while claim.withdraw().await.is_err() {}
                if let Err(failure) = attempt {
                    assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure}");
                    break;
                }
            }
        })
    });
    let attempts: Vec<_> = attempts.collect();
    fill(&server).await;
    for attempt in attempts {
        attempt.await.unwrap();
    }
    let left = server.admin().keys("dlock/");
    assert!(left.is_empty(), "{} of 60, such as {}", left.len(), left[0]);
}

#[tokio::test]
async fn many_requests_at_once_have_a_password_checked_once() {
    let server = EtcdServer::options().password("secret").start().unwrap();
    let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
    let etcd = Etcd::builder(&server.url_through(proxy.address())).build().unwrap();
    let looks = (0..50).map(|_| {
        let etcd = etcd.clone();
        tokio::spawn(async move { etcd.inspect(&Key::new("room").unwrap()).await })
    });
    for look in looks.collect::<Vec<_>>() {
        drop(look.await.unwrap());
    }
    assert_eq!(proxy.requests().get("AUTHENTICATE"), Some(&1), "{:?}", proxy.requests());
}

#[tokio::test]
async fn more_locks_than_a_connection_may_have_streams_are_all_held() {
    let server = EtcdServer::options().argument("max-concurrent-streams", "320").start().unwrap();
    let locks = Locks::builder(Etcd::connect(&server.url()).await.unwrap())
        .with_lease(Duration::from_secs(6))
        .build()
        .unwrap();
    let mut guards = Vec::new();
    for number in 0..400 {
        guards.push(locks.lock(format!("room{number}")).acquire().await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
    let lost: Vec<_> = guards.iter().filter_map(|guard| guard.check().err()).collect();
    assert!(lost.is_empty(), "{} of 400, such as {}", lost.len(), lost[0]);
}

#[tokio::test]
async fn claims_that_find_a_new_semaphore_at_one_moment_leave_one_lease_for_its_number() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let locks = Locks::new(etcd.clone());
    let tries = (0..16).map(|_| {
        let permit = locks.semaphore("room", 16);
        tokio::spawn(async move { permit.acquire().await.unwrap() })
    });
    let mut guards = Vec::new();
    for permit in tries.collect::<Vec<_>>() {
        guards.push(permit.await.unwrap());
    }
    // One for each holder, and one for the number. Those that were made in vain are ended in the background.
    let begun = Instant::now();
    while server.admin().leases().len() > 17 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", server.admin().leases());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_number_of_permits_that_is_changed_keeps_its_lease() {
    let server = EtcdServer::start().unwrap();
    // So short that no renewal goes over to a longer one.
    let lease = Duration::from_secs(12);
    let locks =
        Locks::builder(Etcd::connect(&server.url()).await.unwrap()).with_lease(lease).build().unwrap();
    let guard = locks.semaphore("room", 4).acquire().await.unwrap();
    let of_number = |server: &EtcdServer| server.admin().entry("dlock/room").unwrap();
    let before = of_number(&server);
    for permits in [5, 6, 7] {
        assert_eq!(locks.resize_semaphore("room", permits).await.unwrap(), Some(permits - 1));
    }
    let after = of_number(&server);
    assert!(after.value.starts_with("7 "), "{after:?}");
    assert_eq!(after.lease, before.lease);
    assert_eq!(server.admin().leases().len(), 2, "the holder's and that of the number");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_request_to_leave_a_key_that_is_made_again_leaves_one_lease() {
    let server = EtcdServer::start().unwrap();
    let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
    let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
    let mut claim = granted(&etcd, "room", Duration::from_secs(300)).await;
    proxy.lose_reply(1, "TXN", Loss::Cut);
    let lost = claim.leave(Duration::from_secs(3_600)).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unknown);
    assert!(claim.leave(Duration::from_secs(3_600)).await.unwrap().removed);
    drop(claim);
    let begun = Instant::now();
    // That of the key, and that of the claim in the pool.
    while server.admin().leases().len() > 2 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", server.admin().leases());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.admin().entries("dlock/room/").len(), 1);
}

#[tokio::test]
async fn a_queue_of_any_length_is_read() {
    let server = EtcdServer::start().unwrap();
    for number in 0..45 {
        server.admin().put(&format!("dlock/room/{number}"), &"x".repeat(100_000));
    }
    let locks = Locks::new(Etcd::connect(&server.url()).await.unwrap());
    assert!(locks.inspect("room").await.unwrap().is_some());
    let error = locks.lock("room").read().with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(locks.force_release("room").await.unwrap());
}

/// Tests that bound real time.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn servers_that_lost_all_leases_refuse_no_lock_for_that() {
        let server = EtcdServer::start().unwrap();
        let locks = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let mut guards = Vec::new();
        for number in 0..40 {
            guards.push(locks.lock(format!("room{number}")).acquire().await.unwrap());
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        for lease in server.admin().leases() {
            server.admin().revoke(lease);
        }
        let begun = Instant::now();
        let guard = locks.lock("room").with_wait(Wait::No).acquire().await.unwrap();
        guard.release().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_stream_of_watches_that_was_begun_before_rights_changed_is_begun_anew() {
        let directory = std::env::temp_dir().join(format!("dlock-etcd-watches-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let server = with_lasting_tokens(&directory);
        let locks = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let theirs = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let wait_for = |key: &'static str| {
            let lock = locks.lock(key).with_wait(Wait::Forever);
            tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) })
        };
        let (one, other) =
            (theirs.lock("a").acquire().await.unwrap(), theirs.lock("b").acquire().await.unwrap());
        let early = wait_for("a");
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(server.admin().ctl(&["user", "add", "another:secret"]));
        let late = wait_for("b");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let released = Instant::now();
        other.release().await.unwrap();
        let granted = late.await.unwrap().unwrap();
        assert!(granted - released < Duration::from_secs(2), "its turn came after {:?}", granted - released);
        one.release().await.unwrap();
        early.await.unwrap().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_key_whose_name_is_no_text_can_be_released_by_force() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;

        let server = EtcdServer::start().unwrap();
        let put = std::process::Command::new("etcdctl")
            .args([&format!("--endpoints={}", server.address()), "put"])
            .arg(OsStr::from_bytes(b"dlock/room/\xff\xfe"))
            .arg("taken")
            .output()
            .unwrap();
        assert!(put.status.success(), "{put:?}");
        let locks = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let waiter = locks.lock("room").with_wait(Wait::For(Duration::from_secs(60)));
        let waiter = tokio::spawn(async move { waiter.acquire().await });
        while server.admin().entries("dlock/room/").len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let forced = tokio::time::timeout(Duration::from_secs(10), locks.force_release("room")).await;
        forced.expect("it ends").unwrap();
        let begun = Instant::now();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "nobody told the waiter for {:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn many_waiters_stand_in_the_order_in_which_they_came_also_where_the_way_is_long() {
        let server = EtcdServer::start().unwrap();
        let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
        let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
        let mut guard = granted(&etcd, "room", Duration::from_secs(12)).await;
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.set(direction, Flow::Delay(Duration::from_millis(20)));
        }
        let (mut tokens, mut waiters) = (Vec::new(), Vec::new());
        for _ in 0..120 {
            let request = claim_request("room", Duration::from_secs(12), true).await.unwrap();
            tokens.push(request.token.to_hex());
            let mut claim = etcd.claim(request);
            waiters.push(tokio::spawn(async move {
                assert!(matches!(claim.attempt().await, Ok(Attempt::Busy(_))));
                claim
            }));
        }
        let mut claims = Vec::new();
        for waiter in waiters {
            claims.push(waiter.await.unwrap());
        }
        let entries = server.admin().entries("dlock/room/");
        let places: Vec<_> = entries[1..].iter().map(|entry| entry.key.rsplit('-').next().unwrap()).collect();
        // On a busy machine the leases of the first end before the last have come: nobody asks for those any more.
        let standing: Vec<_> = tokens.iter().filter(|token| places.contains(&&***token)).collect();
        assert_eq!(places, standing);
        assert!(places.len() > 60, "only {} stand", places.len());
        let _ = guard.withdraw().await.unwrap();
    }
}
