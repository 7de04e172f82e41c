//! The clients that are measured beside each other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dlock_bench_common::measure::{Pace, drive};
use dlock_core::{Backend, Locks, Wait};

use crate::bare::{BareMysql, BarePostgres, LEASE};

/// A client, and what it is called.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
}

/// How a client takes its locks.
pub(crate) enum Way {
    Dlock(Arc<Locks>),
    Postgres(Arc<BarePostgres>),
    Mysql(Arc<BareMysql>),
}

impl Client {
    pub(crate) async fn drive(&self, tasks: usize, slice: Duration) -> Result<Pace> {
        match &self.way {
            Way::Dlock(locks) => drive(locks, tasks, slice).await,
            Way::Postgres(bare) => drive(bare, tasks, slice).await,
            Way::Mysql(bare) => drive(bare, tasks, slice).await,
        }
    }
}

/// What is measured.
pub(crate) fn dlock(backend: impl Backend) -> Result<Locks> {
    Ok(Locks::builder(backend).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}
