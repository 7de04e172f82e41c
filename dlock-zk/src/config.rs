//! Settings of a connection.

mod certificates;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use zookeeper::{Acl, Acls};

use self::certificates::{Certificates, Tls};
use self::url::Target;
use crate::names::Base;
use crate::recipe::Recipe;

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
const BASE: &str = "/dlock";
/// The tick time of servers that are not configured otherwise: that of their example of a configuration, which all
/// packages follow.
const TICK: Duration = Duration::from_secs(2);
const TICKS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

/// Settings of a [`ZooKeeper`](crate::ZooKeeper) backend that are not the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | base | `/dlock` | the path below which the locks are; the path of the URL, the chroot, stands before it |
/// | recipe | mutex | the form of the nodes, shared with other clients: Curator's mutex, its read-write lock, or its leader latch |
/// | session timeout | 10 s | the time after which the servers give the locks of a dead client to others |
/// | ACL | only the creator if the URL has a user, else anyone | the rights on a node in a queue |
/// | tick time | 2 s | the servers' own `tickTime`, of which a session timeout has to have two |
/// | chroot | has to exist | `with_chroot_created` makes it |
/// | parent ACL | as the ACL | the rights on the directories above, where they have to be made |
///
/// The settings can also stand in the URL, except for the ACLs:
/// `zk://host/app?base=/locks&session_timeout=10s&tick_time=2s&create_chroot=true`, for SASL `sasl=digest-md5`, and for
/// TLS the path of the root certificate, unless the system's are meant:
/// `zk+tls://host/?root_certificate=/etc/ssl/zk.pem`.
#[must_use = "settings do nothing until they are connected"]
#[derive(Clone)]
pub struct ZooKeeperBuilder {
    url: String,
    base: Option<String>,
    recipe: Option<Recipe>,
    session_timeout: Option<Duration>,
    tick: Option<Duration>,
    creates_chroot: bool,
    sasl: bool,
    acl: Option<Vec<Acl>>,
    parent_acl: Option<Vec<Acl>>,
    certificates: Certificates,
}

/// Checked settings.
pub(crate) struct Config {
    /// The addresses, for messages.
    pub(crate) servers: String,
    /// The servers in one order, for the ids of locks: other processes may name them in another one.
    pub(crate) place: String,
    /// The prefix of all paths.
    pub(crate) chroot: String,
    pub(crate) base: Base,
    pub(crate) recipe: Recipe,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) parent_acl: Arc<[Acl]>,
    /// The ACL of the node by which a session proves its life.
    pub(crate) proof_acl: Arc<[Acl]>,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Duration,
    pub(crate) creates_chroot: bool,
    /// The user and the password.
    pub(crate) credentials: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: bool,
    pub(crate) tls: Option<Tls>,
}

