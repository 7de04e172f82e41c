//! Writes proofs of life when they are due, one for all claims that need one.
//!
//! | `Session::proving` | the shared proof of life | what `prove_life_together` does |
//! |---|---|---|
//! | `None` | none is under way | starts a task that writes one, and waits for it |
//! | an open channel | is under way | waits for it |
//! | a closed channel | its task was dropped | starts another task |

use std::sync::Arc;

use dlock_core::backend::by_then;
use dlock_core::{Failure, Timestamp, keeper};
use tokio::sync::watch;
use tokio::time::Instant;
use zookeeper::Error;

use super::Session;
use crate::error::of_read;

impl Session {
    /// Makes sure that proofs of life can be written, before a lock depends on them.
    pub(crate) async fn provable(self: &Arc<Self>, until: Instant) -> Result<(), Failure> {
        if self.proof.exists() {
            return Ok(());
        }
        Box::pin(self.prove_life_together(until)).await
    }

    /// Returns when the last proof of life was sent. Writes another one if that was too long ago.
    pub(crate) async fn fresh_proof(self: &Arc<Self>, until: Instant) -> Result<Timestamp, Failure> {
        // A proof that was under way already may have been sent long ago. The second one was not.
        for _ in 0..2 {
            // A quarter of the timeout leaves a grant five twelfths of it, since a proof counts for two thirds.
            if self.clock.now().since(self.kept.lock().proven_at) < self.timeout / 4 {
                break;
            }
            Box::pin(self.prove_life_together(until)).await?;
        }
        Ok(self.kept.lock().proven_at)
    }

    /// Writes a proof of life, one for all callers of a moment. The write goes on when the callers are cancelled.
    async fn prove_life_together(self: &Arc<Self>, until: Instant) -> Result<(), Failure> {
        let mut proving = {
            let mut proving = self.proving.lock();
            match &*proving {
                // The channel is closed if its task was dropped.
                Some(under_way) if under_way.has_changed().is_ok() => under_way.clone(),
                _ => {
                    let (sender, receiver) = watch::channel(None);
                    let session = Arc::clone(self);
                    keeper::runtime()?.spawn(async move {
                        let written = session.write_proof().await.map(drop);
                        // Before the outcome is sent: a caller that comes now gets a proof that is sent after it came.
                        *session.proving.lock() = None;
                        sender.send_replace(Some(written));
                    });
                    proving.insert(receiver).clone()
                }
            }
        };
        let written = async {
            // The channel is closed if the task is dropped with its runtime, at the end of the process.
            let written = proving.wait_for(Option::is_some).await;
            written.map_or(Err(Error::ClientClosed), |written| written.clone().unwrap_or(Ok(())))
        };
        self.in_time(until, written).await
    }

    /// Writes a proof of life. Fails as `Unavailable` if it was not confirmed, also if the session has ended.
    pub(crate) async fn prove_life(&self, until: Instant) -> Result<(), Failure> {
        self.server_time(until).await.map(drop)
    }

    /// Returns the time of a write that is made now, in milliseconds since 1970 by the servers' clock, as the times of
    /// nodes are.
    pub(crate) async fn server_time(&self, until: Instant) -> Result<i64, Failure> {
        self.in_time(until, self.write_proof()).await
    }

    async fn write_proof(&self) -> Result<i64, Error> {
        let sent = self.clock.now();
        let written = self.proof.write(&self.client).await;
        match &written {
            Ok(_) => self.note_proof(sent),
            Err(error) => self.end_if_failed(error),
        }
        written
    }

    async fn in_time<T>(
        &self,
        until: Instant,
        written: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let path = self.proof.path();
        match by_then(until, written).await {
            // Judged as a read: no lock depends on this write yet, so that its outcome does not matter.
            Some(written) => written.map_err(|error| of_read(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to a write to {path:?}"))),
        }
    }

    /// Notes that a write that was sent at `sent` was confirmed.
    pub(crate) fn note_proof(&self, sent: Timestamp) {
        let mut kept = self.kept.lock();
        // The tasks of two proofs may come here in either order.
        kept.proven_at = kept.proven_at.max(sent);
    }
}
