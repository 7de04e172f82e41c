//! The engine among code that panics: a subscriber of `tracing` that panics at every event, a meter whose instruments
//! do, and backends that panic in any step.

mod backend;
#[cfg(feature = "otel")]
mod meter;
mod subscriber;

use std::time::Duration;

/// Marks the panics of these tests, which are not shown.
const STRIKE: &str = "a test's own panic";

/// Puts the panicking subscriber in place, for all threads.
fn surround() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&STRIKE) {
                shown(info);
            }
        }));
        tracing::subscriber::set_global_default(subscriber::Panicking).expect("the only one");
    });
}

/// Resolves when `test` holds; the keeper runs on a thread of its own.
async fn eventually(what: &str, test: impl Fn() -> bool + Send + Sync) {
    let wait = async {
        while !test() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "never happened: {what}");
}
