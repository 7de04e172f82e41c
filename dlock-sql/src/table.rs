//! The name of the lock table: the one part of a statement that cannot be bound.

use std::fmt;

use dlock_core::Failure;

/// The `holder` of the mark row.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const MARK: &str = "dlock table, version 1";

/// A table name that is safe to stand, quoted, in a statement: `[A-Za-z_][A-Za-z0-9_]{0,62}`, perhaps with a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(feature = "mysql", feature = "postgres")), allow(unreachable_pub))]
pub struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    pub(crate) const MAX_LEN: usize = 63;

    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let first = name.bytes().next().unwrap_or(b'0');
        let good = (first.is_ascii_alphabetic() || first == b'_')
            && name.len() <= Self::MAX_LEN
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if good {
            return Ok(Self { schema: None, name: name.to_owned() });
        }
        Err(Failure::invalid_config(format!(
            "the table name {:?} is not allowed; use 1 to {} ASCII letters, digits and underscores, not starting \
             with a digit",
            name.chars().take(Self::MAX_LEN + 1).collect::<String>(),
            Self::MAX_LEN
        )))
    }

    /// Creates it from a name that may be written `schema.table`.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn qualified(name: &str) -> Result<Self, Failure> {
        match name.split_once('.') {
            Some((schema, name)) => Ok(Self::new(name)?.within(Self::new(schema)?.name)),
            None => Self::new(name),
        }
    }

    /// Returns this table in a schema whose name the server gave.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn within(mut self, schema: String) -> Self {
        self.schema = Some(schema);
        self
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Returns the name without the schema.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name as it stands in a statement.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn quoted(&self, mark: char) -> String {
        let name = quote(&self.name, mark);
        match &self.schema {
            Some(schema) => format!("{}.{name}", quote(schema, mark)),
            None => name,
        }
    }
}

/// Checks the mark of a table that may be a lock table.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn verify(mark: Option<&str>, table: &TableName) -> Result<(), Failure> {
    match mark {
        Some(MARK) => Ok(()),
        Some(mark) => Err(Failure::invalid_config(format!(
            "table {table} is of another version of dlock ({mark:?}); use that version or another table name"
        ))),
        None => Err(Failure::invalid_config(format!(
            "table {table} has lost its mark row; stop all its users and call migrate(), which makes another"
        ))),
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn quote(name: &str, mark: char) -> String {
    let doubled = name.replace(mark, &format!("{mark}{mark}"));
    format!("{mark}{doubled}{mark}")
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, name: "dlock".to_owned() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
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

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[test]
    fn a_table_may_carry_a_schema_and_both_are_quoted() {
        let table = TableName::qualified("locks.dlock").unwrap();
        assert_eq!((table.to_string().as_str(), table.schema()), ("locks.dlock", Some("locks")));
        assert_eq!(table.quoted('"'), r#""locks"."dlock""#);
        let strange = TableName::default().within("a`b\"c".to_owned());
        assert_eq!(strange.quoted('"'), r#""a`b""c"."dlock""#);
        assert_eq!(strange.quoted('`'), r#"`a``b"c`.`dlock`"#);
        for wrong in ["a.b.c", ".a", "a.", "."] {
            TableName::qualified(wrong).unwrap_err();
        }
    }
}
