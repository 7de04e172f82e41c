//! Opens sessions.
//!
//! ```text
//!  open_session ─► open_checked ─► open_with ─► up to `OPENINGS` attempts, of which the first session counts
//!      │               │
//!      │               ├─► refuses a session timeout below two ticks
//!      │               ├─► a longer session timeout than requested: open_with once more, with more patience
//!      │               └─► find_chroot
//!      └─► no server opened a session: asks how they treat a connection, for the error
//! ```

use std::panic::resume_unwind;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{sleep, tell};
use tokio::task::JoinSet;
use zookeeper::{Acls, Client, CreateMode, Error};

use super::driver::{self, Driven};
use super::greeting::{self, Greeting};
use crate::config::Config;
use crate::error::{is_refusal, refusal};

/// The least length of the list of addresses for the client library. The library pauses between two rounds over the
/// list, twice as long each time. In a long list, in which each server stands several times, it hardly gets to a pause
/// before the session ends, and pauses a second or so at the most.
const ADDRESSES: usize = 24;
/// The share of the session timeout after which a connection without a sign of life counts as broken. That leaves time
/// to try two more servers that are silent before the locks are lost: the client library picks servers at random, and
/// may well pick the same one again.
const SILENCE: u32 = 6;
/// The number of attempts to open a session. The next one is begun when none has succeeded for as long as one server
/// may be silent, or when one has timed out while others are under way.
const OPENINGS: usize = 4;

/// The reason why no session was opened.
#[derive(Clone, Debug)]
pub(crate) enum NotOpened {
    Client(Error),
    /// No server opened a session; this is how they treat a connection.
    Unreached(Greeting),
    /// The servers or their nodes do not fit the settings.
    Settings(String),
}

impl NotOpened {
    /// Returns the failure of a lock that needed the session. Nothing was sent that changes a lock.
    pub(crate) fn failure(&self, servers: &str) -> Failure {
        let error = match self {
            Self::Settings(what) => return Failure::invalid_config(format!("{servers}: {what}")),
            Self::Client(error) => error,
            Self::Unreached(greeting) => {
                let what = match greeting {
                    Greeting::Closed => {
                        "connections are accepted and ended at once; the servers have as many of this host as they allow \
                         (maxClientCnxns), or a proxy before them reaches none"
                    }
                    Greeting::Silent => {
                        "connections are accepted, and no session comes of them; is it ZooKeeper with a quorum, and with TLS \
                         as the URL says?"
                    }
                    Greeting::None => "no connection; is a server listening there?",
                };
                return Failure::unavailable(format!("{servers}: {what}"));
            }
        };
        match error {
            Error::AuthFailed => {
                Failure::denied(format!("{servers}: the server refused the user or the password"))
            }
            Error::BadArguments(what) => Failure::invalid_config(format!("{servers}: {what}")),
            // The request was refused that looks for the path of the URL, or makes it.
            error if is_refusal(error) => {
                let refused = refusal(error, "the path of the URL");
                Failure::new(refused.kind(), format!("{servers}: {}", refused.message()))
            }
            _ => Failure::unavailable(format!("{servers}: no session could be opened ({error})")),
        }
    }
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl Config {
    /// Opens a session, and says why if no server opens one.
    pub(crate) async fn open_session(&self) -> Result<Driven, NotOpened> {
        match self.open_checked().await {
            Err(NotOpened::Client(Error::NoHosts)) => {
                Err(NotOpened::Unreached(greeting::of_any(&self.servers).await))
            }
            opened => opened,
        }
    }

    /// Opens a session, and refuses a session that endangers locks.
    async fn open_checked(&self) -> Result<Driven, NotOpened> {
        let silence = self.session_timeout / SILENCE;
        // The patience has to be given before the servers say which timeout they grant: it is that of the requested
        // one.
        let mut driven = self.open_with(silence).await?;
        let granted = driven.client.session_timeout();
        // A leader may learn of a session half a tick late, which has to fit into the last third of the timeout: see
        // `Session::trusted_for`.
        if granted < self.tick * 2 {
            return Err(NotOpened::Settings(format!(
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
            // The servers insist on a longer session: connections need not count as broken as early as was planned, and
            // are opened anew with the patience that fits.
            drop(driven);
            driven = self.open_with(granted / SILENCE).await?;
        }
        self.find_chroot(&driven.client).await?;
        Ok(driven)
    }

    async fn find_chroot(&self, client: &Client) -> Result<(), NotOpened> {
        let chroot = &self.chroot;
        // Looked for first: a user without the right to make the path can use one that is there.
        if chroot.is_empty() || client.check_stat(chroot).await?.is_some() {
            return Ok(());
        }
        if !self.creates_chroot {
            return Err(NotOpened::Settings(format!(
                "the path {chroot:?} of the URL does not exist: correct it, or have it made with create_chroot=true"
            )));
        }
        // Not a container, which the servers delete again when it is empty.
        let options = CreateMode::Persistent.with_acls(Acls::new(&self.parent_acl));
        Ok(client.mkdir(chroot, &options).await?)
    }

    /// Returns the servers, each repeated as often as makes the list long enough.
    fn addresses(&self) -> String {
        let count = self.servers.split(',').count();
        vec![self.servers.as_str(); ADDRESSES.div_ceil(count)].join(",")
    }

    /// Opens a session, by several attempts if servers are silent: each attempt picks servers at random, and may pick
    /// silent ones again and again.
    async fn open_with(&self, silence: Duration) -> Result<Driven, Error> {
        let mut attempts = JoinSet::new();
        let mut begun = 0;
        loop {
            if begun < OPENINGS {
                // Each on a thread of its own, which ends with its attempt. Sessions that come too late are closed by
                // the drop of the set.
                attempts.spawn(driver::open(self.attempt(silence)));
                begun += 1;
            }
            let more = begun < OPENINGS;
            tokio::select! {
                Some(opened) = attempts.join_next() => match opened {
                    // Other attempts may have picked a server that answers.
                    Ok(Err(Error::Timeout)) if !attempts.is_empty() => {}
                    // Any other outcome counts. The attempts that are under way end with the set.
                    Ok(opened) => return opened,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => resume_unwind(panic),
                        Err(error) => return Err(Error::UnexpectedError(error.to_string())),
                    },
                },
                () = sleep(silence), if more => {}
            }
        }
    }

    /// Returns one attempt to open a session.
    fn attempt(&self, silence: Duration) -> impl Future<Output = Result<Client, Error>> + Send + use<> {
        // Fails once all addresses were tried, and does not go on for the whole session timeout.
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

#[cfg(test)]
mod tests {
    use dlock_core::ErrorKind;

    use super::*;

    #[test]
    fn servers_that_do_not_answer_are_unavailable_and_named() {
        for greeting in [Greeting::None, Greeting::Silent, Greeting::Closed] {
            let failure = NotOpened::Unreached(greeting).failure("a:1,b:2");
            assert_eq!(failure.kind(), ErrorKind::Unavailable);
            assert!(failure.message().contains("a:1,b:2"), "{failure}");
            assert_eq!(
                failure.message().contains("maxClientCnxns"),
                greeting == Greeting::Closed,
                "{failure}"
            );
            assert_eq!(failure.message().contains("listening"), greeting == Greeting::None, "{failure}");
        }
        assert_eq!(NotOpened::Client(Error::AuthFailed).failure("a:1").kind(), ErrorKind::Denied);
    }
}
