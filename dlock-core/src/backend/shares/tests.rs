use std::time::Duration;

use super::*;
use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::{Mode, PERMITS_REMEMBERED, PREFERENCE};
use crate::token::Token;

const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

fn token(number: u8) -> Token {
    Token::from_bytes([number; 16])
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(0) + Duration::from_secs(seconds)
}

fn asks(number: u8, mode: Mode) -> LockRequest {
    LockRequest::new(token(number), mode, LEASE).with_preference(true)
}

fn reads(number: u8) -> LockRequest {
    asks(number, Mode::Shared)
}

fn writes(number: u8) -> LockRequest {
    asks(number, Mode::Exclusive)
}

fn takes(number: u8, take: u32, of: u32) -> LockRequest {
    asks(number, Mode::Permits { of, take })
}

fn lasting(request: LockRequest, lease: Duration) -> LockRequest {
    LockRequest { lease, ..request }
}

impl KeyState<()> {
    fn ask(&mut self, request: LockRequest, seconds: u64) -> Answer {
        self.attempt(&request, at(seconds), || ())
    }

    #[track_caller]
    fn granted(&mut self, request: LockRequest, seconds: u64) -> Granted {
        match self.ask(request, seconds) {
            Answer::Granted(granted) => granted,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn busy(&mut self, request: LockRequest, seconds: u64, until: u64) {
        assert_eq!(self.ask(request, seconds), Answer::Busy { until: at(until) });
    }

    #[track_caller]
    fn conflicts(&mut self, request: LockRequest, seconds: u64, other: Mode) {
        assert_eq!(self.ask(request, seconds), Answer::Conflict(other));
    }
}

#[test]
fn a_writer_is_alone_until_its_lease_ends() {
    let mut state = KeyState::new();
    assert_eq!(state.granted(writes(1), 0), Granted { fence: Fence::new(1), reserved: 1, adopted: false });
    state.busy(writes(2), 1, 3);
    state.busy(reads(3), 1, 3);
    state.conflicts(takes(4, 1, 5), 1, Mode::Exclusive);
    assert_eq!(state.preferred(), None, "nobody is preferred behind a writer");
    assert_eq!(state.granted(reads(3), 3).fence, Fence::new(2));
    assert!(!state.renew(&token(1), LEASE, at(3)));
    assert_eq!(state.entries().count(), 1);
}

#[test]
fn readers_share_a_lock_and_a_writer_waits_for_the_last_of_them() {
    let mut state = KeyState::new();
    state.granted(reads(1), 0);
    state.granted(reads(2), 1);
    state.busy(LockRequest::new(token(3), Mode::Exclusive, LEASE), 2, 3);
    assert!(state.withdraw(&token(1), at(2)).makes_room());
    state.busy(LockRequest::new(token(3), Mode::Exclusive, LEASE), 2, 4);
    state.granted(writes(3), 4);
}

#[test]
fn a_waiting_writer_keeps_readers_out_for_ten_seconds_of_twenty() {
    let mut state = KeyState::new();
    state.granted(lasting(reads(1), LONG), 0);
    for second in 0..=40 {
        state.busy(writes(2), second, 60);
        let newcomer = LockRequest::new(token(100 + u8::try_from(second).unwrap()), Mode::Shared, LEASE);
        let verdict = state.judge(&newcomer, at(second));
        match second {
            0..10 | 20..30 | 40 => {
                assert!(matches!(verdict, Verdict::KeptOut(_)), "{verdict:?} at {second} s");
            }
            _ => assert_eq!(verdict, Verdict::Free, "at {second} s"),
        }
    }
}

#[test]
fn a_writer_that_asks_no_more_keeps_readers_out_for_two_seconds() {
    let mut state = KeyState::new();
    state.granted(lasting(reads(1), LONG), 0);
    state.busy(writes(2), 1, 60);
    state.busy(reads(3), 2, 3);
    state.granted(reads(3), 3);
}

#[test]
fn a_claim_that_does_not_wait_and_one_that_was_withdrawn_keep_nobody_out() {
    let mut state = KeyState::new();
    state.granted(lasting(reads(1), LONG), 0);
    state.busy(LockRequest::new(token(2), Mode::Exclusive, LEASE), 1, 60);
    state.granted(reads(3), 1);
    state.busy(writes(4), 1, 4);
    let withdrawn = state.withdraw(&token(4), at(1));
    assert!(withdrawn.entry.is_none() && withdrawn.preferred && withdrawn.makes_room());
    state.granted(reads(5), 1);
}

#[test]
fn a_second_writer_is_not_preferred_before_the_first_has_had_its_time() {
    let mut state = KeyState::new();
    state.granted(lasting(reads(1), LONG), 0);
    state.busy(writes(2), 0, 60);
    assert!(!state.prefer(&writes(3), at(1)));
    assert!(state.prefer(&writes(3), at(2)), "the first asked no more");
    assert!(state.prefers(&token(3)) && !state.prefers(&token(2)));
}

#[test]
fn a_grant_to_a_writer_ends_the_preference_of_another() {
    let mut state = KeyState::new();
    state.granted(reads(1), 0);
    state.busy(writes(2), 0, 3);
    let _ = state.withdraw(&token(1), at(1));
    state.granted(writes(3).with_order(true), 1);
    assert_eq!(state.preferred(), None);
}

#[test]
fn permits_are_granted_as_long_as_they_fit() {
    let mut state = KeyState::new();
    state.granted(takes(1, 2, 4), 0);
    state.granted(takes(2, 1, 4), 1);
    state.busy(takes(3, 2, 4), 1, 3);
    state.busy(takes(4, 1, 4), 2, 3);
    let _ = state.withdraw(&token(1), at(2));
    state.busy(takes(4, 1, 4), 2, 3);
    state.granted(takes(3, 2, 4), 2);
    state.granted(takes(4, 1, 4), 2);
    state.busy(takes(5, 1, 4), 2, 4);
}

#[test]
fn a_key_is_used_in_one_way() {
    let mut state = KeyState::new();
    state.granted(takes(1, 1, 4), 0);
    let semaphore = Mode::Permits { of: 4, take: 1 };
    state.conflicts(takes(2, 1, 5), 1, semaphore);
    state.conflicts(reads(2), 1, semaphore);
    state.conflicts(writes(2), 1, semaphore);
    let mut state = KeyState::new();
    state.granted(reads(1), 0);
    state.conflicts(takes(2, 1, 4), 1, Mode::Shared);
    state.granted(takes(2, 1, 4), 3);
}

#[test]
fn the_number_of_permits_is_remembered_for_a_day_after_the_last_renewal() {
    let day = PERMITS_REMEMBERED.as_secs();
    let mut state = KeyState::new();
    state.granted(lasting(takes(1, 1, 4), LONG), 0);
    for second in (0..2 * day).step_by(40) {
        assert!(state.renew(&token(1), LONG, at(second)));
    }
    let end = 3 * day - 40;
    state.conflicts(takes(2, 1, 5), end - 1, Mode::Permits { of: 4, take: 1 });
    assert_eq!((state.permits(at(end - 1)), state.permits(at(end))), (Some(4), None));
    assert!(state.is_idle(at(end)));
    state.granted(takes(2, 1, 5), end);
}

#[test]
fn a_withdrawal_that_comes_late_does_not_lengthen_what_is_remembered() {
    let day = PERMITS_REMEMBERED.as_secs();
    let mut state = KeyState::new();
    state.granted(takes(1, 1, 4), 0);
    let late = state.withdraw(&token(1), at(day + 1));
    assert!(late.entry.is_some());
    assert!(state.is_idle(at(day + 1)));
}

#[test]
fn a_number_of_permits_that_is_lowered_takes_none_away() {
    let mut state = KeyState::new();
    state.granted(takes(1, 3, 4), 0);
    assert_eq!(state.resize(2, at(1)), Ok(Some(4)));
    state.conflicts(takes(2, 1, 4), 1, Mode::Permits { of: 2, take: 1 });
    state.busy(takes(2, 1, 2), 1, 3);
    assert!(state.renew(&token(1), LEASE, at(1)));
    let _ = state.withdraw(&token(1), at(2));
    state.granted(takes(2, 1, 2), 2);
}

#[test]
fn a_lost_answer_is_repeated_also_after_the_number_of_permits_was_changed() {
    let mut state = KeyState::new();
    let first = state.granted(takes(1, 1, 4), 0);
    assert_eq!(state.resize(8, at(1)), Ok(Some(4)));
    assert_eq!(state.granted(takes(1, 1, 4), 1), Granted { adopted: true, ..first });
}

#[test]
fn only_what_is_held_as_a_lock_cannot_be_resized() {
    let mut state = KeyState::new();
    assert_eq!(state.resize(4, at(0)), Ok(None));
    state.granted(writes(1), 0);
    assert_eq!(state.resize(4, at(1)), Err(Mode::Exclusive));
    state.granted(reads(2), 3);
    state.busy(writes(3), 5, 6);
    assert_eq!(state.resize(4, at(5)), Err(Mode::Shared));
    assert_eq!(state.resize(4, at(6)), Ok(None), "all leases have ended");
}

#[test]
fn a_lost_answer_is_repeated_with_one_fence_of_the_block() {
    let mut state = KeyState::new();
    let request = writes(1).with_fences(5, Fence::new(100));
    assert_eq!(state.granted(request, 0), Granted { fence: Fence::new(100), reserved: 5, adopted: false });
    assert_eq!(state.granted(request, 2), Granted { fence: Fence::new(100), reserved: 1, adopted: true });
    state.busy(reads(2), 3, 5);
    assert_eq!(state.granted(reads(2).with_fences(5, Fence::new(7)), 5).fence, Fence::new(105));
    assert_eq!(state.last_fence(), Fence::new(105));
}

#[test]
fn a_writer_becomes_a_reader_with_its_fence_and_lets_readers_in() {
    let mut state = KeyState::new();
    let granted = state.granted(writes(1), 0);
    assert_eq!(state.downgrade(&token(1), LEASE, at(1)), Downgraded::Now);
    let held = state.holder(&token(1), at(1)).unwrap();
    assert_eq!((held.mode, held.fence, held.expires), (Mode::Shared, granted.fence, at(4)));
    state.granted(reads(2), 1);
    state.busy(writes(3), 1, 4);
    assert_eq!(state.downgrade(&token(1), LEASE, at(2)), Downgraded::Before);
    assert_eq!(state.downgrade(&token(1), LEASE, at(5)), Downgraded::Gone);
}

#[test]
fn what_is_left_counts_and_only_its_token_takes_it_over() {
    let mut state = KeyState::new();
    let before = state.granted(takes(1, 2, 4), 0);
    let left = token(1).left_behind();
    let entry = state.leave(&token(1), LONG, at(1)).unwrap();
    assert_eq!((entry.token, entry.left_behind, entry.expires), (left, true, at(61)));
    assert!(!state.renew(&token(1), LEASE, at(1)));
    assert!(state.withdraw(&token(1), at(1)).entry.is_none());
    state.busy(takes(2, 3, 4), 1, 61);
    // A request that is repeated, or comes late, lengthens nothing.
    assert_eq!(state.leave(&token(1), LONG, at(2)).unwrap().expires, at(61));
    assert_eq!(state.leave(&token(1), LEASE, at(2)).unwrap().expires, at(5));
    let take = |state: &mut KeyState<()>, request, left| state.take_over(&request, &left, at(3), || ());
    assert_eq!(take(&mut state, takes(3, 2, 4), token(9)), Answer::Busy { until: at(5) });
    assert_eq!(take(&mut state, takes(3, 1, 4), left), Answer::Busy { until: at(5) });
    let Answer::Granted(taken) = take(&mut state, takes(3, 2, 4), left) else { panic!() };
    assert!(taken.fence > before.fence);
    assert_eq!(take(&mut state, takes(3, 2, 4), left), Answer::Granted(Granted { adopted: true, ..taken }));
    assert_eq!(take(&mut state, takes(4, 2, 4), left), Answer::Busy { until: at(6) }, "a baton is good once");
    assert!(state.leave(&token(1), LONG, at(3)).is_none());
}

#[test]
fn the_first_in_the_queue_has_its_turn_before_all_others() {
    let first = QueueEntry { token: token(2), alive_until: at(5) };
    let mut state = KeyState::new().with_first_in_queue(Some(first));
    state.busy(writes(1), 1, 5);
    state.busy(reads(1), 1, 5);
    state.granted(writes(2).with_order(true), 1);
    let _ = state.withdraw(&token(2), at(2));
    state.granted(reads(1), 5);
}

#[test]
fn a_claim_that_waits_in_order_is_not_kept_out_by_preference() {
    let mut state = KeyState::new();
    state.granted(reads(1), 0);
    state.busy(writes(2), 2, 3);
    assert_eq!(state.judge(&writes(3), at(3)), Verdict::KeptOut(at(4)));
    assert_eq!(state.judge(&writes(3).with_order(true), at(3)), Verdict::Free);
}

#[test]
fn a_key_is_idle_when_nothing_of_it_counts() {
    let mut state = KeyState::new();
    state.granted(reads(1), 0);
    state.busy(writes(2), 2, 3);
    assert_eq!((state.taken_until(at(2)), state.taken_until(at(3))), (Some(at(3)), None));
    assert!(!state.is_idle(at(3)), "a writer is preferred");
    assert!(state.is_idle(at(4)));
    assert!(state.is_idle(at(2) + PREFERENCE * 2));
}
