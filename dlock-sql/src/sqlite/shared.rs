//! The state that the clones of a backend and its claims share.
//!
//! | the path leads to | `current` |
//! |---|---|
//! | the database that is open | returns it |
//! | another one | closes the first, opens the other, and returns it |
//! | none | fails: it is not made again |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlock_core::Failure;
use dlock_core::backend::{Mutex, MutexGuard};

use super::database::{Database, FileState};
use super::options::SqliteOptions;
use crate::failure::closed;
use crate::question::asked;

/// The state that the clones and the claims share.
pub(super) struct Shared {
    pub(super) options: SqliteOptions,
    database: Mutex<Arc<Database>>,
    reopening: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

impl Shared {
    pub(super) async fn open(options: SqliteOptions) -> Result<Arc<Self>, Failure> {
        let database = Database::open(&options).await?;
        Ok(Arc::new(Self {
            options,
            database: Mutex::new(database),
            reopening: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Closes the database, and opens none any more.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let database = Arc::clone(&self.database());
        database.close().await;
    }

    pub(super) fn database(&self) -> MutexGuard<'_, Arc<Database>> {
        self.database.lock()
    }

    /// Returns the database that the path leads to. Another one at the same path is opened; a database that is gone is
    /// not made again.
    pub(super) async fn current(&self) -> Result<Arc<Database>, Failure> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let database = Arc::clone(&self.database());
        match database.file_state()? {
            FileState::Same => Ok(database),
            FileState::Gone => Err(database.deleted()),
            FileState::Replaced => self.reopen().await,
        }
    }

    /// Has the database answer a question or an order that is no lock's.
    pub(super) async fn ask<T: Send + 'static, F>(
        self: &Arc<Self>,
        question: impl FnOnce(Arc<Database>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let shared = Arc::clone(self);
        asked(async move { question(shared.current().await?).await }).await
    }

    async fn reopen(&self) -> Result<Arc<Database>, Failure> {
        let _one_at_a_time = self.reopening.lock().await;
        // Looked at again: the claim that had the turn before may have opened it already.
        let database = Arc::clone(&self.database());
        if database.file_state()? == FileState::Same {
            return Ok(database);
        }
        // SQLite shares what it knows of a file among the connections of a process: none to the old one may be left.
        database.close().await;
        let database = Database::open(&self.options).await?;
        *self.database() = Arc::clone(&database);
        Ok(database)
    }
}
