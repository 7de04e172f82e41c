//! What the tests have in common.

use std::time::Duration;

use dlock_core::{Guard, Locks};
use dlock_redis::Redis;
pub(crate) use dlock_rig::expect::{error_of, fence, soon, until};
use dlock_rig::proxy::{Proxy, Resp};
use dlock_rig::servers::redis::RedisServer;

/// A lease that no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A lease that outlasts the patience of a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A lease that is renewed, or runs out, while a test looks on; a busy machine renews it in time.
pub(crate) const SHORT: Duration = Duration::from_secs(3);

/// Locks of a client of its own.
pub(crate) async fn locks(url: &str, lease: Duration) -> Locks {
    over(Redis::connect(url).await.unwrap(), lease)
}

/// Locks that give up a request after a second, so that what is made to fail fails soon.
pub(crate) fn over(redis: Redis, lease: Duration) -> Locks {
    patient_for(Duration::from_secs(1), redis, lease)
}

/// Locks that give up a request so soon that a busy machine makes them do so too.
pub(crate) async fn impatient(url: &str, lease: Duration) -> Locks {
    patient_for(Duration::from_millis(250), Redis::connect(url).await.unwrap(), lease)
}

pub(crate) fn patient_for(request: Duration, redis: Redis, lease: Duration) -> Locks {
    Locks::builder(redis)
        .with_lease(lease)
        .with_wait(Duration::from_secs(10))
        .with_request_timeout(request.min(lease / 3))
        .build()
        .unwrap()
}

/// A server with a proxy in front of it.
pub(crate) struct Proxied {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
}

impl Proxied {
    pub(crate) fn start() -> Self {
        Self::before(RedisServer::start().unwrap())
    }

    pub(crate) fn before(server: RedisServer) -> Self {
        let proxy = Proxy::speaking(Resp, server.address()).unwrap();
        Self { server, proxy }
    }

    /// The server's URL through the proxy.
    pub(crate) fn url(&self) -> String {
        self.server.url_through(self.proxy.address())
    }

    pub(crate) async fn locks(&self, lease: Duration) -> Locks {
        locks(&self.url(), lease).await
    }
}

/// The locks that the server has, by key.
pub(crate) fn held(server: &RedisServer) -> Vec<String> {
    let locks = server.keys().into_iter().filter(|key| !is_counter(key));
    locks.map(|key| key.strip_prefix("dlock:").map(str::to_owned).unwrap_or(key)).collect()
}

pub(crate) fn is_counter(key: &str) -> bool {
    key.starts_with("dlock:fence:")
}

/// Takes the lock, and tries again while the servers find themselves.
pub(crate) async fn take(locks: &Locks, key: &str) -> Guard {
    soon("the lock", async {
        loop {
            match locks.lock(key).acquire().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    })
    .await
}
