//! Announcements of elections.

use std::sync::Arc;

use dlock_core::backend::Announcements;
use dlock_core::{Failure, Key};

use super::connections::Connections;
use super::route::Kind;
use super::steps::Announce;
use crate::limits::QUESTION;
use crate::question::asked;
use crate::server::Server;

impl<S: Server> Connections<S> {
    /// Announces that the holder of a key has changed, without waiting for a connection in use.
    pub(crate) async fn announce(self: &Arc<Self>, key: &Key) -> Result<(), Failure> {
        // As a release: it has a connection in reserve, so that a leader's end is announced while all others are in
        // use.
        let (connections, step) = (Arc::clone(self), Announce(key.clone()));
        asked(async move { connections.within(Kind::Release, step, QUESTION).await }).await
    }

    /// Subscribes to the announcements of a key.
    pub(crate) fn announcements(&self, key: &Key) -> Announcements {
        let listener = self.server().releases().and_then(|releases| releases.listen_announced(key).ok());
        listener.map_or_else(Announcements::none, Announcements::from)
    }
}
