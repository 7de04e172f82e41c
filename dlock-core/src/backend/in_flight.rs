//! The account of requests of one claim that may still arrive.
//!
//! Every await can be the last, and a request whose caller is gone may be carried out all the same. So a claim keeps
//! account of its attempts in an [`InFlight`], from before each of them goes out until its outcome is certain:
//!
//! | the attempts are | an attempt may find its own token | before the claim is settled | [`is_empty`](InFlight::is_empty) | [`may_arrive`](InFlight::may_arrive) |
//! |---|---|---|---|---|
//! | settled | no | nothing is to be done | yes | no |
//! | in flight, each by its [way](InFlight::ways) | yes | a withdrawal follows each by its way, or its lease has passed since it was sent | no | yes |
//! | over and unread: they were carried out, and the answers were not read | yes | a withdrawal by any way | no | no |
//!
//! | event | in flight by this way | in flight by other ways | over and unread |
//! |---|---|---|---|
//! | [`begin`](InFlight::begin): an attempt is about to go out | one more | | |
//! | the attempt's future is dropped, or ends with an unknown outcome | | | |
//! | [`took_nothing`](InFlight::took_nothing): it was not sent, or was refused | one less | | |
//! | [`answered`](InFlight::answered): its answer was read | none: answers come in order | | read: the answer shows what they left |
//! | [`over_if`](InFlight::over_if): an end without an answer was noticed | over and unread | over and unread | |
//! | [`settle_if`](InFlight::settle_if): they were not sent, or their lease has passed since | none | none | |
//! | [`withdrawn`](InFlight::withdrawn): a withdrawal by another way was answered | | | none |
//! | [`clear`](InFlight::clear): an answer, or a withdrawal, certainly came after everything | none | none | none |
//!
//! Empty cells are unchanged: an attempt that is not reported stays in flight, so that a future may be dropped at any
//! await.

use smallvec::SmallVec;

/// The account of the attempts of one claim that may still be carried out; see the [states](self).
///
/// `W` is the way by which an attempt goes to the server, such as a connection: requests by one way are carried out and
/// answered in order. Two attempts by equal ways are counted under the later value, which may note when it was sent. A
/// backend with one way for all takes `()`.
///
/// ```
/// use dlock_core::backend::InFlight;
///
/// let mut in_flight = InFlight::default();
/// in_flight.begin("connection 1");
/// // The caller was dropped. A withdrawal has to follow on the same connection:
/// assert_eq!(in_flight.ways().collect::<Vec<_>>(), [&"connection 1"]);
///
/// // Another attempt goes by another connection, and is answered. The first may still arrive.
/// in_flight.begin("connection 2");
/// in_flight.answered(&"connection 2");
/// assert!(in_flight.may_arrive());
/// ```
#[derive(Clone, Debug)]
pub struct InFlight<W> {
    /// The ways, and the number of attempts in flight by each.
    ways: SmallVec<[(W, u32); 1]>,
    /// Is `true` if some attempt was carried out, and its answer was not read.
    unread: bool,
}

impl<W> Default for InFlight<W> {
    fn default() -> Self {
        Self { ways: SmallVec::new(), unread: false }
    }
}

