//! Patterns of keys that are given at run time.
//!
//! A pattern is a label of metrics, and every pattern makes time series of its own. A program that passes keys in place
//! of patterns would fill the memory of everything that keeps metrics, so the number of patterns that are distinguished
//! in a process is limited.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use tracing::warn;

use crate::guarded::tell;
use crate::key::start_of;

/// The label of all further patterns.
const OTHER: &str = "other";

/// The patterns of this process.
static TEMPLATES: Templates = Templates::new();

/// The number of patterns that are distinguished. An SDK keeps 2 000 series of an instrument by default; the other
/// labels multiply this.
const LIMIT: usize = 200;
/// The length of the longest pattern, in bytes. The rest of a longer one is left out.
const MAX_LEN: usize = 128;

/// Returns the label for a pattern.
pub(crate) fn intern(text: &str) -> &'static str {
    TEMPLATES.intern(text)
}

struct Templates(RwLock<KnownTemplates>);

struct KnownTemplates {
    texts: Option<HashSet<&'static str>>,
    full: bool,
}

impl Templates {
    const fn new() -> Self {
        Self(RwLock::new(KnownTemplates { texts: None, full: false }))
    }

    fn intern(&self, text: &str) -> &'static str {
        let text = start_of(text, MAX_LEN);
        let (found, full) = {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            (known.texts.as_ref().and_then(|texts| texts.get(text).copied()), known.full)
        };
        match found {
            Some(label) => label,
            None if full => OTHER,
            None => self.add(text),
        }
    }

    fn add(&self, text: &str) -> &'static str {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let texts = known.texts.get_or_insert_default();
        if let Some(label) = texts.get(text) {
            return label;
        }
        if texts.len() < LIMIT {
            // The text is never freed, and there are at most `LIMIT` of them.
            let label: &'static str = Box::leak(text.into());
            texts.insert(label);
            return label;
        }
        let is_first = !std::mem::replace(&mut known.full, true);
        // The subscriber that gets the warning may name a lock itself.
        drop(known);
        if is_first {
            tell(|| {
                warn!(
                    target: "dlock",
                    "more than {LIMIT} templates were used: further ones are counted as \"{OTHER}\". A template is the \
                     pattern of keys, such as room_<id>: is a key passed instead?"
                );
            });
        }
        OTHER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_passed_as_templates_fill_no_memory_and_known_templates_stay() {
        let templates = Templates::new();
        let first = templates.intern("room_<id>");
        let labels: HashSet<_> = (0..10_000).map(|n| templates.intern(&format!("room_{n}"))).collect();
        assert_eq!(labels.len(), LIMIT, "the first, those that still fit, and one for all others");
        assert!(labels.contains(OTHER));
        assert!(std::ptr::eq(first, templates.intern("room_<id>")));
        assert_eq!(templates.intern("stock_<id>"), OTHER);
    }

    #[test]
    fn a_long_template_is_cut_between_two_characters() {
        let label = Templates::new().intern(&"é".repeat(100_000));
        assert_eq!(label.len(), MAX_LEN);
        let label = Templates::new().intern(&format!("x{}", "é".repeat(100_000)));
        assert_eq!(label.len(), MAX_LEN - 1);
    }
}
