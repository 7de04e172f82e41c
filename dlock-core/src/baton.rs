//! A lock on its way from process to process.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Failure, Operation, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::mode::Mode;
use crate::token::Token;

/// The beginning of the text of a lock that is held exclusively.
const PREFIX: &str = "dlock-baton:1:";
/// The beginning of the text of a reader's share and of permits, which has the mode before the key.
const IN_MODE: &str = "dlock-baton:2:";

/// A lock on its way from its holder to the next worker: another task, another process, another program.
///
/// [`Guard::hand_over`](crate::Guard::hand_over) makes it, and [`Locks::take_over`](crate::Locks::take_over) makes a
/// guard of it. In between no process holds the lock, and no other process gets it:
///
/// * **The giver believes in the lock no more** once the baton exists. Writes of the giver are stale once the taker has
///   written, since the taker has a higher fence.
/// * **It is taken over once.** A copy that comes second is refused with
///   [`ErrorKind::NotHeld`](crate::ErrorKind::NotHeld), and so is a baton whose [time](Self::until) is over: it neither
///   makes the lock anew nor touches what another process has.
/// * **No process renews it.** A baton that is not taken over ends by the server's clock, at [`until`](Self::until) at
///   the latest, and others get the lock.
///
/// The [text](Self::to_text) is a secret: it is all that is needed to take the lock. Neither `Debug` nor an error shows
/// it. With the feature `serde` a baton is serialized as that text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Baton, ErrorKind, Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let guard = locks.lock("order_7").acquire().await?;
/// let text = guard.hand_over().await?.to_text();
/// assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::NotHeld);
/// assert!(locks.lock("order_7").try_acquire().await?.is_none(), "nobody else gets it");
///
/// // The text went along with the job. Elsewhere:
/// let baton: Baton = text.parse()?;
/// let next = locks.take_over(&baton).await?;
/// assert!(next.fence() > guard.fence());
/// assert_eq!(locks.take_over(&baton).await.unwrap_err().kind(), ErrorKind::NotHeld, "once");
/// next.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "nobody else can take the lock over, which stays taken until the time of the baton is over"]
pub struct Baton {
    backend: Box<str>,
    key: Key,
    mode: Mode,
    /// The token under which the key was left.
    token: Token,
    fence: Option<Fence>,
    until: SystemTime,
}

impl Baton {
    pub(crate) fn new(
        backend: &str,
        (key, mode): (Key, Mode),
        token: Token,
        fence: Option<Fence>,
        until: SystemTime,
    ) -> Self {
        // In whole milliseconds, as the text has it, so that a parsed baton equals the original.
        let millis = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let until = UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0));
        Self { backend: backend.into(), key, mode, token, fence, until }
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) const fn key_of_lock(&self) -> &Key {
        &self.key
    }

    /// Returns the key of the lock, without the prefix of its [`Locks`](crate::Locks).
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Returns the mode in which the lock was held, and is held again once it is taken over.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the name of the backend that has the lock, such as `redis`.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns the fence of the giver; the taker gets a higher one. `None` on backends without fences.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns the time until which the baton can be taken over, by the clock of the process that gave it. It is there
    /// to be shown: the server's clock decides.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// Returns the text from which [`parse`](str::parse) makes the baton again: one line of printable ASCII without
    /// blanks. Each version of dlock reads the texts of those before. **It is a secret**, as a session cookie is: pass
    /// it as you pass those, and keep it out of logs.
    #[must_use]
    pub fn to_text(&self) -> String {
        let millis = self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let fence = self.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        let backend = escaped(&self.backend).replace(':', "%3A");
        let (token, key) = (self.token.to_hex(), escaped(self.key.as_str()));
        let (prefix, mode) = match self.mode {
            Mode::Exclusive => (PREFIX, String::new()),
            Mode::Shared => (IN_MODE, "read:".to_owned()),
            Mode::Permits { of, take } => (IN_MODE, format!("{take}/{of}:")),
        };
        format!("{prefix}{backend}:{millis}:{fence}:{token}:{mode}{key}")
    }
}

impl fmt::Debug for Baton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baton")
            .field("backend", &self.backend)
            .field("key", &self.key.as_str())
            .field("mode", &self.mode)
            .field("fence", &self.fence)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl FromStr for Baton {
    type Err = Error;

    /// Makes a baton of its [text](Self::to_text). Blanks around it, such as the end of a line, are left out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the text is not that of a baton. The error
    /// does not show it.
    fn from_str(text: &str) -> Result<Self> {
        parsed(text.trim()).ok_or_else(|| {
            let what = "this is not the text of a baton, which begins with `dlock-baton:`; pass on what \
                        `Baton::to_text` returned, whole, to a version of dlock that is not older";
            Error::new(Operation::Configure, Failure::invalid_config(what))
        })
    }
}

