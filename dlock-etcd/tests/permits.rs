//! Waiters for permits: what wakes which of them.

use std::time::{Duration, Instant};

use dlock_core::backend::{Administration as _, Attempt, Backend, Claim, Forced, Mode, Renewed};
use dlock_core::{ErrorKind, Key};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow, Grpc, Proxy};
use dlock_rig::servers::etcd::EtcdServer;
use dlock_testkit::claim_request;

const LEASE: Duration = Duration::from_secs(60);
/// The time within which a waiter does not look by itself yet, which it does after 5 s.
const OTHERS: Duration = Duration::from_secs(4);
/// How often a scenario may begin anew on a machine that is too slow for that time.
const TRIES: u32 = 5;
const OF: u32 = 4;

async fn claim(etcd: &Etcd, key: &str, take: u32) -> EtcdClaim {
    let mut request = claim_request(key, LEASE, true).await.unwrap();
    request.mode = Mode::Permits { of: OF, take };
    etcd.claim(request)
}

struct Waiter {
    claim: EtcdClaim,
    key: String,
    looked: Instant,
}

impl Waiter {
    /// A waiter that knows its place, and whose watch has begun.
    async fn stands(etcd: &Etcd, server: &EtcdServer, key: &str, take: u32) -> Self {
        let claim = claim(etcd, key, take).await;
        let mut waiter = Self { claim, key: String::new(), looked: Instant::now() };
        assert!(!waiter.look().await);
        waiter.key = places(server, key).pop().unwrap().0;
        if server.admin().watches() < 2 {
            waiter.hears().await;
        }
        while waiter.is_told().await {
            assert!(!waiter.look().await);
        }
        waiter
    }

    async fn look(&mut self) -> bool {
        self.looked = Instant::now();
        matches!(self.claim.attempt().await.unwrap(), Attempt::Granted(_))
    }

    /// Waits for news that come before it would look by itself.
    async fn hears(&mut self) -> bool {
        let left = OTHERS.saturating_sub(self.looked.elapsed());
        tokio::time::timeout(left, self.claim.changed()).await.is_ok()
    }

    /// Returns whether it was woken by what another waiter of its client has heard of.
    async fn is_told(&mut self) -> bool {
        let told = tokio::time::timeout(Duration::ZERO, self.claim.changed()).await;
        told.is_ok() && self.looked.elapsed() < OTHERS
    }
}

/// The keys of a directory, and their leases.
fn places(server: &EtcdServer, key: &str) -> Vec<(String, i64)> {
    let entries = server.admin().entries(&format!("dlock/{key}/")).into_iter();
    entries.map(|entry| (entry.key, entry.lease.unwrap_or_default())).collect()
}

struct Scene {
    server: EtcdServer,
    theirs: Etcd,
    key: String,
    holders: Vec<EtcdClaim>,
    waiters: Vec<Waiter>,
}

impl Scene {
    /// Holders of one client, and waiters of another one, which take so many permits.
    async fn set(server: EtcdServer, ours: &Etcd, key: &str, holders: &[u32], waiters: &[u32]) -> Self {
        let theirs = Etcd::connect(&server.url()).await.unwrap();
        let mut scene =
            Self { server, theirs, key: key.to_owned(), holders: Vec::new(), waiters: Vec::new() };
        for take in holders {
            let mut claim = claim(&scene.theirs, key, *take).await;
            assert!(matches!(claim.attempt().await.unwrap(), Attempt::Granted(_)));
            scene.holders.push(claim);
        }
        for take in waiters {
            let waiter = Waiter::stands(ours, &scene.server, key, *take).await;
            scene.waiters.push(waiter);
        }
        scene
    }

    async fn release(&mut self, holder: usize) {
        assert!(self.holders[holder].withdraw().await.unwrap().removed);
    }

    fn end_lease(&self, of: usize) {
        self.server.admin().revoke(places(&self.server, &self.key)[of].1);
    }
}

