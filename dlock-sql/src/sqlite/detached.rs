//! Steps of several statements, which end whether their caller polls them or not.
//!
//! A transaction that writes keeps every other process from the database. A future may stay unpolled for as long as its
//! caller likes, in a `select!` loop that is busy in another branch for instance, so none of them has a transaction of
//! its own: such a step runs on dlock's own runtime, and its caller waits for the answer.

use std::sync::{Arc, OnceLock};

use dlock_core::{ErrorKind, Failure, keeper};
use tokio::sync::oneshot;

use super::claim::SqliteClaim;

/// A step of a claim that is under way.
pub(super) struct Detached {
    /// The writer that it uses, once it has one.
    writer: Arc<OnceLock<usize>>,
    /// Closed when the step has ended.
    ended: oneshot::Receiver<()>,
}

/// Runs `step` on dlock's own runtime.
///
/// # Cancel safety
///
/// A `step` goes on to its end when its caller is dropped.
pub(super) async fn detached<T: Send + 'static>(
    step: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    keeper::runtime()?.spawn(step).await.unwrap_or_else(|_| Err(gone()))
}

fn gone() -> Failure {
    Failure::unknown("the step ended without an answer")
}

impl SqliteClaim {
    /// Runs a step that notes in `writer` which one it uses. Where the outcome is not known, what follows goes after it
    /// on the same connection.
    ///
    /// # Cancel safety
    ///
    /// The step goes on to its end when this is dropped; [`settle`](Self::settle) waits for it.
    pub(super) async fn detached<T: Send + 'static>(
        &mut self,
        writer: &Arc<OnceLock<usize>>,
        step: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let (ends, ended) = oneshot::channel();
        self.detached = Some(Detached { writer: Arc::clone(writer), ended });
        let answer = detached(async move {
            let answer = step.await;
            drop::<oneshot::Sender<()>>(ends);
            answer
        })
        .await;
        self.detached = None;
        if matches!(&answer, Err(failure) if failure.kind() == ErrorKind::Unknown) {
            self.unsettled = writer.get().copied().or(self.unsettled);
        }
        answer
    }

    /// Waits for the end of a step whose caller was dropped. What it came to is not known.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(super) async fn settle(&mut self) {
        if let Some(Detached { writer, ended }) = &mut self.detached {
            let _ = ended.await;
            self.unsettled = writer.get().copied().or(self.unsettled);
            self.detached = None;
        }
    }
}
