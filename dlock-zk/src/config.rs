//! Settings of a connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Failure, Result};
use zookeeper::{Acl, Acls, Client};

use crate::backend::{ZooKeeper, configure};
use crate::names::Base;
use crate::url::{self, Target};

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
const BASE: &str = "/dlock";
/// A connection without a sign of life counts as broken after this share of the session timeout, which leaves time to
/// find another server before the locks are lost.
const SILENCE: u32 = 4;

/// Settings of a [`ZooKeeper`] backend that are not the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | base | `/dlock` | the path below which the locks are; the path of the URL, the chroot, stands before it |
/// | session timeout | 10 s | after which the servers give the locks of a dead client to others |
/// | ACL | only the creator if the URL has a user, else anyone | who may do what with a place in a queue |
/// | parent ACL | as the ACL | the same for the nodes above, where they have to be made |
///
/// Base and session timeout can also stand in the URL, `zk://host/?base=/locks&session_timeout=10s`, and for TLS the path of
/// the root certificate: `zk+tls://host/?root_certificate=/etc/ssl/zk.pem`.
#[must_use = "settings do nothing until they are connected"]
#[derive(Clone)]
pub struct ZooKeeperBuilder {
    url: String,
    base: Option<String>,
    session_timeout: Option<Duration>,
    acl: Option<Vec<Acl>>,
    parent_acl: Option<Vec<Acl>>,
    certificates: Certificates,
}

/// Certificates in PEM form. Never shown.
#[derive(Clone, Default)]
struct Certificates {
    #[cfg(feature = "tls")]
    root: Option<String>,
    #[cfg(feature = "tls")]
    client: Option<(String, String)>,
}

#[cfg(feature = "tls")]
type Tls = zookeeper::TlsOptions;
#[cfg(not(feature = "tls"))]
type Tls = std::convert::Infallible;

/// Checked settings.
pub(crate) struct Config {
    /// The addresses, for messages.
    pub(crate) servers: String,
    /// What stands before all paths.
    pub(crate) chroot: String,
    pub(crate) base: Base,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) parent_acl: Arc<[Acl]>,
    session_timeout: Duration,
    credentials: Option<String>,
    tls: Option<Tls>,
}

impl ZooKeeperBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            base: None,
            session_timeout: None,
            acl: None,
            parent_acl: None,
            certificates: Certificates::default(),
        }
    }

    /// The path below which the locks are. Default `/dlock`; up to 512 bytes with the chroot. To share locks with Curator:
    /// the path above those that its mutexes were given.
    pub fn with_base(mut self, path: impl Into<String>) -> Self {
        self.base = Some(path.into());
        self
    }

    /// After which the servers take the locks of a client away that they hear nothing of. Default 10 s; 100 ms to 10 min.
    ///
    /// The servers have bounds of their own, 2 and 20 ticks unless configured, and the nearest allowed length is used.
    pub const fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Who may do what with a place in a queue. Default: everything for the creator and nothing for others if the URL has a
    /// user, and else everything for everybody.
    ///
    /// This says who may see who stands in line. Who may stand there, and take others away, is said by the
    /// [parent ACL](Self::with_parent_acl).
    pub fn with_acl(mut self, acl: impl IntoIterator<Item = Acl>) -> Self {
        self.acl = Some(acl.into_iter().collect());
        self
    }

    /// Who may do what with the directory of a lock and those above, where they have to be made. Default: as the
    /// [ACL](Self::with_acl). Who is to use the locks needs the rights to read, create and delete.
    pub fn with_parent_acl(mut self, acl: impl IntoIterator<Item = Acl>) -> Self {
        self.parent_acl = Some(acl.into_iter().collect());
        self
    }

    /// The root certificates, in PEM form, that sign the servers' certificates. Needed for `zk+tls://`, unless the URL names a
    /// file.
    #[cfg(feature = "tls")]
    pub fn with_root_certificate(mut self, pem: impl Into<String>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// The certificate and the key, in PEM form, by which this client identifies itself. For `zk+tls://`.
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
        zookeeper.open().await?;
        Ok(zookeeper)
    }

    /// The backend without a session: it opens one when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work.
    pub fn build(self) -> Result<ZooKeeper> {
        self.check().map(ZooKeeper::new).map_err(configure)
    }

    fn check(self) -> Result<Config, Failure> {
        let target = url::parse(&self.url)?;
        let Target { servers, tls, credentials, chroot, base, session_timeout, root_certificate } = target;
        let session_timeout = self.session_timeout.or(session_timeout).unwrap_or(SESSION_TIMEOUT);
        if !(SHORTEST..=LONGEST).contains(&session_timeout) {
            let what = format!("the session timeout is {session_timeout:?}; use {SHORTEST:?} to {LONGEST:?}");
            return Err(Failure::invalid_config(what));
        }
        let chroot = chroot.unwrap_or_default();
        let base = self.base.or(base).unwrap_or_else(|| BASE.to_owned());
        let parts = [chroot.as_str(), base.as_str()];
        let base = Base::new(if chroot.is_empty() { &parts[1..] } else { &parts })?;
        let acl = self.acl.unwrap_or_else(|| {
            let usual = if credentials.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
            usual.to_vec()
        });
        let parent_acl = self.parent_acl.unwrap_or_else(|| acl.clone());
        if acl.is_empty() || parent_acl.is_empty() {
            return Err(Failure::invalid_config("an ACL is empty, so that nobody could use the locks"));
        }
        Ok(Config {
            servers,
            chroot,
            base,
            acl: acl.into(),
            parent_acl: parent_acl.into(),
            session_timeout,
            credentials,
            tls: if tls { Some(self.certificates.options(root_certificate)?) } else { None },
        })
    }
}

