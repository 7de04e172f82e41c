//! The node of a claim in the queue of its lock, or a request that may make one.
//!
//! Requests whose answers matter live in a [`QueueNode`] and not in the future of a step, so that a step that is
//! dropped midway loses nothing: the next one waits for the same answer.
//!
//! | state | fields that are set | what ends it |
//! |---|---|---|
//! | nothing | none of these | `ensure_node` sends a creation: creating |
//! | creating | `creation` | the node was made: in the queue; the server refused it: nothing; no answer: in doubt |
//! | in doubt | `in_doubt` | `find` keeps the oldest node that this session has under `prefix`, and deletes the others: in the queue, or nothing |
//! | in the queue | `node` | `send_deletion`, `leave`: leaving; `leave_behind`: replacing; `downgrade`: downgrading |
//! | leaving | `node`, `deletion` | the node is gone: nothing; the server refused it: in the queue; no answer: deleted unseen |
//! | deleted unseen | `node`, `deleted_unseen` | `leave` sends the deletion again, and a node that is missing counts as removed: nothing; `ensure_node`: in doubt |
//! | replacing | `node`, `replacement` | a node keeps the key taken: nothing; the server refused it: in the queue; no answer: deleted unseen, with `replaced_unseen` |
//! | downgrading | `node`, `downgrade`, `downgrade_unseen` | the node of a reader is there: in the queue by that; the server refused it: in the queue; no answer: the next `downgrade` looks for the reader's node, and `leave` deletes both |
//!
//! The servers delete the node when its session ends: `move_to` begins anew, in doubt if a creation was not answered.

mod creation;
pub(crate) mod downgrade;
mod leaving;
mod replacement;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mode, Withdrawal, by_then};
use dlock_core::{Failure, Timestamp};
use tokio::time::Instant;
use zookeeper::{Error, Stat};

pub(crate) use self::creation::Content;
use self::creation::{Creation, Parts, send};
pub(crate) use self::leaving::{LeaveOutcome, LeftNode};
use self::replacement::Replacement;
use crate::config::Config;
use crate::error::{is_refusal, of_read, of_write};
use crate::queue::{Queue, Turn, Watched};
use crate::recipe::{Position, Recipe};
use crate::session::Session;
use crate::wire::{Answer, make_directory, read};

/// The number of times that the creation of a node is sent, since its directory may vanish again and again.
const DIRECTORIES: u32 = 8;

/// The bound of a request in a step that the caller bounds.
const FOREVER: Duration = Duration::from_secs(3_600);

/// A claim's node in a queue.
pub(crate) struct QueueNode {
    pub(crate) session: Arc<Session>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) recipe: Recipe,
    pub(crate) turn: Turn,
    mode: Mode,
    /// The prefix of the node's name, which no other claim's node has.
    prefix: Arc<str>,
    node: Option<Node>,
    creation: Option<Creation>,
    /// A node may exist whose name is not known.
    in_doubt: bool,
    deletion: Option<Answer<Result<(), Error>>>,
    /// A replacement by a node that keeps the key taken. Its answer is the end of that, by the servers' clock.
    replacement: Option<Replacement<i64>>,
    /// A deletion was sent whose outcome is not known.
    deleted_unseen: bool,
    /// The new node of a replacement whose outcome is not known.
    replaced_unseen: Option<Arc<str>>,
    /// A replacement by the node of a reader.
    downgrade: Option<Replacement<Stat>>,
    /// The node of the reader, from the send of such a replacement until its outcome is known.
    downgrade_unseen: Option<Arc<str>>,
}

/// The nodes around a node when it was made, as far as they are known.
enum Neighbours {
    /// The node stands in front.
    First,
    /// These nodes were in the queue afterwards, and the directory of a semaphore had this data.
    Nodes(Vec<String>, Option<Content>),
    Unknown,
}

/// The outcome of `ensure_node`.
pub(crate) enum Enqueued {
    /// The node was made just now, and no node stands before it.
    First,
    /// The node was made just now. These nodes were in the queue afterwards, and the directory of a semaphore had this
    /// data.
    New(Vec<String>, Option<Content>),
    /// The node is there; its neighbours have to be asked for.
    There,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: Arc<str>,
    pub(crate) czxid: i64,
    pub(crate) name: String,
    /// The time at which the node was made, by the servers' clock. `known` is the local time at which that was known.
    pub(crate) ctime: i64,
    pub(crate) known: Timestamp,
    watched: Option<Watched>,
    /// No node stood before it when it was made.
    at_once: bool,
}

