//! Carrying a lock from process to process.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::baton::hand_over;
use crate::engine::hold::Hold;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::fence::Fence;
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::handles::locks::Locks;
use crate::handles::requirement::{Requirement, check};
use crate::key::Key;
use crate::token::Token;

/// How its text begins.
const PREFIX: &str = "dlock-baton:1:";

/// A lock on its way from its holder to whoever goes on with the work: another task, another process, another program.
///
/// [`Guard::hand_over`] makes it, and [`Locks::take_over`] makes a guard of it. In between nobody holds the lock, and
/// nobody else gets it:
///
/// * **The giver has stopped to believe** before the baton exists, and writes of the giver are stale once the taker has
///   written, who has a higher fence.
/// * **It is taken over once.** A copy that comes second is refused with [`ErrorKind::NotHeld`], and so is a baton whose
///   [time](Self::until) is over: it neither makes the lock anew nor touches what somebody else has.
/// * **Nobody renews it.** A baton that nobody takes over ends by the server's clock, at [`until`](Self::until) at the
///   latest, and others get the lock.
///
/// The [text](Self::to_text) is a secret: whoever has it can take the lock. Neither `Debug` nor an error shows it. With
/// the feature `serde` a baton is serialized as that text.
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
pub struct Baton {
    backend: Box<str>,
    key: Key,
    /// What the key was left under.
    token: Token,
    fence: Option<Fence>,
    until: SystemTime,
}

impl Baton {
    pub(crate) fn new(
        backend: &str,
        key: Key,
        token: Token,
        fence: Option<Fence>,
        until: SystemTime,
    ) -> Self {
        Self { backend: backend.into(), key, token, fence, until }
    }

    /// Returns the key of the lock, without the prefix of its [`Locks`].
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
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

    /// Returns until when it can be taken over, by the clock of the process that gave it. It is there to be shown: the
    /// server's clock decides.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// Returns the text from which [`parse`](str::parse) makes the baton again: one line of printable ASCII without
    /// blanks, of which each version reads those before. **It is a secret**, as a session cookie is: pass it as you pass
    /// those, and keep it out of logs.
    #[must_use]
    pub fn to_text(&self) -> String {
        let millis = self.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let fence = self.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        let (token, key) = (self.token.to_hex(), escaped(self.key.as_str()));
        format!("{PREFIX}{}:{millis}:{fence}:{token}:{key}", self.backend)
    }
}

impl fmt::Debug for Baton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baton")
            .field("backend", &self.backend)
            .field("key", &self.key.as_str())
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
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): it is no such text. The error does not show it.
    fn from_str(text: &str) -> Result<Self> {
        parsed(text.trim()).ok_or_else(|| {
            let what = "this is not the text of a baton, which begins with `dlock-baton:1:`; pass on what \
                        `Baton::to_text` returned, whole";
            Error::new(Operation::Configure, Failure::invalid_config(what))
        })
    }
}

fn parsed(text: &str) -> Option<Baton> {
    let mut parts = text.strip_prefix(PREFIX)?.splitn(5, ':');
    let backend = parts.next().filter(|name| !name.is_empty() && name.len() <= 64)?;
    let millis: u64 = parts.next()?.parse().ok()?;
    let fence = match parts.next()? {
        "-" => None,
        number => Some(Fence::new(number.parse().ok()?)),
    };
    let token = Token::from_hex(parts.next()?)?;
    let key = Key::new(unescaped(parts.next()?)?).ok()?;
    let until = UNIX_EPOCH.checked_add(Duration::from_millis(millis))?;
    Some(Baton::new(backend, key, token, fence, until))
}

/// The key with all that is not printable ASCII as `%` and two digits, and `%` itself.
fn escaped(key: &str) -> String {
    use std::fmt::Write as _;

    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
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

/// A lock that is about to be handed over: to be awaited. See [`Guard::hand_over`].
#[derive(Debug)]
#[must_use = "nothing is handed over before it is awaited"]
pub struct HandOver {
    hold: Arc<Hold>,
    at_most: Option<Duration>,
}

impl HandOver {
    /// Sets for how long nobody else gets the lock if nobody takes the baton over: 50 ms to 24 h, from when the request
    /// arrives. The default is the lock's lease.
    pub const fn for_at_most(mut self, time: Duration) -> Self {
        self.at_most = Some(time);
        self
    }
}

impl IntoFuture for HandOver {
    type Output = Result<Baton>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Baton>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { hand_over(&self.hold, self.at_most).await })
    }
}

