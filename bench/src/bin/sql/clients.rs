//! The clients that are measured beside each other.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::measure::{Pace, Pairs, drive};
use dlock_core::{Backend, Locks, Wait};

use crate::bare::LEASE;

type Driving = Pin<Box<dyn Future<Output = Result<Pace>> + Send>>;

/// A client, and what it is called.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    drive: Box<dyn Fn(usize, Duration) -> Driving + Send + Sync>,
}

impl Client {
    pub(crate) fn new(name: &'static str, pairs: impl Pairs) -> Self {
        let pairs = Arc::new(pairs);
        let drive = move |tasks, slice| -> Driving {
            let pairs = Arc::clone(&pairs);
            Box::pin(async move { drive(&pairs, tasks, slice).await })
        };
        Self { name, drive: Box::new(drive) }
    }

    pub(crate) async fn drive(&self, tasks: usize, slice: Duration) -> Result<Pace> {
        (self.drive)(tasks, slice).await
    }
}

/// What is measured.
pub(crate) fn dlock(backend: impl Backend) -> Result<Locks> {
    Ok(Locks::builder(backend).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}
