//! The time limits of requests.

use std::time::Duration;

/// The time for a question outside of a lock.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);

/// The time limits of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The time to get a connection.
    pub(crate) patience: Duration,
    /// The time for the answer. Afterwards others need not wait for this connection any more.
    pub(crate) answer: Duration,
    /// The time after which the answer is given up, and the connection with it.
    pub(crate) last: Duration,
}

impl Limits {
    pub(crate) fn of(answer: Duration, last: Duration) -> Self {
        // So that a server that is away is seen to be away, and does not count as having got the request.
        Self { patience: answer * 3 / 4, answer, last: last.max(answer) }
    }

    /// Returns the limits of the longer wait of the two.
    pub(crate) fn longest(self, other: Self) -> Self {
        let (answer, last) = (self.answer.max(other.answer), self.last.max(other.last));
        Self { patience: self.patience.max(other.patience), answer, last }
    }
}
