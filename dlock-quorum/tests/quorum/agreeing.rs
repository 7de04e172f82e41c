//! Clients that do not agree which nodes are the quorum.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Memory};
use dlock_quorum::{NodeSetup, Quorum, QuorumBuilder};

use crate::support::{nodes, try_take};

async fn founded(builder: QuorumBuilder) -> Locks {
    let quorum = builder.build().unwrap();
    quorum.bootstrap().await.unwrap();
    Locks::new(quorum)
}

async fn is_refused(builder: QuorumBuilder) {
    let theirs = Locks::new(builder.build().unwrap());
    for _ in 0..3 {
        let error = try_take(&theirs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("nodes=3 longest=60000ms"), "{error}");
    }
}

fn of(nodes: &[Memory], places: &[usize]) -> QuorumBuilder {
    Quorum::builder(places.iter().map(|place| nodes[*place].clone()).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_client_with_other_members_or_another_longest_lease_is_refused() {
    let nodes = nodes(5);
    let ours = founded(of(&nodes, &[0, 1, 2])).await;
    // Nodes of theirs alone, which they vouched for.
    founded(of(&nodes, &[3])).await;
    let minute = Duration::from_secs(60);
    for theirs in [
        of(&nodes, &[0, 1, 3]),
        of(&nodes, &[0, 1]),
        of(&nodes, &[0, 1, 2, 3, 4]),
        of(&nodes, &[0, 1, 2]).with_longest_lease(2 * minute),
        of(&nodes, &[0, 1, 2]).with_name("shop"),
    ] {
        is_refused(theirs).await;
    }
    drop(try_take(&ours).await.unwrap().expect("those who were first go on"));
    let other_order = Locks::new(of(&nodes, &[2, 0, 1]).build().unwrap());
    drop(other_order.lock("another").try_acquire().await.unwrap().expect("the same nodes"));
}

#[tokio::test]
async fn a_quorum_gets_other_members_when_somebody_vouches_for_them() {
    let nodes = nodes(4);
    let ours = founded(of(&nodes, &[0, 1, 2])).await;
    drop(try_take(&ours).await.unwrap().expect("it is free"));
    ours.shutdown(Duration::from_secs(20)).await.unwrap();
    let after = of(&nodes, &[0, 1, 3]).build().unwrap();
    let theirs = Locks::new(after.clone());
    assert_eq!(try_take(&theirs).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    // The one that is new to both may have a mark of who was refused just now, or get it at the same moment.
    let done = loop {
        match after.bootstrap().await {
            Err(error) if error.to_string().contains("at the same moment") => {}
            done => break done.unwrap(),
        }
    };
    assert_eq!(done[..2], [NodeSetup::Repaired; 2]);
    assert_ne!(done[2], NodeSetup::Kept);
    drop(try_take(&theirs).await.unwrap().expect("they belong to it now"));
    // Whoever still has the members of before.
    let before = Locks::new(of(&nodes, &[0, 1, 2]).build().unwrap());
    assert_eq!(try_take(&before).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_node_of_another_quorum_is_refused_although_the_others_are_a_majority() {
    let nodes = nodes(5);
    let ours = founded(of(&nodes, &[2, 3, 4])).await;
    drop(try_take(&ours).await.unwrap().expect("it is free"));
    of(&nodes, &[0, 1, 2]).build().unwrap().force_bootstrap().await.unwrap();
    let error = try_take(&ours).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}
