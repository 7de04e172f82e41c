//! The settings of the backend, and their checks.

use std::fmt;
use std::time::Duration;

use dlock_core::{Failure, Result};

#[cfg(feature = "credentials")]
use crate::existing::Provider;
use crate::existing::{ConnectionTemplate, ExistingClients};
use crate::format::Recipe;
use crate::keys::Counters;
use crate::url::{self, Topology};

/// The most replicas that can be required to acknowledge.
const MOST_REPLICAS: u32 = 1_000;
/// The number of locks whose changes the servers are asked to report.
const DEFAULT_TRACKED: usize = 10_000;
const MOST_TRACKED: usize = 100_000;

/// Settings of a [`Redis`](crate::Redis) backend that are not the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | prefix | `dlock:` | stands before every key, so that a lock cannot overwrite data; empty to share locks with Redisson |
/// | min replicas | 0 | how many replicas have to acknowledge every grant and renewal |
/// | replica timeout | 500 ms | how long to wait for them |
/// | connect timeout | 1 s | how long one connection may take to open |
/// | Redisson | where the prefix is empty | store locks as Redisson does, under their names as they are |
/// | recipe | `Recipe::Lock` | as which of Redisson's locks |
/// | hash slots | no | the server is a proxy before a cluster: the keys of each call lie in one hash slot |
/// | tracking | 10 000 | for how many locks the servers notify when another client deletes or changes them |
/// | Redisson fences | no | draw fences from Redisson's `redisson_lock_token:{key}`, to share locks with `RFencedLock` |
///
/// Prefix, min replicas, Redisson, recipe, hash slots and tracking can also stand in the URL:
/// `redis://host/?prefix=shop:&min_replicas=1&redisson=true&recipe=read-write-lock&hash_slots=true&tracking=0`.
#[must_use = "settings do nothing until they are connected"]
#[derive(Clone)]
pub struct RedisBuilder {
    servers: Servers,
    prefix: Option<String>,
    min_replicas: Option<u32>,
    replica_timeout: Duration,
    connect_timeout: Duration,
    redisson: Option<bool>,
    redisson_fences: bool,
    recipe: Option<Recipe>,
    hash_slots: Option<bool>,
    tracking: Option<usize>,
    certificates: Certificates,
    #[cfg(feature = "credentials")]
    provider: Option<Provider>,
}

/// The addresses of the servers.
#[derive(Clone)]
enum Servers {
    Url(String),
    /// The servers of clients that the program has.
    Existing(Box<Result<ExistingClients, &'static str>>),
}

/// Checked settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) target: url::Target,
    pub(crate) prefix: String,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) connect_timeout: Duration,
    pub(crate) counters: Counters,
    /// `true` if locks are stored as Redisson stores them.
    pub(crate) redisson: bool,
    /// The kind of Redisson's locks that they are.
    pub(crate) recipe: Recipe,
    /// `true` if each call has keys of one hash slot only.
    pub(crate) cluster: bool,
    /// The most locks that are tracked.
    pub(crate) tracked: usize,
    pub(crate) certificates: Certificates,
    /// The settings by which the program's own clients connect to the servers, and to the sentinels.
    pub(crate) template: Option<ConnectionTemplate>,
    pub(crate) sentinel_template: Option<ConnectionTemplate>,
    #[cfg(feature = "credentials")]
    pub(crate) provider: Option<Provider>,
}

/// The number of replicas that have to acknowledge, and the time to wait for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// The certificates in PEM form. They are never shown.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    #[cfg(feature = "tls")]
    pub(crate) root: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(..)")
    }
}

