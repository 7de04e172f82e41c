//! What a program relies on, and namespaces.

use dlock_core::{ErrorKind, Key, Locks, LocksBuilder, Memory, Requirement, Wait};

fn builder() -> LocksBuilder {
    Locks::builder(Memory::new())
}

#[test]
fn a_guarantee_that_the_backend_lacks_is_refused_when_the_locks_are_built() {
    builder().require(Requirement::Fencing).require(Requirement::Notified).build().unwrap();
    let all = Requirement::ALL.into_iter().fold(builder(), LocksBuilder::require);
    let error = all.build().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false));
    let text = error.to_string();
    for named in ["memory", "`session_kept`", "`durable`"] {
        assert!(text.contains(named), "{named} is missing in: {text}");
    }
    assert!(!text.contains("`fencing`") && !text.contains("`notified`"), "{text}");
}

#[test]
fn locks_that_are_built_can_be_asked_too() {
    let locks = builder().build().unwrap();
    locks.require(&[]).unwrap();
    locks.require(&[Requirement::Fencing]).unwrap();
    let error = locks.require(&[Requirement::Fencing, Requirement::Durable]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// Another backend would not help.
#[test]
fn who_requires_an_order_that_can_be_asked_for_learns_how_to_ask() {
    let error = builder().build().unwrap().require(&[Requirement::Fair]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("with_fairness(true)") && !text.contains("use a backend"), "{text}");
    builder().with_fairness(true).build().unwrap().require(&[Requirement::Fair]).unwrap();
    builder().require(Requirement::Fair).build().unwrap().require(&[Requirement::Fair]).unwrap();
}

#[tokio::test]
async fn services_with_different_prefixes_share_a_store_and_no_lock() {
    let memory = Memory::new();
    let with = |prefix: &str| {
        Locks::builder(memory.clone()).with_prefix(prefix).with_wait(Wait::No).build().unwrap()
    };
    let (orders, stock, plain) = (with("orders:"), with("stock:"), Locks::new(memory.clone()));
    let ours = orders.lock("room").acquire().await.unwrap();
    let theirs = stock.lock("room").acquire().await.unwrap();
    assert_eq!((ours.key(), memory.held()), ("room", 2));
    let error = with("orders:").lock("room").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("room")));
    assert!(
        orders.inspect("room").await.unwrap().is_some() && plain.inspect("room").await.unwrap().is_none()
    );
    assert!(plain.inspect("orders:room").await.unwrap().is_some(), "that is what it is called in the store");
    let both = orders.lock_all(["a", "b"]).acquire().await.unwrap();
    assert_eq!(both.fences().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "b"]);
    both.release().await.unwrap();
    ours.release().await.unwrap();
    theirs.release().await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_prefix_that_cannot_be_is_refused_and_the_longest_key_is_none() {
    for wrong in [String::new(), "x".repeat(129), "a\0".to_owned()] {
        let error = builder().with_prefix(wrong).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    let locks = builder().with_prefix("orders:").build().unwrap();
    let long = "x".repeat(Key::MAX_LEN);
    let guard = locks.lock(&long).acquire().await.unwrap();
    assert_eq!(guard.key(), long);
    assert!(locks.inspect(&long).await.unwrap().is_some());
    guard.release().await.unwrap();
}
