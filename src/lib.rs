//! Async distributed locks that tell you when they are lost.
//!
//! A service annotates an async fn and gets mutual exclusion across processes and hosts:
//!
#![cfg_attr(feature = "macros", doc = "```no_run")]
#![cfg_attr(not(feature = "macros"), doc = "```ignore")]
//! use std::time::Duration;
//! use dlock::{Error, distributed_lock};
//!
//! #[distributed_lock(key = "room_<id>", wait = "5s", guard = held)]
//! async fn book(id: u64) -> Result<String, Error> {
//!     // One caller at a time for each room, over all processes and hosts.
//!     Ok(format!("room {id} is booked, fence {:?}", held.fence()))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let backends = dlock::init().await?; // connects to what DLOCK_URL names
//!     println!("{}", book(7).await?);
//!     if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
//!         eprintln!("{late}"); // the server is away: what is left ends with its lease
//!     }
//!     Ok(())
//! }
//! ```
//!
//! ```sh
//! cargo add dlock-sdk --features redis
//! cargo add tokio --features macros,rt-multi-thread
//! DLOCK_URL=redis://127.0.0.1:6379 cargo run
//! ```
//!
//! Other stores have other features and URLs: `zk://zk-1:2181`, `postgres://user:password@host/database?migrate=true`,
//! `mysql://...`, `sqlite:///var/lib/app/locks.db`; [`connect`] lists them all.
//!
//! # What is here
//!
#![cfg_attr(feature = "macros", doc = "* [`distributed_lock`](macro@distributed_lock): the attribute.")]
#![cfg_attr(feature = "macros", doc = "* [`once`](macro@once), [`Once`]: a job that one replica runs.")]
#![cfg_attr(
    feature = "macros",
    doc = "* [`leader`](macro@leader), [`Election`]: a body that one replica runs."
)]
//! * [`init`]; [`connect`], [`register`]: where the locks are, from the environment or by hand.
//! * [`Locks`], [`Lock`], [`Guard`]: locks without the attribute.
//! * [`Lock::read`], [`Semaphore`]: many readers and one writer, and a few at a time.
//! * [`Batch`], [`Segmented`]: several keys as one, and one hot key split into several.
//! * [`Guard::hand_over`], [`Locks::take_over`]: a lock that is passed on to another process.
//! * [`Requirement`]: guarantees without which a program does not start.
//! * [`Memory`], [`ManualClock`], [`Faults`], [`with_backend`]: tests of your own code.
//! * `Quorum`, with the feature `quorum`: one lock on a majority of independent backends.
//! * [`LocksBuilder::with_audit`]: records of all holds, from which `dlock audit` shows that no two of them overlapped.
//! * [`backend`]: how to write a backend.
//! * [`dlock-tower`](https://docs.rs/dlock-tower): a lock for each request of a service, with an extractor for axum.
//! * [`dlock-cli`](https://crates.io/crates/dlock-cli): the program `dlock`, which shows who holds which lock and runs
//!   commands under one.
//!
#![cfg_attr(feature = "macros", doc = include_str!("guides.md"))]
//! # Features
//!
//! | feature | what it gives | oldest Rust |
//! |---|---|---|
//! | `macros` (default) | the attributes | 1.88 |
//! | `redis` | locks on Redis: a single server, under Sentinel, or a Cluster | 1.88 |
//! | `redis-tls` | the same over TLS | 1.88 |
//! | `redis-credentials` | credentials on Redis that change while connections are open | 1.88 |
//! | `zk` | fair locks on ZooKeeper; shares Curator's queues | 1.89 |
//! | `zk-tls` | the same over TLS | 1.89 |
//! | `zk-sasl` | logging in at ZooKeeper with SASL's DIGEST-MD5 | 1.89 |
//! | `etcd` | fair locks on etcd; shares the queues of its Go client. The build needs `protoc` | 1.89 |
//! | `etcd-tls` | the same over TLS | 1.89 |
//! | `postgres` | locks in a PostgreSQL database | 1.94 |
//! | `postgres-tls` | the same over TLS | 1.94 |
//! | `mysql` | locks in a MariaDB or MySQL database | 1.94 |
//! | `mysql-tls` | the same over TLS | 1.94 |
//! | `sqlite` | locks for the processes of one host, in a SQLite database | 1.94 |
//! | `quorum` | one lock on a majority of independent backends | 1.88 |
//! | `sql-tx` | locks of your own transaction or connection, and writes by fence or by version, in a database | 1.94 |
//! | `otel` | metrics and linked traces for OpenTelemetry | 1.88 |
//! | `serde` | a `Baton` in what serde writes | 1.88 |
//! | `audit` | records of all holds in files, and the check that no two of them overlapped | 1.88 |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod connect;
mod init;
mod registry;
mod variables;

