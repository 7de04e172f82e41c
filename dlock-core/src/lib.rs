//! The engine of dlock: async distributed locks over any backend.
//!
//! Services use the `dlock` crate, which re-exports what they need of this one. Authors of backends implement
//! [`Backend`] and [`Claim`]; the [`backend`] module has the rules.
//!
//! The engine owns the policy: [waiting](Wait), deadlines, the re-check of an unknown outcome, renewal on a thread of
//! its own, the local validity of a hold, [reentrancy](Locks::scope), spans. A backend owns the primitives: try, renew,
//! withdraw.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod audit;
pub mod backend;
mod backends;
mod baton;
mod clock;
mod data_version;
mod engine;
mod error;
mod failure;
mod fence;
mod guarded;
mod handles;
mod holder;
mod key;
mod mode;
mod options;
mod runtime;
mod server_address;
mod sync;
mod telemetry;
mod template;
mod token;

pub use backend::requirement::Requirement;
pub use backend::{Backend, Capabilities, Claim, Forced, Node};
pub use backends::memory::{Faults, Memory};
pub use backends::prefix::Prefixed;
pub use baton::Baton;
pub use clock::{Clock, ManualClock, Timestamp};
pub use data_version::{DataVersion, VersionCheck};
#[doc(hidden)]
pub use engine::decisions;
#[cfg(dlock_schedules)]
#[doc(hidden)]
pub use engine::scenarios;
pub use engine::scope::in_current_scope;
pub use error::{Error, ErrorKind, Failure, Operation, Result};
pub use fence::Fence;
pub use handles::batch::{Batch, BatchGuard, BatchKey, KeyInMode, read, write};
pub use handles::baton::{HandOver, HandOverAll};
pub use handles::election::{Campaign, Election, Eligibility, Leader, LeaderChanges, Term};
pub use handles::guard::Guard;
pub use handles::held::{Ended, Held, current_hold};
pub use handles::lock::Lock;
pub use handles::locks::{Health, Locks, LocksBuilder};
pub use handles::once::{OnCrash, OnError, Once, Outcome};
pub use handles::section::Section;
pub use handles::segment::{Segment, Segmented, SegmentedSection};
pub use handles::semaphore::Semaphore;
pub use holder::{Holder, Identity};
pub use key::Key;
#[doc(hidden)]
pub use options::{MAX_HOLD, MIN_HOLD_AT_LEAST, Overrides};
pub use options::{MAX_LEASE, MAX_WAIT, MIN_LEASE, OnLost, Wait};
pub use runtime::tasks as keeper;
pub use telemetry::{Exported, Stats};
pub use token::Token;

#[cfg(feature = "otel")]
pub use opentelemetry;