/// Sets the scene, has something happen, and compares who is woken. The last waiter is a witness: it hears of the
/// deletion of its own key, which comes after all else.
async fn wakes(holders: &[u32], waiters: &[u32], what: impl AsyncFn(&mut Scene), woken: &[bool]) {
    for number in 0..TRIES {
        let server = EtcdServer::start().unwrap();
        let ours = Etcd::connect(&server.url()).await.unwrap();
        let with_witness = [waiters, &[1]].concat();
        let mut scene = Scene::set(server, &ours, "room", holders, &with_witness).await;
        what(&mut scene).await;
        let mut witness = scene.waiters.pop().unwrap();
        assert!(scene.server.admin().delete(&witness.key));
        if !witness.hears().await {
            assert!(number + 1 < TRIES, "the witness hears nothing of its end");
            continue;
        }
        let begun = scene.waiters.iter().map(|waiter| waiter.looked).min().unwrap();
        let mut told = Vec::new();
        for waiter in &mut scene.waiters {
            told.push(waiter.is_told().await);
        }
        if begun.elapsed() > OTHERS && number + 1 < TRIES {
            continue;
        }
        assert_eq!(told, woken);
        return;
    }
}

#[tokio::test]
async fn a_release_wakes_as_many_waiters_as_have_room() {
    wakes(&[1, 3], &[1, 1], async |scene| scene.release(0).await, &[true, false]).await;
    wakes(&[1, 3], &[1, 1, 1, 1], async |scene| scene.release(1).await, &[true, true, true, false]).await;
}

#[tokio::test]
async fn a_waiter_for_several_permits_is_woken_once_all_of_them_are_free() {
    let first = async |scene: &mut Scene| scene.release(0).await;
    wakes(&[2, 2], &[3, 1], first, &[false, false]).await;
    let both = async |scene: &mut Scene| {
        scene.release(1).await;
        scene.release(0).await;
    };
    wakes(&[2, 2], &[3, 1, 1], both, &[true, true, false]).await;
}

#[tokio::test]
async fn the_end_of_a_waiter_wakes_those_behind_it_that_have_room_then() {
    // Its lease ends: it is told itself too.
    wakes(&[2], &[3, 1, 2], async |scene| scene.end_lease(1), &[true, true, false]).await;
    // It gives up.
    let gives_up = async |scene: &mut Scene| {
        let mut waiter = scene.waiters.remove(0);
        assert!(waiter.claim.withdraw().await.unwrap().removed);
    };
    wakes(&[2], &[3, 1, 2], gives_up, &[true, false]).await;
    // It stood behind.
    let gives_up = async |scene: &mut Scene| {
        let mut waiter = scene.waiters.remove(2);
        assert!(waiter.claim.withdraw().await.unwrap().removed);
    };
    wakes(&[4], &[1, 1, 4], gives_up, &[false, false]).await;
}

#[tokio::test]
async fn a_waiter_whose_key_is_deleted_is_woken_and_stands_again() {
    let deleted = async |scene: &mut Scene| {
        let key = scene.waiters[0].key.clone();
        assert!(scene.server.admin().delete(&key));
    };
    wakes(&[4], &[1, 1], deleted, &[true, false]).await;
}

#[tokio::test]
async fn whatever_takes_permits_away_from_their_holders_wakes_who_has_room_then() {
    wakes(&[2, 2], &[2, 1], async |scene| scene.end_lease(0), &[true, false]).await;
    let by_force = async |scene: &mut Scene| {
        let forced = scene.theirs.force_release(Key::new("room").unwrap(), None).await;
        assert!(matches!(forced, Ok(Forced::Released)), "{forced:?}");
    };
    wakes(&[2, 2], &[4, 1], by_force, &[true, false]).await;
    let deleted = async |scene: &mut Scene| {
        let key = places(&scene.server, "room")[1].0.clone();
        assert!(scene.server.admin().delete(&key));
    };
    wakes(&[3, 1], &[1, 1], deleted, &[true, false]).await;
}

#[tokio::test]
async fn another_number_of_permits_wakes_all() {
    let resized = async |scene: &mut Scene| {
        let before = scene.theirs.resize(Key::new("room").unwrap(), OF + 1).await.unwrap();
        assert_eq!(before, Some(OF));
    };
    wakes(&[4], &[1, 1], resized, &[true, true]).await;
    let forgotten = async |scene: &mut Scene| assert!(scene.server.admin().delete("dlock/room"));
    wakes(&[4], &[1, 1], forgotten, &[true, true]).await;
}

#[tokio::test]
async fn without_a_number_of_permits_each_end_wakes_all() {
    let released = async |scene: &mut Scene| {
        assert!(scene.server.admin().delete("dlock/room"));
        for waiter in &mut scene.waiters {
            waiter.hears().await;
            assert!(!waiter.look().await);
        }
        scene.release(0).await;
    };
    wakes(&[1, 3], &[1, 1], released, &[true, true]).await;
}