impl Guard {
    /// Hands the lock over to whoever brings the baton that comes of it, and holds it no more.
    ///
    /// * **The belief ends first**, before any request: [`check`](Self::check) is an error from then on, and so it is
    ///   for every view. Dropping or releasing the guard afterwards does nothing.
    /// * **Nobody renews the baton.** It can be taken over for a lease, or for what
    ///   [`for_at_most`](HandOver::for_at_most) says; then others get the lock.
    /// * **Only the last share.** While the owner has further guards of the hold, or bodies or tasks run under it, it is
    ///   refused: they rely on the lock.
    /// * A key that stays taken by [`with_hold_at_least`](Lock::with_hold_at_least) stays so for at least what is
    ///   missing of that.
    ///
    /// One request. The lock must be held alone and not be `fair`; a lock that a session keeps cannot leave it, and a
    /// quorum has no tokens of its own: see [`Requirement::HandOver`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let guard = locks.lock("order_7").acquire().await?;
    /// // The queue may take its time.
    /// let baton = guard.hand_over().for_at_most(Duration::from_secs(600)).await?;
    /// println!("order_7 is on its way until {:?}", baton.until());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was changed, and the guard holds as before:
    ///
    /// * [`ErrorKind::Unsupported`]: the backend or the lock cannot.
    /// * [`ErrorKind::Conflict`]: it has further shares, as above.
    /// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the time is out of bounds.
    /// * [`ErrorKind::Suspect`], [`ErrorKind::Lost`] and [`ErrorKind::NotHeld`] as of [`check`](Self::check).
    ///
    /// The guard holds nothing any more, and there is no baton:
    ///
    /// * [`ErrorKind::NotHeld`]: the server did not have the lock for it.
    /// * [`ErrorKind::Unknown`], [`ErrorKind::Unavailable`] and other kinds of the backend: it did not confirm. The lock
    ///   is released in the background.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed before the first poll. When dropped later, the lock is released in the background: nobody has
    /// its baton.
    pub fn hand_over(&self) -> HandOver {
        HandOver { hold: Arc::clone(self.hold()), at_most: None }
    }
}

impl Held {
    /// Hands the lock over from inside its body, which goes on without it: [`Guard::hand_over`]. The end of the body then
    /// releases nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] of a batch of several, and of a body that runs without the lock; else those of
    /// [`Guard::hand_over`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::hand_over`].
    pub async fn hand_over(&self) -> Result<Baton> {
        self.handing_over()?.await
    }

