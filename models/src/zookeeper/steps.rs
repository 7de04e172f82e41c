//! The steps of the model: what the servers do, and how an answer is taken.

use super::*;

impl Queue {
    /// The servers' part. `None` while no server can answer.
    pub(super) fn carry_out(&self, state: &mut State, id: u8) -> Option<Answer> {
        let State { queue, copy, clients, .. } = state;
        let client = &mut clients[usize::from(id)];
        let (session, claim) = (client.session, client.claim);
        let what = client.request?.what;
        let ours = |node: &Node| (node.client, node.claim) == (id, claim);
        if client.with_deposed {
            // It answers what needs no majority.
            let copy = copy.as_ref()?;
            return match (what, self.rules.proof) {
                (What::Look, _) => Some(standing(copy, ours)),
                (What::Prove, Proof::Sync) => Some(Answer::Done),
                (What::Prove, Proof::SyncOfHolders) if client.believes() => Some(Answer::Done),
                _ => None,
            };
        }
        let Some(left) = &mut client.alive[usize::from(session)] else { return Some(Answer::Expired) };
        *left = (*left).max(self.timeout - self.late);
        Some(match what {
            What::Create => {
                state.transaction += 1;
                state.sequence += 1;
                let fence = if self.rules.fence_is_transaction { state.transaction } else { state.sequence };
                state.fences_went_back |= fence <= state.highest;
                state.highest = state.highest.max(fence);
                queue.push(Node { client: id, session, claim, fence });
                Answer::Node(Some(fence))
            }
            What::Find => {
                let own_only = self.rules.adopts_own_session_only;
                let adopted =
                    queue.iter().copied().find(|node| ours(node) && (!own_only || node.session == session));
                queue.retain(|node| !ours(node) || Some(*node) == adopted);
                Answer::Node(adopted.map(|node| node.fence))
            }
            What::Look => standing(queue, ours),
            What::Prove => Answer::Done,
            What::Delete => {
                queue.retain(|node| !ours(node));
                Answer::Done
            }
        })
    }

    pub(super) fn answer(&self, client: &mut Client) -> Option<()> {
        let Request { what, age, answer } = client.request.take()?;
        let answer = answer?;
        if answer == Answer::Expired {
            // Its nodes are gone; the claim ends.
            client.phase = Phase::Idle;
            if usize::from(client.session) + 1 < client.alive.len() {
                client.session += 1;
                client.alive[usize::from(client.session)] = Some(self.timeout);
            }
            return Some(());
        }
        let commits = match what {
            What::Create | What::Prove => true,
            What::Look => !self.rules.proof.commits_to_grant(),
            What::Find | What::Delete => false,
        };
        if commits {
            client.proof = client.proof.min(age);
        }
        let left = self.trusted_for.saturating_sub(client.proof);
        match (what, answer, &mut client.phase) {
            (What::Create | What::Find, Answer::Node(found), phase @ Phase::Queued { .. }) => {
                *phase = Phase::Queued { node: found, in_doubt: false };
            }
            // Without a recent proof it has to prove first, and to look again.
            (What::Look, Answer::First, phase @ Phase::Queued { .. }) if left > 0 => {
                *phase = Phase::Holding { left };
            }
            (What::Look, Answer::Missing, phase) => *phase = Phase::Idle,
            (What::Look, ..) | (What::Prove, _, Phase::Queued { .. }) => {}
            (What::Prove, Answer::Done, Phase::Holding { left: until }) => *until = (*until).max(left),
            (What::Delete, Answer::Done, phase @ Phase::Leaving) => *phase = Phase::Idle,
            _ => return None,
        }
        Some(())
    }

    pub(super) fn tick(&self, state: &mut State) {
        for client in &mut state.clients {
            client.alive.iter_mut().flatten().for_each(|left| *left = left.saturating_sub(1));
            client.proof = (client.proof + 1).min(self.timeout);
            if let Some(request) = &mut client.request {
                request.age = (request.age + 1).min(self.timeout);
            }
            if let Phase::Holding { left } = &mut client.phase {
                *left -= 1;
                if *left == 0 {
                    // What was asked is overtaken by the deletion.
                    (client.phase, client.request) = (Phase::Leaving, None);
                }
            }
        }
    }
}

impl Client {
    pub(super) fn cut(&mut self) {
        self.with_deposed = false;
        if let (Some(Request { what: What::Create, .. }), Phase::Queued { .. }) =
            (self.request.take(), self.phase)
        {
            self.phase = Phase::Queued { node: None, in_doubt: true };
        }
    }

    /// Without timers that nothing depends on, so that fewer states differ.
    pub(super) fn forget_what_does_not_matter(&mut self, longest: u8) {
        // One that neither waits nor holds has no use for a proof.
        if matches!(self.phase, Phase::Idle | Phase::Leaving) {
            self.proof = longest;
        }
        if let Some(request) = &mut self.request
            && (self.proof == 0 || matches!(request.what, What::Find | What::Delete))
        {
            request.age = 0;
        }
    }
}

pub(super) fn standing(queue: &[Node], ours: impl Fn(&Node) -> bool) -> Answer {
    match queue.iter().position(ours) {
        Some(0) => Answer::First,
        Some(_) => Answer::Behind,
        None => Answer::Missing,
    }
}
