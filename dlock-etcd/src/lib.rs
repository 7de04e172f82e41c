//! The etcd backend of dlock.
//!
//! [`Etcd`] keeps a queue for each lock, in the form of `concurrency.Mutex` and `concurrency.Election` of etcd's Go
//! client, so that services in Go and in Rust share one queue. See `docs/backends/etcd.md` for its guarantees and their
//! limits.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod administration;
mod answer;
mod backend;
mod claim;
mod config;
mod diagnosis;
mod ends;
mod error;
mod going_over;
mod lease;
mod names;
mod proof;
mod rule;
mod semaphore;
mod servers;
mod shared;
mod watch;

pub use backend::Etcd;
pub use claim::EtcdClaim;
pub use config::EtcdBuilder;
