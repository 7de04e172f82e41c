//! Tests of the lines.

use std::pin::pin;

use super::readers::{INVITED, LOOKED_AT, Reader};
use super::*;

/// Is `true` if this resolves now.
fn is_ready(future: impl Future) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).poll(&mut context).is_ready()
}

#[tokio::test]
async fn a_release_that_was_not_answered_is_known_to_the_next_one() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let (a, b, c) = (line.join(&key, None), line.join(&key, None), line.join(&key, None));
    assert_eq!(a.turn().await, Turn::Released);
    a.ask();
    a.poll_after(Duration::from_secs(60));
    assert!(!is_ready(a.turn()));
    line.released(&key);
    assert_eq!(a.turn().await, Turn::Released);
    a.ask();
    // Cancelled, or refused by the backend, with the request under way.
    drop(a);
    assert_eq!(b.turn().await, Turn::Released);
    b.ask();
    b.poll_after(Duration::from_secs(60));
    // This one has learned that the lock has a holder.
    drop(b);
    assert!(!is_ready(c.turn()));
}

#[tokio::test]
async fn places_come_first_in_their_order_and_nothing_is_left() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let (a, b, c) = (line.join(&key, None), line.join(&key, None), line.join(&key, None));
    a.first().await;
    assert!(!is_ready(b.first()));
    drop(b);
    drop(a);
    c.first().await;
    assert!(line.has(&key));
    drop(c);
    assert!(!line.has(&key) && line.shards.iter().all(|shard| shard.lock().waiters.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn who_follows_a_holder_waits_for_its_release() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    for early in [true, false] {
        let (a, b) = (line.join(&key, None), line.join(&key, None));
        assert_eq!(a.turn().await, Turn::Released, "never asked for");
        a.ask();
        a.win(Duration::from_secs(60));
        assert!(!is_ready(b.turn()));
        if early {
            line.released(&key);
            assert_eq!(b.turn().await, Turn::Released);
        } else {
            assert_eq!(b.turn().await, Turn::Due);
        }
    }
}

#[tokio::test]
async fn a_release_is_told_to_the_first_only() {
    let line = WaitQueue::default();
    let (key, other) = (Key::new("k").unwrap(), Key::new("o").unwrap());
    let seen = (line.releases(&key), line.releases(&other));
    let (a, b) = (line.join(&key, Some(seen.0)), line.join(&key, Some(seen.0)));
    let o = line.join(&other, Some(seen.1));
    for ticket in [&a, &o] {
        ticket.poll_after(Duration::from_secs(60));
    }
    line.released(&key);
    assert!(is_ready(a.turn()) && !is_ready(b.turn()) && !is_ready(o.turn()));
}

#[tokio::test]
async fn a_release_before_the_place_in_line_is_known_there() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let seen = line.releases(&key);
    line.released(&key);
    let late = line.join(&key, Some(seen));
    late.poll_after(Duration::from_secs(60));
    assert!(is_ready(late.turn()));
}

/// Has one waiter after the other give up, each millisecond, and returns how often they were to ask in two seconds.
async fn asked_by_those_who_give_up(line: &WaitQueue) -> u32 {
    let key = Key::new("k").unwrap();
    let seen = Some(line.releases(&key));
    let mut tickets: std::collections::VecDeque<_> = (0..2_000).map(|_| line.join(&key, seen)).collect();
    tickets[0].ask();
    tickets[0].poll_after(Duration::from_millis(100));
    let mut asked = 0;
    while let Some(first) = tickets.front() {
        let turn = tokio::time::timeout(Duration::from_millis(1), first.turn()).await;
        if turn.is_ok() {
            asked += 1;
            first.ask();
            let pause = first.next_pause(0.5).unwrap();
            // Every other one is gone before it has an answer.
            if asked % 2 == 0 {
                first.poll_after(pause);
            }
        }
        drop(tickets.pop_front());
    }
    asked
}

#[tokio::test(start_paused = true)]
async fn who_becomes_the_first_asks_when_the_one_before_would_have() {
    let polls = PauseLimit::new(Duration::from_millis(50), Duration::from_millis(250));
    let asked = asked_by_those_who_give_up(&WaitQueue::new(polls, false)).await;
    assert!((8..20).contains(&asked), "{asked}");
    // There was no listener for a moment each time.
    let asked = asked_by_those_who_give_up(&WaitQueue::new(polls, true)).await;
    assert!((8..20).contains(&asked), "{asked}");
}

