//! Values of statements: bound, or written into the text where nothing may be prepared.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::text::hex;

/// A value of a statement.
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Number(i64),
    Text(&'a str),
    ManyBytes(Vec<&'a [u8]>),
    Numbers(Vec<i64>),
    Texts(Vec<&'a str>),
}

impl<'a> Value<'a> {
    pub(super) fn bind(
        &'a self,
        query: Query<'a, Postgres, PgArguments>,
    ) -> Query<'a, Postgres, PgArguments> {
        match self {
            Self::Bytes(bytes) => query.bind(*bytes),
            Self::Number(number) => query.bind(*number),
            Self::Text(text) => query.bind(*text),
            Self::ManyBytes(all) => query.bind(all),
            Self::Numbers(numbers) => query.bind(numbers),
            Self::Texts(texts) => query.bind(texts),
        }
    }

    /// Returns the type of the parameter that takes it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytea",
            Self::Number(_) => "bigint",
            Self::Text(_) => "text",
            Self::ManyBytes(_) => "bytea[]",
            Self::Numbers(_) => "bigint[]",
            Self::Texts(_) => "text[]",
        }
    }

    /// Returns the value as it is written into a statement, whatever the settings of the session: nothing of the value
    /// itself is in it but digits.
    pub(super) fn literal(&self) -> String {
        let bytes = |bytes: &[u8]| format!("decode('{}', 'hex')", hex(bytes));
        let text = |text: &str| format!("convert_from({}, 'UTF8')", bytes(text.as_bytes()));
        let list = |all: Vec<String>, kind| format!("ARRAY[{}]::{kind}[]", all.join(", "));
        match self {
            Self::Bytes(of) => bytes(of),
            Self::Number(number) => format!("({number})"),
            Self::Text(of) => text(of),
            Self::ManyBytes(all) => list(all.iter().map(|of| bytes(of)).collect(), "bytea"),
            Self::Numbers(numbers) => list(numbers.iter().map(i64::to_string).collect(), "bigint"),
            Self::Texts(texts) => list(texts.iter().map(|of| text(of)).collect(), "text"),
        }
    }
}

/// Returns the statement with its values in the places of `$1`, `$2`, ...
pub(super) fn written_into(statement: &str, values: &[Value<'_>]) -> String {
    let mut parts = statement.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // No statement has ten values.
        let place = part.bytes().next().map_or(0, |digit| usize::from(digit.wrapping_sub(b'1')));
        text.push_str(&values.get(place).map(Value::literal).unwrap_or_default());
        text.push_str(part.get(1..).unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_where_their_numbers_stand() {
        let values =
            [Value::Text("'; DROP TABLE dlock; --"), Value::Number(-7), Value::ManyBytes(vec![b"a", b""])];
        assert_eq!(
            written_into("SELECT $2, $1::text, $2 + 1, $3", &values),
            "SELECT (-7), convert_from(decode('273b2044524f50205441424c4520646c6f636b3b202d2d', 'hex'), 'UTF8')::text, \
             (-7) + 1, ARRAY[decode('61', 'hex'), decode('', 'hex')]::bytea[]"
        );
        assert_eq!(written_into("SELECT 1", &[]), "SELECT 1");
    }
}