fn parsed(text: &str) -> Option<Baton> {
    let (text, in_mode) = match text.strip_prefix(IN_MODE) {
        Some(text) => (text, true),
        None => (text.strip_prefix(PREFIX)?, false),
    };
    let mut parts = text.splitn(if in_mode { 6 } else { 5 }, ':');
    let backend = parts.next().and_then(unescaped).filter(|name| !name.is_empty() && name.len() <= 64)?;
    let millis: u64 = parts.next()?.parse().ok()?;
    let fence = match parts.next()? {
        "-" => None,
        number => Some(Fence::new(number.parse().ok()?)),
    };
    let token = Token::from_hex(parts.next()?)?;
    let mode = match in_mode {
        true => mode_of(parts.next()?)?,
        false => Mode::Exclusive,
    };
    let key = Key::new(unescaped(parts.next()?)?).ok()?;
    let until = UNIX_EPOCH.checked_add(Duration::from_millis(millis))?;
    Some(Baton::new(&backend, (key, mode), token, fence, until))
}

/// Parses the mode of a lock that several can hold.
fn mode_of(text: &str) -> Option<Mode> {
    if text == "read" {
        return Some(Mode::Shared);
    }
    let (take, of) = text.split_once('/')?;
    let mode = Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? };
    mode.check().ok().map(|()| mode)
}

/// Returns the name or key with every byte that is not printable ASCII, and `%` itself, as `%` and two digits.
fn escaped(part: &str) -> String {
    use std::fmt::Write as _;

    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(feature = "serde")]
impl serde::Serialize for Baton {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Baton {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn baton(key: &str) -> Baton {
        let (key, token) = (Key::new(key).unwrap(), Token::random().unwrap());
        let until = UNIX_EPOCH + Duration::from_millis(1_234_567);
        Baton::new("redis", (key, Mode::Exclusive), token, Some(Fence::new(7)), until)
    }

    #[test]
    fn a_text_gives_the_baton_again_whatever_the_key_is() {
        for key in ["order_7", "a:b:c", "100%", "ключ \n\t\u{7f}", ":", "%41"] {
            let baton = baton(key);
            let text = baton.to_text();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
            assert_eq!(format!(" {text}\n").parse::<Baton>().unwrap(), baton);
        }
        // A backend of a user's own may have any name, and a clock gives nanoseconds.
        let now = SystemTime::now() + Duration::from_nanos(1);
        let key = (baton("k").key, Mode::Exclusive);
        let odd = Baton::new("my:store %", key, Token::random().unwrap(), None, now);
        assert_eq!(odd.to_text().parse::<Baton>().unwrap(), odd);
        let without = Baton { fence: None, ..baton("k") };
        assert_eq!(without.to_text().parse::<Baton>().unwrap(), without);
        for mode in [Mode::Shared, Mode::Permits { of: 8, take: 3 }] {
            let shared = Baton { mode, ..baton("3/8:k") };
            assert_eq!(shared.to_text().parse::<Baton>().unwrap(), shared);
            // An older version refuses what it would take for a lock that is held alone.
            assert!(!shared.to_text().starts_with(PREFIX));
        }
    }

    #[test]
    fn what_is_no_text_of_a_baton_is_refused_without_being_shown() {
        let text = baton("k").to_text();
        let shown = |text: &str| text.parse::<Baton>().unwrap_err();
        for wrong in
            ["", "k", &text[..text.len() - 1], &text[1..], &text.replace("dlock-baton:1", "dlock-baton:2")]
        {
            let error = shown(wrong);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong:?}");
            assert!(wrong.is_empty() || wrong == "k" || !error.to_string().contains(wrong), "{error}");
        }
        for (from, to) in [(":7:", ":x:"), (":7:", "::"), (":redis:", "::"), (":k", ":%4"), (":k", ":%FF")] {
            assert_eq!(shown(&text.replace(from, to)).kind(), ErrorKind::InvalidConfig, "{to:?}");
        }
        let text = Baton { mode: Mode::Permits { of: 8, take: 3 }, ..baton("k") }.to_text();
        for mode in ["", "write", "reads", "3", "3/", "/8", "9/8", "0/8", "-3/8", "3/8/9"] {
            let wrong = text.replace(":3/8:", &format!(":{mode}:"));
            assert_eq!(shown(&wrong).kind(), ErrorKind::InvalidConfig, "{mode:?}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let baton = baton("k");
        let hex = baton.token.to_hex();
        assert!(baton.to_text().contains(&hex));
        assert!(!format!("{baton:?} {baton:#?}").contains(&hex[..6]));
    }
}