    /// Hands the lock over as [`hand_over`](Self::hand_over) does, for [so long at most](HandOver::for_at_most).
    ///
    /// # Errors
    ///
    /// Those of [`hand_over`](Self::hand_over).
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::hand_over`].
    pub async fn hand_over_for(&self, at_most: Duration) -> Result<Baton> {
        self.handing_over()?.for_at_most(at_most).await
    }

    fn handing_over(&self) -> Result<HandOver> {
        match self.holds() {
            [hold] => Ok(HandOver { hold: Arc::clone(hold), at_most: None }),
            _ => {
                let what = "only one lock that is held can be handed over; this is a batch, or a body without a lock";
                Err(Error::new(Operation::HandOver, Failure::new(ErrorKind::Unsupported, what)))
            }
        }
    }
}

impl Lock {
    /// Returns the lock whose acquire takes over what was handed over by [`Guard::hand_over`], with the options of this
    /// one: its lease, `max_hold` and so on. So do [`try_acquire`](Self::try_acquire) and [`run`](Self::run).
    ///
    /// The lock goes from the baton to the guard in one step of the server, with a new fence, and nobody else has it in
    /// between. Such an acquire never waits for others; the [wait](Self::with_wait) is there for requests that fail.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let baton = locks.lock("order_7").acquire().await?.hand_over().await?;
    /// let lock = locks.lock("order_7").with_lease(Duration::from_secs(10)).from_baton(&baton)?;
    /// lock.run(async { /* goes on with the work */ }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the baton is one of another key or kind of
    ///   backend.
    /// * [`ErrorKind::Unsupported`]: the backend cannot, or the lock is not held alone.
    ///
    /// The acquire has these of its own, beside those of every [`acquire`](Self::acquire):
    ///
    /// * [`ErrorKind::NotHeld`]: the baton was taken over before, or its time is over; [`Error::holder`] says who has
    ///   the lock, where somebody has. Nothing was changed.
    /// * [`ErrorKind::Unknown`]: a request was sent, and whether it took effect could not be found out. What it took is
    ///   withdrawn in the background, and the lock is then free.
    ///
    /// # Cancel safety
    ///
    /// When the acquire is dropped midway, the baton is as before, or the lock is released in the background.
    pub fn from_baton(&self, baton: &Baton) -> Result<Self> {
        let refuse = |failure| Err(self.error(Operation::Acquire, failure));
        if let Err(failure) = check(&[Requirement::HandOver], &self.engine().capabilities) {
            return refuse(failure);
        }
        let options = self.options();
        if !options.mode.is_exclusive() || options.fair && !self.engine().capabilities.fair {
            let what = "only a lock that is held alone, and is not `fair`, can be taken over";
            return refuse(Failure::new(ErrorKind::Unsupported, what));
        }
        // One that is invalid is refused by the acquire.
        if self.key().is_some_and(|key| *key != baton.key) {
            return refuse(Failure::invalid_config(format!("the baton is one of the key {:?}", baton.key())));
        }
        if self.engine().name != baton.backend() {
            let (theirs, ours) = (baton.backend(), self.engine().name);
            return refuse(Failure::invalid_config(format!(
                "the baton is one of a lock on {theirs:?}, and this is one on {ours:?}"
            )));
        }
        Ok(self.clone().taking_over(baton.token))
    }
}

impl Locks {
    /// Takes over what was handed over by [`Guard::hand_over`], in this process or another, with the options of these
    /// locks. For other options, and to run a body, see [`Lock::from_baton`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::from_baton`] and of its acquire.
    ///
    /// # Cancel safety
    ///
    /// As the acquire of [`Lock::from_baton`].
    pub async fn take_over(&self, baton: &Baton) -> Result<Guard> {
        self.lock(baton.key()).from_baton(baton)?.acquire().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn baton(key: &str) -> Baton {
        let (key, token) = (Key::new(key).unwrap(), Token::random().unwrap());
        Baton::new("redis", key, token, Some(Fence::new(7)), UNIX_EPOCH + Duration::from_millis(1_234_567))
    }

    #[test]
    fn a_text_gives_the_baton_again_whatever_the_key_is() {
        for key in ["order_7", "a:b:c", "100%", "ключ \n\t\u{7f}", ":", "%41"] {
            let baton = baton(key);
            let text = baton.to_text();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
            assert_eq!(format!(" {text}\n").parse::<Baton>().unwrap(), baton);
        }
        let without = Baton { fence: None, ..baton("k") };
        assert_eq!(without.to_text().parse::<Baton>().unwrap(), without);
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
    }

    #[test]
    fn a_secret_is_not_shown() {
        let baton = baton("k");
        let hex = baton.token.to_hex();
        assert!(baton.to_text().contains(&hex));
        assert!(!format!("{baton:?} {baton:#?}").contains(&hex[..6]));
    }

    #[tokio::test]
    async fn a_baton_of_another_key_or_backend_is_refused_before_any_request() {
        let locks = Locks::new(Memory::new());
        let error = locks.take_over(&baton("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("redis"), "{error}");
        let ours = Baton { backend: "memory".into(), ..baton("k") };
        let error = locks.lock("other").from_baton(&ours).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = locks.lock("k").read().from_baton(&ours).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let error = locks.take_over(&ours).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert!(locks.inspect("k").await.unwrap().is_none(), "nothing is made anew");
    }
}
