//! Files, fleets and verdicts.

mod files;
mod fleet;
mod fleets;