impl ZooKeeperBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            base: None,
            recipe: None,
            session_timeout: None,
            tick: None,
            creates_chroot: false,
            sasl: false,
            acl: None,
            parent_acl: None,
            certificates: Certificates::default(),
        }
    }

    /// Sets the path below which the locks are. Default `/dlock`; up to 512 bytes with the chroot. To share locks with
    /// Curator: the path above those that its mutexes were given.
    pub fn with_base(mut self, path: impl Into<String>) -> Self {
        self.base = Some(path.into());
        self
    }

    /// Sets the recipe of the nodes, which decides which other clients share the locks. Default [`Recipe::Mutex`]. All
    /// clients of a lock have to agree: a client that finds nodes of another recipe grants nothing, with an error of
    /// the kind [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig).
    pub const fn with_recipe(mut self, recipe: Recipe) -> Self {
        self.recipe = Some(recipe);
        self
    }

    /// Sets the time after which the servers take the locks of a silent client away. Default 10 s; 100 ms to 10 min.
    ///
    /// The servers have bounds of their own, 2 and 20 ticks unless configured, and the nearest allowed length is used.
    pub const fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets the servers' `tickTime`, if it is not 2 s. 1 ms to 60 s.
    ///
    /// A leader learns of the sessions on other servers by half a tick late. A session timeout that the servers grant
    /// although it has less than two ticks would leave no time for that, and is refused.
    pub const fn with_tick_time(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Creates the chroot, the path of the URL, if it is missing. Without this a missing one is an error, since locks
    /// under a misspelt path would exclude no other client.
    pub const fn with_chroot_created(mut self) -> Self {
        self.creates_chroot = true;
        self
    }

    /// Logs in with SASL's DIGEST-MD5, instead of ZooKeeper's own `digest`, as the user of the URL.
    #[cfg(feature = "sasl")]
    pub const fn with_sasl_digest_md5(mut self) -> Self {
        self.sasl = true;
        self
    }

    /// Sets the rights on a node in a queue. Default: all rights for the creator and none for others if the URL has a
    /// user, and otherwise all rights for all clients.
    ///
    /// These rights decide which clients may see the queue. The [parent ACL](Self::with_parent_acl) decides which may
    /// stand in it, and take others away.
    pub fn with_acl(mut self, acl: impl IntoIterator<Item = Acl>) -> Self {
        self.acl = Some(acl.into_iter().collect());
        self
    }

    /// Sets the rights on the directory of a lock and those above, where they have to be made. Default: as the
    /// [ACL](Self::with_acl). A client that is to use the locks needs the rights to read, create and delete.
    pub fn with_parent_acl(mut self, acl: impl IntoIterator<Item = Acl>) -> Self {
        self.parent_acl = Some(acl.into_iter().collect());
        self
    }

    /// Sets the root certificates, in PEM form, that sign the servers' certificates. Default: the file that the URL
    /// names, else those that the operating system trusts.
    #[cfg(feature = "tls")]
    pub fn with_root_certificate(mut self, pem: impl Into<String>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// Sets the certificate and the key, in PEM form, by which this client identifies itself. For `zk+tls://`.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    pub(crate) fn check(self) -> Result<Config, Failure> {
        let target = url::parse(&self.url)?;
        let Target { servers, tls, credentials, chroot, base, session_timeout, tick, .. } = target;
        let (creates_chroot, sasl) = (self.creates_chroot || target.creates_chroot, self.sasl || target.sasl);
        let session_timeout = self.session_timeout.or(session_timeout).unwrap_or(SESSION_TIMEOUT);
        if !(SHORTEST..=LONGEST).contains(&session_timeout) {
            let what = format!("the session timeout is {session_timeout:?}; use {SHORTEST:?} to {LONGEST:?}");
            return Err(Failure::invalid_config(what));
        }
        let tick = self.tick.or(tick).unwrap_or(TICK);
        if !TICKS.contains(&tick) {
            let what = format!("the tick time is {tick:?}; use {:?} to {:?}", TICKS.start(), TICKS.end());
            return Err(Failure::invalid_config(what));
        }
        if sasl && credentials.is_none() {
            return Err(Failure::invalid_config("SASL needs a user and a password in the URL"));
        }
        let chroot = chroot.unwrap_or_default();
        let base = self.base.or(base).unwrap_or_else(|| BASE.to_owned());
        let parts = [chroot.as_str(), base.as_str()];
        let base = Base::new(if chroot.is_empty() { &parts[1..] } else { &parts })?;
        let usual = if credentials.is_some() { Acls::creator_all() } else { Acls::anyone_all() }.to_vec();
        let acl = self.acl.unwrap_or_else(|| usual.clone());
        let parent_acl = self.parent_acl.unwrap_or_else(|| acl.clone());
        if acl.is_empty() || parent_acl.is_empty() {
            return Err(Failure::invalid_config("an ACL is empty, so that no client could use the locks"));
        }
        Ok(Config {
            place: place(&servers),
            servers,
            chroot,
            base,
            recipe: self.recipe.or(target.recipe).unwrap_or_default(),
            acl: acl.into(),
            parent_acl: parent_acl.into(),
            proof_acl: usual.into(),
            session_timeout,
            tick,
            creates_chroot,
            credentials,
            #[cfg(feature = "sasl")]
            sasl,
            tls: if tls { Some(self.certificates.options(target.root_certificate)?) } else { None },
        })
    }
}

