//! What a claim has on the server: its node in the queue, or what may become one.
//!
//! Requests whose answers matter live in here and not in the future of a step, so that a step that is dropped midway loses
//! nothing: the next one waits for the same answer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::Withdrawal;
use tokio::time::Instant;
use zookeeper::{Acls, CreateMode, CreateSequence, Error, Stat};

use crate::config::Config;
use crate::error::{is_refusal, of_read, of_write};
use crate::names::{self, Standing};
use crate::session::{Session, read};

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Created = (Result<(Stat, CreateSequence), Error>, Result<Vec<String>, Error>);

/// How often the directory is made anew when it vanishes between its making and the making of a node in it.
const DIRECTORIES: u32 = 8;

/// For requests that others bound.
const FOREVER: Duration = Duration::from_secs(3_600);

/// A claim's place in a queue.
pub(crate) struct Place {
    pub(crate) session: Arc<Session>,
    directory: Arc<str>,
    /// What the node's name begins with.
    prefix: Arc<str>,
    node: Option<Node>,
    /// A creation and a listing that were sent together.
    creation: Option<Answer<Created>>,
    /// A node may exist whose name was never learned.
    in_doubt: bool,
    deletion: Option<Answer<Result<(), Error>>>,
    /// A deletion was sent that nobody knows the outcome of.
    deleted_unseen: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: Arc<str>,
    pub(crate) czxid: i64,
    name: String,
}

impl Place {
    pub(crate) fn new(session: Arc<Session>, directory: Arc<str>, prefix: Arc<str>) -> Self {
        Self {
            session,
            directory,
            prefix,
            node: None,
            creation: None,
            in_doubt: false,
            deletion: None,
            deleted_unseen: false,
        }
    }

