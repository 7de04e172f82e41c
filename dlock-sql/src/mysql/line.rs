//! The waiters for a lock in the order in which they came, in MariaDB and MySQL: the parts that are added to the steps
//! of shares.

use std::time::Duration;

use dlock_core::{Key, Token};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use super::answers::{bytes, holder};
use super::server::MysqlServer;
use super::statements::{
    ADOPTED, LONGEST_LINE, MARK_LENGTH, NOW, kept_for_line, mark_of, text, turn, unmarked,
};
use super::values::literal;
use crate::protocol::SqlResult;
use crate::rows::line::{KEPT, KEPT_LONGER, KEPT_PER_PLACE, LineSeen, Places};
use crate::rows::shares::{Beside, ShareAsk};
use crate::server::Server;
use crate::stored::SHARED;
use crate::text::micros;

/// The parts that are added to an attempt, in their places.
#[derive(Default)]
pub(super) struct Line {
    /// Reads the line.
    pub(super) look: Option<String>,
    /// The condition that the row of the key is taken.
    pub(super) is_taken: &'static str,
    /// The condition that it is not the claim's turn.
    pub(super) is_not_its_turn: String,
    /// The addition to the line about the holder.
    pub(super) mark: String,
    /// The changes.
    pub(super) changes: Vec<String>,
    /// The place that the claim has afterwards, and the largest possible number before it.
    pub(super) place: String,
}

/// Returns the first in line that was not silent for too long, or that is `or`.
fn first(table: &str, places: &Places, what: &str, or: &str) -> String {
    let range = range(places);
    format!(
        "(SELECT {what} FROM {table} AS held WHERE {range} AND (held.expires > {NOW} {or})
        ORDER BY held.`key` LIMIT 1)"
    )
}

pub(super) fn range(places: &Places) -> String {
    format!("held.`key` > {} AND held.`key` < {}", literal(&places.low), literal(&places.high))
}

/// Returns the line about the holder, with the mark of the first in line.
fn with_mark(line: &str, mark: &str) -> String {
    format!("CONCAT(LEFT({line}, {}), {mark})", LONGEST_LINE - MARK_LENGTH)
}

impl Line {
    pub(super) fn of_attempt(table: &str, ask: &ShareAsk) -> Self {
        let Some(stand) = &ask.stand else {
            return Self { is_taken: "is_barred", place: "NULL, NULL".to_owned(), ..Self::default() };
        };
        let (places, token) = (Places::of(&ask.key), literal(ask.token.as_bytes()));
        let range = range(&places);
        let own = match stand.known {
            Some(place) => format!("held.`key` = {}", literal(&places.at(place))),
            None => range.clone(),
        };
        let or_own = format!("OR held.token = {token}");
        let look = format!(
            "SELECT (SELECT held.fence FROM {table} AS held WHERE {own} AND held.token = {token} LIMIT 1),
                {first_place}, HEX({first_token}), HEX({next}),
                COALESCE((SELECT held.fence FROM {table} AS held WHERE {range} ORDER BY held.`key` DESC LIMIT 1), 0)
            INTO @dlock_own_place, @dlock_first_place, @dlock_first, @dlock_next, @dlock_last_place",
            first_place = first(table, &places, "held.fence", &or_own),
            first_token = first(table, &places, "held.token", &or_own),
            next = format_args!(
                "(SELECT held.token FROM {table} AS held WHERE {range} AND held.expires > {NOW} AND held.token <> {token}
                ORDER BY held.`key` LIMIT 1)"
            ),
        );
        let (low, key) = (literal(&places.low), literal(bytes(&ask.key)));
        let place = "COALESCE(@dlock_own_place, @dlock_last_place + 1)";
        let before = format!("({place} - COALESCE(@dlock_first_place, {place}))");
        // The bytes of a number, the highest first.
        let key_of_place = format!("CONCAT({low}, UNHEX(LPAD(HEX({place}), 16, '0')))");
        let is_busy = format!("@dlock_came_to > {ADOPTED} AND @dlock_came_to < 5");
        let waits = format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder)
            SELECT {key_of_place}, {token}, {place},
                @dlock_now + {kept} + LEAST({longer}, {per_place} * {before}), {line} FROM DUAL WHERE {is_busy}
            ON DUPLICATE KEY UPDATE token = VALUES(token), expires = VALUES(expires), holder = VALUES(holder)",
            kept = micros(KEPT),
            longer = micros(KEPT_LONGER),
            per_place = micros(KEPT_PER_PLACE),
            line = text(&ask.line),
        );
        // The row is kept for those in line, or says that there are such.
        let mark = mark_of(&format!("UNHEX(COALESCE(@dlock_first, HEX({token})))"));
        let turn = turn();
        let who = if stand.waits { "TRUE" } else { "@dlock_first IS NOT NULL AND NOT @dlock_is_held" };
        let marked = format!(
            "UPDATE {table} SET holder = IF(@dlock_is_held, {of_holder}, {mark}),
                expires = IF(@dlock_is_held, expires, GREATEST(@dlock_now + {kept}, IF(@dlock_is_turn, expires, 0))),
                token = IF(@dlock_is_held, token, {turn})
            WHERE `key` = {key} AND {is_busy} AND NOT @dlock_several AND {who}",
            of_holder = with_mark(&unmarked(""), &mark),
            kept = kept_for_line(),
        );
        let passed = format!(
            "DELETE held FROM {table} AS held JOIN (SELECT old.`key` AS name FROM {table} AS old
                WHERE old.`key` > {low} AND old.`key` < {high} AND @dlock_came_to <= {ADOPTED}
                    AND (old.token = {token} OR old.expires <= @dlock_now)
                    AND (@dlock_own_place IS NULL OR old.fence <= @dlock_own_place)
                LIMIT 1000) AS old ON held.`key` = old.name",
            high = literal(&places.high),
        );
        let mut changes = vec![marked, passed];
        if stand.waits {
            changes.push(waits);
        }
        let next = mark_of("UNHEX(@dlock_next)");
        Self {
            look: Some(look),
            is_taken: "is_held",
            is_not_its_turn: format!("OR COALESCE(@dlock_first <> HEX({token}), FALSE)"),
            mark: format!(", IF(@dlock_next IS NULL, X'', {next})"),
            changes,
            place: if stand.waits {
                format!("CAST({place} AS SIGNED), CAST({before} AS SIGNED)")
            } else {
                "NULL, NULL".to_owned()
            },
        }
    }
}

