//! The number of nodes that took part, where they were too few.

use std::fmt;
use std::sync::Arc;

use crate::node::Member;
use dlock_core::{ErrorKind, Failure};

/// The number of nodes of a [`Quorum`](crate::Quorum) that took part: the [source](std::error::Error::source) of an
/// error of the kind [`ErrorKind::QuorumNotReached`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumVotes {
    /// The nodes that had given their vote, or named the holder, when it was clear that they are too few. A node that
    /// answered that it does not vote is not counted. Of a renewal or a release, the nodes that had confirmed it; of a
    /// question, those that had answered.
    pub took_part: usize,
    /// The number that is needed.
    pub needed: usize,
    /// The number of all nodes.
    pub nodes: usize,
}

impl std::error::Error for QuorumVotes {}

impl fmt::Display for QuorumVotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} nodes took part, and {} have to", self.took_part, self.nodes, self.needed)
    }
}

/// Makes the failure where there is no majority, with the answer of each of the others.
pub(crate) fn too_few(members: &[Arc<Member>], took_part: usize, failures: Vec<(usize, Failure)>) -> Failure {
    let said: Vec<_> = failures.iter().map(|(place, failure)| members[*place].says(failure)).collect();
    let votes = QuorumVotes { took_part, needed: members.len() / 2 + 1, nodes: members.len() };
    Failure::new(ErrorKind::QuorumNotReached, said.join("; ")).with_source(votes)
}
