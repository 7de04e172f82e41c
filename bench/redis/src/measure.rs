//! Rounds, medians, and loops of many tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Rounds of pairs; odd, so that there is a middle one.
    pub(crate) rounds: usize,
    /// How long each client makes pairs in one round. Short: what else runs on the machine then meets neighbours alike.
    pub(crate) slice: Duration,
    /// Rounds of hand-overs.
    pub(crate) hand_over_rounds: usize,
    /// Hand-overs a round and client.
    pub(crate) hand_overs: u64,
    /// How long many locks are held.
    pub(crate) hold: Duration,
}

impl Settings {
    pub(crate) const fn full() -> Self {
        let (slice, hold) = (Duration::from_millis(60), Duration::from_secs(30));
        Self { rounds: 61, slice, hand_over_rounds: 5, hand_overs: 200, hold }
    }

    pub(crate) const fn quick() -> Self {
        let (slice, hold) = (Duration::from_millis(60), Duration::from_secs(12));
        Self { rounds: 15, slice, hand_over_rounds: 3, hand_overs: 50, hold }
    }
}

/// What one way of doing it achieved in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Pairs of acquire and release a second.
    pub(crate) rate: f64,
    /// Microseconds a pair, the middle one.
    pub(crate) p50: f64,
    /// Microseconds a pair, of which one in a hundred takes longer.
    pub(crate) p99: f64,
    /// Microseconds of the client's processor time a pair.
    pub(crate) client: f64,
    /// Microseconds of the server's processor time a pair.
    pub(crate) server: f64,
}

impl Pace {
    fn of(mut nanos: Vec<u32>, took: Duration, used: Duration) -> Self {
        nanos.sort_unstable();
        let at = |index: usize| nanos.get(index).map_or(f64::NAN, |nanos| f64::from(*nanos) / 1e3);
        Self {
            rate: nanos.len() as f64 / took.as_secs_f64(),
            p50: at(nanos.len() / 2),
            p99: at(nanos.len() * 99 / 100),
            client: used.as_secs_f64() * 1e6 / nanos.len() as f64,
            server: f64::NAN,
        }
    }
}

/// A client that takes a lock and gives it back, again and again.
pub(crate) trait Pairs: Send + Sync + 'static {
    /// Takes the lock named `key`, and gives it back.
    fn pair(&self, key: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Lets `tasks` tasks, each with a key of its own, make pairs for as long as `slice`.
pub(crate) async fn drive<P: Pairs>(client: &Arc<P>, tasks: usize, slice: Duration) -> Result<Pace> {
    let (start, used) = (Instant::now(), processor_time());
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let client = Arc::clone(client);
            tokio::spawn(async move {
                let key = format!("room_{task}");
                let mut nanos = Vec::new();
                let mut begin = Instant::now();
                while begin - start < slice {
                    client.pair(&key).await?;
                    let end = Instant::now();
                    nanos.push(u32::try_from((end - begin).as_nanos()).unwrap_or(u32::MAX));
                    begin = end;
                }
                anyhow::Ok(nanos)
            })
        })
        .collect();
    let mut nanos = Vec::new();
    for task in running {
        nanos.extend(task.await??);
    }
    Ok(Pace::of(nanos, start.elapsed(), processor_time() - used))
}

/// What all threads of this process have used so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
