//! Where the random numbers of one engine come from: the one place that a simulation replaces.

use std::sync::{Mutex, PoisonError};

use fastrand::Rng;

use crate::error::Failure;
use crate::token::Token;

/// The random numbers of one engine: tokens, jitter, where to begin.
///
/// Tokens come from the operating system each time, since a generator in the process would repeat itself after a fork;
/// all else from one of the thread. With a seed everything comes from that, so that a run can be repeated.
#[derive(Debug, Default)]
pub(crate) struct Entropy(Option<Mutex<Rng>>);

impl Entropy {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self(seed.map(|seed| Mutex::new(Rng::with_seed(seed))))
    }

    fn draw<T>(&self, from: impl FnOnce(&mut Rng) -> T) -> T {
        match &self.0 {
            Some(seeded) => from(&mut seeded.lock().unwrap_or_else(PoisonError::into_inner)),
            None => from(&mut Rng::new()),
        }
    }

    pub(crate) fn token(&self) -> Result<Token, Failure> {
        match self.0 {
            Some(_) => Ok(Token::of(self.draw(|rng| rng.u128(..)).to_be_bytes())),
            None => Token::random(),
        }
    }

    /// A number from zero to one, without one itself.
    pub(crate) fn fraction(&self) -> f64 {
        if self.0.is_none() { fastrand::f64() } else { self.draw(Rng::f64) }
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&self, limit: usize) -> usize {
        self.draw(|rng| rng.usize(..limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_everything_and_without_one_nothing_repeats() {
        let draw = |entropy: &Entropy| {
            (entropy.token().unwrap().to_hex(), entropy.fraction().to_bits(), entropy.below(1_000_000))
        };
        let seeded = |seed| draw(&Entropy::new(Some(seed)));
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
        assert_ne!(draw(&Entropy::default()), draw(&Entropy::default()));
    }
}
