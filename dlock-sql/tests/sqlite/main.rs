//! Locks in a SQLite database, on real files and with real processes.

mod administrators;
#[path = "../by_hand/mod.rs"]
mod by_hand;
mod cancelling;
#[path = "../by_hand/carrying.rs"]
mod carried;
mod carrying;
mod fences;
#[path = "../by_hand/handoff.rs"]
mod handed_off;
mod handoff;
mod locking;
#[path = "../by_hand/mixing.rs"]
mod mixing;
mod opening;
mod processes;
mod renewing;
mod replaced;
mod shares;
mod support;
