//! How many requests of one session are under way.
//!
//! The servers answer the requests of a session in their order, so that each one waits for all before it. What would make a
//! queue waits in this process instead, where what nobody needs any more is never sent, and what is urgent overtakes it.

use std::sync::Arc;

use tokio::sync::Semaphore;
use zookeeper::{Client, Error};

use super::Answer;

/// How many claims may have requests under way, each a creation and a listing or the looks of one who waits.
const ORDINARY: usize = 128;
/// How many deletions may be under way besides.
const DELETIONS: usize = 128;

/// The bounds of one session. Proofs of life have none: there are few of them.
pub(crate) struct Requests {
    pub(crate) ordinary: Arc<Semaphore>,
    deletions: Arc<Semaphore>,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { ordinary: Arc::new(Semaphore::new(ORDINARY)), deletions: Arc::new(Semaphore::new(DELETIONS)) }
    }

    /// Deletes a node, ahead of whatever is not under way yet. Sent at once unless very many are.
    pub(crate) fn delete(&self, client: &Client, path: &Arc<str>) -> Answer<Result<(), Error>> {
        match Arc::clone(&self.deletions).try_acquire_owned() {
            Ok(turn) => {
                let deletion = client.delete(path, None);
                Box::pin(async move {
                    let deleted = deletion.await;
                    drop(turn);
                    deleted
                })
            }
            Err(_) => {
                let (client, path, turns) = (client.clone(), Arc::clone(path), Arc::clone(&self.deletions));
                Box::pin(async move {
                    let _turn = turns.acquire_owned().await;
                    client.delete(&path, None).await
                })
            }
        }
    }
}