impl QueueNode {
    pub(crate) fn new(
        session: Arc<Session>,
        queue: Arc<Queue>,
        (recipe, mode): (Recipe, Mode),
        prefix: Arc<str>,
    ) -> Self {
        Self {
            session,
            queue,
            recipe,
            turn: Turn::default(),
            mode,
            prefix,
            node: None,
            creation: None,
            in_doubt: false,
            deletion: None,
            replacement: None,
            deleted_unseen: false,
            replaced_unseen: None,
            downgrade: None,
            downgrade_unseen: None,
        }
    }

    /// Begins anew with another session, while a node of the old one may still be there. Returns `true` if the claim
    /// had a node.
    pub(crate) fn move_to(&mut self, session: Arc<Session>) -> bool {
        let had_node = self.node.is_some();
        // The creation may have made a node. Its name has the same prefix, so that the new session finds and deletes
        // it.
        let in_doubt = self.in_doubt || self.creation.is_some();
        let turn = std::mem::take(&mut self.turn);
        let (queue, prefix) = (Arc::clone(&self.queue), Arc::clone(&self.prefix));
        *self = Self { in_doubt, turn, ..Self::new(session, queue, (self.recipe, self.mode), prefix) };
        had_node
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns `true` if the servers certainly have nothing of the claim.
    pub(crate) fn is_empty(&self) -> bool {
        self.node.is_none()
            && self.creation.is_none()
            && !self.in_doubt
            && self.deletion.is_none()
            && self.downgrade_unseen.is_none()
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.queue.directory)
    }

    fn set_node(&mut self, name: String, stat: &Stat, watched: Option<Watched>) {
        let (path, known) = (self.path_of(&name).into(), self.session.clock.now());
        let Stat { czxid, ctime, .. } = *stat;
        self.node = Some(Node { path, czxid, name, ctime, known, watched, at_once: false });
        self.in_doubt = false;
    }

    /// Makes the node if there is none yet, and returns its position.
    pub(crate) async fn enqueue(
        &mut self,
        config: &Config,
        describe: impl Fn() -> String + Send,
        until: Instant,
    ) -> Result<Position, Failure> {
        match self.ensure_node(config, describe, until).await? {
            Enqueued::First => {
                if let Some(node) = &mut self.node {
                    node.at_once = true;
                    self.queue.note_head(&node.name);
                }
                Ok(Position::First)
            }
            Enqueued::New(children, _) => {
                let position = self.position(&children);
                if let Some(node) = &mut self.node {
                    node.at_once = position == Position::First;
                }
                Ok(position)
            }
            Enqueued::There => {
                let children = Box::pin(self.children(until)).await?;
                Ok(self.position(&children))
            }
        }
    }

    /// Makes the node if there is none yet.
    pub(crate) async fn ensure_node(
        &mut self,
        config: &Config,
        describe: impl Fn() -> String + Send,
        until: Instant,
    ) -> Result<Enqueued, Failure> {
        if self.deletion.is_some() {
            // An earlier step has left the queue already. Its outcome comes before a new node.
            self.deleted().await?;
        }
        // The node may be gone or not: it is looked for by its prefix.
        if std::mem::take(&mut self.deleted_unseen) {
            (self.node, self.in_doubt) = (None, true);
        }
        // The outcome of a creation that is under way is waited for in `create`.
        if self.creation.is_none() && self.in_doubt {
            Box::pin(self.find(until)).await?;
        }
        if self.node.is_some() {
            return Ok(Enqueued::There);
        }
        let (children, content) = match self.create(config, describe, until).await? {
            Neighbours::First => return Ok(Enqueued::First),
            Neighbours::Nodes(children, content) => (children, content),
            Neighbours::Unknown => (Box::pin(self.children(until)).await?.to_vec(), None),
        };
        let duplicates = children.iter().filter(|name| name.starts_with(&*self.prefix)).count();
        if duplicates == 1 {
            return Ok(Enqueued::New(children, content));
        }
        // An earlier request under the same token was carried out too, or another client has deleted the node already.
        self.in_doubt = true;
        Box::pin(self.find(until)).await?;
        Ok(Enqueued::There)
    }