    /// Goes over to another session. A node of the old one may still be there.
    pub(crate) fn move_to(&mut self, session: Arc<Session>) {
        let in_doubt = self.in_doubt || self.creation.is_some();
        *self =
            Self { in_doubt, ..Self::new(session, Arc::clone(&self.directory), Arc::clone(&self.prefix)) };
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Whether the server certainly has nothing of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.node.is_none() && self.creation.is_none() && !self.in_doubt && self.deletion.is_none()
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    fn set_node(&mut self, name: String, stat: &Stat) {
        self.node = Some(Node { path: self.path_of(&name).into(), czxid: stat.czxid, name });
        self.in_doubt = false;
    }

    /// Takes a place if there is none yet, and says where it stands.
    pub(crate) async fn stand(
        &mut self,
        config: &Config,
        describe: impl Fn() -> String + Send,
        until: Instant,
    ) -> Result<Standing, Failure> {
        if self.deletion.is_some() {
            // An earlier step left the queue already.
            self.deleted().await?;
        }
        if self.deleted_unseen {
            (self.node, self.in_doubt) = (None, true);
        }
        if self.creation.is_none() && self.in_doubt {
            self.find(until).await?;
        }
        if self.node.is_none() {
            let children = self.take(config, describe, until).await?;
            let twins = children.iter().filter(|name| name.starts_with(&*self.prefix)).count();
            if twins == 1 {
                return Ok(self.among(children));
            }
            // An earlier request under the same token was carried out too, or somebody deleted the node already.
            self.in_doubt = true;
            self.find(until).await?;
        }
        let children = self.session.list(&self.directory, until).await?;
        Ok(self.among(children.unwrap_or_default()))
    }

    fn among(&mut self, children: Vec<String>) -> Standing {
        let Some(node) = &self.node else { return Standing::Missing };
        let standing = names::standing(children, &node.name);
        if standing == Standing::Missing {
            self.node = None;
        }
        standing
    }

    /// Creates the node; returns what the directory contains then.
    async fn take(
        &mut self,
        config: &Config,
        describe: impl Fn() -> String + Send,
        until: Instant,
    ) -> Result<Vec<String>, Failure> {
        for turn in 0..DIRECTORIES {
            let creation = match &mut self.creation {
                Some(creation) => creation,
                none => {
                    // The first time the directory is taken to be there, then most likely only the last part is missing.
                    let with_directory = turn % 2 == 1;
                    let (directory, prefix) = (&self.directory, &self.prefix);
                    none.insert(send(&self.session, directory, prefix, config, describe(), with_directory))
                }
            };
            let (created, listed) = creation.await;
            self.creation = None;
            match created {
                Ok((stat, sequence)) => {
                    self.set_node(format!("{}{sequence}", self.prefix), &stat);
                    return read(&self.directory, until, async { listed })
                        .await
                        .map(Option::unwrap_or_default);
                }
                Err(Error::NoNode) if turn % 2 == 0 => {}
                Err(Error::NoNode) => make_directory(&self.session, &self.directory, config, until).await?,
                Err(error) => {
                    self.session.heed(&error);
                    self.in_doubt = !is_refusal(&error);
                    return Err(of_write(error, &self.directory));
                }
            }
        }
        Err(of_write(Error::NoNode, &self.directory))
    }

    /// Finds out what became of a creation whose answer did not come. Adopts the oldest node that this session has, and
    /// deletes the others: those of a session that ended go away when the server pleases.
    async fn find(&mut self, until: Instant) -> Result<(), Failure> {
        let children = self.session.list(&self.directory, until).await?.unwrap_or_default();
        let own = names::in_order(children).into_iter().filter(|name| name.starts_with(&*self.prefix));
        let mut adopted = None;
        for name in own.collect::<Vec<_>>() {
            let path = self.path_of(&name);
            let look = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
            let Some(stat) = look else { continue };
            if adopted.is_none() && stat.ephemeral_owner == self.session.id {
                adopted = Some((name, stat));
            } else {
                delete(&self.session, &path, until).await?;
            }
        }
        self.node = None;
        self.in_doubt = false;
        if let Some((name, stat)) = adopted {
            self.set_node(name, &stat);
        }
        Ok(())
    }

    /// Sends the deletion of the node, ahead of whatever this session sends next.
    pub(crate) fn send_deletion(&mut self) {
        if let (Some(node), None) = (&self.node, &self.deletion) {
            self.deletion = Some(Box::pin(self.session.client.delete(&node.path, None)));
        }
    }

    /// Leaves the queue.
    pub(crate) async fn leave(&mut self) -> Result<Withdrawal, Failure> {
        if self.session.ended().is_some() {
            // The server takes the nodes away.
            (self.node, self.creation, self.deletion, self.in_doubt) = (None, None, None, false);
            return Ok(Withdrawal::ABSENT);
        }
        let mut withdrawn = Withdrawal::ABSENT;
        loop {
            self.learn().await?;
            self.send_deletion();
            if self.deletion.is_none() {
                return Ok(withdrawn);
            }
            if self.deleted().await? {
                withdrawn = Withdrawal::REMOVED;
            }
            if !self.in_doubt {
                return Ok(withdrawn);
            }
        }
    }

    /// The outcome of the deletion: whether there was a node.
    async fn deleted(&mut self) -> Result<bool, Failure> {
        let Some(deletion) = &mut self.deletion else { return Ok(false) };
        let deleted = deletion.await;
        self.deletion = None;
        let there = match deleted {
            Ok(()) => true,
            Err(Error::NoNode) => self.deleted_unseen,
            Err(error) => {
                self.session.heed(&error);
                self.deleted_unseen |= !is_refusal(&error);
                return Err(of_write(error, &self.directory));
            }
        };
        (self.node, self.deleted_unseen) = (None, false);
        Ok(there)
    }

    /// Finds out the name of the node, if there is one.
    async fn learn(&mut self) -> Result<(), Failure> {
        if let Some(creation) = &mut self.creation {
            let (created, _) = creation.await;
            self.creation = None;
            match created {
                Ok((stat, sequence)) => self.set_node(format!("{}{sequence}", self.prefix), &stat),
                Err(error) => self.in_doubt |= !is_refusal(&error),
            }
        }
        if self.in_doubt && self.node.is_none() {
            // Bounded by the caller.
            self.find(Instant::now() + FOREVER).await?;
        }
        Ok(())
    }
}

/// Sends a creation and a listing together; the session keeps their order. `with_directory`, that is created first.
fn send(
    session: &Session,
    directory: &str,
    prefix: &str,
    config: &Config,
    data: String,
    with_directory: bool,
) -> Answer<Created> {
    let client = session.client.clone();
    let (directory, path) = (directory.to_owned(), format!("{directory}/{prefix}"));
    let (acl, parent_acl) = (Arc::clone(&config.acl), Arc::clone(&config.parent_acl));
    Box::pin(async move {
        let container = CreateMode::Container.with_acls(Acls::new(&parent_acl));
        // What came of it shows in the answer to the next request.
        let _made = with_directory.then(|| client.create(&directory, &[], &container));
        let options = CreateMode::EphemeralSequential.with_acls(Acls::new(&acl));
        let created = client.create(&path, data.as_bytes(), &options);
        let listed = client.list_children(&directory);
        (created.await, listed.await)
    })
}

async fn make_directory(
    session: &Session,
    directory: &str,
    config: &Config,
    until: Instant,
) -> Result<(), Failure> {
    let make = async |mode: CreateMode| {
        let options = mode.with_acls(Acls::new(&config.parent_acl));
        match tokio::time::timeout_at(until, session.client.mkdir(directory, &options)).await {
            Ok(made) => made,
            Err(_) => Err(Error::Timeout),
        }
    };
    let made = match make(CreateMode::Container).await {
        Err(Error::Unimplemented) => make(CreateMode::Persistent).await,
        made => made,
    };
    // No lock is in an empty directory, so that an unknown outcome is none.
    made.map_err(|error| of_read(error, directory))
}

async fn delete(session: &Session, path: &str, until: Instant) -> Result<(), Failure> {
    match tokio::time::timeout_at(until, session.client.delete(path, None)).await {
        Ok(Ok(()) | Err(Error::NoNode)) => Ok(()),
        Ok(Err(error)) => Err(of_write(error, path)),
        Err(_) => Err(Failure::unavailable(format!("no answer in time to the deletion of {path:?}"))),
    }
}
