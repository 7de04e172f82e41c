//! The settings that a server reports, and the judgement of them.

use std::collections::HashMap;

use dlock_core::backend::Finding;

/// The facts that the server reports of itself, by name.
pub(crate) type Facts = HashMap<String, String>;

/// The judgement of one of them, with all others at hand.
pub(crate) type Judge = fn(&str, &Facts) -> Finding;

/// Returns `true` if a setting is on.
pub(crate) fn is_on(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "on" | "1" | "yes" | "true")
}

/// Returns this finding, unless all is as it should be.
pub(crate) fn unless(fine: bool, otherwise: Finding) -> Finding {
    if fine { Finding::fine(otherwise.subject, otherwise.found) } else { otherwise }
}

/// Returns the number that a text begins with: of a version, the first part.
pub(crate) fn leading(text: &str) -> u64 {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_begins_with_its_number() {
        assert_eq!([leading("15.18 (Debian)"), leading("10.11.6-MariaDB"), leading("x")], [15, 10, 0]);
    }
}
