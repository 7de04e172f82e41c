//! Tests of tenures.

use super::*;
use crate::mode::Mode;

const PAUSE: Duration = Duration::from_millis(5);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(0) + Duration::from_millis(millis)
}

const fn others(count: u32) -> OthersWaiting {
    OthersWaiting { count, reader: false }
}

#[tokio::test(start_paused = true)]
async fn a_process_yields_after_its_bound_where_others_wait_and_never_else() {
    let limits = HandoffLimits { sections: 3, time: Duration::from_millis(50) };
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    for others_waiting in [0, 1] {
        for section in 1..=3 {
            let tenure = tenures.granted(&key, at(section));
            if others_waiting > 0 {
                assert_eq!(tenures.released(&key, tenure, others(1), || at(section)).is_some(), section == 3);
            } else {
                assert!(tenures.released(&key, tenure, others(0), || at(section)).is_none());
            }
        }
    }
    assert!(tenures.yields_until(&key).is_some());
    tokio::time::advance(PAUSE).await;
    assert!(tenures.yields_until(&key).is_none());
    // No other process wanted it meanwhile: all begins anew.
    let tenure = tenures.granted(&key, at(10));
    assert!(tenures.released(&key, tenure, others(1), || at(11)).is_none());
    let tenure = tenures.granted(&key, at(12));
    assert!(tenures.released(&key, tenure, others(1), || at(70)).is_some(), "the time is up");
}

#[tokio::test(start_paused = true)]
async fn a_tenure_ends_when_another_has_the_lock_and_is_forgotten_after_a_while() {
    let limits = HandoffLimits { sections: 2, ..HandoffLimits::default() };
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    for forget in [true, false] {
        let tenure = tenures.granted(&key, at(1));
        assert!(tenures.released(&key, tenure, others(1), || at(2)).is_none());
        if forget {
            tenures.ended(&key);
        }
        let tenure = tenures.granted(&key, at(if forget { 3 } else { 2_000 }));
        assert!(tenures.released(&key, tenure, others(1), || at(2_000)).is_none() || forget);
        tenures.ended(&key);
    }
    assert_eq!(tenures.block(&key, 1000, false), BLOCK);
    assert_eq!(tenures.block(&key, 1000, true), 2);
    assert_eq!(tenures.block(&key, 1, false), FOR_EACH, "few who wait need few");
    assert_eq!(tenures.block(&key, 0, false), 1);
    // The memory of keys that are not taken again is bounded.
    for number in 0..u64::try_from(KEYS).unwrap() * 3 {
        let key = Key::new(format!("k{number}")).unwrap();
        let tenure = tenures.granted(&key, at(number * 100));
        tenures.released(&key, tenure, others(1), || at(number * 100));
    }
    assert!(tenures.count.load(Ordering::SeqCst) <= KEYS);
}

#[tokio::test(start_paused = true)]
async fn where_a_reader_was_seen_to_wait_the_lock_is_passed_on_for_a_short_time_only() {
    let limits = HandoffLimits::default();
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    let reader = |count| OthersWaiting { count, reader: true };
    let tenure = tenures.granted(&key, at(1));
    assert!(
        !tenure.ends_passing_on(&limits, at(50), || false)
            && tenure.ends_passing_on(&limits, at(51), || false)
    );
    assert!(tenures.released(&key, tenure, reader(1), || at(20)).is_none(), "it yields for no reader");
    // The reader has the lock, and then this process again.
    tenures.ended(&key);
    let tenure = tenures.granted(&key, at(25));
    assert!(
        !tenure.ends_passing_on(&limits, at(34), || false)
            && tenure.ends_passing_on(&limits, at(35), || false)
    );
    assert!(
        !tenure.ends_passing_on(&limits, at(74), || true) && tenure.ends_passing_on(&limits, at(75), || true)
    );
    // No other waits at this release; a reader may the next time.
    assert!(tenures.released(&key, tenure, others(0), || at(30)).is_none());
    let tenure = tenures.granted(&key, at(30));
    assert!(
        !tenure.ends_passing_on(&limits, at(39), || false)
            && tenure.ends_passing_on(&limits, at(40), || false)
    );
    // None did for a second.
    assert!(tenures.released(&key, tenure, others(0), || at(1_021)).is_none());
    assert_eq!(tenures.count.load(Ordering::SeqCst), 0, "it is forgotten");
    let tenure = tenures.granted(&key, at(1_022));
    assert!(!tenure.ends_passing_on(&limits, at(1_071), || false));
}

#[tokio::test(start_paused = true)]
async fn that_short_time_is_counted_from_each_grant_and_the_limits_from_the_beginning() {
    let limits = HandoffLimits::default();
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    let tenure = tenures.granted(&key, at(1));
    assert!(tenures.released(&key, tenure, OthersWaiting { count: 1, reader: true }, || at(2)).is_none());
    // Readers have their turn, and then writers wait elsewhere and no reader, so that the tenure goes on.
    for (granted, passed_on) in [(3, 10), (13, 5), (18, 5)] {
        let tenure = tenures.granted(&key, at(granted));
        for tenure in [tenure, tenure.next()] {
            assert!(!tenure.ends_passing_on(&limits, at(granted + passed_on - 1), || false));
            assert!(tenure.ends_passing_on(&limits, at(granted + passed_on), || false));
        }
        assert!(tenures.released(&key, tenure, others(1), || at(granted + passed_on)).is_none());
    }
    // Since the beginning, without the millisecond of the readers.
    let tenure = tenures.granted(&key, at(49));
    assert!(!tenure.ends_passing_on(&limits, at(51), || false));
    assert!(tenure.ends_passing_on(&limits, at(52), || false), "the whole tenure is over");
    assert!(tenures.released(&key, tenure, others(1), || at(52)).is_some());
}

