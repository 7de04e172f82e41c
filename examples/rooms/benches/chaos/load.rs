//! Clients that book rooms at whichever replica is ready, and what they are answered.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::Result;
use reqwest::{Client, StatusCode};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CLIENTS: usize = 6;
const ROOMS: u32 = 40;
/// Longer than a request waits for its lock.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(20);

/// The replicas that get requests, as a load balancer keeps them.
pub(crate) type Addresses = Arc<RwLock<Vec<SocketAddr>>>;

/// What became of the requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sent: u32,
    pub(crate) confirmed: i64,
    failed: BTreeMap<&'static str, u32>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.failed.values().sum::<u32>(), self.sent)?;
        for (number, (why, count)) in self.failed.iter().enumerate() {
            write!(f, "{} {count} {why}", if number == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

pub(crate) struct Load {
    clients: JoinSet<Result<Tally>>,
    stop: watch::Sender<bool>,
}

pub(crate) fn start(addresses: &Addresses) -> Load {
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(Arc::clone(addresses), stopped.clone()));
    }
    Load { clients, stop }
}

impl Load {
    /// What became of all requests, also of those that are under way.
    pub(crate) async fn stop(mut self) -> Result<Tally> {
        self.stop.send_replace(true);
        let mut sum = Tally::default();
        while let Some(tally) = self.clients.join_next().await {
            let tally = tally??;
            sum.sent += tally.sent;
            sum.confirmed += tally.confirmed;
            for (why, count) in tally.failed {
                *sum.failed.entry(why).or_default() += count;
            }
        }
        Ok(sum)
    }
}

async fn client(addresses: Addresses, stopped: watch::Receiver<bool>) -> Result<Tally> {
    let client = Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let mut tally = Tally::default();
    while !*stopped.borrow() {
        tokio::time::sleep(PAUSE).await;
        let address = addresses.read().ok().and_then(|all| fastrand::choice(all.iter()).copied());
        let Some(address) = address else { continue };
        tally.sent += 1;
        let room = fastrand::u32(..ROOMS);
        let booking = serde_json::json!({ "day": fastrand::u32(..), "guest": "ann" });
        let sent = client.post(format!("http://{address}/rooms/{room}/bookings")).json(&booking).send().await;
        let why = match sent {
            Ok(response) if response.status() == StatusCode::CREATED => {
                tally.confirmed += 1;
                continue;
            }
            Ok(response) => of(response.status(), &response.text().await.unwrap_or_default()),
            Err(error) if error.is_timeout() => "no answer within 10 s",
            Err(_) => "no connection to the replica",
        };
        *tally.failed.entry(why).or_default() += 1;
    }
    Ok(tally)
}

/// The reason, as dlock and the service say it.
fn of(status: StatusCode, text: &str) -> &'static str {
    const REASONS: [(&str, &str); 10] = [
        ("memory is used up", "store full"),
        ("outcome is unknown", "outcome unknown"),
        ("unavailable", "store unavailable"),
        ("took over", "overtaken"),
        ("lost", "lock lost"),
        ("timed out (after", "waited too long"),
        ("held by", "waited too long"),
        ("descriptor", "no descriptors"),
        ("Too many open files", "no descriptors"),
        ("bookings cannot be", "bookings' own database"),
    ];
    let known = REASONS.iter().find(|(part, _)| text.contains(part)).map(|(_, why)| *why);
    known.unwrap_or_else(|| {
        eprintln!("unknown to this program: {status}: {text}");
        "for another reason"
    })
}
