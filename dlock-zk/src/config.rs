//! Settings of a connection.

mod certificates;
mod url;

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{boxed, sleep, tell};
use dlock_core::{Failure, Result};
use tokio::task::JoinSet;
use zookeeper::{Acl, Acls, Client, CreateMode};

use self::certificates::{Certificates, Tls};
use self::url::Target;
use crate::backend::{ZooKeeper, configure};
use crate::names::Base;
use crate::recipe::Recipe;
use crate::session::{Driven, Refusal, open_driven};

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
const BASE: &str = "/dlock";
/// What servers have unless they are configured otherwise: by their example of a configuration, which all packages
/// follow.
const TICK: Duration = Duration::from_secs(2);
const TICKS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// The client library pauses between two rounds over the servers, twice as long each time. With a longer list, in which
/// each server stands several times, it hardly gets there before the session ends, and pauses a second or so at the
/// most.
const ADDRESSES: usize = 24;
/// A connection without a sign of life counts as broken after this share of the session timeout. That leaves time to
/// try two more servers that are silent before the locks are lost: the client library picks them at random, and may
/// well pick the same one again.
const SILENCE: u32 = 6;
/// How many attempts to open a session are under way at the most. Another one is begun when none has succeeded for as
/// long as one server may be silent.
const OPENINGS: usize = 4;

