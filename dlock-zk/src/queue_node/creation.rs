//! The creation of a node, and what is asked together with it.

use std::sync::Arc;

use dlock_core::Timestamp;
use zookeeper::{Acls, CreateMode, CreateSequence, Error, Stat};

use crate::config::Config;
use crate::queue::Watched;
use crate::semaphore;
use crate::session::{Session, together};
use crate::wire::Answer;

/// What a directory has besides its nodes.
pub(crate) type Content = (Vec<u8>, Stat);

/// The answers to a creation and to what was asked together with it: the nodes of the directory, and what it has.
type Created = (
    Result<(Stat, CreateSequence), Error>,
    Option<Result<Vec<String>, Error>>,
    Option<Result<Content, Error>>,
);

/// A creation, and a listing that was sent together with it unless its number may tell enough.
pub(super) struct Creation {
    pub(super) sent: Timestamp,
    pub(super) watched: Option<Watched>,
    pub(super) answer: Answer<Created>,
}

/// What is sent besides a creation.
pub(super) struct Parts {
    /// The creation of the directory, before.
    pub(super) directory: bool,
    /// A listing, afterwards.
    pub(super) listing: bool,
    /// The directory of a semaphore of so many permits: what it has is asked for too.
    pub(super) permits: Option<u32>,
}

/// Sends a creation and what goes with it together; the session keeps their order.
pub(super) fn send(
    session: &Session,
    directory: &Arc<str>,
    prefix: &str,
    config: &Config,
    data: String,
    parts: Parts,
) -> Answer<Created> {
    let (client, driver) = (session.client.clone(), Arc::clone(&session.driver));
    let (directory, path) = (Arc::clone(directory), format!("{directory}/{prefix}"));
    let (acl, parent_acl) = (Arc::clone(&config.acl), Arc::clone(&config.parent_acl));
    together(Box::pin(async move {
        let container = CreateMode::Container.with_acls(Acls::new(&parent_acl));
        let options = CreateMode::EphemeralSequential.with_acls(Acls::new(&acl));
        let content = parts.permits.map(semaphore::content).unwrap_or_default();
        let (_made, created, listed, content) = driver.send(|| {
            // What came of it shows in the answer to the next request.
            let made = parts.directory.then(|| client.create(&directory, content.as_bytes(), &container));
            let created = client.create(&path, data.as_bytes(), &options);
            let listed = parts.listing.then(|| client.list_children(&directory));
            (made, created, listed, parts.permits.map(|_| client.get_data(&directory)))
        });
        let created = created.await;
        let listed = match listed {
            Some(listed) => Some(listed.await),
            None => None,
        };
        let content = match content {
            Some(content) => Some(content.await),
            None => None,
        };
        (created, listed, content)
    }))
}
