//! Several who want the lock at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock::Memory;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{KEY, left_with_nothing, nodes, process};

/// Nodes so far away that those who ask at the same moment meet on the way.
fn distant(count: usize) -> Vec<Memory> {
    let nodes = nodes(count);
    for (place, node) in nodes.iter().enumerate() {
        node.faults().set_delay(Duration::from_micros(1_500 + 300 * place as u64));
    }
    nodes
}

/// All `clients` start at once, each with a connection of its own; how long it took until one had the lock.
async fn race(nodes: &[Memory], clients: usize, inside: &Arc<AtomicBool>) -> Duration {
    let start = Arc::new(Barrier::new(clients));
    let mut racing = JoinSet::new();
    for _ in 0..clients {
        let (locks, start, inside) = (process(nodes), Arc::clone(&start), Arc::clone(inside));
        racing.spawn(async move {
            start.wait().await;
            let started = Instant::now();
            let guard = locks.lock(KEY).acquire().await.expect("its turn comes");
            let took = started.elapsed();
            assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
            tokio::task::yield_now().await;
            guard.check().expect("it is held");
            inside.store(false, Ordering::SeqCst);
            guard.release().await.expect("it was held");
            took
        });
    }
    racing.join_all().await.into_iter().min().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_vote_comes_to_a_winner() {
    let inside = Arc::new(AtomicBool::new(false));
    for clients in [3, 10] {
        let nodes = distant(5);
        let mut times = Vec::new();
        for _ in 0..40 {
            times.push(race(&nodes, clients, &inside).await);
        }
        times.sort_unstable();
        // They meet on the way in most rounds; a round is about 3 ms.
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        eprintln!("{clients} clients: a winner after {median:.1?} in the median and {most:.1?} at the most");
        assert!(most < Duration::from_secs(1), "{most:?}");
        left_with_nothing(&nodes);
    }
}
