//! The locks that one connection keeps.
//!
//! The server lets a session have a name any number of times. Which claims may have one together is decided here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Fence, Holder, Key, Token};
use tokio::time::Instant;

use super::hold_signal::HoldSignal;
use super::name::holder_of;

/// The bytes by which the server distinguishes locks.
pub(super) type Id = [u8; 32];

/// A lock that the connection keeps.
pub(super) struct Held {
    pub(super) key: Key,
    /// Set if other readers may hold it too.
    pub(super) reads: bool,
    pub(super) fence: Option<Fence>,
    /// The line about the holder.
    pub(super) holder: String,
    pub(super) lease: Duration,
    pub(super) signal: Arc<HoldSignal>,
    /// The moment at which the statement was sent that took it.
    pub(super) taken: Instant,
    pub(super) suspect: bool,
    /// Set while it is being released.
    pub(super) leaves: bool,
}

impl Held {
    pub(super) fn holder(&self) -> Holder {
        let mut holder = holder_of(&self.holder);
        holder.fence = self.fence;
        holder
    }
}

/// The locks of a connection, by the name and the token of the claim.
#[derive(Default)]
pub(super) struct HeldLocks(BTreeMap<(Id, [u8; 16]), Held>);

impl HeldLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Held> {
        self.0.values_mut()
    }

    /// Returns the locks of a name.
    pub(super) fn of(&self, id: Id) -> impl Iterator<Item = &Held> {
        // The tokens are the second part of the key, so that the locks of a name stand together.
        self.0.range((id, [0; 16])..=(id, [0xff; 16])).map(|(_, held)| held)
    }

    /// Returns a lock that keeps a claim from the name.
    pub(super) fn in_the_way(&self, id: Id, reads: bool) -> Option<&Held> {
        self.of(id).find(|held| !(reads && held.reads))
    }

    pub(super) fn get(&self, id: Id, token: &Token) -> Option<&Held> {
        self.0.get(&(id, *token.as_bytes()))
    }

    pub(super) fn get_mut(&mut self, id: Id, token: &Token) -> Option<&mut Held> {
        self.0.get_mut(&(id, *token.as_bytes()))
    }

    pub(super) fn insert(&mut self, id: Id, token: Token, held: Held) {
        self.0.insert((id, *token.as_bytes()), held);
    }

    pub(super) fn remove(&mut self, id: Id, token: &Token) {
        self.0.remove(&(id, *token.as_bytes()));
    }
}