    async fn children(&mut self, until: Instant) -> Result<Arc<[String]>, Failure> {
        Ok(self.queue.list(&self.session, until).await?.unwrap_or_default())
    }

    fn position(&mut self, children: &[String]) -> Position {
        let Some(node) = &self.node else { return Position::Missing };
        let position = self.recipe.position(children, &node.name);
        match &position {
            Position::First => self.queue.note_head(&node.name),
            Position::Behind { first, .. } => self.queue.note_head(first),
            Position::Reading
            | Position::Missing
            | Position::Semaphore
            | Position::Unclear(_)
            | Position::Exhausted => {}
        }
        position
    }

    /// Creates the node, and returns what is known of the other nodes then.
    async fn create(
        &mut self,
        config: &Config,
        describe: impl Fn() -> String + Send,
        until: Instant,
    ) -> Result<Neighbours, Failure> {
        for turn in 0..DIRECTORIES {
            let creation = match &mut self.creation {
                Some(creation) => creation,
                none => {
                    // The first turn takes the directory to be there. After that, most likely only its last part is
                    // missing.
                    let with_directory = turn % 2 == 1;
                    let (directory, prefix) = (&self.queue.directory, &self.prefix);
                    let sent = self.session.clock.now();
                    let permits = self.mode.permits();
                    let numbers = &self.queue.numbers;
                    let watched = if permits.is_none() { numbers.creating(&self.session) } else { None };
                    let what = Parts {
                        directory: with_directory,
                        listing: !watched.is_some_and(Watched::is_decisive),
                        permits,
                    };
                    let answer = send(&self.session, directory, prefix, config, describe(), what);
                    none.insert(Creation { sent, watched, answer })
                }
            };
            // The answer stays in `self` until it has come: if this future is dropped, the next call waits for the same
            // one.
            let (created, listed, content) = (&mut creation.answer).await;
            let (sent, watched) = (creation.sent, creation.watched);
            self.creation = None;
            match created {
                Ok((stat, sequence)) => {
                    self.session.note_proof(sent);
                    self.set_node(format!("{}{sequence}", self.prefix), &stat, watched);
                    let Some(listed) = listed else {
                        let numbers = &self.queue.numbers;
                        let first = watched.is_some_and(|watched| {
                            numbers.prove(&self.session, watched, sequence.into_i64())
                        });
                        return Ok(if first { Neighbours::First } else { Neighbours::Unknown });
                    };
                    let directory = &self.queue.directory;
                    return match (listed, content.transpose()) {
                        (Ok(children), Ok(content)) => Ok(Neighbours::Nodes(children, content)),
                        (Err(Error::NoNode), _) | (_, Err(Error::NoNode)) => {
                            Ok(Neighbours::Nodes(Vec::new(), None))
                        }
                        (Err(error), _) | (_, Err(error)) => Err(of_read(error, directory)),
                    };
                }
                Err(Error::NoNode) if turn % 2 == 0 => {}
                Err(Error::NoNode) => {
                    let directory = &self.queue.directory;
                    let made = make_directory(&self.session.client, directory, &config.parent_acl);
                    let made = Box::pin(by_then(until, made)).await;
                    // Judged as a read: no lock is in an empty directory, so that an unknown outcome does not matter.
                    made.unwrap_or(Err(Error::Timeout)).map_err(|error| of_read(error, directory))?;
                }
                Err(error) => {
                    self.session.end_if_failed(&error);
                    // A refusal made no node. Any other failure leaves open whether there is one.
                    self.in_doubt = !is_refusal(&error);
                    return Err(of_write(error, &self.queue.directory));
                }
            }
        }
        Err(of_write(Error::NoNode, &self.queue.directory))
    }

    /// Finds out whether a creation whose answer did not come has made a node. Adopts the oldest node that this session
    /// has, and deletes the others: the servers delete those of an ended session in their own time.
    async fn find(&mut self, until: Instant) -> Result<(), Failure> {
        // Listed by way of the leader, since the server of this session may lag behind the creation.
        let children = self.session.list(&self.queue.directory, until).await?.unwrap_or_default();
        let own = self.recipe.in_order(&children).into_iter().filter(|name| name.starts_with(&*self.prefix));
        let mut adopted = None;
        for name in own.map(str::to_owned).collect::<Vec<_>>() {
            let path: Arc<str> = self.path_of(&name).into();
            let look = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
            let Some(stat) = look else { continue };
            if adopted.is_none() && stat.ephemeral_owner == self.session.id {
                adopted = Some((name, stat));
            } else {
                self.session.delete(&path, until).await?;
            }
        }
        self.node = None;
        self.in_doubt = false;
        if let Some((name, stat)) = adopted {
            self.set_node(name, &stat, None);
        }
        Ok(())
    }

