//! A process of its own that works with locks, to be killed, frozen and thawed.
//!
//! [`serve`] is the main function of such a process: it takes [`Order`]s from its input, one JSON value a line, and
//! writes [`Report`]s to its output. The reliability program is one, by its command `worker`. [`Worker`] starts one and
//! talks to it.

mod orders;
mod process;
mod serve;
mod work;

pub use orders::{Order, Report, Way, Work};
pub use process::Worker;
pub use serve::serve;
pub use work::work;
