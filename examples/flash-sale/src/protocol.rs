//! What the parent and its workers say to each other: one JSON document a line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What one worker has to do. Sent over standard input, since a URL can contain a password and arguments can be seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) shop: PathBuf,
    /// The URL of the locks; none sells without.
    pub(crate) locks: Option<String>,
    pub(crate) lease_ms: u64,
    pub(crate) label: String,
    pub(crate) buyers: u32,
    pub(crate) customers: Vec<u32>,
    pub(crate) seed: u64,
    /// How long a sale works, on average.
    pub(crate) work_ms: u64,
    /// A sale goes on when its lock is lost, so that its stale write really reaches the shop.
    pub(crate) regardless: bool,
    /// The stock is in segments, each with a lock of its own.
    pub(crate) segmented: bool,
}

/// From the parent to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// The first command.
    Job(Job),
    /// Begin to sell.
    Start,
    /// The next buyer who is inside the critical section says so and stays there.
    Park,
    /// Nobody stays any longer.
    Go,
}

/// From a worker to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Connected; waits for the start.
    Ready,
    /// A buyer has read the stock, has not yet written it, and stays inside the critical section.
    Inside { fence: u64 },
    /// A customer was served.
    Served { customer: u32, sale: Sale, wait_us: u64, fence: Option<u64> },
    /// The shop refused a stale write; the customer tries again.
    Refused { fence: u64, knew: bool },
    /// The lock could not be taken or was lost; the customer tries again.
    Again { why: String },
    /// A customer was not served.
    Failed { customer: u32, why: String },
}

/// How a customer was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sale {
    Sold,
    SoldOut,
    /// An earlier try, of a worker that died before it could say so, had succeeded.
    Already,
}
