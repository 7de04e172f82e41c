//! Where the random numbers of one `Locks` come from: the one place that a simulation replaces.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;

use crate::failure::Failure;
use crate::token::Token;

/// The random numbers of one `Locks`: tokens, jitter, where to begin. Clones share one source.
///
/// The seed comes from the operating system, and no source is that of a thread: a child made by `fork` would go on with
/// a copy of its parent's, and all children would pause for the same times. Tokens come from the operating system each
/// time. A simulation has a seed of its own, from which everything comes, so that a run can be repeated.
#[derive(Clone)]
pub struct Entropy(Arc<EntropySource>);

struct EntropySource {
    state: AtomicU64,
    is_simulated: bool,
}

/// Odd, so that the state takes every value before one comes again.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Entropy {
    /// Creates a source with a seed from the operating system.
    #[must_use]
    pub fn new() -> Self {
        let seed = Token::random().map_or_else(
            |_| RandomState::new().hash_one(std::process::id()),
            |token| RandomState::new().hash_one(token),
        );
        Self::of(seed, false)
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self::of(seed, true)
    }

    fn of(seed: u64, is_simulated: bool) -> Self {
        Self(Arc::new(EntropySource { state: AtomicU64::new(seed), is_simulated }))
    }

    /// A generator for one draw. All threads share the state, without a lock.
    fn next(&self) -> Rng {
        Rng::with_seed(self.0.state.fetch_add(STEP, Ordering::Relaxed))
    }

    pub(crate) fn token(&self) -> Result<Token, Failure> {
        if self.0.is_simulated { Ok(Token::of(self.next().u128(..).to_be_bytes())) } else { Token::random() }
    }

    /// Returns a number from zero to one, without one itself.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        self.next().f64()
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    ///
    /// When `limit` is zero.
    #[must_use]
    pub fn below(&self, limit: usize) -> usize {
        self.next().usize(..limit)
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        self.next().shuffle(items);
    }
}

impl Default for Entropy {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entropy").field("is_simulated", &self.0.is_simulated).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Backoff;

    #[test]
    fn a_seed_repeats_everything_and_without_one_nothing_repeats() {
        let draw = |entropy: &Entropy| {
            let mut order: [u8; 16] = std::array::from_fn(|n| n as u8);
            entropy.shuffle(&mut order);
            let numbers = (entropy.fraction().to_bits(), entropy.below(1_000_000));
            (entropy.token().unwrap().to_hex(), numbers, order)
        };
        let seeded = |seed| draw(&Entropy::seeded(seed));
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
        assert_ne!(draw(&Entropy::new()), draw(&Entropy::new()));
    }

    #[test]
    fn the_same_seed_gives_the_same_pauses() {
        let pauses = |entropy: Option<Entropy>| {
            let backoff = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
            let mut backoff = match &entropy {
                Some(entropy) => backoff.with_entropy(entropy),
                None => backoff,
            };
            [(); 20].map(|()| backoff.next_pause())
        };
        assert_eq!(pauses(Some(Entropy::seeded(7))), pauses(Some(Entropy::seeded(7))));
        assert_ne!(pauses(Some(Entropy::seeded(7))), pauses(Some(Entropy::seeded(8))));
        assert_ne!(pauses(None), pauses(None));
        let shared = Entropy::seeded(7);
        assert_ne!(pauses(Some(shared.clone())), pauses(Some(shared)), "each draw is a new one");
    }

    #[test]
    fn fractions_are_spread_evenly() {
        let entropy = Entropy::new();
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            tenths[(entropy.fraction() * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|&count| (800..1_200).contains(&count)), "{tenths:?}");
    }
}
