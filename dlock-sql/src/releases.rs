//! Notifications of releases and of leaders, over channels of the server.

use dlock_core::backend::notify::{Channels, Listener};
use dlock_core::{Failure, Key, Token};

use crate::table::TableName;
use crate::text::number;

/// The channels on which the releases of a table are published.
#[derive(Debug)]
pub struct Releases {
    channels: Channels,
    table: TableName,
}

impl Releases {
    #[cfg(feature = "postgres")]
    pub(crate) const fn new(channels: Channels, table: TableName) -> Self {
        Self { channels, table }
    }

    /// Listens for releases of a key.
    pub(crate) fn listen(&self, key: &Key) -> Result<Listener, Failure> {
        self.channels.listen(&channel(&self.table, key))
    }

    /// Listens for the turn of a waiter in line.
    pub(crate) fn listen_turn(&self, token: &Token) -> Result<Listener, Failure> {
        self.channels.listen(&turn_channel(token))
    }

    /// As [`listen`](Self::listen), where this process listens for the key already.
    pub(crate) fn join(&self, key: &Key) -> Option<Listener> {
        self.channels.join(&channel(&self.table, key))
    }

    /// Listens for announcements about a key.
    pub(crate) fn listen_announced(&self, key: &Key) -> Result<Listener, Failure> {
        self.channels.listen(&announced_channel(&self.table, key))
    }

    /// Stops listening.
    pub(crate) fn close(&self) {
        self.channels.close();
    }
}

/// Returns the channel on which releases of `key` are published.
pub(crate) fn channel(table: &TableName, key: &Key) -> String {
    // Without the schema: two tables of one name share their channels, which costs their waiters a look now and then.
    // No name of a table has the byte between it and the key, so that no two pairs make one text.
    let name = table.name();
    format!("dlock_{:016x}", number(name.bytes().chain([0]).chain(key.as_str().bytes())))
}

/// Returns the channel on which a new leader is announced.
pub(crate) fn announced_channel(table: &TableName, key: &Key) -> String {
    // Beside the channel of releases, so that an observer is not woken by each of them.
    channel(table, key).replacen("dlock_", "dlock_term_", 1)
}

/// The channel on which a waiter in line is notified of its turn, without its token.
pub(crate) const TURNS: &str = "dlock_turn_";

/// Returns the channel on which the waiter with this token is notified of its turn.
fn turn_channel(token: &Token) -> String {
    format!("{TURNS}{}", token.to_hex())
}