impl RedisBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self::of(Servers::Url(url.to_owned()))
    }

    /// Creates a builder for the servers of clients that the program has.
    pub(crate) fn existing(clients: Result<ExistingClients, &'static str>) -> Self {
        Self::of(Servers::Existing(Box::new(clients)))
    }

    fn of(servers: Servers) -> Self {
        Self {
            servers,
            prefix: None,
            min_replicas: None,
            replica_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            redisson: None,
            redisson_fences: false,
            recipe: None,
            hash_slots: None,
            tracking: None,
            certificates: Certificates::default(),
            #[cfg(feature = "credentials")]
            provider: None,
        }
    }

    /// Sets the prefix of every key. Default `dlock:`; up to 128 bytes. Empty to share locks with Redisson.
    ///
    /// On a cluster a prefix with a hash tag, such as `{locks}:`, puts all locks into one slot.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets how many replicas have to acknowledge every grant and renewal before it counts. Default 0; up to
    /// 1000.
    ///
    /// A grant with fewer acknowledgements is withdrawn and refused, and a renewal with fewer is tried again until the
    /// lock is lost. So no failover to a replica that acknowledged loses a lock whose holder got the answer.
    pub const fn with_min_replicas(mut self, count: u32) -> Self {
        self.min_replicas = Some(count);
        self
    }

    /// Sets how long to wait for the acknowledgement of replicas. Default 500 ms; 1 ms to 10 s.
    pub const fn with_replica_timeout(mut self, limit: Duration) -> Self {
        self.replica_timeout = limit;
        self
    }

    /// Sets how long one connection may take to open. Default 1 s; 1 ms to 60 s.
    pub const fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets whether locks are stored in the forms of Redisson, under their names as they are, so that services in Java
    /// and in Rust exclude and wake each other. Default: only if the prefix is empty. dlock's own form costs both sides
    /// less. All clients of a lock need the same setting.
    pub const fn with_redisson(mut self, on: bool) -> Self {
        self.redisson = Some(on);
        self
    }

    /// Sets which of Redisson's locks are stored if locks are shared with it. Default [`Recipe::Lock`]. All clients of
    /// a lock have to agree: a client that finds the data of another recipe grants nothing, with an error of the kind
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig).
    pub const fn with_recipe(mut self, recipe: Recipe) -> Self {
        self.recipe = Some(recipe);
        self
    }

    /// Sets whether fences come from Redisson's own counters, one for each lock that ever was, which are never deleted.
    /// Default no. For locks that are shared with Java services that use `RFencedLock`; implies
    /// [`with_redisson`](Self::with_redisson). Tokens of Java go on from the clock in microseconds then, at 1.8e15.
    pub const fn with_redisson_fences(mut self, on: bool) -> Self {
        self.redisson_fences = on;
        self
    }

    /// Sets whether the one server of the URL is a proxy before a cluster, as some managed services have: the keys of
    /// each call lie in one hash slot then, as on a cluster, but all calls go to the proxy. Default no. The URL of a
    /// cluster does not need it.
    ///
    /// All clients of a lock need the same setting, since the counters of fences have other names with it.
    pub const fn with_hash_slots(mut self, on: bool) -> Self {
        self.hash_slots = Some(on);
        self
    }

    /// Sets the most locks whose changes by other clients the servers report, so that the holder of a lock that was
    /// deleted or changed knows within about a round trip and not at the next renewal. The holder of a shared or fair
    /// lock, which other clients change again and again, knows up to a twelfth of the lease later. Default 10 000; up
    /// to 100 000, and 0 for none. Needs RESP3 and Redis 6.2.
    ///
    /// A lock is tracked once it has been held for a second, and costs nothing by it until then. Each is an entry in
    /// the servers' tracking tables; readers, permits and fair locks in Redisson's form are up to four.
    pub const fn with_tracking(mut self, most: usize) -> Self {
        self.tracking = Some(most);
        self
    }

    /// Sets the root certificate, in PEM form, that signs the servers' certificates, in place of the system's ones. For
    /// `rediss://`.
    #[cfg(feature = "tls")]
    pub fn with_root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// Sets the certificate and the key, in PEM form, by which this client identifies itself. For `rediss://`.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Takes user and password from this provider, in place of those of the URL or client, for every connection that is
    /// opened. Open connections are authenticated again whenever the provider has new ones. Not for sentinels. For
    /// tokens that expire, as managed services use them. Needs the feature `credentials` (`redis-credentials` of
    /// `dlock`).
    #[cfg(feature = "credentials")]
    pub fn with_credentials_provider(
        mut self,
        provider: impl redis::StreamingCredentialsProvider + 'static,
    ) -> Self {
        self.provider = Some(Provider::new(provider));
        self
    }

    /// Checks the settings. A setting by a method wins over the URL.
    pub(crate) fn check(self) -> Result<Config, Failure> {
        let ExistingClients { target, template, sentinel_template } = match self.servers {
            Servers::Url(url) => {
                ExistingClients { target: url::parse(&url)?, template: None, sentinel_template: None }
            }
            Servers::Existing(clients) => clients.map_err(Failure::invalid_config)?,
        };
        let within = |name: &str, value: Duration, most: Duration| {
            if (Duration::from_millis(1)..=most).contains(&value) {
                return Ok(());
            }
            Err(Failure::invalid_config(format!("{name} is {value:?}; use 1 ms to {most:?}")))
        };
        within("the replica timeout", self.replica_timeout, Duration::from_secs(10))?;
        within("the connect timeout", self.connect_timeout, Duration::from_secs(60))?;
        let tracked = self.tracking.or(target.tracking).unwrap_or(DEFAULT_TRACKED);
        if tracked > MOST_TRACKED {
            let message = format!("{tracked} locks to be tracked; use 0 to {MOST_TRACKED}");
            return Err(Failure::invalid_config(message));
        }
        let hash_slots = self.hash_slots.or(target.hash_slots).unwrap_or(false);
        let cluster = hash_slots || matches!(target.topology, Topology::Cluster(_));
        let count = self.min_replicas.or(target.min_replicas).unwrap_or(0);
        if count > MOST_REPLICAS {
            let message = format!("{count} replicas that have to acknowledge; use 0 to {MOST_REPLICAS}");
            return Err(Failure::invalid_config(message));
        }
        let prefix = self.prefix.or_else(|| target.prefix.clone()).unwrap_or_else(|| "dlock:".to_owned());
        let redisson = match self.redisson.or(target.redisson) {
            Some(false) if self.redisson_fences => {
                let message = "Redisson's fences need the form of its locks; leave out redisson=false";
                return Err(Failure::invalid_config(message));
            }
            Some(redisson) => redisson,
            None => prefix.is_empty() || self.redisson_fences,
        };
        let recipe = self.recipe.or(target.recipe);
        if recipe.is_some() && !redisson {
            let message = "a recipe is one of Redisson's locks; add redisson=true, or leave it out";
            return Err(Failure::invalid_config(message));
        }
        Ok(Config {
            prefix,
            redisson,
            recipe: recipe.unwrap_or_default(),
            replicas: (count > 0).then_some(Replicas { count, timeout: self.replica_timeout }),
            connect_timeout: self.connect_timeout,
            counters: match (self.redisson_fences, cluster) {
                (true, _) => Counters::Lock,
                (false, true) => Counters::Slot,
                (false, false) => Counters::Server,
            },
            cluster,
            // A proxy stands for many servers, whose reports it cannot pass on.
            tracked: if hash_slots { 0 } else { tracked },
            certificates: self.certificates,
            target,
            template,
            sentinel_template,
            #[cfg(feature = "credentials")]
            provider: self.provider,
        })
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("prefix", &self.prefix)
            .field("min_replicas", &self.min_replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_their_bounds_are_refused() {
        let builder = || RedisBuilder::new("redis://127.0.0.1");
        let wrong = [
            (builder().with_replica_timeout(Duration::ZERO), "1 ms to 10s"),
            (builder().with_connect_timeout(Duration::from_secs(61)), "1 ms to 60s"),
            (builder().with_tracking(100_001), "0 to 100000"),
            (builder().with_prefix("a{b"), "hash tag"),
            (builder().with_recipe(Recipe::ReadWriteLock), "redisson=true"),
        ];
        for (builder, text) in wrong {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), dlock_core::ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_setting_by_method_wins_over_the_url() {
        let config = |builder: RedisBuilder| builder.check().unwrap();
        let url = "redis://h/?prefix=a:&min_replicas=2";
        assert_eq!(config(RedisBuilder::new(url)).prefix, "a:");
        assert_eq!(config(RedisBuilder::new(url)).replicas.unwrap().count, 2);
        assert_eq!(config(RedisBuilder::new(url).with_prefix("")).prefix, "");
        assert!(config(RedisBuilder::new(url).with_min_replicas(0)).replicas.is_none());
        assert_eq!(config(RedisBuilder::new("redis://h")).prefix, "dlock:");
    }

    #[test]
    fn debug_shows_no_secret() {
        let builder = RedisBuilder::new("redis://u:hunter2@h");
        #[cfg(feature = "tls")]
        let builder = builder.with_client_certificate("hunter2", "hunter2");
        assert!(!format!("{builder:?}{:?}", builder.clone().check().unwrap()).contains("hunter2"));
    }
}
