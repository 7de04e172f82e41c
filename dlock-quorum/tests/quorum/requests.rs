//! What a quorum asks of its nodes.

use std::sync::{Arc, Mutex};

use dlock_core::backend::{Backend, Capabilities, ClaimRequest, LockId};
use dlock_core::{Clock, ErrorKind, Failure, Holder, Key, Locks, Memory, Node, Wait};
use dlock_quorum::Quorum;

use crate::support::{KEY, until};

/// A node that notes what it is asked.
#[derive(Clone, Debug)]
struct Noted {
    memory: Memory,
    requests: Arc<Mutex<Vec<ClaimRequest>>>,
    session_kept: bool,
}

fn noted(session_kept: bool) -> Noted {
    Noted { memory: Memory::new(), requests: Arc::default(), session_kept }
}

impl Backend for Noted {
    type Claim = <Memory as Backend>::Claim;

    fn name(&self) -> &'static str {
        self.memory.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.session_kept = self.session_kept;
        capabilities
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> Self::Claim {
        self.requests.lock().unwrap().push(request.clone());
        self.memory.claim(request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.memory.inspect(key).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_vote_was_withdrawn_is_asked_again_under_another_token_and_never_queued_at() {
    let nodes: Vec<_> = (0..3).map(|_| noted(false)).collect();
    let others: Vec<_> = nodes[1..].iter().map(|node| Locks::new(node.memory.clone())).collect();
    let mut busy = Vec::new();
    for locks in &others {
        busy.push(locks.lock(KEY).acquire().await.unwrap());
    }
    let quorum = Quorum::builder(nodes.clone()).with_durable_nodes().build().unwrap();
    let lock = Locks::new(quorum).lock(KEY).with_rechecks(0).with_wait(Wait::Forever);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // Its vote is no use while the two others are busy, and is given back.
    until("the second request", || nodes[0].requests.lock().unwrap().len() > 1);
    for guard in busy {
        guard.release().await.unwrap();
    }
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let asked = nodes[0].requests.lock().unwrap();
    assert_ne!(asked[0].token, asked[1].token);
    for request in asked.iter() {
        assert!(request.recheck, "a vote that was lost on its way is asked about");
        assert!(!request.waits, "a place in the queues of several nodes could wait for itself");
    }
}

#[test]
fn sessions_keep_a_lock_as_long_as_no_majority_is_of_leases() {
    for (nodes, kept) in [
        ([true, true, true], true),
        ([true, true, false], true),
        ([true, false, false], false),
        ([false, false, false], false),
    ] {
        let quorum = Quorum::builder(nodes.map(noted)).with_durable_nodes().build().unwrap();
        assert_eq!(quorum.capabilities().session_kept, kept, "{nodes:?}");
    }
}

#[tokio::test]
async fn a_quorum_is_administered_if_a_majority_of_its_nodes_is() {
    for administered in 0..=3 {
        let node = |at| if at < administered { Node::from(Memory::new()) } else { Node::from(noted(false)) };
        let quorum = Quorum::builder([0, 1, 2].map(node)).with_durable_nodes().build().unwrap();
        let locks = Locks::new(quorum);
        assert_eq!(locks.capabilities().administered, administered >= 2);
        let refused = locks.holders().await.err().map(|error| error.kind());
        assert_eq!(refused, (administered < 2).then_some(ErrorKind::Unsupported));
    }
}

#[tokio::test]
async fn a_quorum_is_pinged_by_its_majority_and_knows_its_nodes() {
    let nodes = [Memory::new(), Memory::new(), Memory::new()];
    let quorum = Quorum::builder(nodes.clone()).with_durable_nodes().build().unwrap();
    let locks = Locks::new(quorum);
    nodes[0].faults().set_unavailable(true);
    locks.ping().await.unwrap();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    let known = locks.health().nodes;
    assert_eq!(known.iter().map(|node| node.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(known.iter().filter(|node| node.answered.is_some()).count() >= 2, "{known:?}");
    let found = locks.diagnose().await.unwrap();
    assert!(found.iter().any(|finding| finding.found.contains("node 1")), "{found:?}");
    nodes[1].faults().set_unavailable(true);
    assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::QuorumNotReached);
}
