//! Why a server is not there.

use std::fmt;
use std::io;

/// Why a server could not be started, or does not do what it was asked for. The text says what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerError(String);

impl ServerError {
    /// With this text.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// This server cannot be used because of `error`.
    #[must_use]
    pub fn because(what: impl fmt::Display, error: &io::Error) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// What `unwrap` in a test shows: the text itself, with its lines.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerError {}
