//! Writes proofs of life when they are due, one for all claims that need one.

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

    /// Returns when the last proof of life was sent; writes another one if that was too long ago.
    pub(crate) async fn fresh_proof(self: &Arc<Self>, until: Instant) -> Result<Timestamp, Failure> {
        // One that was under way may have been sent long ago; the next is not.
        for _ in 0..2 {
            if self.clock.now().since(self.kept.lock().proven_at) < self.timeout / 4 {
                break;
            }
            Box::pin(self.prove_life_together(until)).await?;
        }
        Ok(self.kept.lock().proven_at)
    }

    /// Writes a proof of life, one for all callers of a moment. It goes on when they are cancelled.
    async fn prove_life_together(self: &Arc<Self>, until: Instant) -> Result<(), Failure> {
        let mut proving = {
            let mut proving = self.proving.lock();
            match &*proving {
                // A closed channel: its task was dropped.
                Some(under_way) if under_way.has_changed().is_ok() => under_way.clone(),
                _ => {
                    let (tell, told) = watch::channel(None);
                    let session = Arc::clone(self);
                    keeper::runtime()?.spawn(async move {
                        let written = session.write_proof().await.map(drop);
                        *session.proving.lock() = None;
                        tell.send_replace(Some(written));
                    });
                    proving.insert(told).clone()
                }
            }
        };
        let written = async {
            // The channel is closed when the task is dropped with its runtime, at the end of the process.
            let written = proving.wait_for(Option::is_some).await;
            written.map_or(Err(Error::ClientClosed), |written| written.clone().unwrap_or(Ok(())))
        };
        self.in_time(until, written).await
    }

    /// Writes a proof of life. Fails as `Unavailable` when it was not confirmed, also when the session is over.
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
            // No lock depends on it yet, so that the outcome does not matter.
            Some(written) => written.map_err(|error| of_read(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to a write to {path:?}"))),
        }
    }

    /// Notes that a write which was sent at `sent` was confirmed.
    pub(crate) fn note_proof(&self, sent: Timestamp) {
        let mut kept = self.kept.lock();
        kept.proven_at = kept.proven_at.max(sent);
    }
}
