//! The libraries, by what a user of each would call.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Result, bail};
use dlock::{ErrorKind, Guard, Locks, Wait};
use rslock::LockManager;

use super::Event;
use super::advisory::{Advisory, AdvisoryLock};
use super::using::Using;

pub(super) enum Client {
    Dlock(Locks),
    Rslock(LockManager, Duration),
    Advisory(Advisory),
}

impl Client {
    pub(super) async fn open(library: &str, url: &str, lease: Duration) -> Result<Self> {
        Ok(match library {
            "dlock" => Self::Dlock(dlock::from_url(url).await?.with_lease(lease).build()?),
            "rslock" => Self::Rslock(LockManager::new(vec![url.to_owned()]), lease),
            "advisory" => Self::Advisory(Advisory::open(url)?),
            other => bail!("no library is called {other}"),
        })
    }

    /// Nothing when it took too long.
    pub(super) async fn acquire(&self, key: &str, wait: Option<Duration>) -> Result<Option<Taken>> {
        if let Self::Dlock(locks) = self {
            let wait = wait.map_or(Wait::Forever, Wait::For);
            return match locks.lock(key).with_wait(wait).acquire().await {
                Ok(guard) => Ok(Some(Taken::Dlock(guard))),
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        // The others have no limit of their own.
        match wait {
            Some(wait) => tokio::time::timeout(wait, self.acquire_theirs(key)).await.ok().transpose(),
            None => self.acquire_theirs(key).await.map(Some),
        }
    }

    async fn acquire_theirs(&self, key: &str) -> Result<Taken> {
        Ok(match self {
            Self::Dlock(locks) => Taken::Dlock(locks.lock(key).acquire().await?),
            Self::Rslock(manager, lease) => Taken::Rslock(Using::begin(manager, key, *lease).await?),
            Self::Advisory(advisory) => Taken::Advisory(advisory.acquire(key).await?),
        })
    }
}

/// A lock that is held.
pub(super) enum Taken {
    Dlock(Guard),
    Rslock(Using),
    Advisory(AdvisoryLock),
}

impl Taken {
    pub(super) fn fence(&self) -> Option<u64> {
        match self {
            Self::Dlock(guard) => guard.fence().map(dlock::Fence::get),
            Self::Rslock(_) | Self::Advisory(_) => None,
        }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Dlock(guard) => Ok(guard.release().await?),
            Self::Rslock(using) => using.release().await,
            Self::Advisory(lock) => lock.release().await,
        }
    }

    /// Whether it is held, as the library says when it is asked.
    pub(super) fn asks(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        match self {
            Self::Dlock(guard) => {
                let held = guard.check().is_ok();
                Box::pin(async move { held })
            }
            Self::Rslock(using) => {
                let held = using.asks();
                Box::pin(held)
            }
            // Nothing can be asked; the guard is there.
            Self::Advisory(_) => Box::pin(async { true }),
        }
    }

    /// What tells of a danger and of the loss, where there is something to listen to.
    pub(super) fn listens(&self) -> Option<(Event, Event)> {
        match self {
            Self::Dlock(guard) => {
                let (risk, loss) = (guard.held(), guard.held());
                let warned = async move {
                    risk.at_risk().await;
                };
                Some((Box::pin(warned), Box::pin(async move { loss.lost().await })))
            }
            Self::Rslock(using) => Some((Box::pin(pending()), Box::pin(using.ended()))),
            Self::Advisory(_) => None,
        }
    }
}
