//! Texts that may be keys.

use std::collections::BTreeSet;

/// Returns `many` different texts of 1 to 39 characters, which are the same at each call: control characters, letters
/// with and without accents, what differs in case or in a space alone, and characters from all of Unicode. For a
/// backend's own test that its names for them differ.
///
/// ```
/// let keys = dlock_testkit::generated_keys(10_000);
/// assert_eq!(keys.len(), 10_000);
/// assert!(keys.iter().all(|key| dlock_core::Key::new(key.as_str()).is_ok()));
/// ```
#[must_use]
pub fn generated_keys(many: usize) -> BTreeSet<String> {
    let mut random = fastrand::Rng::with_seed(0x6b65_7973);
    let mut keys = BTreeSet::new();
    while keys.len() < many {
        let length = random.usize(1..40);
        let characters = (0..length).map(|_| match random.u8(0..4) {
            0 => random.char('\u{1}'..='\u{7f}'),
            1 => random.char('\u{80}'..='\u{24f}'),
            2 => char::from(b"aAb ._0%{}/"[random.usize(0..11)]),
            _ => random.char('\u{1}'..=char::MAX),
        });
        keys.insert(characters.collect());
    }
    keys
}
