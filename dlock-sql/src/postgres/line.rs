//! The waiters for a lock in the order in which they came, in PostgreSQL: the parts that are added to the steps of
//! shares.

use std::time::Duration;

use dlock_core::{Key, Token};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::answers::{bytes, holder};
use super::named::Step;
use super::server::PostgresServer;
use super::statements::{MARK_LENGTH, asked, kept_for_line, mark_of, standing, turn, unmarked, us};
use super::values::Value::{Bytes, Text};
use crate::protocol::SqlResult;
use crate::releases::TURNS;
use crate::rows::line::{KEPT, KEPT_LONGER, KEPT_PER_PLACE, LineSeen, Places};
use crate::rows::shares::{Beside, ShareAsk};
use crate::server::Server;
use crate::text::micros;

/// The parts that are added to an attempt, in their places.
pub(super) struct Line {
    /// Reads the line.
    pub(super) seen: String,
    /// The condition that the row of the key is taken.
    pub(super) is_taken: &'static str,
    /// The case in which it is not the claim's turn.
    pub(super) is_not_its_turn: &'static str,
    /// The addition to the line about the holder.
    pub(super) mark: &'static str,
    /// The condition that others wait behind the claim.
    pub(super) is_wanted: &'static str,
    /// The changes.
    pub(super) changes: String,
    /// The place that the claim has afterwards, and the largest possible number before it.
    pub(super) place: &'static str,
}

impl Line {
    pub(super) fn of_attempt(table: &str, ask: &ShareAsk) -> Self {
        let Some(stand) = &ask.stand else {
            return Self {
                seen: String::new(),
                is_taken: "is_barred",
                is_not_its_turn: "",
                mark: "",
                is_wanted: "",
                changes: String::new(),
                place: "NULL::bigint, NULL::bigint",
            };
        };
        let (range, token) = (RANGE, "(SELECT token FROM asked)");
        // With a number the place is looked up by its key; without one the token is looked for among all of them.
        let own = if stand.known.is_some() { "held.key = (SELECT known FROM asked)" } else { range };
        let seen = format!(
            r", own_place AS MATERIALIZED (
                SELECT held.fence AS place FROM {table} AS held WHERE {own} AND held.token = {token} LIMIT 1
            ), first_in_line AS MATERIALIZED (
                SELECT held.token, held.fence AS place FROM {table} AS held
                WHERE {range} AND (held.expires > (SELECT now FROM asked) OR held.token = {token})
                ORDER BY held.key LIMIT 1
            ), next_in_line AS MATERIALIZED (
                SELECT held.token FROM {table} AS held
                WHERE {range} AND held.expires > (SELECT now FROM asked) AND held.token <> {token}
                ORDER BY held.key LIMIT 1
            ), place AS MATERIALIZED (
                SELECT place, place - coalesce((SELECT place FROM first_in_line), place) AS before
                FROM (SELECT coalesce((SELECT place FROM own_place),
                    (SELECT held.fence FROM {table} AS held WHERE {range} ORDER BY held.key DESC LIMIT 1) + 1, 1)
                    AS place) AS it
            )"
        );
        // The row is kept for those in line, or says that there are such.
        let marked = mark_of("coalesce((SELECT token FROM first_in_line), asked.token)");
        let waits = if stand.waits { "true" } else { "false" };
        let changes = format!(
            r", waits AS (
                INSERT INTO {table} AS held (key, token, fence, expires, holder)
                SELECT low || int8send(place), asked.token, place,
                    now + ({kept} + least({longer}, {per_place} * before)) * interval '1 microsecond', line
                FROM asked, judged, place WHERE verdict IN ('busy', 'kept out') AND {waits}
                ON CONFLICT (key) DO UPDATE SET token = excluded.token, expires = excluded.expires,
                    holder = excluded.holder
                RETURNING held.fence AS place
            ), marked AS (
                UPDATE {table} AS held SET
                    token = CASE WHEN is_held THEN held.token ELSE {turn} END,
                    expires = CASE WHEN is_held THEN held.expires ELSE greatest(
                        now + {kept_for_line}, CASE WHEN is_turn THEN held.expires END) END,
                    holder = CASE WHEN is_held THEN {unmarked} ELSE '' END || {marked},
                    awaited = true
                FROM asked, main, judged WHERE held.key = asked.main AND verdict IN ('busy', 'kept out') AND NOT several
                    AND ({waits} OR EXISTS (SELECT FROM first_in_line))
                    AND (NOT is_held OR {waits} AND right(held.holder, {length}) <> {marked})
            ), passed AS (
                DELETE FROM {table} AS held USING asked, judged
                WHERE {range} AND verdict IN ('granted', 'adopted') AND (held.token = {token} OR held.expires <= now)
                    AND held.key <= coalesce(low || int8send((SELECT place FROM own_place)), high)
            )",
            kept = micros(KEPT),
            longer = micros(KEPT_LONGER),
            per_place = micros(KEPT_PER_PLACE),
            turn = turn(),
            kept_for_line = kept_for_line(),
            unmarked = unmarked("held."),
            length = MARK_LENGTH,
        );
        Self {
            seen,
            is_taken: "is_held",
            is_not_its_turn: "WHEN EXISTS (SELECT FROM first_in_line WHERE first_in_line.token <> asked.token) THEN 'busy'",
            mark: " || coalesce((SELECT ' line=' || encode(token, 'hex') FROM next_in_line), '')",
            is_wanted: " OR EXISTS (SELECT FROM next_in_line)",
            changes,
            place: "(SELECT place FROM waits), (SELECT before FROM place)",
        }
    }
}

