//! Statements with a table's name in them.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// Makes a statement. The only text that is put into one is a checked table name, or a number.
pub(crate) fn sql(text: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

/// Returns the statements of a script, with the table's name in them. In the script an empty line follows each
/// statement, and a line that begins with `--` is a comment.
pub(crate) fn statements(script: &str, table: &str) -> Vec<SqlStr> {
    let bare =
        |part: &str| part.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    let parts = script.split(";\n\n").map(bare).filter(|part| !part.trim().is_empty());
    parts.map(|part| sql(part.trim().replace("{table}", table))).collect()
}

/// Returns a length of time in microseconds, for the server.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn micros(length: std::time::Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// Returns a number for `bytes` that is equal in every process, whatever it was built with (FNV-1a).
pub(crate) fn number(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the bytes of so many hexadecimal digits; none for any other text.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn unhex(digits: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(byte).collect::<Option<_>>().unwrap_or_default()
}

/// Returns `bytes` in lower-case hexadecimal digits.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Adds bytes in hexadecimal.
#[cfg(feature = "sqlite")]
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    for nibble in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_its_statements_without_its_comments() {
        let script = "-- a\n\n-- b\nCREATE {table} (\n    x\n);\n\nBEGIN {table}; END;\n\n-- GRANT x;\n";
        let statements = statements(script, "locks");
        let texts: Vec<_> = statements.iter().map(|statement| statement.as_str()).collect();
        assert_eq!(texts, ["CREATE locks (\n    x\n)", "BEGIN locks; END"]);
    }
}
