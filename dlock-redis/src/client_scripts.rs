//! The scripts that clients in other languages call.

use crate::format::{LEAVE, PLAIN, TAKE_OVER};

/// The texts of the scripts by which other clients, in any language, share locks with dlock: see [`client_scripts`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ClientScripts {
    /// Acquires, renews or releases a lock.
    pub lock: &'static str,
    /// Hands a lock over: its key then holds a baton.
    pub hand_over: &'static str,
    /// Takes over a lock that was handed over.
    pub take_over: &'static str,
}

/// Returns the scripts that dlock itself calls for a lock of its own format that is held alone, so that programs in
/// other languages can hold it, hand it over and take it over. `docs/backends/redis.md` says under "From other
/// languages" with which `KEYS` and `ARGV` each is called, and what it replies.
///
/// ```
/// let scripts = dlock_redis::client_scripts();
/// // EVAL <lock> 2 dlock:room_7 dlock:fence:{0} 1 30000 <token> "0 host=web-3" is an acquire.
/// assert!(scripts.lock.contains("KEYS"));
/// ```
#[must_use]
pub const fn client_scripts() -> ClientScripts {
    ClientScripts { lock: PLAIN, hand_over: LEAVE, take_over: TAKE_OVER }
}
