//! What is logged while a server is dead, in a process of its own, since the keeper logs on its own thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Locks, Section, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

const HELD: usize = 1_000;

/// Warnings and errors, as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() <= tracing::Level::WARN {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_held_locks_and_a_dead_server_are_a_few_lines() {
    let warnings = Warnings::default();
    let subscriber = tracing_subscriber::registry().with(warnings.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let mut server = RedisServer::start().unwrap();
    let locks = Locks::builder(Redis::connect(&server.url()).await.unwrap())
        .with_lease(Duration::from_secs(5))
        .with_wait(Wait::For(Duration::from_secs(5)))
        .build()
        .unwrap();
    let (end, ended) = tokio::sync::watch::channel(0);
    let mut bodies = tokio::task::JoinSet::new();
    for number in 0..HELD {
        // A third each: bodies that end without their lock, batches, guards that are dropped.
        let (locks, mut ended) = (locks.clone(), ended.clone());
        let key = format!("held_{number}");
        bodies.spawn(async move {
            let lock = locks.lock_named("held_<n>", &key);
            match number % 3 {
                0 => drop(lock.run(async { drop(ended.wait_for(|end| number < *end).await) }).await),
                1 => {
                    let batch =
                        locks.lock_all([key.as_str(), &format!("{key}_too")]).acquire().await.unwrap();
                    drop(ended.wait_for(|end| number < *end).await);
                    drop(batch.release().await);
                }
                _ => {
                    let guard = lock.acquire().await.unwrap();
                    drop(ended.wait_for(|end| number < *end).await);
                    drop(guard);
                }
            }
        });
    }
    while locks.stats().held < HELD {
        assert_eq!(locks.stats().lost, 0, "a machine that stood still for a lease");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.kill();
    for number in 0..50 {
        let lock = locks.lock_named("other_<n>", format!("other_{number}")).with_wait(Wait::No);
        let mut section = Section::new(lock).run_when_unavailable();
        section.run(std::pin::pin!(async {})).await.unwrap();
    }
    // Half of them are released without an answer, the others are lost.
    end.send_replace(HELD / 2);
    while locks.stats().lost < 100 || locks.stats().failed_renewals < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    end.send_replace(HELD);
    while bodies.join_next().await.is_some() {}
    let during = warnings.0.lock().unwrap().clone();
    // Renewals, losses, releases and bodies without their lock: the first of each, and counts that fell due.
    assert!(!during.is_empty() && during.len() <= 10, "{} lines: {during:#?}", during.len());
    // Which of the held locks fails first is open, and one of a batch has no template.
    assert!(during.iter().any(|line| line.contains("other_<n>")), "{during:#?}");
    for first in
        ["the body runs without the lock", "a renewal failed", "a lock was lost", "not released properly"]
    {
        assert_eq!(during.iter().filter(|line| line.contains(first)).count(), 1, "{first}: {during:#?}");
    }
}
