//! Claims that were dropped before their end and are not withdrawn yet: an acquire that begins anew is not to take its
//! own for somebody else's.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::guarded::wake_all;
use crate::key::Key;
use crate::sync::{Mutex, Notify};

/// A map that had more keys than this gives its memory back when all are withdrawn.
const KEPT: usize = 1_024;

/// How many there are of each key.
#[derive(Default)]
pub(crate) struct LeftClaims {
    keys: Mutex<HashMap<Key, usize, RandomState>>,
    withdrawn: Notify,
}

impl LeftClaims {
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.lock().contains_key(key)
    }

    /// Resolves when there are none of `key`.
    pub(super) async fn withdrawn(&self, key: &Key) {
        loop {
            let withdrawn = self.withdrawn.notified();
            if !self.has(key) {
                return;
            }
            withdrawn.await;
        }
    }
}

/// One of them.
pub(super) struct LeftClaim {
    all: Arc<LeftClaims>,
    key: Key,
}

impl LeftClaim {
    pub(super) fn new(all: &Arc<LeftClaims>, key: &Key) -> Self {
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
        wake_all(&self.all.withdrawn);
    }
}