impl MysqlServer {
    /// Removes what a claim in line has: its place, or the lock. The turn goes to the next one.
    pub(super) async fn leave_line(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
    ) -> SqlResult<bool> {
        let (table, places, beside) = (self.quoted(), Places::of(key), Beside::of(key));
        let (key, token, range) = (literal(bytes(key)), literal(token.as_bytes()), range(&places));
        let look = format!(
            "SELECT {NOW}, COALESCE(main.token = {token}, FALSE), COALESCE(main.token = {turn}, FALSE),
                COALESCE(main.token = {shared} AND main.expires > {NOW}, FALSE),
                COALESCE(main.token = {token} AND main.expires > {NOW}, FALSE),
                HEX((SELECT held.token FROM {table} AS held WHERE {range} AND held.expires > {NOW} AND held.token <> {token}
                ORDER BY held.`key` LIMIT 1))
            INTO @dlock_now, @dlock_own, @dlock_is_turn, @dlock_several, @dlock_alone, @dlock_next
            FROM (SELECT 1) AS one LEFT JOIN {table} AS main ON main.`key` = {key}",
            turn = turn(),
            shared = literal(&SHARED),
        );
        // Looked at before anything is deleted: the next in line is chosen without the claim that leaves.
        let statements = [
            self.lock(&key),
            look,
            format!(
                "DELETE held FROM {table} AS held JOIN (SELECT old.`key` AS name FROM {table} AS old
                    WHERE old.`key` > {} AND old.`key` < {} AND old.token = {token} LIMIT 1000) AS old
                ON held.`key` = old.name",
                literal(&places.low),
                literal(&places.high)
            ),
            format!("DELETE FROM {table} WHERE `key` = {} AND token = {token}", literal(&beside.preferred)),
            format!(
                "UPDATE {table} SET
                    holder = IF(@dlock_next IS NULL, {unmarked}, {with_mark}),
                    expires = IF((@dlock_own OR @dlock_is_turn) AND @dlock_next IS NOT NULL, @dlock_now + {kept}, expires),
                    token = IF(@dlock_own OR @dlock_is_turn, IF(@dlock_next IS NULL, NULL, {turn}), token)
                WHERE `key` = {key} AND NOT @dlock_several
                    AND (@dlock_own OR @dlock_is_turn OR RIGHT(holder, {MARK_LENGTH}) = {mark})",
                unmarked = unmarked(""),
                with_mark = with_mark(&unmarked(""), &mark_of("UNHEX(@dlock_next)")),
                kept = kept_for_line(),
                turn = turn(),
                mark = mark_of(&token),
            ),
            "SELECT CAST(@dlock_alone AS SIGNED)".to_owned(),
        ];
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>(0)? == 1)
    }

    /// Reads the line for a key as the waiter with this place finds it. Changes nothing.
    pub(super) async fn see_line(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        let (table, places) = (self.quoted(), Places::of(key));
        let token = literal(token.as_bytes());
        let see = format!(
            "SELECT CAST(held.expires - {NOW} AS SIGNED), CAST(held.fence - {first} AS SIGNED), main.fence,
                CAST(main.expires - {NOW} AS SIGNED), main.holder
            FROM {table} AS held LEFT JOIN {table} AS main ON main.`key` = {key} AND main.token IS NOT NULL
                AND main.token <> {turn} AND main.expires > {NOW}
            WHERE held.`key` = {own} AND held.token = {token}",
            first = first(&table, &places, "held.fence", &format!("OR held.token = {token}")),
            key = literal(bytes(key)),
            own = literal(&places.at(place)),
            turn = turn(),
        );
        let row: Option<MySqlRow> = sqlx::raw_sql(sqlx::AssertSqlSafe(see)).fetch_optional(on).await?;
        let Some(row) = row else { return Ok(None) };
        let is_free = row.try_get::<Option<i64>, _>(2)?.is_none();
        Ok(Some(LineSeen {
            is_free,
            kept: Duration::from_micros(row.try_get::<i64, _>(0)?.max(0).unsigned_abs()),
            before: row.try_get(1)?,
            holder: if is_free { None } else { Some(Box::new(holder(&row, 2)?)) },
        }))
    }
}
