//! What processes recorded.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use dlock_core::{Locks, ManualClock, Memory};
use dlock_testkit::checkers::{fence_order, sharing};
use dlock_testkit::history::{Event, Outcome, Recorder, read};

#[tokio::test]
async fn what_is_recorded_is_read_back_but_for_a_line_that_was_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.jsonl");
    let locks = Locks::new(Memory::new());
    let recorder = Recorder::append(&path).unwrap();
    let (acquired, guard) = Event::acquire(0, 1, "k\n", locks.lock("k\n").acquire()).await;
    let guard = guard.unwrap();
    let checked = Event::check(0, 1, &guard);
    let released = Event::release(0, 1, guard).await;
    let events = [acquired, checked, released];
    for event in &events {
        recorder.record(event).unwrap();
    }
    assert_eq!(read(&path).unwrap(), events);
    assert!(events.is_sorted_by(|a, b| a.invoked <= a.returned && a.returned <= b.invoked));
    assert_eq!(events.each_ref().map(|event| event.outcome), [Outcome::Ok; 3]);
    assert_eq!(events[0].fence, Some(1));
    assert!(events[0].valid_until.unwrap() > events[2].returned);

    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"process\": 0, \"ho").unwrap();
    assert_eq!(read(&path).unwrap(), events);
    for event in &events[..2] {
        recorder.record(event).unwrap();
    }
    assert!(read(&path).is_err(), "half a line in the middle is no crash of the writer");
}

/// As a process that is frozen between the answer of the server and the return of its acquire.
#[tokio::test]
async fn a_grant_whose_lease_ran_out_before_it_was_looked_at_accuses_no_later_grant() {
    let clock = ManualClock::stopped();
    let locks = Locks::new(Memory::with_clock(clock.clock()));
    let others = async {
        let guard = locks.lock("k").acquire().await;
        clock.advance(Duration::from_secs(3_600));
        let (next, lock) = Event::acquire(1, 0, "k", locks.lock("k").acquire()).await;
        (guard, next, lock)
    };
    let mut later = None;
    let frozen = async {
        let (guard, next, lock) = others.await;
        later = Some((next, lock));
        guard
    };
    let (late, guard) = Event::acquire(0, 0, "k", frozen).await;
    let (next, _lock) = later.unwrap();
    assert!(guard.unwrap().check().is_err());
    assert!(late.fence < next.fence && next.outcome == Outcome::Ok);
    let events = [late, next];
    assert_eq!(fence_order(&events).inversions, []);
    assert_eq!(sharing(&events).inversions, []);
}
