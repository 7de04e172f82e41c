//! The source of the random numbers of one `Locks`: the one place that a simulation replaces.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::failure::Failure;
use crate::sync::plain::Mutex;
use crate::token::Token;

/// The random numbers of one `Locks`: tokens, jitter, starting points. Clones share one source.
///
/// The seed comes from the operating system, and no source belongs to a thread: a child made by `fork` would go on with
/// a copy of its parent's, and all children would pause for the same times. Tokens come from the operating system. A
/// simulation has a seed of its own, from which everything comes, so that a run can be repeated.
#[derive(Clone)]
pub struct Entropy(Arc<EntropySource>);

struct EntropySource {
    state: AtomicU64,
    is_simulated: bool,
    stock: Mutex<Stock>,
}

/// Bits for the tokens of the next moment, since a system call for each costs more than all else that a claim needs.
///
/// A copy of the process would draw the same tokens. After a fork no engine of the parent makes claims in the child,
/// and a machine that is copied with all its memory finds the bits too old.
#[cfg_attr(test, derive(Clone))]
struct Stock {
    bits: [u8; TOKENS * 16],
    left: usize,
    drawn: Option<Instant>,
}

/// The number of tokens that are drawn at once.
const TOKENS: usize = 64;
/// The time for which drawn bits may be used.
const FRESH: Duration = Duration::from_millis(5);

impl Stock {
    const EMPTY: Self = Self { bits: [0; TOKENS * 16], left: 0, drawn: None };

    fn token(&mut self, now: Instant) -> Result<Token, Failure> {
        let fresh = self.drawn.is_some_and(|drawn| now.saturating_duration_since(drawn) < FRESH);
        if self.left == 0 || !fresh {
            // Bits that are left from an earlier moment are too old, and are not used.
            self.left = 0;
            // Start with one token: most processes need few, and need not pay for many.
            let count = if fresh { TOKENS } else { 1 };
            Token::fill(&mut self.bits[..count * 16])?;
            (self.left, self.drawn) = (count, Some(now));
        }
        self.left -= 1;
        let mut bits = [0; 16];
        let used = &mut self.bits[self.left * 16..][..16];
        bits.copy_from_slice(used);
        // Wiped, so that no token can be drawn twice.
        used.fill(0);
        Ok(Token::from_bytes(bits))
    }
}

/// Odd, so that the state takes every value before it repeats one.
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
        let (state, stock) = (AtomicU64::new(seed), Mutex::new(Stock::EMPTY));
        Self(Arc::new(EntropySource { state, is_simulated, stock }))
    }

    /// Returns a generator for one draw. All threads share the state, without a lock.
    fn next(&self) -> Rng {
        Rng::with_seed(self.0.state.fetch_add(STEP, Ordering::Relaxed))
    }

    /// Draws a token, as [`Token::random`] does, or from the seed of a simulation.
    ///
    /// # Errors
    ///
    /// As [`Token::random`].
    pub fn token(&self) -> Result<Token, Failure> {
        if self.0.is_simulated {
            return Ok(Token::from_bytes(self.next().u128(..).to_be_bytes()));
        }
        self.0.stock.lock().token(Instant::now())
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
    /// Panics if `limit` is zero.
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
    fn no_token_is_drawn_twice_and_a_copy_of_the_process_draws_others_after_a_moment() {
        let (mut stock, mut now) = (Stock::EMPTY, Instant::now());
        let mut drawn = std::collections::HashSet::new();
        for _ in 0..TOKENS + TOKENS / 2 {
            now += FRESH / 100;
            assert!(drawn.insert(stock.token(now).unwrap()));
        }
        assert!(stock.left > 1, "many are drawn at once for who needs many");
        let (mut copy, later) = (stock.clone(), now + FRESH);
        assert_ne!(stock.token(later).unwrap(), copy.token(later).unwrap());
        assert_eq!(stock.left, 0, "who needs few does not pay for many");
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
