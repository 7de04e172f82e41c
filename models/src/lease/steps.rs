//! The steps of the model: what the server does, how an answer is taken, and what a tick changes.

use super::*;

impl Lease {
    /// Takes a request from the wire.
    pub(super) fn take(&self, state: &mut State, id: u8, what: What) -> Option<Request> {
        let request = state.request(id, what)?;
        let at = state.wire.iter().position(|other| *other == request)?;
        Some(state.wire.remove(at))
    }

    /// The server's part: one atomic step.
    pub(super) fn serve(&self, state: &mut State, request: Request) -> Reply {
        let Request { client, token, what, .. } = request;
        let lease = self.lease;
        let ours = |lock: &Lock| (lock.client, lock.token) == (client, token);
        match (what, &mut state.lock) {
            (What::Attempt, None) => {
                state.sections += 1;
                let section = state.sections;
                let fence = if self.rules.fence_with_grant {
                    state.counter += 1;
                    state.counter
                } else {
                    0
                };
                state.lock = Some(Lock { client, token, fence, section, left: lease });
                Reply::Granted { fence, section }
            }
            (What::Attempt, Some(lock)) if ours(lock) => {
                lock.left = lease;
                Reply::Granted { fence: lock.fence, section: lock.section }
            }
            (What::Attempt, Some(_)) => Reply::Busy,
            (What::Renew, Some(lock)) if ours(lock) => {
                lock.left = lease;
                Reply::Extended
            }
            (What::Renew, _) if !self.rules.renewal_checks_token => {
                let (fence, section) = (state.counter, state.sections);
                state.lock = Some(Lock { client, token, fence, section, left: lease });
                Reply::Extended
            }
            (What::Renew, _) => Reply::Gone,
            (What::Withdraw, lock) => {
                if !self.rules.release_checks_token || lock.as_ref().is_some_and(ours) {
                    state.lock = None;
                }
                Reply::Withdrawn
            }
            (What::DrawFence, _) => {
                state.counter += 1;
                Reply::Fence(state.counter)
            }
        }
    }

    pub(super) fn answer(&self, state: &mut State, id: u8) -> Option<()> {
        let client = &mut state.clients[usize::from(id)];
        let age = client.awaited.take()?;
        let lease = self.lease;
        let from_send = |age| if self.rules.deadline_from_send { age } else { 0 };
        match (client.reply.take()?, &mut client.phase) {
            (Reply::Granted { fence, section }, Phase::Trying { first, .. }) => {
                client.phase = match engine::granted(from_send(first.unwrap_or(age)), lease) {
                    Some(left) => Phase::Holding { fence, section, left },
                    None => Phase::Leaving,
                };
            }
            (Reply::Busy, Phase::Trying { first, .. }) => *first = engine::busy(*first, lease),
            (reply @ (Reply::Extended | Reply::Gone), phase @ Phase::Holding { .. }) => {
                let Phase::Holding { left, .. } = phase else { return None };
                match engine::renewed(reply == Reply::Extended, *left, from_send(age), lease) {
                    Some(until) => *left = until,
                    None => *phase = Phase::Leaving,
                }
            }
            (Reply::Withdrawn, phase @ Phase::Leaving) => *phase = Phase::Idle,
            (Reply::Fence(drawn), Phase::Holding { fence, .. }) => *fence = drawn,
            _ => return None,
        }
        Some(())
    }

    pub(super) fn tick(&self, state: &mut State, missed: Option<u8>) {
        state.lock = state.lock.filter(|lock| lock.left > 1).map(|lock| Lock { left: lock.left - 1, ..lock });
        let lease = self.lease;
        let older = |age: &mut u8| *age = (*age + 1).min(lease);
        for id in (0..).take(self.claims.len()) {
            let client = &mut state.clients[usize::from(id)];
            if missed == Some(id) {
                client.since_slip = 0;
                continue;
            }
            older(&mut client.since_slip);
            client.awaited.iter_mut().for_each(older);
            match &mut client.phase {
                Phase::Trying { first: Some(age), .. } => older(age),
                Phase::Holding { left, .. } => *left -= 1,
                _ => {}
            }
            // The deadline is noticed by whoever looks next; the guard is released after it.
            if matches!(client.phase, Phase::Holding { left: 0, .. }) {
                client.phase = Phase::Leaving;
                state.hang_up(id);
            }
        }
    }
}
