//! The scripts against the rules of who may hold a lock: the same steps at the same times have the same answers.

use dlock_core::backend::{Attempt, Mode};
use dlock_core::{Backend, Claim, ErrorKind, Key};
use dlock_redis::Redis;
use dlock_rig::rules::compare_histories;
use dlock_rig::servers::redis::RedisServer;
use dlock_testkit::claim_request;

use crate::support::LONG;

#[tokio::test]
async fn random_histories_have_the_answers_of_the_rules() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    compare_histories(&redis, server.clock(), 4_000).await;
}

#[tokio::test]
async fn a_lock_whose_shares_have_ended_is_no_lock_to_be_resized_however_long_its_key_is_kept() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let (key, mut request) = (Key::new("room").unwrap(), claim_request("room", LONG, false).await.unwrap());
    request.mode = Mode::Shared;
    let mut reader = redis.claim(request);
    assert!(matches!(reader.attempt().await, Ok(Attempt::Granted(_))));
    assert_eq!(
        redis.administration().unwrap().resize(key.clone(), 4).await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert!(reader.leave(LONG / 3).await.unwrap().removed);
    server.clock().ahead(LONG / 2);
    assert_eq!(redis.administration().unwrap().resize(key.clone(), 4).await.unwrap(), None);
}
