//! Random histories, and what has to be so after each step of any of them.

use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::{Mode, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};
use crate::token::Token;

/// One key, and the claims on it.
struct History {
    random: fastrand::Rng,
    state: KeyState<()>,
    now: Timestamp,
    claims: Vec<LockRequest>,
    tokens: u64,
    gone: HashSet<[u8; 16]>,
    left: Vec<Token>,
    last_fence: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            state: KeyState::new(),
            now: Timestamp::from_nanos(1_000_000_000),
            claims: Vec::new(),
            tokens: 0,
            gone: HashSet::new(),
            left: Vec::new(),
            last_fence: 0,
        }
    }

    fn request(&mut self) -> LockRequest {
        self.tokens += 1;
        let token = Token::from_bytes(u128::from(self.tokens).to_be_bytes());
        let take = self.random.u32(1..=3);
        let mode = match self.random.u32(0..10) {
            0..3 => Mode::Exclusive,
            3..7 => Mode::Shared,
            _ => Mode::Permits { of: self.random.u32(3..=4), take },
        };
        let lease = Duration::from_millis(self.random.u64(100..6_000));
        let request = LockRequest::new(token, mode, lease).with_preference(self.random.bool());
        request.with_fences(self.random.u32(1..4), Fence::new(1))
    }

    fn any(&mut self) -> Option<LockRequest> {
        self.random.choice(&self.claims).copied()
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(self.random.u64(0..1_500));
        if self.random.u32(0..400) == 0 {
            self.now = self.now + PERMITS_REMEMBERED;
        }
        let (now, before) = (self.now, self.state.clone());
        let mut may_end_preference = None;
        match self.random.u32(0..14) {
            0..3 if self.claims.len() < 12 => {
                let request = self.request();
                self.claims.push(request);
                self.attempt(&request);
            }
            0..6 => {
                if let Some(request) = self.any() {
                    self.attempt(&request);
                }
            }
            6 | 7 => {
                if let Some(request) = self.any() {
                    let held = before.holder(&request.token, now).is_some();
                    assert_eq!(self.state.renew(&request.token, request.lease, now), held);
                }
            }
            8 => {
                if let Some(request) = self.any() {
                    let held = before.holder(&request.token, now).map(|entry| entry.mode);
                    let downgraded = self.state.downgrade(&request.token, request.lease, now);
                    let expected = match held {
                        None => Downgraded::Gone,
                        Some(Mode::Exclusive) => Downgraded::Now,
                        Some(_) => Downgraded::Before,
                    };
                    assert_eq!(downgraded, expected);
                }
            }
            9 | 10 => {
                if let Some(request) = self.any() {
                    let withdrawn = self.state.withdraw(&request.token, now);
                    assert_eq!(withdrawn.preferred, before.prefers(&request.token));
                    assert!(!self.state.withdraw(&request.token, now).makes_room(), "once is enough");
                    self.forget(&request.token);
                    may_end_preference = Some(request.token);
                }
            }
            11 => {
                if let Some(request) = self.any() {
                    let taken_for = Duration::from_millis(self.random.u64(100..6_000));
                    let left = self.state.leave(&request.token, taken_for, now).is_some();
                    assert_eq!(left, before.holder(&request.token, now).is_some());
                    if left {
                        self.left.push(request.token.left_behind());
                        self.forget(&request.token);
                    }
                }
            }
            12 => {
                if let Some(left) = self.left.pop() {
                    let request = self.request();
                    let answer = self.state.take_over(&request, &left, now, || ());
                    let found =
                        before.holder(&left, now).filter(|held| held.mode.has_same_part(&request.mode));
                    match answer {
                        Answer::Granted(granted) => {
                            assert!(found.is_some());
                            self.drew(granted);
                            self.claims.push(request);
                        }
                        _ => assert!(found.is_none()),
                    }
                }
            }
            _ => {
                let number = self.random.u32(3..=4);
                let resized = self.state.resize(number, now);
                assert_eq!(resized.ok().flatten(), before.permits(now));
            }
        }
        self.check(&before, may_end_preference);
    }

    fn forget(&mut self, token: &Token) {
        self.claims.retain(|claim| claim.token != *token);
        self.gone.insert(*token.as_bytes());
    }

    fn drew(&mut self, granted: Granted) {
        assert!(granted.fence.get() > self.last_fence, "fences grow");
        self.last_fence = granted.fence.get() + u64::from(granted.reserved) - 1;
        assert_eq!(self.state.last_fence(), Fence::new(self.last_fence));
    }

    fn attempt(&mut self, request: &LockRequest) {
        let verdict = self.state.judge(request, self.now);
        assert_eq!(verdict, self.in_parts(request).judge(request, self.now), "entries count as others do");
        let answer = self.state.attempt(request, self.now, || ());
        match (verdict, answer) {
            (Verdict::Free, Answer::Granted(granted)) => {
                assert!(!granted.adopted);
                self.drew(granted);
                let taken: u32 = self.state.holders(self.now).map(|held| held.mode.taken()).sum();
                assert!(request.mode.permits().is_none_or(|of| taken <= of), "no more than there are");
            }
            (Verdict::Held, Answer::Granted(granted)) => assert!(granted.adopted),
            (Verdict::Taken(at) | Verdict::KeptOut(at), Answer::Busy { until }) => {
                assert!(at == until && until > self.now);
            }
            (Verdict::Conflict(one), Answer::Conflict(other)) => assert_eq!(one, other),
            other => panic!("{other:?}"),
        }
        // The answer was lost.
        let before = self.state.clone();
        let again = self.state.attempt(request, self.now, || ());
        match (answer, again) {
            (Answer::Granted(one), Answer::Granted(again)) => {
                assert_eq!(again, Granted { fence: one.fence, reserved: 1, adopted: true });
            }
            (one, again) => assert_eq!(one, again),
        }
        assert_eq!(before, self.state, "a repeated request changes nothing");
    }

    /// Returns the state as a store loads it that sums up the entries that a step does not name.
    fn in_parts(&self, request: &LockRequest) -> KeyState<()> {
        let mut parts = KeyState::new()
            .with_permits(self.state.stored_permits())
            .with_preference(self.state.preferred())
            .with_last_fence(self.state.last_fence());
        let mut others: Option<Others> = None;
        for entry in self.state.entries() {
            if entry.token == request.token || entry.mode == Mode::Exclusive {
                parts = parts.with_holder(*entry);
            } else if entry.expires > self.now {
                let sum = others.get_or_insert(Others {
                    taken: 0,
                    first_end: entry.expires,
                    last_end: entry.expires,
                });
                sum.taken += entry.mode.taken();
                sum.first_end = sum.first_end.min(entry.expires);
                sum.last_end = sum.last_end.max(entry.expires);
            }
        }
        parts.with_others(others)
    }

    fn check(&self, before: &KeyState<()>, may_end_preference: Option<Token>) {
        let (state, now) = (&self.state, self.now);
        let held: Vec<_> = state.holders(now).collect();
        let alone = held.iter().any(|entry| entry.mode == Mode::Exclusive);
        assert!(!alone || held.len() == 1, "a writer beside another holder");
        let permits = held.iter().filter(|entry| entry.mode.permits().is_some()).count();
        assert!(permits == 0 || permits == held.len(), "a semaphore that is a lock");
        for entry in state.entries() {
            assert!(!self.gone.contains(entry.token.as_bytes()), "a token that was withdrawn");
            assert!(entry.fence.get() <= self.last_fence);
            if let (Some(of), true) = (entry.mode.permits(), entry.expires > now) {
                assert_eq!(state.permits(now), Some(of), "a number of permits that was forgotten");
            }
        }
        if let Some(preferred) = state.preferred() {
            assert!(!self.gone.contains(preferred.token.as_bytes()));
            assert!(preferred.alive_until <= now + PREFERENCE_ALIVE);
            let until = preferred.keeps_out_until(now);
            assert!(until.is_none_or(|until| until <= preferred.since + PREFERENCE), "kept out for too long");
        }
        if let Some(old) = before.preferred().filter(|old| !old.is_over(now)) {
            let goes_on =
                state.preferred().is_some_and(|new| (new.token, new.since) == (old.token, old.since));
            let is_held = state.holder(&old.token, now).is_some();
            assert!(goes_on || is_held || alone || may_end_preference == Some(old.token), "it was cut short");
        }
        // All that runs out frees the key.
        let end = state.taken_until(now).unwrap_or(now) + PREFERENCE * 2;
        assert!(state.is_idle(end));
        let newcomer = Token::from_bytes([0xff; 16]);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { of: 9, take: 9 }] {
            let request = LockRequest::new(newcomer, mode, Duration::from_secs(1));
            assert_eq!(state.judge(&request, end), Verdict::Free);
        }
    }
}

#[test]
fn in_a_hundred_random_histories_every_rule_holds_after_every_step() {
    for seed in 0..100 {
        let mut history = History::new(seed);
        for _ in 0..2_000 {
            history.step();
        }
    }
}