#[tokio::test]
async fn who_gives_up_changes_nothing_for_the_others() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let seen = Some(line.releases(&key));
    let (a, b, c, d) =
        (line.join(&key, seen), line.join(&key, seen), line.join(&key, seen), line.join(&key, seen));
    a.ask();
    a.poll_after(Duration::from_secs(60));
    // Neither a waiter from the middle, nor the first one, which had no news.
    drop(c);
    assert!(!is_ready(a.turn()) && !is_ready(b.turn()));
    drop(a);
    assert!(is_ready(b.first()) && !is_ready(b.turn()));
    // A notification that the first did not use goes on to the next.
    line.released(&key);
    drop(b);
    assert!(is_ready(d.turn()));
}

/// A lock that is handed over, and counts how often it is dropped without being taken.
struct Marked(std::sync::Arc<AtomicUsize>);

impl Drop for Marked {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn what_is_passed_on_is_taken_by_the_first_who_accepts_it_or_dropped() {
    const LEASE: Duration = Duration::from_secs(30);
    let (line, dropped) = (WaitQueue::default(), std::sync::Arc::default());
    let offer = || -> Offer { Box::new(Marked(std::sync::Arc::clone(&dropped))) };
    let count = || dropped.load(Ordering::SeqCst);
    let key = Key::new("k").unwrap();
    assert!(line.hand_off(&key, LEASE, offer()).is_err(), "nobody waits");
    let (a, b, c) = (line.join(&key, None), line.join(&key, None), line.join(&key, None));
    assert!(line.hand_off(&key, LEASE, offer()).is_err(), "it does not accept");
    [&a, &b, &c].into_iter().for_each(|ticket| ticket.accept(LEASE));
    assert!(line.hand_off(&key, LEASE * 2, offer()).is_err(), "another lease");
    a.ask();
    assert!(line.hand_off(&key, LEASE, offer()).is_err(), "it asks by itself");
    a.poll_after(Duration::from_secs(60));
    a.accept(LEASE);
    assert_eq!(count(), 4);
    assert!(line.hand_off(&key, LEASE, offer()).is_ok());
    assert!(line.hand_off(&key, LEASE, offer()).is_err(), "it has one");
    assert_eq!((a.turn().await, count()), (Turn::Released, 5));
    // Gone without taking it: to the next, which has the turn although nothing was released.
    drop(a);
    assert_eq!((b.turn().await, count()), (Turn::Released, 5));
    assert!(!is_ready(c.turn()));
    drop(b.take_offer());
    assert_eq!(count(), 6);
    b.win(Duration::from_secs(60));
    assert!(!is_ready(c.turn()), "held in this process");
    assert!(line.hand_off(&key, LEASE, offer()).is_ok());
    // The queue is empty now.
    drop(c);
    assert_eq!(count(), 7);
    assert!(!line.has(&key));
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_while_the_lock_is_left_to_others() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let (a, b) = (line.join(&key, None), line.join(&key, None));
    a.ask();
    a.poll_after(Duration::from_secs(60));
    let until = Instant::now() + Duration::from_millis(5);
    line.yield_until(&key, until);
    assert!(!is_ready(a.turn()) && !is_ready(a.may_listen()) && !is_ready(b.turn()));
    assert_eq!(a.turn().await, Turn::Due);
    assert!(Instant::now() >= until && Instant::now() < until + Duration::from_millis(5));
    a.ask();
    assert!(is_ready(a.may_listen()));
    // The release is news still: it was asked about, and there is no answer.
    drop(a);
    assert!(is_ready(b.turn()));
}

/// Waiters of one key, of which those at these places only read.
fn waiters<'a>(line: &'a WaitQueue, key: &'a Key, count: usize, readers: &[usize]) -> Vec<Ticket<'a>> {
    let waiters: Vec<_> = (0..count).map(|_| line.join(key, None)).collect();
    readers.iter().for_each(|reader| waiters[*reader].reads());
    waiters
}

fn which_may_ask(waiters: &[Ticket<'_>]) -> Vec<usize> {
    (0..waiters.len()).filter(|place| is_ready(waiters[*place].turn())).collect()
}

#[tokio::test]
async fn a_grant_to_a_reader_invites_the_other_readers_past_a_writer_and_only_once() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let mut waiters = waiters(&line, &key, 5, &[0, 1, 3, 4]);
    waiters[0].ask();
    assert_eq!(which_may_ask(&waiters[1..]), [] as [usize; 0]);
    let first = waiters.remove(0);
    first.invite_readers();
    first.tell();
    drop(first);
    assert_eq!(which_may_ask(&waiters), [0, 2, 3], "the writer is not first yet");
    // Invited and busy: the next grant invites it again, and no other one.
    waiters[0].ask();
    waiters[0].poll_after(Duration::from_secs(60));
    waiters[2].ask();
    waiters[2].poll_after(Duration::from_secs(60));
    assert_eq!(which_may_ask(&waiters), [3]);
    let last = waiters.pop().unwrap();
    last.ask();
    last.invite_readers();
    drop(last);
    assert_eq!(which_may_ask(&waiters), [0, 2]);
    drop(waiters);
    assert!(!line.has(&key));
}

#[tokio::test]
async fn an_invited_reader_that_leaves_takes_nothing_with_it() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let mut waiters = waiters(&line, &key, 3, &[1, 2]);
    waiters[0].ask();
    waiters[0].poll_after(Duration::from_secs(60));
    waiters[0].invite_readers();
    assert_eq!(which_may_ask(&waiters), [1, 2]);
    drop(waiters.remove(1));
    assert_eq!(which_may_ask(&waiters), [1]);
    waiters[1].ask();
    assert_eq!(which_may_ask(&waiters), [] as [usize; 0], "it has asked");
    waiters[1].invite_readers();
    assert_eq!(which_may_ask(&waiters), [] as [usize; 0], "it awaits its answer");
    line.released(&key);
    assert_eq!(which_may_ask(&waiters), [0], "the first alone is woken by a release");
}

