//! The scripts against the rules of who may hold a lock: the same steps at the same times have the same answers.

use std::time::Duration;

use dlock_core::backend::{Attempt, Mode};
use dlock_core::{Backend, Claim, ErrorKind, Key};
use dlock_redis::Redis;
use dlock_rig::rules::{StoreClock, compare};
use dlock_rig::servers::redis::RedisServer;
use dlock_testkit::claim_request;

use crate::support::LONG;

struct ServerClock<'a> {
    server: &'a RedisServer,
    ahead: Duration,
}

impl StoreClock for ServerClock<'_> {
    fn now(&mut self) -> Duration {
        let (seconds, micros): (u64, u64) = self.server.command(&["TIME"]);
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    fn advance(&mut self, by: Duration) {
        self.ahead += by;
        self.server.clock().ahead(self.ahead);
    }
}

/// `DLOCK_HISTORIES` sets how many steps are made: the nightly run makes more.
#[tokio::test]
async fn random_histories_have_the_answers_of_the_rules() {
    let steps = std::env::var("DLOCK_HISTORIES").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4_000);
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut clock = ServerClock { server: &server, ahead: Duration::ZERO };
    let (mut made, mut seed) = (0, 0);
    while made < steps {
        made += compare(&redis, &mut clock, seed, 60).await;
        seed += 1;
    }
}

#[tokio::test]
async fn a_lock_whose_shares_have_ended_is_no_lock_to_be_resized_however_long_its_key_is_kept() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let (key, mut request) = (Key::new("room").unwrap(), claim_request("room", LONG, false).await.unwrap());
    request.mode = Mode::Shared;
    let mut reader = redis.claim(request);
    assert!(matches!(reader.attempt().await, Ok(Attempt::Granted(_))));
    assert_eq!(redis.resize(&key, 4).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(reader.leave(LONG / 3).await.unwrap().removed);
    server.clock().ahead(LONG / 2);
    assert_eq!(redis.resize(&key, 4).await.unwrap(), None);
}