    /// Sends the deletion of the node, ahead of all that this session sends next.
    pub(crate) fn send_deletion(&mut self) {
        if let (Some(node), None) = (&self.node, &self.deletion) {
            self.deletion = Some(self.session.requests.delete(&node.path));
        }
    }

    /// Notes that the servers have nothing of the claim any more.
    pub(crate) fn forget(&mut self) {
        (self.node, self.creation, self.deletion, self.in_doubt) = (None, None, None, false);
        (self.replacement, self.downgrade, self.downgrade_unseen) = (None, None, None);
    }

    /// Leaves the queue.
    pub(crate) async fn leave(&mut self) -> Result<Withdrawal, Failure> {
        let mut withdrawal = Withdrawal::ABSENT;
        self.drop_replacement();
        if self.session.ended().is_some() {
            // The servers delete the nodes of a session that has ended.
            self.forget();
            self.turn.left();
            return Ok(withdrawal);
        }
        loop {
            // First, since a deletion needs the name of the node.
            self.learn().await?;
            // Other claims may send requests before the deletion is answered.
            self.turn.asked();
            self.send_deletion();
            if self.deletion.is_none() {
                break;
            }
            if self.deleted().await? {
                withdrawal = Withdrawal::REMOVED;
            }
            // There may be another node under the same prefix, which the next `learn` looks for.
            if !self.in_doubt {
                break;
            }
        }
        // Not before the own node is gone: the transaction that replaces it by a reader's may still be under way, and
        // fails from then on.
        if let Some(reader) = self.drop_downgrade() {
            // `downgrade_unseen` stays until the deletion is known to be done, so that a step that is dropped here is
            // repeated.
            match self.session.requests.delete(&reader).await {
                Ok(()) => withdrawal = Withdrawal::REMOVED,
                Err(Error::NoNode) => {}
                Err(error) => {
                    self.session.end_if_failed(&error);
                    return Err(of_write(error, &self.queue.directory));
                }
            }
            self.downgrade_unseen = None;
        }
        self.turn.left();
        Ok(withdrawal)
    }

    /// Waits for the deletion, and returns `true` if there was a node.
    async fn deleted(&mut self) -> Result<bool, Failure> {
        let Some(deletion) = &mut self.deletion else { return Ok(false) };
        let deleted = deletion.await;
        self.deletion = None;
        let there = match deleted {
            Ok(()) => {
                self.note_gone();
                true
            }
            // Removed by an earlier deletion of this claim, if one was sent, and else by another client.
            Err(Error::NoNode) => self.deleted_unseen,
            Err(error) => {
                self.session.end_if_failed(&error);
                self.deleted_unseen |= !is_refusal(&error);
                return Err(of_write(error, &self.queue.directory));
            }
        };
        (self.node, self.deleted_unseen) = (None, false);
        Ok(there)
    }

    /// Remembers the number of a node that had the lock.
    fn note_gone(&self) {
        if let Some(node) = &self.node
            && self.queue.is_head(&node.name)
            && let Some(number) = self.recipe.sequence(&node.name)
        {
            let directory = &self.queue.directory;
            self.queue.numbers.note_gone(&self.session, directory, node.watched, number, node.at_once);
        }
    }

    /// Finds out the name of the node, if there is one.
    async fn learn(&mut self) -> Result<(), Failure> {
        if let Some(creation) = &mut self.creation {
            let (created, ..) = (&mut creation.answer).await;
            self.creation = None;
            match created {
                Ok((stat, sequence)) => self.set_node(format!("{}{sequence}", self.prefix), &stat, None),
                Err(error) => self.in_doubt |= !is_refusal(&error),
            }
        }
        if self.in_doubt && self.node.is_none() {
            // The caller bounds the whole step.
            Box::pin(self.find(Instant::now() + FOREVER)).await?;
        }
        Ok(())
    }
}