#[tokio::test(start_paused = true)]
async fn readers_that_have_their_turn_end_no_tenure_and_their_time_does_not_count() {
    let (tenures, key) = (Tenures::new(HandoffLimits::default(), PAUSE), Key::new("k").unwrap());
    let reader = OthersWaiting { count: 1, reader: true };
    let held_by = |mode| Holder { mode, ..Holder::default() };
    for writes_between in [false, true] {
        for turn in 0..5 {
            let begin = turn * 100;
            let tenure = tenures.granted(&key, at(begin));
            let yields = tenures.released(&key, tenure, reader, || at(begin + 10)).is_some();
            assert_eq!(yields, turn == 4 && !writes_between, "turn {turn}");
            // First no reader is there yet, and then one is.
            tenures.found_taken(&key, None);
            tenures.found_taken(&key, Some(&held_by(Mode::Shared)));
            if writes_between {
                tenures.found_taken(&key, Some(&held_by(Mode::Exclusive)));
            }
        }
        // After the pause another process counts as before.
        tenures.found_taken(&key, None);
        assert!(tenures.yields_until(&key).is_none());
        tenures.ended(&key);
    }
}

#[tokio::test(start_paused = true)]
async fn fences_are_reserved_for_what_is_left_of_a_tenure() {
    let limits = HandoffLimits { sections: 4, ..HandoffLimits::default() };
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    let tenure = tenures.granted(&key, at(1)).next().next();
    assert!(tenures.released(&key, tenure, others(1), || at(2)).is_none());
    assert_eq!(tenures.block(&key, 1000, false), 1);
    let tenure = tenures.granted(&key, at(3));
    assert!(tenures.released(&key, tenure, others(1), || at(4)).is_some());
    assert_eq!(tenures.block(&key, 1000, false), 4, "it has stood back then");
}

/// The pauses of a process that has the lock in each millisecond, where others are seen in some of them.
async fn pauses(tenures: &Tenures, key: &Key, millis: u64, seen: impl Fn(u64) -> bool) -> Vec<u64> {
    let (mut pauses, mut now) = (Vec::new(), 1);
    while now < millis {
        let tenure = tenures.granted(key, at(now));
        now += 1;
        if let Some(until) = tenures.released(key, tenure, others(seen(now).into()), || at(now)) {
            let pause = until - Instant::now();
            tokio::time::advance(pause).await;
            let pause = u64::try_from(pause.as_millis()).unwrap();
            now += pause;
            pauses.push(pause);
        }
    }
    pauses
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_while_nobody_else_is_found_to_have_the_lock() {
    let (tenures, key) = (Tenures::new(HandoffLimits::default(), PAUSE), Key::new("k").unwrap());
    let all = pauses(&tenures, &key, 2_000, |_| true).await;
    assert_eq!(all[..17], [5, 5, 5, 10, 5, 5, 5, 20, 5, 5, 5, 40, 5, 5, 5, 80, 5]);
    tenures.ended(&key);
    assert_eq!(pauses(&tenures, &key, 200, |_| true).await[..3], [5, 5, 5], "somebody else had it");
    let slow = Tenures::new(HandoffLimits::default(), Duration::from_millis(200));
    assert_eq!(pauses(&slow, &key, 2_000, |_| true).await[..5], [200; 5]);
}

#[tokio::test(start_paused = true)]
async fn others_who_were_seen_to_wait_are_not_forgotten_at_the_next_release() {
    let (tenures, key) = (Tenures::new(HandoffLimits::default(), PAUSE), Key::new("k").unwrap());
    let all = pauses(&tenures, &key, 1_000, |now| now % 200 == 2).await;
    assert!(all.len() >= 10, "{all:?}");
    tenures.ended(&key);
    let all = pauses(&tenures, &key, 2_000, |now| now == 2).await;
    assert!((2..=6).contains(&all.len()), "they are gone: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_lets_as_many_releases_pass_as_others_wait_for_longer() {
    let limits = HandoffLimits { sections: 1, ..HandoffLimits::default() };
    let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
    let elsewhere = |now| tenures.released_elsewhere(&key, || at(now));
    assert_eq!(elsewhere(0), None);
    let tenure = tenures.granted(&key, at(1));
    assert!(tenures.released(&key, tenure, others(4), || at(2)).is_some());
    for turns in [3, 2, 1] {
        assert_eq!(elsewhere(3), Some(LATER * turns));
        // Another process was found to have it.
        tenures.ended(&key);
        assert_eq!(tenures.block(&key, 1000, true), 1);
    }
    assert_eq!(elsewhere(4), None, "it is in turn");
    // One other, or an unknown number: nothing is let pass but the pause.
    let tenure = tenures.granted(&key, at(5));
    assert!(tenures.released(&key, tenure, others(1), || at(6)).is_some());
    assert_eq!(elsewhere(7), None);
    // A count of long ago counts no more.
    let tenure = tenures.granted(&key, at(8));
    assert!(tenures.released(&key, tenure, others(4), || at(9)).is_some());
    assert_eq!(elsewhere(10), Some(LATER * 3));
    assert_eq!(elsewhere(9 + 400), None);
    assert_eq!(elsewhere(9 + 400), None);
}

#[test]
fn bounds_are_checked() {
    let limits = HandoffLimits::default();
    limits.check().unwrap();
    for wrong in [
        HandoffLimits { sections: 0, ..limits },
        HandoffLimits { sections: BLOCK + 1, ..limits },
        HandoffLimits { time: Duration::ZERO, ..limits },
        HandoffLimits { time: Duration::from_secs(11), ..limits },
    ] {
        assert!(wrong.check().unwrap_err().message().contains("use 1"), "{wrong:?}");
    }
}
