//! Locks in a SQLite database, on real files and with real processes.

mod administrators;
mod cancelling;
mod fences;
mod keys;
mod locking;
mod opening;
mod processes;
mod renewing;
mod replaced;
mod support;
