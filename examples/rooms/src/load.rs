//! A small load: clients that book rooms and move bookings, at whichever replica.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use reqwest::{Client, StatusCode};
use tokio::task::JoinSet;

use crate::serve::{Booking, Move};

const ROOMS: u32 = 4;
const DAYS: u32 = 60;
/// Longer than a request waits for its locks.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) booked: u32,
    pub(crate) moved: u32,
    /// The room was booked already, or there was no booking to move.
    pub(crate) refused: u32,
    /// The service could not serve: busy for too long, or an error.
    pub(crate) failed: u32,
    pub(crate) slowest: Duration,
}

/// Sends `requests` from `clients` at once, and counts what became of them.
pub(crate) async fn send(replicas: &[SocketAddr], requests: u32, clients: u32) -> Result<Tally> {
    let client = Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let left = Arc::new(AtomicU32::new(requests));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let (client, replicas, left) = (client.clone(), replicas.to_vec(), Arc::clone(&left));
        tasks.spawn(async move {
            let mut tally = Tally::default();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                if let Some(replica) = fastrand::choice(&replicas) {
                    one(&client, *replica, number, &mut tally).await;
                }
            }
            tally
        });
    }
    let mut sum = Tally::default();
    while let Some(tally) = tasks.join_next().await {
        let tally = tally?;
        sum.booked += tally.booked;
        sum.moved += tally.moved;
        sum.refused += tally.refused;
        sum.failed += tally.failed;
        sum.slowest = sum.slowest.max(tally.slowest);
    }
    Ok(sum)
}

async fn one(client: &Client, replica: SocketAddr, number: u32, tally: &mut Tally) {
    let (room, other, day) = (fastrand::u32(..ROOMS), fastrand::u32(..ROOMS), fastrand::u32(..DAYS));
    let moves = fastrand::u32(..10) < 3 && room != other;
    let request = if moves {
        let way = Move { from: room.to_string(), to: other.to_string(), day };
        client.post(format!("http://{replica}/bookings/move")).json(&way)
    } else {
        let booking = Booking { day, guest: format!("guest {number}") };
        client.post(format!("http://{replica}/rooms/{room}/bookings")).json(&booking)
    };
    let sent = Instant::now();
    let status = request.send().await.map(|response| response.status());
    tally.slowest = tally.slowest.max(sent.elapsed());
    match status {
        Ok(StatusCode::CREATED) => tally.booked += 1,
        Ok(StatusCode::NO_CONTENT) => tally.moved += 1,
        Ok(StatusCode::CONFLICT | StatusCode::NOT_FOUND) => tally.refused += 1,
        _ => tally.failed += 1,
    }
}
