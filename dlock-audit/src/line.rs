//! The lines of a file: what [`FileSink`](crate::FileSink) writes and [`Trail`](crate::Trail) reads.
//!
//! ```text
//! {"t":"run","v":1,"run":"9f..","host":"web-1","pid":7,"clock":"3e..","part":1,"first":1,"mono":5,"wall":17}
//! {"t":"locks","locks":1,"backend":"redis","store":"90f5fb40f5f3f42a","in_process":false,"label":"orders"}
//! {"t":"hold","n":1,"locks":1,"key":"#90f5fb40f5f3f42a","fence":7,"mode":"alone","from":6,"until":8,"end":"released"}
//! {"t":"clock","n":1,"lost":0,"held":2,"mono":9,"wall":21}
//! {"t":"end","n":1,"lost":0,"held":0,"mono":9,"wall":21}
//! ```
//!
//! Times are in nanoseconds: `mono`, `from` and `until` by the clock of leases, which counts since the host started;
//! `wall` since 1970, read at the same moment as the `mono` beside it.

use std::borrow::Cow;

use dlock_core::backend::Mode;
use serde::{Deserialize, Serialize};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The mark before the hash of a key, which stands for a key that is not shown.
pub(crate) const HASHED: char = '#';

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(crate) enum Line<'a> {
    #[serde(borrow)]
    Run(Run<'a>),
    #[serde(borrow)]
    Locks(LocksLine<'a>),
    #[serde(borrow)]
    Hold(HoldLine<'a>),
    Clock(State),
    End(State),
}

/// The first line of each file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run<'a> {
    pub(crate) v: u32,
    /// Names this run of the process.
    pub(crate) run: Cow<'a, str>,
    pub(crate) host: Cow<'a, str>,
    pub(crate) pid: u32,
    /// Names the clock: times of equal clocks compare exactly.
    pub(crate) clock: Cow<'a, str>,
    /// The number of the file among those of this run.
    pub(crate) part: u32,
    /// The number of the next record.
    pub(crate) first: u64,
    pub(crate) mono: u64,
    pub(crate) wall: u64,
}

/// The `Locks` that records name by a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LocksLine<'a> {
    pub(crate) locks: u64,
    pub(crate) backend: Cow<'a, str>,
    pub(crate) store: Cow<'a, str>,
    pub(crate) in_process: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<Cow<'a, str>>,
}

/// One hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HoldLine<'a> {
    pub(crate) n: u64,
    pub(crate) locks: u64,
    pub(crate) key: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    pub(crate) mode: ModeField,
    pub(crate) from: u64,
    pub(crate) until: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alone_until: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) passed_on: bool,
    pub(crate) end: Cow<'a, str>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeField {
    Alone,
    Reader,
    Permits { taken: u32, of: u32 },
}

impl ModeField {
    pub(crate) const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Reader,
            Mode::Permits { of, take } => Self::Permits { taken: take, of },
            // A mode that this version does not know is taken for the one that excludes all others.
            _ => Self::Alone,
        }
    }
}

/// The counts so far, with both clocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The number of the last record.
    pub(crate) n: u64,
    /// How many records were lost.
    pub(crate) lost: u64,
    /// How many holds have begun of which there is no record, and none was lost.
    pub(crate) held: u64,
    pub(crate) mono: u64,
    pub(crate) wall: u64,
    /// The next file of this run goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) goes_on: bool,
}
