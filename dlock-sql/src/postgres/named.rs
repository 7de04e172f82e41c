//! Steps that a connection knows by name.
//!
//! To read and plan the statement of a step costs the server five times as much as to carry it out, and a statement
//! among others in one message cannot have values that are bound. So it gets a name on the connection, and its values
//! with the `EXECUTE`:
//!
//! ```text
//!   EXECUTE ──▶ carried out
//!      │ 26000: not known on this connection, nothing was changed
//!      ▼
//!   PREPARE, EXECUTE ──▶ carried out
//!      │ 26000 once more: a pooler carries each message out on another connection
//!      ▼
//!   the whole statement, with its values in it; from now on always
//!
//!   0A000 at any EXECUTE: the table was altered; the whole statement, this time
//! ```
//!
//! The name is made of the text, so that other programs, behind a pooler too, mean the same by it. Where connections
//! forget names all the time (a pool that resets each one before it lends it), a step costs three messages; after some
//! thousand of them its statement is sent whole as well.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Error, PgConnection};

use super::failure::{NAME_TAKEN, OUTDATED, UNPREPARED};
use super::server::PostgresServer;
use super::statements::{asked, asked_as};
use super::values::Value;
use crate::protocol::SqlResult;
use crate::text::number;

/// One plan for all values, and never a plan that reads the whole table, which may be empty when it is made.
const PLANNED: &str = "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off";

/// The last statement of a step: a query over its values, which are the row `asked`.
pub(super) struct Step<'a> {
    pub(super) values: &'a [(&'a str, Value<'a>)],
    /// The text after `WITH asked AS (...), `. It depends on the kind of the step, and on no value.
    pub(super) rest: String,
}

impl Step<'_> {
    fn whole(&self) -> String {
        format!("WITH {}, {}", asked(self.values), self.rest)
    }

    /// Returns the statement with parameters, and its name.
    fn named(&self) -> (String, String) {
        let asked = asked_as(self.values, |place, value| format!("${place}::{}", value.kind()));
        let text = format!("WITH {asked}, {}", self.rest);
        (format!("dlock_{:016x}", number(text.bytes())), text)
    }
}

impl PostgresServer {
    /// Carries out a step, and reads its last row: some statements before, then the last one, by its name where that is
    /// possible. A step that is refused for its name alone has changed nothing, and may be sent again. A step that is
    /// dropped while its statement is prepared was not carried out.
    pub(super) async fn by_name(
        &self,
        on: &mut PgConnection,
        before: &[String],
        step: &Step<'_>,
    ) -> SqlResult<Option<PgRow>> {
        let mut known = self.names.are_known().then(|| step.named());
        let mut was_prepared = false;
        while let Some((name, text)) = &known {
            let values: Vec<_> = step.values.iter().map(|(_, value)| value.literal()).collect();
            let execute = format!("EXECUTE {name}({})", values.join(", "));
            // In one message, and so in one transaction: the locks that the statements before take are held by the last
            // one, and a refusal of its name takes all of it back.
            let statements = [&[PLANNED.to_owned()], before, &[execute]].concat();
            let refused = match self.in_one_message(on, &statements).await {
                Ok(row) => {
                    self.names.was_known();
                    return Ok(row);
                }
                // Only an error of the server says for certain that nothing was changed. Without an answer the step may
                // have been carried out, and is not sent again.
                Err(Error::Database(error)) => error,
                Err(error) => return Err(error),
            };
            match refused.code().as_deref() {
                // Once: a connection that does not know what was just prepared on it is another one for each message.
                Some(UNPREPARED) if !was_prepared => {
                    was_prepared = true;
                    self.names.was_unknown();
                    prepare(on, name, text).await?;
                }
                Some(UNPREPARED) => {
                    self.names.are_lost();
                    known = None;
                }
                // The table was altered since: what is prepared under this name is of no use on this connection any
                // more.
                Some(OUTDATED) => known = None,
                _ => return Err(Error::Database(refused)),
            }
        }
        self.in_one_message(on, &[before, &[step.whole()]].concat()).await
    }
}

async fn prepare(on: &mut PgConnection, name: &str, text: &str) -> SqlResult<()> {
    match sqlx::raw_sql(AssertSqlSafe(format!("PREPARE {name} AS {text}"))).execute(on).await {
        // Another step of this connection, or another program's behind a pooler, was faster: the name is of this very
        // text.
        Err(Error::Database(error)) if error.code().as_deref() == Some(NAME_TAKEN) => Ok(()),
        prepared => prepared.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_and_the_name_of_a_step_are_those_of_all_its_values() {
        let step = |key: &[u8], take| {
            let values = [("main", Value::Bytes(key)), ("take", Value::Number(take))];
            Step { values: &values, rest: "main AS (SELECT 1) SELECT main FROM asked".to_owned() }.named()
        };
        let (name, text) = step(b"a", 1);
        assert_eq!((name.clone(), text.clone()), step(b"b", 2));
        assert!(name.len() == 22 && text.contains("$1::bytea AS main, $2::bigint AS take"), "{name}: {text}");
    }
}
