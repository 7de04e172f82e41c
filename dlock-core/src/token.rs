//! The secret that marks one claim on the server.

use std::fmt;

use crate::error::Failure;

/// 128 random bits from the operating system, which mark one claim on the server.
///
/// A claim keeps its token for its whole life, so that every step of it can be repeated safely: an acquire whose
/// reply was lost finds its own token and adopts the lock; a release that arrives late removes only its own.
/// Tokens prevent accidents; they are no authentication. `Debug` does not show the bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Creates a fresh token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the operating system has no randomness to give.
    pub fn random() -> Result<Self, Failure> {
        let mut bits = [0; 16];
        Self::fill(&mut bits)?;
        Ok(Self(bits))
    }

    /// Draws the bits of tokens from the operating system.
    pub(crate) fn fill(bits: &mut [u8]) -> Result<(), Failure> {
        getrandom::fill(bits)
            .map_err(|e| Failure::unavailable("the operating system gave no random bits").with_source(e))
    }

    /// Creates the token of these 16 bytes, which a store has kept. A claim's own token is [random](Self::random).
    #[must_use]
    pub const fn from_bytes(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// Returns the 16 bytes, for backends that store binary values.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the token under which a claim with this token [leaves](crate::backend::Claim::leave) its key taken.
    /// Nothing that was sent under this token touches that.
    #[must_use]
    pub fn left_behind(&self) -> Self {
        Self(self.0.map(|byte| !byte))
    }

    /// Parses 32 hexadecimal digits; `None` if the text is anything else.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let digits = digits.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut bits = [0; 16];
        for (byte, pair) in bits.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Self(bits))
    }

    /// Returns 32 lower-case hexadecimal digits, for backends that store text.
    #[must_use]
    pub fn to_hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0
            .iter()
            .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
            .map(char::from)
            .collect()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_do_not_repeat() {
        let tokens: std::collections::HashSet<Token> =
            (0..100_000).map(|_| Token::random().unwrap()).collect();
        assert_eq!(tokens.len(), 100_000);
    }

    #[test]
    fn hex_is_the_bytes_and_debug_hides_them() {
        let token = Token([0, 1, 0x2f, 0xff, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(token.to_hex(), "00012fff0405060708090a0b0c0d0e0f");
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