impl<W> InFlight<W> {
    /// Returns whether no attempt is in flight or unread: the last answer then shows what the claim has on the server,
    /// and the next attempt cannot find the claim's own token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.may_arrive() && !self.unread
    }

    /// Returns whether an attempt may still be carried out.
    #[must_use]
    pub fn may_arrive(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Returns whether an attempt was carried out whose answer was not read.
    #[must_use]
    pub const fn has_unread(&self) -> bool {
        self.unread
    }

    /// Returns the ways by which attempts are in flight, the oldest first.
    pub fn ways(&self) -> impl Iterator<Item = &W> {
        self.ways.iter().map(|(way, _)| way)
    }

    /// Returns the way at this position of [`ways`](Self::ways), for withdrawals that go by one way after the other.
    #[must_use]
    pub fn way_mut(&mut self, position: usize) -> Option<&mut W> {
        self.ways.get_mut(position).map(|(way, _)| way)
    }

    /// Notes that everything by the way at this position is settled: a withdrawal by it was answered, or the lease has
    /// passed. The ways behind it move up.
    pub fn settle_at(&mut self, position: usize) {
        if position < self.ways.len() {
            self.ways.remove(position);
        }
    }

    /// Notes that nothing is left of the attempts by these ways, and nothing will be: they were not sent, or their
    /// lease has passed since.
    pub fn settle_if(&mut self, mut is_settled: impl FnMut(&W) -> bool) {
        self.ways.retain(|(way, _)| !is_settled(way));
    }

    /// Notes that the attempts by these ways will do nothing any more, and that their answers were not read.
    ///
    /// This must not be called while another attempt is under way: the answer to that would be taken to show what they
    /// did, and may be the older one.
    pub fn over_if(&mut self, mut is_over: impl FnMut(&W) -> bool) {
        let before = self.ways.len();
        self.ways.retain(|(way, _)| !is_over(way));
        self.unread |= self.ways.len() < before;
    }

    /// Notes that a withdrawal was answered which was sent after all attempts that are over. Attempts in flight stay
    /// so.
    pub const fn withdrawn(&mut self) {
        self.unread = false;
    }

    /// Notes that everything is settled: an answer, or a withdrawal, certainly came after all attempts.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<W: PartialEq> InFlight<W> {
    /// Notes that an attempt is about to go this way. It counts as in flight until one of the other methods notes
    /// otherwise.
    pub fn begin(&mut self, way: W) {
        // Equal ways are one entry: answers by one way come in order, so one withdrawal by it follows all of them.
        match self.ways.iter_mut().find(|(known, _)| *known == way) {
            Some((known, attempts)) => (*known, *attempts) = (way, *attempts + 1),
            None => self.ways.push((way, 1)),
        }
    }
}

impl<W> InFlight<W> {
    /// Notes that the last attempt by this way certainly changed nothing and never will. Earlier attempts stay in
    /// flight.
    pub fn took_nothing<K: ?Sized>(&mut self, way: &K)
    where
        W: PartialEq<K>,
    {
        if let Some((_, attempts)) = self.ways.iter_mut().find(|(known, _)| known == way) {
            // Only the last attempt is certain to have done nothing. An earlier one by this way may still arrive.
            *attempts -= 1;
            self.ways.retain(|(_, attempts)| *attempts > 0);
        }
    }

