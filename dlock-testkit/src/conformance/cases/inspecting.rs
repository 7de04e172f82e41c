//! Who holds it.

use std::time::{Duration, SystemTime};

use dlock_core::ErrorKind;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon};

cases! {
    a_free_lock_has_no_holder: Nothing, Easy;
    the_holder_tells_host_process_label_and_time: Nothing, Easy;
    the_holder_changes_with_the_lock: Nothing, Easy;
    what_the_holder_has_left_is_not_more_than_the_lease: Lease, Easy;
    a_label_of_any_text_comes_back_unchanged: Nothing, Easy;
    asking_an_unavailable_backend_for_the_holder_is_an_error: Nothing, Easy;
}

/// Before, after a release, after a drop.
async fn a_free_lock_has_no_holder(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let nobody = async || process.locks.inspect(&key).await.expect("it can be asked").is_none();
    assert!(nobody().await);
    give_back(process.take(&key).await).await;
    assert!(nobody().await);
    drop(process.take(&key).await);
    soon("the release", async {
        while !nobody().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Enough to find the process that is in the way.
async fn the_holder_tells_host_process_label_and_time(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("orders-1")).await;
    let (theirs, key) = (stage.process().await, stage.key());
    let before = SystemTime::now() - Duration::from_secs(1);
    let guard = ours.take(&key).await;
    let after = SystemTime::now() + Duration::from_secs(1);
    for process in [&ours, &theirs] {
        let holder = process.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.label.as_deref(), Some("orders-1"));
        assert!(holder.host.as_ref().is_some_and(|host| !host.is_empty()));
        let since = holder.since.expect("it says since when");
        assert!(since >= before && since <= after, "{since:?}");
        let text = holder.to_string();
        assert!(text.contains("orders-1") && text.contains(&std::process::id().to_string()), "{text}");
    }
    give_back(guard).await;
}

/// A successor is not shown under its predecessor's name.
async fn the_holder_changes_with_the_lock(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("first")).await;
    let theirs = stage.process_with(|builder| builder.with_label("second")).await;
    let key = stage.key();
    for process in [&ours, &theirs, &ours] {
        let guard = process.take(&key).await;
        let expected = if std::ptr::eq(process, &raw const ours) { "first" } else { "second" };
        let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
        assert_eq!(holder.label.as_deref(), Some(expected));
        give_back(guard).await;
    }
}

/// Where the backend tells.
async fn what_the_holder_has_left_is_not_more_than_the_lease(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lease = Duration::from_secs(9);
    let guard = ours.locks.lock(&key).with_lease(lease).acquire().await.expect("it is free");
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
    if let Some(left) = holder.expires_in {
        // A backend may round up to whole milliseconds.
        assert!(left > Duration::ZERO && left <= lease + Duration::from_millis(1), "{left:?}");
    }
    give_back(guard).await;
}

/// The label is text of the user's.
async fn a_label_of_any_text_comes_back_unchanged(stage: Stage) {
    for label in ["a b=c%d", "'; --\"\\", "Zürich 🔒\n\t", ""] {
        let process = stage.process_with(|builder| builder.with_label(label)).await;
        let key = stage.key();
        let guard = process.take(&key).await;
        let holder = process.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
        assert_eq!(holder.label.as_deref(), Some(label));
        give_back(guard).await;
    }
}

/// Not "free": nobody knows.
async fn asking_an_unavailable_backend_for_the_holder_is_an_error(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.cut();
    let error = error_of(process.locks.inspect(&key).await, &[ErrorKind::Unavailable]);
    assert_eq!(error.key(), Some(&*key));
    process.wire.mend();
    give_back(guard).await;
}
