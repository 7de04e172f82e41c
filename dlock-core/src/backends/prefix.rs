//! A namespace: a prefix before every key.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

use crate::backend::{
    Administration, Announcements, Backend, BatchAttempt, BoxedFuture, Capabilities, ClaimRequest, Finding,
    Forced, LockId, NodeState, Occupancy, ServerAddress, Unadministered, boxed,
};
use crate::clock::Clock;
use crate::error::Failure;
use crate::holder::Holder;
use crate::key::{Key, start_of};

const MAX_PREFIX: usize = 128;
/// The length of the digest of a long key, with the mark before it.
const DIGEST: usize = 65;
/// The most bytes of prefix and key together that are the name on the servers as they are.
const LONGEST_AS_IT_IS: usize = Key::MAX_LEN - 80;

/// A backend whose keys all begin with a prefix on the servers, so that several services share one store without
/// sharing locks. Callers, errors and spans see the key without it.
///
/// On the servers a key is called by the prefix and its own text. Where that is longer than 432 bytes, its end is
/// replaced by `#` and its SHA-256.
///
/// [`LocksBuilder::with_prefix`](crate::LocksBuilder::with_prefix) does this for a [`Locks`](crate::Locks).
pub struct Prefixed<B> {
    backend: B,
    prefix: String,
}

impl<B> Prefixed<B> {
    /// Creates a backend that is `backend` with `prefix` before every key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the prefix is empty, longer than 128 bytes,
    /// or has a NUL.
    pub fn new(backend: B, prefix: impl Into<String>) -> Result<Self, Failure> {
        let prefix = prefix.into();
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || prefix.contains('\0') {
            return Err(Failure::invalid_config(format!(
                "the prefix {prefix:?} is not one; use 1 to {MAX_PREFIX} bytes without NUL"
            )));
        }
        Ok(Self { backend, prefix })
    }

    /// Returns the name of the key on the servers. A long key ends with its digest in place of its own end, and is then
    /// longer than any key that does not, so that no two keys have one name.
    fn key(&self, key: &Key) -> Key {
        let (prefix, text) = (self.prefix.as_str(), key.as_str());
        if prefix.len() + text.len() <= LONGEST_AS_IT_IS {
            return certain([prefix, text].concat());
        }
        let mut name = [prefix, start_of(text, Key::MAX_LEN - DIGEST - prefix.len()), "#"].concat();
        for byte in Sha256::digest(text) {
            let _ = write!(name, "{byte:02x}");
        }
        certain(name)
    }
}

impl<B: Backend> Prefixed<B> {
    fn of_all(&self) -> &dyn Administration {
        self.backend.administration().unwrap_or(&Unadministered)
    }
}

/// Makes a key of a checked prefix and a key.
fn certain(text: String) -> Key {
    match Key::new(text) {
        Ok(key) => key,
        Err(failure) => unreachable!("{failure}"),
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Prefixed<B> {
    type Claim = B::Claim;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.backend.server_address()
    }

    fn clock(&self) -> Clock {
        self.backend.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.backend.lock_id(&self.key(key))
    }

    fn claim(&self, mut request: ClaimRequest) -> B::Claim {
        request.key = self.key(&request.key);
        self.backend.claim(request)
    }

    async fn attempt_all(&self, claims: &mut [&mut B::Claim]) -> Result<BatchAttempt, Failure> {
        self.backend.attempt_all(claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.backend.inspect(&self.key(key)).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.backend.occupancy(&self.key(key)).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.backend.announce(&self.key(key)).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.backend.announcements(&self.key(key))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.backend.administration().map(|_| self as &dyn Administration)
    }

    /// Asks for a key with this prefix, since the user may have rights on no others.
    async fn ping(&self) -> Result<(), Failure> {
        self.inspect(&certain("dlock-ping".to_owned())).await.map(drop)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.backend.diagnose().await
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.backend.nodes()
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Administration for Prefixed<B> {
    /// Lists the locks with this prefix. A long key is listed by its name on the servers, which ends with its digest.
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(async move {
            let all = self.of_all().holders().await?;
            let ours = all.into_iter().filter_map(|(name, holder)| {
                let key = Key::new(name.as_str().strip_prefix(self.prefix.as_str())?).ok()?;
                Some((key, holder))
            });
            Ok(ours.collect())
        })
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        self.of_all().force_release(self.key(&key), seen)
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        self.of_all().waiters(self.key(&key))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        self.of_all().resize(self.key(&key), permits)
    }
}

impl<B: fmt::Debug> fmt::Debug for Prefixed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefixed").field("prefix", &self.prefix).field("backend", &self.backend).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_keys_share_a_name_and_none_is_too_long() {
        for prefix in ["a", "orders:", &"p".repeat(MAX_PREFIX)] {
            let prefixed = Prefixed::new((), prefix).unwrap();
            let mut texts: Vec<String> = (1..=Key::MAX_LEN).map(|length| "x".repeat(length)).collect();
            texts.extend((100..=170).map(|length| "\u{20ac}".repeat(length)));
            texts.extend(["x".repeat(511) + "y", "\u{e9}".repeat(256)]);
            let mut names: HashSet<Key> = HashSet::new();
            for text in &texts {
                let name = prefixed.key(&Key::new(text).unwrap());
                assert!(name.as_str().starts_with(prefix));
                // Not even that of a key that looks like a name.
                let again = Key::new(name.as_str().strip_prefix(prefix).unwrap()).unwrap();
                names.extend((again.as_str() != text).then(|| prefixed.key(&again)));
                assert!(names.insert(name), "{} bytes", text.len());
            }
        }
    }
}