/// The guides: how to choose, what is promised, how it is operated.
#[cfg(all(doc, not(doctest), feature = "macros"))]
pub mod guides {
    dlock_macros::guides!();
}

/// Records of holds, from which it can be shown that no two holders overlapped.
#[cfg(feature = "audit")]
pub mod audit {
    pub use dlock_audit::*;
    pub use dlock_core::audit::*;
}

#[cfg(feature = "quorum")]
pub use connect::quorum_from_url;
pub use connect::{connect, from_url};
#[cfg(not(feature = "audit"))]
pub use dlock_core::audit;
#[cfg(feature = "otel")]
pub use dlock_core::opentelemetry;
pub use dlock_core::{
    Backend, Batch, BatchGuard, BatchKey, Baton, Campaign, Capabilities, Claim, Clock, DataVersion, Election,
    Eligibility, Ended, Error, ErrorKind, Exported, Failure, Faults, Fence, Forced, Guard, HandOver,
    HandOverAll, Health, Held, Holder, Key, KeyInMode, Leader, LeaderChanges, Lock, Locks, LocksBuilder,
    MAX_LEASE, MAX_WAIT, MIN_LEASE, ManualClock, Memory, Node, OnCrash, OnError, OnLost, Once, Operation,
    Outcome, Prefixed, Requirement, Result, Segment, Segmented, Semaphore, Stats, Term, Timestamp,
    VersionCheck, Wait, backend, current_hold, read, write,
};
#[cfg(feature = "etcd")]
pub use dlock_etcd as etcd;
#[cfg(feature = "macros")]
#[doc = include_str!("macro.md")]
pub use dlock_macros::distributed_lock;
#[cfg(feature = "macros")]
#[doc = include_str!("leader.md")]
pub use dlock_macros::leader;
#[cfg(feature = "macros")]
#[doc = include_str!("once.md")]
pub use dlock_macros::once;
#[cfg(feature = "quorum")]
pub use dlock_quorum::{LockOnNodes, NodeMark, NodeSetup, Quorum, QuorumBuilder, QuorumInUse, QuorumVotes};
#[cfg(feature = "redis")]
pub use dlock_redis as redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use dlock_sql as sql;
#[cfg(feature = "zk")]
pub use dlock_zk as zk;
pub use init::{Backends, Init, init};
pub use registry::{in_current_scope, register, registered, set_default, with_backend};

/// The examples of the README, which have to compile.
#[cfg(all(doctest, feature = "macros", feature = "otel", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("registry.md")]
struct Readme;

/// The examples of the page on Redis.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../docs/backends/redis.md")]
struct RedisPage;

/// The examples of the page on etcd.
#[cfg(all(doctest, feature = "etcd"))]
#[doc = include_str!("../docs/backends/etcd.md")]
struct EtcdPage;

/// The examples of the page on SQL databases.
#[cfg(all(doctest, feature = "mysql", feature = "postgres", feature = "sql-tx"))]
#[doc = include_str!("../docs/backends/sql.md")]
struct SqlPage;

/// The examples of the page on SQLite.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../docs/backends/sqlite.md")]
struct SqlitePage;

/// The examples of the page on operations.
#[cfg(all(doctest, feature = "audit"))]
#[doc = include_str!("../docs/operations.md")]
struct OperationsPage;

/// The examples of the pages on composition and on locks that are handed over.
#[cfg(all(doctest, feature = "macros", feature = "quorum"))]
#[doc = include_str!("../docs/composition.md")]
#[doc = include_str!("../docs/handing-over.md")]
struct CompositionPage;

/// The examples of the pages about choosing, and about errors.
#[cfg(doctest)]
#[doc = include_str!("../docs/which-backend.md")]
#[doc = include_str!("../docs/which-lock.md")]
#[doc = include_str!("../docs/scale.md")]
#[doc = include_str!("../docs/troubleshooting.md")]
struct QuestionPages;

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFromPage;

/// The examples of the page on jobs and leaders.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/jobs-and-leaders.md")]
struct JobsAndLeadersPage;

/// The examples of the page on ZooKeeper.
#[cfg(all(doctest, feature = "zk"))]
#[doc = include_str!("../docs/backends/zookeeper.md")]
struct ZooKeeperPage;