#[tokio::test]
async fn a_holder_that_renews_wakes_nobody() {
    let renewed = async |scene: &mut Scene| {
        assert_eq!(scene.holders[0].renew().await.unwrap(), Renewed::Extended);
    };
    wakes(&[4], &[1, 1], renewed, &[false, false]).await;
}

#[tokio::test]
async fn what_happened_while_the_stream_was_broken_wakes_also_who_hears_only_of_later_news() {
    for number in 0..TRIES {
        let server = EtcdServer::start().unwrap();
        let way = Proxy::speaking(Grpc::default(), server.address()).unwrap();
        let ours = Etcd::connect(&server.url_through(way.address())).await.unwrap();
        let mut scene = Scene::set(server, &ours, "room", &[1, 3], &[1]).await;
        // Neither this release nor the break of the stream is looked at by the waiter.
        way.set(Direction::ToClient, Flow::Hold);
        scene.release(0).await;
        way.cut();
        way.mend();
        let begun = Instant::now();
        while scene.server.admin().watches() < 2 {
            assert!(begun.elapsed() < LEASE, "no watch begins");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut witness = Waiter::stands(&ours, &scene.server, "room", 1).await;
        assert!(scene.server.admin().delete(&witness.key));
        if witness.hears().await && scene.waiters[0].looked.elapsed() < OTHERS {
            assert!(scene.waiters[0].is_told().await, "it waits on beside a free permit");
            assert!(scene.waiters[0].look().await);
            return;
        }
        assert!(number + 1 < TRIES, "the machine is too slow");
    }
}

#[tokio::test]
async fn an_end_of_which_the_servers_do_not_know_any_more_what_it_was_wakes_all() {
    for number in 0..TRIES {
        let server = EtcdServer::start().unwrap();
        let way = Proxy::speaking(Grpc::default(), server.address()).unwrap();
        let ours = Etcd::connect(&server.url_through(way.address())).await.unwrap();
        let mut scene = Scene::set(server, &ours, "room", &[1, 3], &[1, 1]).await;
        // Events between the number of permits and the directory, behind which those of the directory queue up. The
        // servers look up what a key was only when they send its end.
        way.set(Direction::ToClient, Flow::Hold);
        let address = format!("http://{}", scene.server.address());
        let mut another = etcd_client::Client::connect([address], None).await.unwrap();
        for key in 0..20 {
            another.put(format!("dlock/room-{key}"), "x".repeat(1_000_000), None).await.unwrap();
        }
        scene.release(0).await;
        scene.server.admin().compact();
        let before = scene.server.admin().watches();
        way.mend();
        let heard = scene.waiters[0].hears().await;
        if heard && scene.waiters[1].looked.elapsed() < OTHERS {
            assert_eq!(scene.server.admin().watches(), before, "the stream was broken");
            assert!(scene.waiters[1].is_told().await, "it was told of another end than of everything");
            return;
        }
        assert!(number + 1 < TRIES, "it hears nothing");
    }
}

#[tokio::test]
async fn a_waiter_that_joins_a_watch_looks_once() {
    let server = EtcdServer::start().unwrap();
    let ours = Etcd::connect(&server.url()).await.unwrap();
    let mut scene = Scene::set(server, &ours, "room", &[4], &[1]).await;
    for _ in 0..TRIES {
        let mut waiter =
            Waiter { claim: claim(&ours, "room", 1).await, key: String::new(), looked: Instant::now() };
        assert!(!waiter.look().await);
        if !waiter.is_told().await {
            return;
        }
        scene.waiters.push(waiter);
    }
    panic!("each looks once more");
}

#[tokio::test]
async fn a_waiter_that_hears_of_nothing_looks_by_itself() {
    let server = EtcdServer::start().unwrap();
    let way = Proxy::speaking(Grpc::default(), server.address()).unwrap();
    let ours = Etcd::connect(&server.url_through(way.address())).await.unwrap();
    let mut scene = Scene::set(server, &ours, "room", &[4], &[1]).await;
    way.set(Direction::ToClient, Flow::Hold);
    scene.release(0).await;
    tokio::time::timeout(LEASE, scene.waiters[0].claim.changed()).await.expect("it looks").unwrap();
    way.mend();
    for _ in 0..TRIES {
        match scene.waiters[0].claim.attempt().await {
            Ok(Attempt::Granted(_)) => return,
            Ok(Attempt::Busy(_)) => {}
            Err(failure) => assert!(matches!(failure.kind(), ErrorKind::Unknown | ErrorKind::Unavailable)),
        }
    }
    panic!("it has no permit");
}
