//! How long things may take.

use std::time::Duration;

/// How long a question outside of a lock may take.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);

/// How long a request may take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// To get a connection.
    pub(crate) patience: Duration,
    /// To be answered. Afterwards others need not wait for this connection any more.
    pub(crate) answer: Duration,
    /// To be heard of at all.
    pub(crate) last: Duration,
}

impl Limits {
    pub(crate) fn of(answer: Duration, last: Duration) -> Self {
        // So that a server that is away is seen to be away, and not taken for one that may have got the request.
        Self { patience: answer * 3 / 4, answer, last: last.max(answer) }
    }

    /// Those of whoever waits the longest.
    pub(crate) fn longest(self, other: Self) -> Self {
        let (answer, last) = (self.answer.max(other.answer), self.last.max(other.last));
        Self { patience: self.patience.max(other.patience), answer, last }
    }
}
