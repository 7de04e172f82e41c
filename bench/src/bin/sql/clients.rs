//! The clients that are measured beside each other.

use anyhow::Result;
use dlock_core::{Backend, Locks, Wait};

use crate::bare::LEASE;

/// What is measured.
pub(crate) fn dlock(backend: impl Backend) -> Result<Locks> {
    Ok(Locks::builder(backend).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}
