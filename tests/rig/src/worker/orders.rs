//! The orders of a worker, and its reports.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An order to a worker. Each is answered by one [`Report`]; after [`Order::Watch`], further ones come by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Connect. The first order. Answered by [`Report::Done`].
    Open {
        /// The URL of the backend.
        url: String,
        /// The lease, in milliseconds.
        lease_ms: u64,
    },
    /// Take the lock and keep it. Answered by [`Report::Acquired`].
    Acquire {
        /// The key.
        key: String,
        /// How long to wait, in milliseconds; with zero, ask once.
        wait_ms: u64,
    },
    /// Take permits and keep them. Answered by [`Report::Acquired`].
    Take {
        /// The key.
        key: String,
        /// How many.
        permits: u32,
        /// How many there are.
        of: u32,
    },
    /// Is it held? Answered by [`Report::Checked`].
    Check,
    /// Release the lock. Answered by [`Report::Done`].
    Release,
    /// Stand for the election of this key, again and again, until the end. Answered by [`Report::Done`]; each term is
    /// reported by [`Report::Leads`], and its end by [`Report::Left`].
    Lead {
        /// The key.
        key: String,
    },
    /// Run the job of this key once, which takes a while. Answered by [`Report::Fired`]; when it runs here, its begin
    /// is reported before by [`Report::Began`], and its last step by [`Report::Ended`].
    Fire {
        /// The key.
        key: String,
        /// The window, in milliseconds.
        window_ms: u64,
        /// How long the job takes, in milliseconds.
        run_ms: u64,
        /// Whether a crash closes the window.
        skip_after_crash: bool,
    },
    /// Block the only thread of the runtime. Answered by [`Report::Checked`] after it.
    Block {
        /// For how long.
        ms: u64,
    },
    /// Check the lock again and again on a thread of its own. The first check that began after the process had stood
    /// still for longer than `gap_ms` is reported by [`Report::Paused`]; the loss by [`Report::Lost`]. Answered by
    /// [`Report::Done`] after the first check.
    Watch {
        /// How long a pause has to be.
        gap_ms: u64,
    },
    /// Read the register under the fence of the lock. Answered by [`Report::Value`].
    Read {
        /// Where the register is served.
        register: SocketAddr,
    },
    /// Write the register under the fence of the lock, without a look at whether it is still held. Answered by
    /// [`Report::Value`].
    Write {
        /// Where the register is served.
        register: SocketAddr,
        /// The value that was read.
        read: u64,
        /// The new value.
        value: u64,
    },
    /// Run critical sections until [`Order::Stop`], whose answer is [`Report::Worked`].
    Work(Work),
    /// End the work.
    Stop,
}

/// Critical sections, one after the other: take the lock, read the register, wait, write the register, release the
/// lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The number of the process.
    pub process: u32,
    /// The key.
    pub key: String,
    /// Where the register is served.
    pub register: SocketAddr,
    /// How long a section waits between reading and writing, in milliseconds: from, to.
    pub pause_ms: (u64, u64),
    /// The seed of the pauses.
    pub seed: u64,
    /// Where the history goes.
    pub history: PathBuf,
    /// How the lock is taken.
    pub way: Way,
    /// How many tasks work at the same time.
    pub tasks: u64,
}

/// How sections take their lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Alone.
    Alone,
    /// Alone, in the order in which they came.
    Fair,
    /// Three of four read.
    Shared,
    /// One permit or more of so many.
    Permits(u32),
}

/// What a worker tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It is done.
    Done,
    /// The lock is taken.
    Acquired {
        /// Its fence.
        fence: Option<u64>,
        /// When the acquire returned, as [`now_ns`](dlock_testkit::now_ns).
        at: u64,
    },
    /// What a check said.
    Checked {
        /// Whether it was fine.
        held: bool,
    },
    /// The process had stood still, or the lock is gone, and this is the first check after it.
    Paused {
        /// For how long, in nanoseconds.
        for_ns: u64,
        /// Whether the check was fine.
        held: bool,
    },
    /// The loss of the lock was signalled.
    Lost {
        /// When, as [`now_ns`](dlock_testkit::now_ns).
        at: u64,
    },
    /// A job begins here.
    Began,
    /// The job is at its end.
    Ended,
    /// A firing is over.
    Fired {
        /// Whether the job ran here.
        ran: bool,
    },
    /// A term begins.
    Leads {
        /// Its number.
        term: u64,
        /// When, as [`now_ns`](dlock_testkit::now_ns).
        at: u64,
    },
    /// A term is over.
    Left {
        /// Its number.
        term: u64,
        /// When a check was fine, or a step of its body was run, for the last time.
        believed_until: u64,
    },
    /// What the register answered: its value, or that the fence is stale.
    Value(Option<u64>),
    /// How many sections were run.
    Worked {
        /// Sections that got to their end.
        sections: u64,
        /// Acquires that failed.
        failed: u64,
    },
    /// It could not be done.
    Failed {
        /// The kind of the lock's error, or `io`.
        kind: String,
        /// The error.
        error: String,
    },
}