#[tokio::test]
async fn a_writer_that_asks_has_one_reader_ask_beside_it() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let waiters = waiters(&line, &key, 4, &[2, 3]);
    waiters[0].ask();
    assert_eq!(which_may_ask(&waiters), [2]);
    waiters[2].ask();
    waiters[2].poll_after(Duration::from_secs(60));
    assert_eq!(which_may_ask(&waiters[1..]), [] as [usize; 0], "it was busy");
}

#[tokio::test]
async fn one_grant_invites_no_more_readers_than_may_ask_in_vain() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let waiters = waiters(&line, &key, 2 * INVITED + 1, &(0..=2 * INVITED).collect::<Vec<_>>());
    waiters[0].ask();
    waiters[0].invite_readers();
    assert_eq!(which_may_ask(&waiters), (1..=INVITED).collect::<Vec<_>>());
    waiters[1].invite_readers();
    assert_eq!(which_may_ask(&waiters).len(), 2 * INVITED);
}

#[tokio::test]
async fn readers_are_not_looked_for_behind_thousands_of_writers() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let waiters = waiters(&line, &key, LOOKED_AT + 1, &[LOOKED_AT - 1, LOOKED_AT]);
    waiters[0].ask();
    waiters[0].invite_readers();
    assert_eq!(which_may_ask(&waiters[1..]), [LOOKED_AT - 2], "the last one alone is too far behind");
}

#[tokio::test]
async fn an_invitation_between_the_place_in_the_queue_and_the_pause_is_kept() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let waiters = waiters(&line, &key, 2, &[1]);
    // The second has asked before it joined, and notes the answer after the first invited it.
    waiters[0].ask();
    waiters[1].poll_after(Duration::from_secs(60));
    assert_eq!(which_may_ask(&waiters), [1]);
}

#[tokio::test]
async fn an_invited_reader_that_leaves_before_it_asks_passes_the_invitation_on() {
    let line = WaitQueue::default();
    let key = Key::new("k").unwrap();
    let mut waiters = waiters(&line, &key, 3, &[1, 2]);
    waiters[0].ask();
    waiters[0].poll_after(Duration::from_secs(60));
    assert_eq!(which_may_ask(&waiters), [1]);
    drop(waiters.remove(1));
    assert_eq!(which_may_ask(&waiters), [1]);
    drop(waiters.pop());
    assert_eq!(which_may_ask(&waiters), [] as [usize; 0]);
}

#[tokio::test]
async fn any_order_of_steps_leaves_the_number_of_readers_right() {
    let key = Key::new("k").unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 40).unwrap() % below
    };
    for _ in 0..500 {
        let line = WaitQueue::default();
        let mut waiters: Vec<Ticket<'_>> = Vec::new();
        for _ in 0..60 {
            if waiters.is_empty() || random(5) == 0 {
                let waiter = line.join(&key, None);
                if random(3) > 0 {
                    waiter.reads();
                }
                waiters.push(waiter);
            } else {
                let place = random(waiters.len());
                match random(9) {
                    0 | 1 => waiters[place].ask(),
                    2 | 3 => waiters[place].poll_after(Duration::from_secs(60)),
                    4 => waiters[place].invite_readers(),
                    5 => _ = waiters[place].back_in_line(),
                    6 => drop(waiters.remove(place)),
                    7 => waiters.remove(place).win(Duration::from_secs(5)),
                    _ => line.released(&key),
                }
            }
            let shard = line.shard(WaitQueue::hash(&key) % SHARDS);
            let readers = shard.waiters.iter().filter(|(_, waiter)| waiter.reader == Reader::Waits).count();
            assert_eq!(shard.lines.get(&key).map_or(0, |line| line.readers), readers);
        }
    }
}
