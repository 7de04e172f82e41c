//! Work of this process itself that goes on while servers fail, so that what it keeps can be watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock::Locks;
use tokio::task::JoinSet;

use crate::Failed;
use crate::store::{Store, held};

const LEASE: Duration = Duration::from_millis(500);
const TASKS: u64 = 16;
const KEYS: usize = 100;
/// How long clean-up may take once the server answers again.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// Tasks that acquire, wait, cancel and drop, each for a random one of some keys.
#[derive(Debug)]
pub(crate) struct Resident {
    locks: Locks,
    keys: Arc<Vec<String>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    counts: Arc<Counts>,
}

/// What became of the acquires.
#[derive(Debug, Default)]
struct Counts {
    granted: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// What the work was, and what it left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) granted: u64,
    pub(crate) failed: u64,
    pub(crate) dropped: u64,
    /// Locks that are held when all clean-up is over.
    pub(crate) locks: usize,
    /// Why the clean-up did not end in time.
    pub(crate) unfinished: Option<String>,
}

impl Resident {
    /// Begins to work on keys of its own of `store`.
    pub(crate) async fn start(store: &Store, seed: u64) -> Result<Self, Failed> {
        let locks = store.locks(LEASE).await?;
        let keys = Arc::new((0..KEYS).map(|_| store.key()).collect::<Vec<_>>());
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (locks, keys) = (locks.clone(), Arc::clone(&keys));
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            let mut random = fastrand::Rng::with_seed(seed ^ (task << 16));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    section(&locks, &keys[random.usize(..KEYS)], &counts, &mut random).await;
                }
            });
        }
        Ok(Self { locks, keys, stop, tasks, counts })
    }

    /// Ends the work, lets the clean-up end, and counts what is left.
    pub(crate) async fn stop(mut self, store: &Store) -> Result<Left, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        let unfinished = self.locks.shutdown(CLEAN_UP).await.err().map(|error| error.to_string());
        let theirs = store.locks(LEASE).await?;
        let locks = held(&theirs, &self.keys).await?;
        theirs.shutdown(CLEAN_UP).await?;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { granted, failed, dropped } = &*self.counts;
        Ok(Left {
            granted: count(granted),
            failed: count(failed),
            dropped: count(dropped),
            locks,
            unfinished,
        })
    }
}

async fn section(locks: &Locks, key: &str, counts: &Counts, random: &mut fastrand::Rng) {
    let lock = locks.lock(key).with_wait(Duration::from_secs(2));
    // Some callers are cancelled at a random moment.
    let patience = if random.u8(0..8) == 0 {
        Duration::from_micros(random.u64(0..3_000))
    } else {
        Duration::from_secs(60)
    };
    match tokio::time::timeout(patience, lock.acquire()).await {
        Ok(Ok(guard)) => {
            counts.granted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(random.u64(0..20))).await;
            if random.bool() {
                // An outage may answer with an error; what becomes of the lock then is looked at in the end.
                let _ = guard.release().await;
            }
        }
        Ok(Err(_)) => {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(_) => {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
