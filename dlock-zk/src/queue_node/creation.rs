//! The creation of a node, and the requests that are sent together with it.
//!
//! | request, in this order | sent |
//! |---|---|
//! | the creation of the directory | in every second turn of `QueueNode::create`, after one that has found it missing |
//! | the creation of the node | always |
//! | the listing of the directory | unless the node's [number](crate::queue::Numbers) may show that it stands in front |
//! | the data of the directory | for permits |

use std::sync::Arc;

use dlock_core::Timestamp;
use zookeeper::{Acls, CreateMode, CreateSequence, Error, Stat};

use crate::config::Config;
use crate::queue::Watched;
use crate::semaphore;
use crate::session::{Session, together};
use crate::wire::Answer;

/// The data of a directory, and its state.
pub(crate) type Content = (Vec<u8>, Stat);

/// The answers to a creation and to the requests that were sent together with it: the nodes of the directory, and its
/// data.
type Created = (
    Result<(Stat, CreateSequence), Error>,
    Option<Result<Vec<String>, Error>>,
    Option<Result<Content, Error>>,
);

/// A creation that was sent, and its answers.
pub(super) struct Creation {
    pub(super) sent: Timestamp,
    pub(super) watched: Option<Watched>,
    pub(super) answer: Answer<Created>,
}

/// The requests that are sent besides a creation.
pub(super) struct Parts {
    /// The creation of the directory, before.
    pub(super) directory: bool,
    /// A listing, afterwards.
    pub(super) listing: bool,
    /// A request for the data of the directory, which is that of a semaphore of so many permits.
    pub(super) permits: Option<u32>,
}

/// Sends a creation and the requests that go with it, when the answer is first polled. They are sent together, and the
/// session keeps their order.
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
        // All in one go, so that the answers come after one round trip.
        let (_made, created, listed, content) = driver.send(|| {
            // A directory that could not be made shows in the answer to the next request.
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
