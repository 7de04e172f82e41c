//! Async distributed locks that tell you when they are lost.
//!
//! A service annotates an async fn and gets mutual exclusion across processes and hosts:
//!
#![cfg_attr(feature = "macros", doc = "```")]
#![cfg_attr(not(feature = "macros"), doc = "```ignore")]
//! use dlock::{Error, distributed_lock};
//!
//! #[distributed_lock(key = "room_<id>", wait = "5s", guard = held)]
//! async fn book(id: u64) -> Result<u64, Error> {
//!     Ok(held.fence().expect("memory locks have fences").get())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
//! dlock::register("locks", dlock::connect("memory:").await?)?;
//! let (first, second) = (book(7).await?, book(7).await?);
//! assert!(second > first, "every grant has a higher fence");
//! # Ok(()) }
//! ```
//!
//! * `distributed_lock`: the attribute, and the reference of its options.
//! * [`Locks`], [`Lock`], [`Guard`]: the same by hand.
//! * [`Batch`], [`Segmented`]: several keys as one, and one hot key split into several.
//! * [`Lock::read`], [`Semaphore`]: many readers and one writer, and a few at a time.
//! * [`Requirement`]: guarantees without which a program does not start.
//! * [`init`]; [`connect`], [`register`]: where the locks are, from the environment or by hand.
//! * [`Memory`], [`ManualClock`], [`Faults`], [`with_backend`]: tests of your own code.
//! * [`Quorum`]: one lock on a majority of independent backends.
//! * [`backend`]: how to write a backend.
//!
//! # Features
//!
//! | feature | default | what it gives |
//! |---|---|---|
//! | `macros` | yes | the attribute |
//! | `mysql` | no | locks in a MariaDB or MySQL database |
//! | `mysql-tls` | no | the same over TLS |
//! | `postgres` | no | locks in a PostgreSQL database |
//! | `postgres-tls` | no | the same over TLS |
//! | `serde` | no | a `Baton` in what serde writes |
//! | `otel` | no | metrics and linked traces for OpenTelemetry |
//! | `redis` | no | locks on Redis: a single server, under Sentinel, or a Cluster |
//! | `redis-tls` | no | the same over TLS |
//! | `redis-credentials` | no | credentials on Redis that change while connections are open |
//! | `sqlite` | no | locks for the processes of one host, in a SQLite database |
//! | `zk` | no | fair locks on ZooKeeper; shares Curator's queues |
//! | `zk-tls` | no | the same over TLS |
//! | `zk-sasl` | no | logging in at ZooKeeper with SASL's DIGEST-MD5 |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod connect;
mod init;
mod registry;
mod variables;

pub use connect::{connect, from_url, quorum_from_url};
#[cfg(feature = "otel")]
pub use dlock_core::opentelemetry;
pub use dlock_core::{
    Backend, Batch, BatchGuard, BatchKey, Baton, Campaign, Capabilities, Claim, Clock, DataVersion, Election,
    Eligibility, Ended, Error, ErrorKind, Exported, Failure, Faults, Fence, Forced, Guard, HandOver,
    HandOverAll, Health, Held, Holder, Key, KeyInMode, Leader, LeaderChanges, Lock, LockOnNodes, Locks,
    LocksBuilder, MAX_LEASE, MAX_WAIT, MIN_LEASE, ManualClock, Memory, Node, NodeMark, NodeSetup, OnCrash,
    OnError, OnLost, Once, Operation, Outcome, Prefixed, Quorum, QuorumBuilder, QuorumInUse, QuorumVotes,
    Requirement, Result, Segment, Segmented, Semaphore, Stats, Term, Timestamp, VersionCheck, Wait, backend,
    current_hold, read, write,
};
#[cfg(feature = "macros")]
#[doc = include_str!("macro.md")]
pub use dlock_macros::distributed_lock;
#[cfg(feature = "macros")]
#[doc = include_str!("leader.md")]
pub use dlock_macros::leader;
#[cfg(feature = "macros")]
#[doc = include_str!("once.md")]
pub use dlock_macros::once;
#[cfg(feature = "redis")]
pub use dlock_redis as redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use dlock_sql as sql;
#[cfg(feature = "zk")]
pub use dlock_zk as zk;
pub use init::{Backends, Init, init};
pub use registry::{in_current_scope, register, registered, set_default, with_backend};

/// The examples of the README compile.
#[cfg(all(doctest, feature = "macros", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("registry.md")]
struct Readme;

/// So do those of the page on Redis.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../docs/backends/redis.md")]
struct RedisPage;

/// And of the page on SQL databases.
#[cfg(all(doctest, feature = "mysql", feature = "postgres"))]
#[doc = include_str!("../docs/backends/sql.md")]
struct SqlPage;

/// And of the page on SQLite.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../docs/backends/sqlite.md")]
struct SqlitePage;

/// And those of the pages on composition and on locks that are handed over.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/composition.md")]
#[doc = include_str!("../docs/handing-over.md")]
struct CompositionPage;

/// And those of the pages for whoever chooses, comes from another library, or has an error.
#[cfg(doctest)]
#[doc = include_str!("../docs/which-backend.md")]
#[doc = include_str!("../docs/which-lock.md")]
#[doc = include_str!("../docs/scale.md")]
#[doc = include_str!("../docs/troubleshooting.md")]
struct QuestionPages;

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFromPage;

/// And those of the page on jobs and leaders.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/jobs-and-leaders.md")]
struct JobsAndLeadersPage;

/// And those of the page on ZooKeeper.
#[cfg(all(doctest, feature = "zk"))]
#[doc = include_str!("../docs/backends/zookeeper.md")]
struct ZooKeeperPage;
