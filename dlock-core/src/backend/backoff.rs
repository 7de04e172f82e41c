//! Pauses between two attempts.

use std::time::Duration;

use crate::backend::Entropy;

/// The limit of a pause, which doubles from one pause to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PauseLimit {
    from: Duration,
    next: Duration,
    to: Duration,
}

impl PauseLimit {
    /// Makes a limit that is `from` for the first pause, and never exceeds `to`.
    #[must_use]
    pub fn new(from: Duration, to: Duration) -> Self {
        let from = from.min(to);
        Self { from, next: from, to }
    }

    /// Returns the limits of the pauses after failures of the backend.
    pub(crate) fn of_failures() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// Returns the limits of the pauses after unknown outcomes, which a server gives most often when it is overloaded.
    pub(crate) fn of_unknown_outcomes() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_secs(2))
    }

    /// Returns the limits of the pauses after refusals, which last until an operator changes something on the servers.
    /// They are long enough for a server that counts failed log-ins.
    pub(crate) fn of_refusals() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(30))
    }

    /// Returns the longest that the next pause can be.
    pub(crate) const fn next_at_most(&self) -> Duration {
        self.next
    }

    /// Returns the bound of all pauses.
    pub(crate) const fn at_most(&self) -> Duration {
        self.to
    }

    /// Makes the next pause at most half as long as the last one could be, and no shorter than the first.
    pub(crate) fn speed_up(&mut self) {
        self.next = (self.next / 4).max(self.from);
    }

    /// Makes the next pause as short as the first.
    pub(crate) const fn begin_anew(&mut self) {
        self.next = self.from;
    }

    /// Returns the next pause. `fraction` is the random part of it, from zero to one.
    pub fn pause(&mut self, fraction: f64) -> Duration {
        let limit = self.next;
        self.next = limit.saturating_mul(2).min(self.to);
        // Never quite zero, so that a loop of attempts cannot spin.
        limit.mul_f64(0.05 + 0.95 * fraction)
    }
}

/// Exponential back-off with full jitter: each pause is random between a little above zero and a limit that doubles.
///
/// Full jitter spreads the waiters of many processes best (Brooker, *Exponential Backoff And Jitter*, 2015).
#[derive(Clone, Debug)]
pub struct Backoff {
    limit: PauseLimit,
    /// Made for the first pause, if none was given.
    entropy: Option<Entropy>,
}

impl Backoff {
    /// Creates a back-off whose first pause is at most `from`, and which never exceeds `to`.
    #[must_use]
    pub fn new(from: Duration, to: Duration) -> Self {
        Self { limit: PauseLimit::new(from, to), entropy: None }
    }

    /// Draws the randomness of the pauses from `entropy`, such as
    /// [`ClaimRequest::entropy`](super::ClaimRequest::entropy). Default: a source of its own.
    #[must_use]
    pub fn with_entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = Some(entropy.clone());
        self
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let fraction = self.entropy.get_or_insert_with(Entropy::new).fraction();
        self.limit.pause(fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_and_spread_below_it() {
        let (from, to) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut sums = [Duration::ZERO; 6];
        for _ in 0..2_000 {
            let mut backoff = Backoff::new(from, to);
            for (n, sum) in sums.iter_mut().enumerate() {
                let pause = backoff.next_pause();
                assert!(pause > Duration::ZERO && pause <= (from * (1 << n)).min(to));
                *sum += pause;
            }
        }
        let means = sums.map(|sum| sum / 2_000);
        assert!(means[1] > means[0] && means[2] > means[1] && means[3] > means[2]);
        assert!(means[5] > to / 3 && means[5] < to * 2 / 3, "{means:?}");
    }
}