impl PostgresServer {
    /// Removes what a claim in line has: its place, or the lock. The turn goes to the next one.
    pub(super) async fn leave_line(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
    ) -> SqlResult<bool> {
        let (table, channel, beside) = (self.quoted(), self.channel(key), Beside::of(key));
        let places = Places::of(key);
        let values = [
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(b"")),
            ("beyond", Bytes(&beside.beyond)),
            ("token", Bytes(token.as_bytes())),
            ("low", Bytes(&places.low)),
            ("high", Bytes(&places.high)),
            ("channel", Text(&channel)),
        ];
        let (range, token) = (RANGE, "(SELECT token FROM asked)");
        // All parts see the rows as they were before: `next_in_line` leaves the claim's own place out, since that is
        // being deleted.
        let leave = format!(
            r"{standing}, next_in_line AS MATERIALIZED (
                SELECT held.token FROM {table} AS held
                WHERE {range} AND held.expires > (SELECT now FROM asked) AND held.token <> {token}
                ORDER BY held.key LIMIT 1
            ), left_line AS (
                DELETE FROM {table} AS held WHERE {range} AND held.token = {token}
            ), not_preferred AS (
                DELETE FROM {table} AS held USING asked
                WHERE held.key = asked.preferred AND held.token = asked.token RETURNING 1
            ), turned AS MATERIALIZED (
                SELECT is_turn OR coalesce(main.token = asked.token, false) AS is_over,
                    is_held AND main.token = asked.token AS is_ours, (SELECT token FROM next_in_line) AS next
                FROM asked, main
            ), freed AS (
                UPDATE {table} AS held SET
                    token = CASE WHEN NOT is_over THEN held.token WHEN next IS NOT NULL THEN {turn} END,
                    expires = CASE WHEN is_over AND next IS NOT NULL THEN now + {kept} ELSE held.expires END,
                    holder = {unmarked} || coalesce({mark_of_next}, '')
                FROM asked, main, turned WHERE held.key = asked.main AND NOT several
                    AND (is_over OR right(held.holder, {MARK_LENGTH}) = {mark})
            )
            SELECT coalesce(is_ours, false), CASE WHEN is_over AND next IS NOT NULL THEN pg_notify({channel_of_next}, '')
                WHEN awaited AND (is_over OR EXISTS (SELECT FROM not_preferred)) THEN pg_notify(channel, '') END
            FROM asked, main, turned",
            standing = standing(&table),
            turn = turn(),
            kept = kept_for_line(),
            unmarked = unmarked("held."),
            mark_of_next = mark_of("next"),
            mark = mark_of("asked.token"),
            channel_of_next = format_args!("'{TURNS}' || encode(next, 'hex')"),
        );
        let row = self.by_name(on, &[self.lock(key)], &Step { values: &values, rest: leave }).await?;
        row.map_or(Ok(false), |row| row.try_get(0))
    }

    /// Reads the line for a key as the waiter with this place finds it. Changes nothing.
    pub(super) async fn see_line(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        let (table, places) = (self.quoted(), Places::of(key));
        let (range, own, low, high) = (RANGE, places.at(place), Bytes(&places.low), Bytes(&places.high));
        let asked = asked(&[("low", low), ("high", high), ("token", Bytes(token.as_bytes()))]);
        let token = "(SELECT token FROM asked)";
        let see = format!(
            r"WITH {asked}, first AS MATERIALIZED (
                SELECT held.fence AS place FROM {table} AS held
                WHERE {range} AND (held.expires > (SELECT now FROM asked) OR held.token = {token})
                ORDER BY held.key LIMIT 1
            )
            SELECT {kept}, held.fence - first.place, main.fence, {left}, main.holder
            FROM asked CROSS JOIN first JOIN {table} AS held ON held.key = {own} AND held.token = {token}
            LEFT JOIN {table} AS main ON main.key = {key} AND main.token IS NOT NULL AND main.token <> {turn}
                AND main.expires > now",
            kept = us("held.expires - now"),
            left = us("least(main.expires, now + interval '1 year') - now"),
            own = Bytes(&own).literal(),
            key = Bytes(bytes(key)).literal(),
            turn = turn(),
        );
        let row = sqlx::raw_sql(AssertSqlSafe(see)).fetch_optional(on).await?;
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

/// The rows of the waiters in line, as `held`.
pub(super) const RANGE: &str = "held.key > (SELECT low FROM asked) AND held.key < (SELECT high FROM asked)";