/// Returns the servers in alphabetical order, each with its port.
fn place(servers: &str) -> String {
    // An address of IPv6 without a port ends with a bracket.
    let with_port = |server: &str| match server.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => server.to_owned(),
        _ => format!("{server}:2181"),
    };
    let mut servers: Vec<_> = servers.split(',').map(with_port).collect();
    servers.sort();
    servers.dedup();
    format!("zk://{}", servers.join(","))
}

impl Config {
    pub(crate) const fn has_user(&self) -> bool {
        self.credentials.is_some()
    }
}

impl fmt::Debug for ZooKeeperBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBuilder")
            .field("base", &self.base)
            .field("session_timeout", &self.session_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(builder: ZooKeeperBuilder) -> Config {
        builder.check().unwrap()
    }

    #[test]
    fn settings_outside_their_bounds_are_refused() {
        let builder = || ZooKeeperBuilder::new("zk://h");
        let wrong = [
            (builder().with_session_timeout(Duration::from_millis(99)), "100ms to 600s"),
            (builder().with_session_timeout(Duration::from_secs(601)), "100ms to 600s"),
            (builder().with_base("locks"), "slash"),
            (builder().with_acl([]), "ACL is empty"),
            (ZooKeeperBuilder::new("zk://h/zookeeper?base=/"), "belongs to the server"),
        ];
        for (builder, text) in wrong {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), dlock_core::ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_setting_by_method_wins_over_the_url() {
        let url = "zk://h/app?base=/a&session_timeout=3s";
        let of_url = config(ZooKeeperBuilder::new(url));
        assert_eq!(
            (of_url.base, of_url.session_timeout),
            (Base::new(&["/app/a"]).unwrap(), Duration::from_secs(3))
        );
        let by_method =
            config(ZooKeeperBuilder::new(url).with_base("/b").with_session_timeout(Duration::from_secs(4)));
        assert_eq!(by_method.base, Base::new(&["/app/b"]).unwrap());
        assert_eq!(by_method.session_timeout, Duration::from_secs(4));
        assert_eq!(config(ZooKeeperBuilder::new("zk://h")).base, Base::new(&["/dlock"]).unwrap());
    }

    #[test]
    fn the_same_servers_in_another_order_are_the_same_place() {
        let place = |url| config(ZooKeeperBuilder::new(url)).place;
        assert_eq!(place("zk://b,a:2182"), place("zk://a:2182,b:2181"));
        assert_eq!(place("zk://u:p@a/app?session_timeout=3s"), place("zk://a"));
        assert_ne!(place("zk://a,b"), place("zk://a,c"));
    }

    #[test]
    fn who_logs_in_keeps_others_out() {
        let open = config(ZooKeeperBuilder::new("zk://h"));
        assert_eq!((&*open.acl, &*open.parent_acl), (&*Acls::anyone_all(), &*Acls::anyone_all()));
        let own = config(ZooKeeperBuilder::new("zk://u:p@h"));
        assert_eq!((&*own.acl, &*own.parent_acl), (&*Acls::creator_all(), &*Acls::creator_all()));
        let shared = config(ZooKeeperBuilder::new("zk://u:p@h").with_parent_acl(Acls::anyone_all().to_vec()));
        assert_eq!((&*shared.acl, &*shared.parent_acl), (&*Acls::creator_all(), &*Acls::anyone_all()));
    }

    #[test]
    fn debug_shows_no_secret() {
        assert!(!format!("{:?}", ZooKeeperBuilder::new("zk://u:hunter2@h")).contains("hunter2"));
    }
}