    /// Notes that the last attempt by this way was answered. Earlier attempts by the same way are settled with it, and
    /// the answer shows the outcome of those that are over.
    pub fn answered<K: ?Sized>(&mut self, way: &K)
    where
        W: PartialEq<K>,
    {
        // The server answers in order by one way, so no earlier attempt by it can come later. Attempts by other ways
        // stay.
        self.ways.retain(|(known, _)| known != way);
        self.unread = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection, and when the last attempt was sent on it.
    struct Sent(char, u32);

    impl PartialEq for Sent {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    /// The account after an attempt on each of these connections.
    fn after(connections: &str) -> InFlight<char> {
        let mut in_flight = InFlight::default();
        connections.chars().for_each(|connection| in_flight.begin(connection));
        in_flight
    }

    /// Checks an account: the ways by which attempts are in flight, and whether others are unread.
    #[track_caller]
    fn says(in_flight: &InFlight<char>, ways: &str, unread: bool) {
        assert_eq!(in_flight.ways().collect::<String>(), ways);
        assert_eq!(in_flight.may_arrive(), !ways.is_empty());
        assert_eq!(in_flight.is_empty(), ways.is_empty() && !unread);
        assert_eq!(in_flight.has_unread(), unread);
    }

    #[test]
    fn an_attempt_is_in_flight_until_something_else_is_known_of_it() {
        says(&after(""), "", false);
        says(&after("a"), "a", false);
        says(&after("aba"), "ab", false);
    }

    #[test]
    fn each_event_does_in_each_state_what_the_table_says() {
        type Event = fn(&mut InFlight<char>);
        type States = [(&'static str, bool); 4];
        let events: [(&str, Event, States); 8] = [
            ("begin", |of| of.begin('b'), [("b", false), ("ab", false), ("ab", false), ("ab", true)]),
            (
                "took_nothing",
                |of| of.took_nothing(&'a'),
                [("", false), ("", false), ("ab", false), ("", true)],
            ),
            ("answered", |of| of.answered(&'a'), [("", false), ("", false), ("b", false), ("", false)]),
            (
                "over_if",
                |of| of.over_if(|way| *way == 'a'),
                [("", false), ("", true), ("b", true), ("", true)],
            ),
            (
                "settle_if",
                |of| of.settle_if(|way| *way == 'a'),
                [("", false), ("", false), ("b", false), ("", true)],
            ),
            ("settle_at", |of| of.settle_at(0), [("", false), ("", false), ("b", false), ("", true)]),
            ("withdrawn", InFlight::withdrawn, [("", false), ("a", false), ("ab", false), ("a", false)]),
            ("clear", InFlight::clear, [("", false), ("", false), ("", false), ("", false)]),
        ];
        for (name, event, expected) in events {
            let mut with_unread = after("ca");
            with_unread.over_if(|way| *way == 'c');
            let states = [after(""), after("a"), after("aab"), with_unread];
            for (mut state, (ways, unread)) in states.into_iter().zip(expected) {
                println!("{name} after {state:?}");
                event(&mut state);
                says(&state, ways, unread);
            }
        }
    }

    #[tokio::test]
    async fn an_attempt_whose_future_was_dropped_stays_in_flight() {
        async fn attempt(in_flight: &mut InFlight<char>, answer: impl Future<Output = ()>) {
            in_flight.begin('a');
            answer.await;
            in_flight.answered(&'a');
        }
        let mut in_flight = InFlight::default();
        {
            let mut dropped = std::pin::pin!(attempt(&mut in_flight, std::future::pending()));
            assert!(is_pending(dropped.as_mut()));
        }
        says(&in_flight, "a", false);
        attempt(&mut in_flight, std::future::ready(())).await;
        says(&in_flight, "", false);
    }

    fn is_pending(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_pending()
    }

    #[test]
    fn what_took_nothing_leaves_those_before_it_in_flight() {
        let mut in_flight = after("aa");
        in_flight.took_nothing(&'a');
        says(&in_flight, "a", false);
        in_flight.took_nothing(&'b');
        says(&in_flight, "a", false);
    }

    #[test]
    fn an_answer_by_another_way_says_nothing_about_what_is_in_flight() {
        let mut in_flight = after("ab");
        in_flight.answered(&'b');
        says(&in_flight, "a", false);
    }

    #[test]
    fn what_was_carried_out_unread_can_be_found_until_an_answer_or_a_withdrawal() {
        for found_out in [|of: &mut InFlight<char>| of.answered(&'b'), InFlight::withdrawn] {
            let mut in_flight = after("a");
            in_flight.over_if(|_| true);
            says(&in_flight, "", true);
            in_flight.begin('b');
            found_out(&mut in_flight);
            in_flight.settle_if(|_| true);
            says(&in_flight, "", false);
        }
        let mut in_flight = after("a");
        in_flight.over_if(|_| true);
        in_flight.begin('b');
        in_flight.took_nothing(&'b');
        says(&in_flight, "", true);
    }

    #[test]
    fn the_latest_of_equal_ways_tells_when_something_was_sent() {
        let mut in_flight = InFlight::default();
        in_flight.begin(Sent('a', 1));
        in_flight.begin(Sent('a', 5));
        assert_eq!(in_flight.ways().map(|way| way.1).collect::<Vec<_>>(), [5]);
        // The lease has passed since the last of them was sent.
        in_flight.settle_if(|way| way.1 + 10 <= 14);
        assert!(in_flight.may_arrive());
        in_flight.settle_if(|way| way.1 + 10 <= 15);
        assert!(in_flight.is_empty());
    }
}
