//! A lock that can show that it held: each hold leaves a record when it ends, and the records of all processes of a
//! fleet show that no two holders overlapped, or name the pair.
//!
//! ```
//! use dlock_audit::{Audit, FileSink, Outcome, Trail};
//! use dlock_core::{Locks, Memory};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! // In each process:
//! let sink = FileSink::in_directory(directory).start()?;
//! let locks = Locks::builder(Memory::new()).with_audit(sink.clone()).build()?;
//! locks.lock("room_7").run(async {}).await?;
//! locks.shutdown(std::time::Duration::from_secs(5)).await?;
//! sink.close();
//!
//! // Later, with the files of all of them; `dlock audit DIRECTORY` does the same:
//! let report = Audit::new().check(&Trail::read([directory])?);
//! assert_eq!(report.outcome(), Outcome::Held);
//! assert_eq!(report.summary.holds, 1);
//! # Ok(()) }
//! ```
//!
//! * [`FileSink`] writes the records of a process, on a thread of its own. No request is made for them.
//! * [`Trail`] reads the files of all processes.
//! * [`Audit`] checks them. Its rules are a [table](Audit#rules).
//! * [`checker`] has the rules for the holds of one key, for other records than these.
//!
//! What was lost is counted, and makes the outcome [`Outcome::Unknown`]: never [`Outcome::Held`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod audit;
pub mod checker;
mod clocks;
mod line;
mod report;
mod sink;
mod trail;

pub use audit::Audit;
pub use report::{Doubt, DoubtKind, Held, Outcome, ProcessName, Report, Summary, Violation, ViolationKind};
pub use sink::{FileSink, FileSinkOptions, Totals};
#[doc(hidden)]
pub use trail::made;
pub use trail::{ReadError, Trail, Wrong};
