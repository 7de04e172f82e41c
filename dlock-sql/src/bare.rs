//! The statements of lease rows on a connection of the caller's, with nothing around them: the base line for measuring
//! the cost of dlock itself.

use std::time::Duration;

use dlock_core::{Key, Token};

use crate::driver::Conn;
use crate::options::ServerOptions;
use crate::protocol::{Ask, SqlResult, Taken};
use crate::rows::LeaseTable;

/// Takes and releases lease rows by the statements of the backend.
#[doc(hidden)]
#[derive(Debug)]
pub struct BareRows<S: LeaseTable>(S);

impl<S: LeaseTable> BareRows<S> {
    /// Creates it for the table of `options`, which is there.
    #[must_use]
    pub fn new(options: &ServerOptions<S>) -> Self {
        Self(S::on_table(&options.settings.table, &options.connector(), &options.settings))
    }

    /// Takes the lock with one fence, and returns whether it has it.
    ///
    /// # Errors
    ///
    /// When a statement fails.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the connection is of no use any more, and may have the lock.
    pub async fn take(
        &self,
        on: &mut Conn<S>,
        key: &Key,
        token: Token,
        lease: Duration,
        holder: &str,
    ) -> SqlResult<bool> {
        let ask = Ask { key: key.clone(), token, lease, holder: holder.to_owned(), fences: 1 };
        Ok(matches!(self.0.take(on, &ask, false).await?, Taken::Granted(_)))
    }

    /// Releases the lock, and returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the statement fails.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the connection is of no use any more, and may still have the lock.
    pub async fn release(&self, on: &mut Conn<S>, key: &Key, token: Token) -> SqlResult<bool> {
        Ok(self.0.release(on, key, &token).await?.is_some())
    }
}

#[cfg(feature = "postgres")]
impl BareRows<crate::postgres::PostgresServer> {
    /// Returns the channel on which a release is published.
    #[must_use]
    pub fn channel(&self, key: &Key) -> String {
        self.0.channel(key)
    }
}
