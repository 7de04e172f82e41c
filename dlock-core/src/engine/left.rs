//! Claims that were dropped before their end and are not withdrawn yet: an acquire that begins anew must not take its
//! own claim for another holder's.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::guarded::wake_all;
use crate::key::Key;
use crate::sync::{Mutex, Notify};

/// A map that had more keys than this frees its memory when all are withdrawn.
const KEPT: usize = 1_024;

/// The number of them by key.
#[derive(Default)]
pub(crate) struct LeftClaims {
    keys: Mutex<HashMap<Key, usize, RandomState>>,
    withdrawn: Notify,
}

impl LeftClaims {
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.lock().contains_key(key)
    }

    /// Resolves when no such claim of `key` is left.
    pub(super) async fn withdrawn(&self, key: &Key) {
        loop {
            // Listens before it looks: a withdrawal between the two is not missed.
            let withdrawn = self.withdrawn.notified();
            if !self.has(key) {
                return;
            }
            withdrawn.await;
        }
    }
}

/// A claim in that count, which it leaves when dropped.
pub(super) struct LeftClaim {
    all: Arc<LeftClaims>,
    key: Key,
}

impl LeftClaim {
    pub(super) fn new(all: &Arc<LeftClaims>, key: &Key) -> Self {
        // A count, since several acquires may leave claims of one key.
        *all.keys.lock().entry(key.clone()).or_default() += 1;
        Self { all: Arc::clone(all), key: key.clone() }
    }
}

impl Drop for LeftClaim {
    fn drop(&mut self) {
        {
            let mut keys = self.all.keys.lock();
            if let Some(count) = keys.get_mut(&self.key) {
                *count -= 1;
                if *count == 0 {
                    keys.remove(&self.key);
                }
            }
            if keys.is_empty() && keys.capacity() > KEPT {
                *keys = HashMap::default();
            }
        }
        // After the map is unlocked: a waker is code of others.
        wake_all(&self.all.withdrawn);
    }
}
