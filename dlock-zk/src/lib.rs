//! The ZooKeeper backend of dlock.
//!
//! [`ZooKeeper`] keeps a queue for each lock, in the form of Curator's `InterProcessMutex`, so that services in Java
//! and in Rust share one queue. See `docs/backends/zookeeper.md` for its guarantees and their limits.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod administration;
mod backend;
mod claim;
mod config;
mod diagnosis;
mod error;
mod fenced;
mod holder;
#[cfg(any(test, fuzzing))]
mod hostile;
mod left;
mod names;
mod queue;
mod queue_node;
mod recipe;
mod semaphore;
mod session;
mod sessions;
mod wire;

pub use backend::ZooKeeper;
pub use claim::ZooKeeperClaim;
pub use config::ZooKeeperBuilder;
pub use fenced::FencedWrite;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use hostile::holders_in;
pub use recipe::Recipe;
/// The entries of an access control list, for [`ZooKeeperBuilder::with_acl`].
pub use zookeeper::{Acl, AuthId, Permission};
