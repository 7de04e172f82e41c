//! Locks that are held beside the service while things happen.

use std::time::Duration;

use anyhow::{Context, Result};
use dlock::Guard;
use tokio::sync::{mpsc, oneshot};

/// How many.
pub(crate) const HELD: usize = 20;
pub(crate) const LEASE: Duration = Duration::from_secs(10);

enum Ask {
    Take(oneshot::Sender<Result<()>>),
    Lost(oneshot::Sender<usize>),
    Block(Duration),
}

/// A thread with a runtime of its own, which can be blocked.
pub(crate) struct Held(mpsc::UnboundedSender<Ask>);

impl Held {
    pub(crate) fn start(url: String) -> Result<Self> {
        let (ask, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().spawn(move || runtime.block_on(hold(&url, asked)))?;
        Ok(Self(ask))
    }

    /// Takes all of them, also those that were lost.
    pub(crate) async fn take_all(&self) -> Result<()> {
        let (done, taken) = oneshot::channel();
        let _ = self.0.send(Ask::Take(done));
        taken.await.context("nobody takes locks any more")?
    }

    pub(crate) async fn lost(&self) -> Result<usize> {
        let (done, lost) = oneshot::channel();
        let _ = self.0.send(Ask::Lost(done));
        lost.await.context("nobody holds locks any more")
    }

    /// Blocks the runtime of those who hold them.
    pub(crate) fn block(&self, time: Duration) {
        let _ = self.0.send(Ask::Block(time));
    }
}

async fn hold(url: &str, mut asked: mpsc::UnboundedReceiver<Ask>) {
    let mut guards = Vec::new();
    let mut locks = None;
    while let Some(ask) = asked.recv().await {
        match ask {
            Ask::Take(done) => {
                guards.clear();
                let _ = done.send(take(url, &mut locks, &mut guards).await);
            }
            Ask::Lost(done) => {
                let lost = guards.iter().filter(|guard: &&Guard| guard.check().is_err()).count();
                let _ = done.send(lost);
            }
            Ask::Block(time) => std::thread::sleep(time),
        }
    }
    drop(guards);
    if let Some(locks) = locks {
        let _ = locks.shutdown(LEASE).await;
    }
}

async fn take(url: &str, locks: &mut Option<dlock::Locks>, guards: &mut Vec<Guard>) -> Result<()> {
    if locks.is_none() {
        *locks = Some(dlock::from_url(url).await?.with_lease(LEASE).build()?);
    }
    let locks = locks.as_ref().context("they were just made")?;
    for number in 0..HELD {
        guards.push(locks.lock(format!("beside_{number}")).acquire().await?);
    }
    Ok(())
}
