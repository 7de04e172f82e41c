//! The steps of the model: what the server does, how an answer is taken, and what a tick changes.

use super::*;

impl Handoff {
    /// The server's part: one atomic step.
    pub(super) fn serve(&self, state: &mut State, process: u8, request: Request) -> Reply {
        let token = request.token;
        let ours = |lock: &Lock| (lock.process, lock.token) == (process, token);
        match (request.what, &mut state.lock) {
            (What::Attempt(size), None) => {
                state.grants += 1;
                let next = state.counter + 1;
                let block = Block { grant: state.grants, next, last: state.counter + size };
                state.counter =
                    if self.rules.reservation == Reservation::AtGrant { block.last } else { next };
                state.lock = Some(Lock { process, token, block, left: self.lease });
                Reply::Granted(block)
            }
            (What::Attempt(size), Some(lock)) if ours(lock) => {
                lock.left = self.lease;
                let last = if self.rules.adoption_tells_block {
                    lock.block.last
                } else {
                    lock.block.next + size - 1
                };
                Reply::Granted(Block { last, ..lock.block })
            }
            (What::Attempt(_), Some(_)) => Reply::Busy,
            (What::Renew, Some(lock)) if ours(lock) => {
                lock.left = self.lease;
                Reply::Extended
            }
            (What::Renew, _) => Reply::Gone,
            (What::Withdraw(used), lock) => {
                if lock.as_ref().is_some_and(ours) {
                    state.lock = None;
                    state.counter = state.counter.max(match self.rules.reservation {
                        Reservation::AtRelease => used,
                        _ => 0,
                    });
                }
                Reply::Withdrawn
            }
        }
    }

    pub(super) fn answer(&self, process: &mut Process) -> Option<()> {
        let request = process.request.take()?;
        match (request.reply?, &mut process.phase) {
            (Reply::Granted(block), Phase::Trying { first, .. }) => {
                let left = self.lease.saturating_sub(*first);
                process.phase = if left > 0 {
                    let fences = engine::granted(block.next, block.last, true);
                    Phase::Holding { grant: block.grant, fences, passes: 0, left }
                } else {
                    Phase::Leaving { used: block.next }
                };
            }
            // Nothing of an earlier attempt is there; the next one begins anew.
            (Reply::Busy, Phase::Trying { first, .. }) => *first = 0,
            (Reply::Extended, Phase::Holding { left, .. }) => {
                *left = (*left).max(self.lease.saturating_sub(request.age));
            }
            (Reply::Gone, Phase::Holding { .. }) => {
                process.phase = Phase::Leaving { used: process.fence() };
            }
            (Reply::Withdrawn, phase @ Phase::Leaving { .. }) => *phase = Phase::Idle,
            _ => return None,
        }
        Some(())
    }

    pub(super) fn tick(&self, state: &mut State, missed: Option<u8>) {
        state.lock = state.lock.filter(|lock| lock.left > 1).map(|lock| Lock { left: lock.left - 1, ..lock });
        for (id, process) in (0..).zip(&mut state.processes) {
            if missed == Some(id) {
                continue;
            }
            if let Some(request) = &mut process.request
                && !request.given_up
                && request.what == What::Renew
            {
                request.age = (request.age + 1).min(self.lease);
            }
            match &mut process.phase {
                Phase::Trying { first, .. } => *first = (*first + 1).min(self.lease),
                Phase::Holding { left, .. } => {
                    *left -= 1;
                    if *left == 0 {
                        process.phase = Phase::Leaving { used: process.fence() };
                        process.give_up();
                    }
                }
                _ => {}
            }
        }
    }
}
