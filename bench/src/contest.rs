//! Clients that take turns, so that they see the same machine, and what ours achieves beside each of the others.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
#[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
use {dlock_interop::peer::Peer, tokio::sync::Mutex};

use crate::measure::{Pace, Pairs, best, drive, pace_row};
use crate::report::{Row, Spread};

type Driving = Pin<Box<dyn Future<Output = Result<Pace>> + Send>>;

/// A client, and what the table calls it.
#[allow(missing_debug_implementations, reason = "nobody prints a client")]
pub struct Client {
    /// What the table calls it.
    pub name: &'static str,
    drive: Box<dyn Fn(usize, Duration) -> Driving + Send + Sync>,
}

impl Client {
    /// A client of this process.
    pub fn new(name: &'static str, pairs: impl Pairs) -> Self {
        let pairs = Arc::new(pairs);
        let drive = move |tasks, slice| -> Driving {
            let pairs = Arc::clone(&pairs);
            Box::pin(async move { drive(&pairs, tasks, slice).await })
        };
        Self { name, drive: Box::new(drive) }
    }

    /// A client in a process of its own, whose locks are of this kind.
    #[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
    #[must_use]
    pub fn of_peer(name: &'static str, kind: &'static str, peer: Peer) -> Self {
        let peer = Arc::new(Mutex::new(peer));
        let drive = move |tasks, slice| -> Driving {
            let peer = Arc::clone(&peer);
            Box::pin(
                async move { crate::measure::peer_pairs(&mut *peer.lock().await, kind, tasks, slice).await },
            )
        };
        Self { name, drive: Box::new(drive) }
    }

    /// Makes pairs for as long as `slice`, so many at a time.
    ///
    /// # Errors
    ///
    /// When the client fails.
    pub async fn drive(&self, tasks: usize, slice: Duration) -> Result<Pace> {
        (self.drive)(tasks, slice).await
    }
}

/// What dlock has to achieve in relation to another client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Goal {
    /// Pairs a second.
    pub pairs: Option<f64>,
    /// Processor time of a pair.
    pub used: Option<f64>,
}

/// The paces of the clients: for each number of pairs at a time, of each client, in each round. The first round warms
/// up and is not counted. `used` says for how many seconds the server has worked.
///
/// # Errors
///
/// When a client fails.
pub async fn take_turns(
    clients: &[&Client],
    at_a_time: &[usize],
    rounds: usize,
    slice: Duration,
    mut used: impl AsyncFnMut() -> Result<f64>,
) -> Result<Vec<Vec<Vec<Pace>>>> {
    let mut paces = vec![vec![Vec::new(); clients.len()]; at_a_time.len()];
    for round in 0..=rounds {
        for (&tasks, paces) in at_a_time.iter().zip(&mut paces) {
            for turn in 0..clients.len() {
                // Each round begins with another one.
                let which = (turn + round) % clients.len();
                let before = used().await?;
                let mut pace = clients[which].drive(tasks, slice).await?;
                pace.server = (used().await? - before) * 1e6 / (pace.rate * slice.as_secs_f64());
                if round > 0 {
                    paces[which].push(pace);
                }
            }
        }
    }
    Ok(paces)
}

/// For [`take_turns`] where the server is not asked.
///
/// # Errors
///
/// Never.
#[expect(clippy::unused_async, reason = "those that ask are")]
pub async fn not_asked() -> Result<f64> {
    Ok(f64::NAN)
}

/// Compares the first client, which is dlock, with each of the others.
///
/// # Errors
///
/// When there is none.
pub fn compare(what: &str, clients: &[&Client], paces: &[Vec<Pace>], goals: &[Goal]) -> Result<Vec<Row>> {
    let (ours, others) = paces.split_first().context("no figures")?;
    let mut rows = vec![pace_row(&format!("{what}: {}", clients[0].name), ours)];
    for ((client, theirs), goal) in clients[1..].iter().zip(others).zip(goals) {
        let name = client.name;
        let ratio = |figure: fn(&Pace) -> f64| {
            Spread::of(ours.iter().zip(theirs).map(|(a, b)| figure(a) / figure(b)).collect())
        };
        rows.push(pace_row(&format!("{what}: {name}"), theirs));
        let rate = ratio(|pace| pace.rate);
        let of_best = best(ours) / best(theirs);
        let row = Row::spread(format!("    dlock / {name} (of the best rounds: {of_best:.2})"), rate, "x");
        rows.push(match goal.pairs {
            Some(limit) => row.at_least(rate.median, limit, "x"),
            None => row,
        });
        if let Some(limit) = goal.used {
            let time = ratio(|pace| pace.client);
            let row = Row::spread(format!("    dlock / {name}: processor time of the client"), time, "x");
            rows.push(row.at_most(time.median, limit, "x"));
        }
    }
    Ok(rows)
}
