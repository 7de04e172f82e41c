//! The engine of dlock: async distributed locks over any backend.
//!
//! Services use the `dlock` crate, which re-exports what they need of this one. Authors of backends implement
//! [`Backend`] and [`Claim`]; the [`backend`] module has the rules.
//!
//! The engine owns the policy: [waiting](Wait), deadlines, the re-check of an unknown outcome, renewal on a thread of
//! its own, the local validity of a hold, [reentrancy](Locks::scope), spans. A backend owns the primitives: try, renew,
//! withdraw.

#![forbid(unsafe_code)]

mod acquire;
pub mod backend;
mod batch;
mod clock;
mod course;
mod engine;
mod erased;
mod error;
mod fence;
mod guard;
mod held;
mod hold;
mod holder;
pub mod keeper;
mod key;
mod line;
mod lock;
mod locks;
mod memory;
mod observe;
mod options;
mod prefix;
mod quorum;
mod require;
mod scope;
mod section;
mod segment;
mod telemetry;
mod template;
mod token;
mod wait;

pub use backend::{Backend, Capabilities, Claim};
pub use batch::{Batch, BatchGuard};
pub use clock::{Clock, MovableClock, Timestamp};
pub use engine::Stats;
pub use error::{Error, ErrorKind, Failure, Operation, Result};
pub use fence::Fence;
pub use guard::Guard;
pub use held::Held;
pub use holder::{Holder, Identity};
pub use key::Key;
pub use lock::Lock;
pub use locks::{Locks, LocksBuilder};
pub use memory::{Faults, Memory};
pub use options::{MAX_LEASE, MAX_WAIT, MIN_LEASE, OnLost, Wait};
pub use prefix::Prefixed;
pub use quorum::{Node, Quorum, QuorumBuilder, QuorumClaim, QuorumVotes};
pub use require::Requirement;
pub use scope::{current_hold, in_current_scope};
pub use section::Section;
pub use segment::{Segment, Segmented, SegmentedSection};
pub use token::Token;

#[cfg(feature = "otel")]
pub use opentelemetry;
