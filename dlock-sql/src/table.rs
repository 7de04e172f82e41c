//! The name of the lock table: the one part of a statement that cannot be bound.

use std::fmt;

use dlock_core::Failure;

/// A table name that is safe to stand, quoted, in a statement: `[A-Za-z_][A-Za-z0-9_]{0,62}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableName(String);

impl TableName {
    pub(crate) const MAX_LEN: usize = 63;

    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let first = name.bytes().next().unwrap_or(b'0');
        let good = (first.is_ascii_alphabetic() || first == b'_')
            && name.len() <= Self::MAX_LEN
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if good {
            return Ok(Self(name.to_owned()));
        }
        Err(Failure::invalid_config(format!(
            "the table name {:?} is not allowed; use 1 to {} ASCII letters, digits and underscores, not starting \
             with a digit",
            name.chars().take(Self::MAX_LEN + 1).collect::<String>(),
            Self::MAX_LEN
        )))
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self("dlock".to_owned())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_are_table_names() {
        let longest = "x".repeat(63);
        for good in ["dlock", "_", "A9", "Shop_Locks_2", &longest] {
            assert_eq!(TableName::new(good).unwrap().to_string(), *good);
        }
        let too_long = "x".repeat(64);
        for wrong in [
            "",
            "9x",
            "a b",
            "a-b",
            "a.b",
            "a\"b",
            "a'b",
            "a;b",
            "a`b",
            "ä",
            "🔒",
            "a\n",
            " a",
            "a%",
            &too_long,
            "dlock\"; DROP TABLE x; --",
        ] {
            let failure = TableName::new(wrong).unwrap_err();
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig, "{wrong:?}");
        }
    }
}
