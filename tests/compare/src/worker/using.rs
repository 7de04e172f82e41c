//! `rslock`, by its `using`, which renews and ends the body when that fails.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rslock::LockManager;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// What the body is asked.
enum Ask {
    /// To answer, which it can while it runs.
    Answer(oneshot::Sender<()>),
    /// To end, which releases the lock.
    End,
}

/// A body under the lock.
pub(super) struct Using {
    body: mpsc::UnboundedSender<Ask>,
    ended: watch::Receiver<bool>,
    /// Dropping it drops the call.
    call: JoinSet<Result<()>>,
}

impl Using {
    pub(super) async fn begin(manager: &LockManager, key: &str, lease: Duration) -> Result<Self> {
        let (inside, entered) = oneshot::channel();
        let (body, mut asked) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let (manager, key) = (manager.clone(), key.to_owned());
        let mut call = JoinSet::new();
        call.spawn_local(async move {
            let body = async move || {
                let _ = inside.send(());
                while let Some(Ask::Answer(answer)) = asked.recv().await {
                    let _ = answer.send(());
                }
            };
            let outcome = manager.using(key.as_bytes(), lease, body).await;
            end.send_replace(true);
            Ok(outcome?)
        });
        if entered.await.is_err() {
            call.join_next().await.context("it was dropped")???;
        }
        Ok(Self { body, ended, call })
    }

    pub(super) async fn release(mut self) -> Result<()> {
        let _ = self.body.send(Ask::End);
        self.call.join_next().await.context("it was dropped")??
    }

    /// Whether the body still runs.
    pub(super) fn asks(&self) -> impl Future<Output = bool> + use<> {
        let (answer, answered) = oneshot::channel();
        let sent = self.body.send(Ask::Answer(answer)).is_ok();
        async move { sent && answered.await.is_ok() }
    }

    /// Waits until the body was ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut ended = self.ended.clone();
        async move { drop(ended.wait_for(|ended| *ended).await) }
    }
}
