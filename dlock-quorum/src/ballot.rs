//! Counting the answers of a round.

use std::sync::Arc;

use crate::node::Member;
use crate::vote::VoteAnswer;
use crate::votes::too_few;
use dlock_core::Failure;
use dlock_core::backend::Busy;

/// The answers of the nodes to one round of attempts.
pub(crate) struct Ballot {
    nodes: usize,
    needed: usize,
    granted: Vec<usize>,
    busy: Vec<(usize, Busy)>,
    failed: Vec<(usize, Failure)>,
}

impl Ballot {
    pub(crate) fn new(nodes: usize, needed: usize) -> Self {
        Self { nodes, needed, granted: Vec::new(), busy: Vec::new(), failed: Vec::new() }
    }

    pub(crate) fn note(&mut self, place: usize, answer: VoteAnswer) {
        match answer {
            VoteAnswer::Granted => self.granted.push(place),
            VoteAnswer::Busy(busy) => self.busy.push((place, busy)),
            VoteAnswer::Failed(failure) => self.failed.push((place, failure)),
        }
    }

    /// Returns the number of nodes that voted for this claim.
    pub(crate) fn granted(&self) -> usize {
        self.granted.len()
    }

    pub(crate) fn is_won(&self) -> bool {
        self.granted() >= self.needed
    }

    /// Is `true` if the lock is taken, by the answers of a majority.
    pub(crate) fn is_busy(&self) -> bool {
        !self.is_won() && self.granted() + self.busy.len() >= self.needed
    }

    /// Is `true` if `open` further answers cannot change the outcome.
    pub(crate) fn is_decided(&self, open: usize) -> bool {
        let answered = self.granted() + self.busy.len();
        let lost = self.granted() + open < self.needed;
        // A lost round is busy or unknown: which of the two has to be certain as well.
        self.is_won() || (lost && (answered >= self.needed || answered + open < self.needed))
    }

    /// Is `true` if the first node of those that answered is among those that voted for this claim. Of several
    /// claims that share the votes, that is one.
    pub(crate) fn is_first(&self) -> bool {
        let first = self.granted.iter().min();
        first.is_some() && first < self.busy.iter().map(|(place, _)| place).min()
    }

    /// Forgets the nodes where another holder has it, to ask them again.
    pub(crate) fn take_busy(&mut self) -> Vec<usize> {
        self.busy.drain(..).map(|(place, _)| place).collect()
    }

    /// Returns the nodes where another holder has it, and their answers.
    pub(crate) fn into_busy(self) -> (Vec<usize>, Vec<Busy>) {
        self.busy.into_iter().unzip()
    }

    /// Returns the failure where no majority answered.
    pub(crate) fn into_failure(mut self, members: &[Arc<Member>]) -> Failure {
        let final_ones = self.failed.iter().filter(|(_, failure)| !failure.is_transient()).count();
        if final_ones > self.nodes - self.needed
            && let Some(at) = self.failed.iter().position(|(_, failure)| !failure.is_transient())
        {
            // No majority will ever answer unless the configuration of nodes is changed.
            let (place, failure) = self.failed.swap_remove(at);
            let what = format!("{final_ones} of {} nodes refuse, among them node {}", self.nodes, place + 1);
            return Failure::new(failure.kind(), what).with_source(failure);
        }
        too_few(members, self.granted() + self.busy.len(), self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(nodes: usize, answers: &str) -> Ballot {
        let mut ballot = Ballot::new(nodes, nodes / 2 + 1);
        for (place, answer) in answers.chars().enumerate() {
            ballot.note(
                place,
                match answer {
                    '+' => VoteAnswer::Granted,
                    '-' => VoteAnswer::Busy(Busy::default()),
                    'd' => VoteAnswer::Failed(Failure::denied("no")),
                    _ => VoteAnswer::Failed(Failure::unavailable("away")),
                },
            );
        }
        ballot
    }

    #[test]
    fn a_round_goes_on_until_no_answer_can_change_it() {
        for (nodes, answers, decided) in [
            (5, "+++", true),
            (5, "++", false),
            (5, "---", true),
            // It is lost, and the last two decide whether it is busy or unknown.
            (5, "--!", false),
            (5, "--!-", true),
            (5, "--!!", false),
            (5, "--!!!", true),
            (5, "!!!", true),
            (4, "++", false),
            (4, "++-", false),
            (4, "++--", true),
            (2, "+-", true),
            (1, "+", true),
            (1, "", false),
        ] {
            let ballot = ballot(nodes, answers);
            assert_eq!(ballot.is_decided(nodes - answers.len()), decided, "{answers} of {nodes}");
        }
    }

    #[test]
    fn of_those_who_share_the_votes_one_is_first() {
        for (answers, first) in [
            ("+-+--", true),
            ("-++--", false),
            ("!+-!-", true),
            ("!!!", false),
            ("--!", false),
            ("!-+", false),
        ] {
            assert_eq!(ballot(answers.len(), answers).is_first(), first, "{answers}");
        }
    }

    #[test]
    fn a_majority_that_is_away_is_not_a_majority_that_is_busy() {
        assert!(ballot(5, "--+!!").is_busy());
        assert!(!ballot(5, "-+!!!").is_busy());
        assert!(!ballot(5, "+++--").is_busy());
        assert!(ballot(2, "+-").is_busy());
        assert!(!ballot(2, "+!").is_busy());
    }
}