impl Certificates {
    #[cfg(not(feature = "tls"))]
    fn options(self, _file: Option<String>) -> Result<Tls, Failure> {
        Err(Failure::invalid_config("TLS is not compiled in"))
    }

    #[cfg(feature = "tls")]
    fn options(self, file: Option<String>) -> Result<Tls, Failure> {
        let wrong = |error: zookeeper::Error| {
            Failure::invalid_config(format!("a certificate or its key cannot be read as PEM ({error})"))
        };
        let root = match (self.root, file) {
            (Some(pem), _) => pem,
            (None, Some(path)) => std::fs::read_to_string(&path)
                .map_err(|error| Failure::invalid_config(format!("{path:?} cannot be read ({error})")))?,
            (None, None) => {
                return Err(Failure::invalid_config(
                    "TLS needs the certificate that the servers are known by: give it with with_root_certificate or \
                     root_certificate=/path.pem in the URL",
                ));
            }
        };
        let mut options = Tls::new().with_pem_ca(&root).map_err(wrong)?;
        if let Some((certificate, key)) = self.client {
            options = options.with_pem_identity(&certificate, &key).map_err(wrong)?;
        }
        Ok(options)
    }
}

impl Config {
    /// Opens a session. Called on the runtime that is to drive it.
    pub(crate) async fn open(&self) -> std::result::Result<Client, zookeeper::Error> {
        let silence = self.session_timeout / SILENCE;
        let client = self.open_with(silence).await?;
        let granted = client.session_timeout() / SILENCE;
        if granted <= silence {
            return Ok(client);
        }
        // The server insists on a longer session: connections need not be given up as early as was asked for.
        drop(client);
        self.open_with(granted).await
    }

    async fn open_with(&self, silence: Duration) -> std::result::Result<Client, zookeeper::Error> {
        let mut connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_connection_timeout(silence)
            .with_fail_eagerly();
        if let Some(credentials) = &self.credentials {
            connector = connector.with_auth("digest", credentials.as_bytes());
        }
        match &self.tls {
            None => connector.connect(&self.servers).await,
            #[cfg(feature = "tls")]
            Some(tls) => connector.with_tls(tls.clone()).secure_connect(&self.servers).await,
            #[cfg(not(feature = "tls"))]
            Some(never) => match *never {},
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