/// Settings of a [`ZooKeeper`] backend that are not the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | base | `/dlock` | the path below which the locks are; the path of the URL, the chroot, stands before it |
/// | recipe | mutex | whose nodes the locks have, for other clients: Curator's mutex, its read-write lock, or its leader latch |
/// | session timeout | 10 s | after which the servers give the locks of a dead client to others |
/// | ACL | only the creator if the URL has a user, else anyone | who may do what with a place in a queue |
/// | tick time | 2 s | the servers' own `tickTime`, of which a session timeout has to have two |
/// | chroot | has to exist | `with_chroot_created` makes it |
/// | parent ACL | as the ACL | the same for the nodes above, where they have to be made |
///
/// They can also stand in the URL, but for the ACLs:
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
    /// The same in one order, for the ids of locks: other processes may name the servers in another one.
    pub(crate) place: String,
    /// What stands before all paths.
    pub(crate) chroot: String,
    pub(crate) base: Base,
    pub(crate) recipe: Recipe,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) parent_acl: Arc<[Acl]>,
    /// Of the node that a session proves its life by.
    pub(crate) proof_acl: Arc<[Acl]>,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Duration,
    creates_chroot: bool,
    /// User and password.
    credentials: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    sasl: bool,
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

    /// Sets whose nodes the locks have: which other clients share them. Default [`Recipe::Mutex`]. All clients of a
    /// lock have to agree; one that finds nodes of the other recipe grants nothing, with an error of the kind
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig).
    pub const fn with_recipe(mut self, recipe: Recipe) -> Self {
        self.recipe = Some(recipe);
        self
    }

    /// Sets after which time the servers take the locks of a client away that they hear nothing of. Default 10 s; 100
    /// ms to 10 min.
    ///
    /// The servers have bounds of their own, 2 and 20 ticks unless configured, and the nearest allowed length is used.
    pub const fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets the servers' `tickTime`, when it is not 2 s. 1 ms to 60 s.
    ///
    /// A leader learns what the other servers hear of a session by half a tick late. A session timeout that the servers
    /// grant although it has less than two ticks would leave no time for that, and is refused.
    pub const fn with_tick_time(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Makes the chroot, the path of the URL, if it is missing. Without this a missing one is an error, since a
    /// misspelt path would be a world of locks of its own.
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

    /// Sets who may do what with a place in a queue. Default: everything for the creator and nothing for others if the
    /// URL has a user, and else everything for everybody.
    ///
    /// This says who may see who stands in line. Who may stand there, and take others away, is said by the
    /// [parent ACL](Self::with_parent_acl).
    pub fn with_acl(mut self, acl: impl IntoIterator<Item = Acl>) -> Self {
        self.acl = Some(acl.into_iter().collect());
        self
    }

    /// Sets who may do what with the directory of a lock and those above, where they have to be made. Default: as the
    /// [ACL](Self::with_acl). Who is to use the locks needs the rights to read, create and delete.
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

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work,
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the servers refuse the credentials, and
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when none answers. No error contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<ZooKeeper> {
        let zookeeper = self.build()?;
        boxed(zookeeper.open()).await?;
        Ok(zookeeper)
    }

    /// Creates the backend without a session: it opens one when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work.
    pub fn build(self) -> Result<ZooKeeper> {
        self.check().map(ZooKeeper::new).map_err(configure)
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

/// The servers in alphabetical order, each with its port.
fn place(servers: &str) -> String {
    // What stands in brackets, or after the last colon, is no port of an address of IPv6.
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

    /// Opens a session.
    pub(crate) async fn open(&self) -> std::result::Result<Driven, Refusal> {
        let silence = self.session_timeout / SILENCE;
        let mut driven = self.open_with(silence).await?;
        let granted = driven.client.session_timeout();
        if granted < self.tick * 2 {
            return Err(Refusal::Settings(format!(
                "the servers grant a session timeout of {granted:?}, which is less than two ticks of {:?}: a leader could \
                 give a lock away that its holder still believes in; use a longer one, or say with with_tick_time or \
                 tick_time= that the servers' tickTime is shorter",
                self.tick
            )));
        }
        if granted != self.session_timeout {
            let asked = self.session_timeout;
            let what = "the servers grant another session timeout";
            tell(|| {
                tracing::warn!(
                    target: "dlock",
                    {
                        dlock.backend = "zk",
                        dlock.asked = ?asked,
                        dlock.granted = ?granted,
                    },
                    "{what}"
                );
            });
        }
        if granted / SILENCE > silence {
            // The server insists on a longer session: connections need not be given up as early as was asked for.
            drop(driven);
            driven = self.open_with(granted / SILENCE).await?;
        }
        self.find_chroot(&driven.client).await?;
        Ok(driven)
    }

    async fn find_chroot(&self, client: &Client) -> std::result::Result<(), Refusal> {
        let chroot = &self.chroot;
        if chroot.is_empty() || client.check_stat(chroot).await?.is_some() {
            return Ok(());
        }
        if !self.creates_chroot {
            return Err(Refusal::Settings(format!(
                "the path {chroot:?} of the URL does not exist: correct it, or have it made with create_chroot=true"
            )));
        }
        // Not a container, which would be gone again when it is empty.
        let options = CreateMode::Persistent.with_acls(Acls::new(&self.parent_acl));
        Ok(client.mkdir(chroot, &options).await?)
    }

    /// The servers, each as often as makes a long list.
    fn addresses(&self) -> String {
        let count = self.servers.split(',').count();
        vec![self.servers.as_str(); ADDRESSES.div_ceil(count)].join(",")
    }

    /// Opens a session, by several attempts if servers are silent: each attempt picks servers at random, and may pick
    /// those again and again.
    async fn open_with(&self, silence: Duration) -> std::result::Result<Driven, zookeeper::Error> {
        let mut attempts = JoinSet::new();
        let mut begun = 0;
        loop {
            if begun < OPENINGS {
                attempts.spawn(open_driven(self.attempt(silence)));
                begun += 1;
            }
            let more = begun < OPENINGS;
            tokio::select! {
                Some(opened) = attempts.join_next() => match opened {
                    Ok(Err(zookeeper::Error::Timeout)) if !attempts.is_empty() => {}
                    Ok(opened) => return opened,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => resume_unwind(panic),
                        Err(error) => return Err(zookeeper::Error::UnexpectedError(error.to_string())),
                    },
                },
                () = sleep(silence), if more => {}
            }
        }
    }

    /// Tries to open a session.
    fn attempt(
        &self,
        silence: Duration,
    ) -> impl Future<Output = std::result::Result<Client, zookeeper::Error>> + Send + use<> {
        let mut connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_connection_timeout(silence)
            .with_fail_eagerly();
        match &self.credentials {
            #[cfg(feature = "sasl")]
            Some((user, password)) if self.sasl => {
                let options = zookeeper::SaslOptions::digest_md5(user.clone(), password.clone());
                connector = connector.with_sasl(options);
            }
            Some((user, password)) => {
                connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            }
            None => {}
        }
        let (servers, tls) = (self.addresses(), self.tls.as_ref().cloned());
        async move {
            match tls {
                None => connector.connect(&servers).await,
                #[cfg(feature = "tls")]
                Some(tls) => connector.with_tls(tls).secure_connect(&servers).await,
                #[cfg(not(feature = "tls"))]
                Some(never) => match never {},
            }
        }
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
