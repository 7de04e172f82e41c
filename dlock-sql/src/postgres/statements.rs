//! The statements, with the table's name in them.
//!
//! Times are the server's, of the moment they are used, not of the transaction. Each statement is run to its end, since
//! the server sends the rows before it commits.

use dlock_core::backend::LEFT_BEHIND;
use sqlx::SqlStr;

use super::session::statements::{ADVISORY, NOW, lock_row, read_names, take_name, take_names};
use super::values::Value;
use crate::protocol::AT_ONCE;
use crate::releases::TURNS;
use crate::rows::line::KEPT_FOR_LINE;
use crate::session::name::Name;
use crate::session::protocol::SESSION_IDLE_TIMEOUT;
use crate::stored::{IN_LINE, SEVERAL, SHARED, TURN};
use crate::table::TableName;
use crate::text::{hex, micros, sql, statements};
use crate::way::ELSEWHERE;

/// The script that makes the table.
pub(super) const SCHEMA: &str = include_str!("schema.sql");

#[derive(Debug)]
pub(super) struct PostgresStatements {
    /// key, token, lease in us, holder, fences: the last fence; or fence, remaining us, holder and token of another
    /// claim.
    pub(super) take: SqlStr,
    /// key, token, lease in us, holder, the token left behind: as `take`.
    pub(super) take_over: SqlStr,
    /// key, token, channel: whether the lease was still running, and a claim waits.
    pub(super) release: SqlStr,
    /// key, token, channel, the token left behind, us: whether a claim waits.
    pub(super) leave: SqlStr,
    /// keys, tokens, leases in us, holders, fences: the place in the lists with what `take` says, for those of which
    /// that is known.
    pub(super) take_all: SqlStr,
    /// keys, tokens, channels: the place in the lists with what `release` says, for those that it has released.
    pub(super) release_all: SqlStr,
    /// keys, tokens, leases in us: the places in the lists of the leases that are still in place.
    pub(super) renew: SqlStr,
    /// key: fence, remaining us, holder.
    pub(super) read: SqlStr,
    /// after key: key, fence, remaining us, holder of some.
    pub(super) list: SqlStr,
    /// key, channel: whether it was held.
    pub(super) force: SqlStr,
    /// key, channel, token, fence: whether it was this grant's.
    pub(super) force_of: SqlStr,
    /// unused for us, after key: how many rows were deleted, and the last key that was looked at.
    pub(super) prune: SqlStr,
    /// key: whether it is held.
    pub(super) await_release: SqlStr,
    /// Takes a named lock of a session.
    pub(super) take_name: SqlStr,
    /// Takes several of them.
    pub(super) take_names: SqlStr,
    /// Reads named locks of a session, with fences and without.
    pub(super) read_names: [SqlStr; 2],
    /// Prepares the statements that lock a row.
    pub(super) lock_row: SqlStr,
    /// Reads the mark.
    pub(super) mark: SqlStr,
    /// Changes nothing, and fails without the right to change.
    pub(super) rights: [SqlStr; 2],
}

/// The remaining time, also where an administrator wrote `infinity`.
const LEFT: &str = "(extract(epoch FROM least(expires, clock_timestamp() + interval '1 year') - clock_timestamp()) \
                    * 1000000)::bigint";
/// The number of characters that a waiter in line adds to the line about the holder of a row.
pub(super) const MARK_LENGTH: usize = IN_LINE.len() + 34;

/// Returns the condition that a claim stands in line for the key of this row; it holds for every row of [`TURN`].
pub(super) fn is_wanted(row: &str) -> String {
    format!("left(right({row}holder, {MARK_LENGTH}), {}) = ' {IN_LINE}='", IN_LINE.len() + 2)
}

/// Returns the line about the holder of this row without the addition of a waiter in line.
pub(super) fn unmarked(row: &str) -> String {
    format!("CASE WHEN {} THEN left({row}holder, -{MARK_LENGTH}) ELSE {row}holder END", is_wanted(row))
}

/// Returns the end of the line about the holder of a row for which this token is the first in line.
pub(super) fn mark_of(token: &str) -> String {
    format!("' {IN_LINE}=' || encode({token}, 'hex')")
}

/// Returns the channel of the waiter whose token stands at the end of the row's text about the holder.
pub(super) fn channel_of_first(row: &str) -> String {
    format!("'{TURNS}' || right({row}holder, 32)")
}

/// Returns the time for which a row is kept for those in line.
pub(super) fn kept_for_line() -> String {
    format!("{} * interval '1 microsecond'", micros(KEPT_FOR_LINE))
}

/// Returns the token [`TURN`].
pub(super) fn turn() -> String {
    Value::Bytes(&TURN).literal()
}

/// Returns the condition that a row is not to be had at `now`: it is held, or kept for those in line.
pub(super) fn is_barred(row: &str, now: &str) -> String {
    format!(
        "({row}token IS NOT NULL AND ({row}expires > {now} OR {} AND {row}token <> {} AND {row}expires > {now} - {}))",
        is_wanted(row),
        turn(),
        kept_for_line()
    )
}

/// Returns the changes to a row that its holder releases. A row for which a waiter stands in line counts as awaited.
fn freed() -> String {
    let (wanted, turn, kept) = (is_wanted(""), turn(), kept_for_line());
    format!(
        "token = CASE WHEN awaited AND {wanted} THEN {turn} END,
         expires = CASE WHEN awaited THEN least(expires, clock_timestamp() + {kept}) ELSE expires END"
    )
}

const IS_HELD: &str = "token IS NOT NULL AND expires > clock_timestamp()";

impl PostgresStatements {
    pub(super) fn of(table: &TableName) -> Self {
        let place = place(table);
        let table = table.quoted('"');
        let (freed, turn, first) = (freed(), turn(), channel_of_first(""));
        let (barred_now, wanted) = ("clock_timestamp()", is_wanted(""));
        let tell = |nobody: &str, channel: &str| {
            format!(
                "CASE WHEN awaited THEN pg_notify(CASE WHEN {nobody} THEN {channel} ELSE {first} END, '') END"
            )
        };
        let elsewhere = Value::Bytes(&ELSEWHERE).literal();
        let is_held = format!("{IS_HELD} AND token NOT IN ({turn}, {elsewhere})");
        let (is_barred, held_is_barred) = (is_barred("", barred_now), is_barred("held.", barred_now));
        // With a higher fence: whatever the holder still sends is refused.
        let force = |only: &str| {
            sql(format!(
                r#"WITH freed AS (
                    UPDATE {table} SET fence = fence + 1, {freed} WHERE key = $1::bytea AND {is_held} {only}
                    RETURNING awaited, token, holder
                )
                SELECT true, {} FROM freed"#,
                tell("token IS NULL", "$2::text")
            ))
        };
        Self {
            // Looks first, so that an attempt on a lock that is held writes nothing. An attempt that finds its own lock
            // and reserves several fences was overtaken by a later attempt, whose line about the holder is kept.
            take: sql(format!(
                r#"WITH seen AS MATERIALIZED (
                    SELECT token, fence, expires, holder FROM {table} WHERE key = $1::bytea
                ), taken AS (
                    INSERT INTO {table} AS held (key, token, fence, expires, holder)
                    SELECT $1, $2::bytea, greatest({NOW}, (SELECT fence + 1 FROM {table} WHERE key = '')) + $5::bigint - 1,
                        clock_timestamp() + $3::bigint * interval '1 microsecond', $4::text
                    WHERE NOT EXISTS (SELECT FROM seen WHERE {IS_HELD} AND token <> $2)
                    ON CONFLICT (key) DO UPDATE SET
                        fence = CASE WHEN held.token = excluded.token AND held.expires > clock_timestamp()
                            THEN held.fence ELSE greatest(held.fence + $5, excluded.fence) END,
                        holder = CASE WHEN held.token = excluded.token AND held.expires > clock_timestamp() AND $5 > 1
                            THEN held.holder ELSE excluded.holder END,
                        token = excluded.token, expires = excluded.expires,
                        awaited = held.awaited AND held.token IS NOT NULL
                    WHERE held.token = excluded.token OR NOT {held_is_barred}
                    RETURNING fence
                )
                SELECT fence, NULL::bigint, NULL::text, NULL::bytea FROM taken
                UNION ALL
                SELECT fence, {LEFT}, holder, token FROM seen WHERE token IS NOT NULL AND NOT EXISTS (SELECT FROM taken)"#
            )),
            // The statement of a baton: the row must still be taken, by that token or the claim's own, and waiters stay
            // noted.
            take_over: sql(format!(
                r#"WITH taken AS (
                    UPDATE {table} SET
                        fence = CASE WHEN token = $2 THEN fence ELSE greatest(fence + 1, {NOW},
                            (SELECT mark.fence + 1 FROM {table} AS mark WHERE mark.key = '')) END,
                        holder = $4::text || CASE WHEN {wanted} THEN right(holder, {MARK_LENGTH}) ELSE '' END,
                        token = $2::bytea, expires = clock_timestamp() + $3::bigint * interval '1 microsecond'
                    WHERE key = $1::bytea AND (token = $2 OR token = $5::bytea) AND expires > clock_timestamp()
                    RETURNING fence
                )
                SELECT fence, NULL::bigint, NULL::text, NULL::bytea FROM taken
                UNION ALL
                SELECT fence, {LEFT}, holder, token FROM {table}
                WHERE key = $1 AND {IS_HELD} AND NOT EXISTS (SELECT FROM taken)"#
            )),
            // The notification is a part of the statement: it is sent with the commit, so that no waiter finds the lock
            // still taken.
            release: sql(format!(
                r#"WITH freed AS (
                    UPDATE {table} SET {freed} WHERE key = $1::bytea AND token = $2::bytea
                    RETURNING expires > clock_timestamp() AS running, awaited, token, holder
                )
                SELECT running, awaited, {} FROM freed"#,
                tell("token IS NULL", "$3::text")
            )),
            leave: sql(format!(
                r#"WITH kept AS (
                    UPDATE {table} SET holder = CASE WHEN token = $2 THEN '{LEFT_BEHIND}' || holder ELSE holder END,
                        token = $4::bytea, expires = least(CASE WHEN token = $4 THEN expires END,
                            clock_timestamp() + $5::bigint * interval '1 microsecond')
                    WHERE key = $1::bytea AND expires > clock_timestamp() AND token IN ($2::bytea, $4)
                    RETURNING awaited, holder
                )
                SELECT true, awaited, {} FROM kept"#,
                tell(&format!("NOT {wanted}"), "$3::text")
            )),
            // No row that another transaction has locked is waited for: all other requests would wait with it.
            take_all: sql(format!(
                r#"WITH asked AS MATERIALIZED (
                    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[], $5::bigint[])
                        WITH ORDINALITY AS asked (key, token, lease, holder, fences, place)
                ), free AS MATERIALIZED (
                    SELECT asked.* FROM asked JOIN {table} AS held USING (key)
                    WHERE held.token = asked.token OR NOT {held_is_barred}
                    FOR UPDATE OF held SKIP LOCKED
                ), updated AS (
                    UPDATE {table} AS held SET
                        fence = CASE WHEN held.token = free.token AND held.expires > clock_timestamp() THEN held.fence
                            ELSE greatest(held.fence + 1, {NOW}, (SELECT fence + 1 FROM {table} WHERE key = '')) + free.fences - 1 END,
                        holder = CASE WHEN held.token = free.token AND held.expires > clock_timestamp() AND free.fences > 1
                            THEN held.holder ELSE free.holder END,
                        token = free.token, expires = clock_timestamp() + free.lease * interval '1 microsecond',
                        awaited = held.awaited AND held.token IS NOT NULL
                    FROM free WHERE held.key = free.key
                        AND (held.token = free.token OR NOT {held_is_barred})
                    RETURNING free.place, held.fence
                ), inserted AS (
                    INSERT INTO {table} (key, token, fence, expires, holder)
                    SELECT key, token, greatest({NOW}, (SELECT fence + 1 FROM {table} WHERE key = '')) + fences - 1,
                        clock_timestamp() + lease * interval '1 microsecond', holder
                    FROM asked WHERE NOT EXISTS (SELECT FROM {table} AS held WHERE held.key = asked.key)
                    ORDER BY key ON CONFLICT DO NOTHING
                    RETURNING key, fence
                )
                SELECT place, fence, NULL::bigint, NULL::text, NULL::bytea FROM updated
                UNION ALL
                SELECT place, fence, NULL, NULL, NULL FROM inserted JOIN asked USING (key)
                UNION ALL
                SELECT place, fence, {LEFT}, held.holder, held.token FROM asked JOIN {table} AS held USING (key)
                WHERE held.token <> asked.token AND expires > clock_timestamp()"#
            )),
            release_all: sql(format!(
                r#"WITH ours AS MATERIALIZED (
                    SELECT asked.* FROM unnest($1::bytea[], $2::bytea[], $3::text[]) WITH ORDINALITY
                        AS asked (key, token, channel, place)
                    JOIN {table} AS held USING (key) WHERE held.token = asked.token FOR UPDATE OF held SKIP LOCKED
                ), freed AS (
                    UPDATE {table} AS held SET {freed} FROM ours WHERE held.key = ours.key AND held.token = ours.token
                    RETURNING place, expires > clock_timestamp() AS running, awaited, channel, held.token, holder
                )
                SELECT place, running, awaited, {} FROM freed"#,
                tell("token IS NULL", "channel")
            )),
            renew: sql(format!(
                r#"WITH listed AS (
                    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) WITH ORDINALITY
                        AS listed (key, token, lease, place)
                )
                UPDATE {table} AS held SET expires = clock_timestamp() + listed.lease * interval '1 microsecond'
                FROM listed
                WHERE held.key = listed.key AND held.token = listed.token AND held.expires > clock_timestamp()
                RETURNING listed.place"#
            )),
            read: sql(format!(
                r#"SELECT fence, {LEFT}, holder FROM {table} WHERE key = $1::bytea AND {is_held}"#
            )),
            list: sql(format!(
                r#"SELECT encode(key, 'hex'), fence, {LEFT}, holder FROM {table} WHERE key > $1::bytea AND {is_held}
                ORDER BY key LIMIT {AT_ONCE}"#
            )),
            force: force(""),
            force_of: force("AND token = $3::bytea AND fence = $4::bigint"),
            // The highest fence that was deleted is kept in the mark, where the next row of any key starts. The row
            // with the fence of a session or a locked row says who has it: it stays for as long as the key is held.
            // With it goes the row by which the key is no lease's. A grant that is newer than what was seen of the
            // locks has a fence of this moment.
            prune: sql(format!(
                r#"WITH names AS MATERIALIZED (SELECT number, int8send(session) AS token FROM ({ADVISORY}) AS locked),
                transactions AS MATERIALIZED (
                    SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid' AND granted
                ), old AS MATERIALIZED (
                    SELECT key FROM {table} AS row WHERE key > $2::bytea AND NOT ({IS_HELD}) AND fence <= {NOW} - $1::bigint AND CASE
                        WHEN key >= decode('fb', 'hex') AND key < decode('fc', 'hex')
                            THEN token NOT IN (SELECT token FROM names)
                        WHEN key < decode('fe', 'hex')
                            THEN expires <= clock_timestamp() - $1 * interval '1 microsecond'
                        WHEN key < decode('ff', 'hex')
                            THEN NOT EXISTS (SELECT FROM {table} AS counted
                                WHERE counted.key = decode('ff', 'hex') || substring(row.key FROM 2)
                                    AND counted.fence > {NOW} - $1)
                        ELSE fence <= {NOW} - {overlooked} AND {number} NOT IN (SELECT number FROM names) AND {mark} NOT IN (SELECT number FROM names)
                            AND NOT EXISTS (SELECT FROM {table} AS locked JOIN transactions ON transactionid = locked.xmax
                                WHERE locked.key = decode('fe', 'hex') || substring(row.key FROM 2)) END
                    ORDER BY key LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED
                ), elsewhere AS MATERIALIZED (
                    SELECT row.key FROM {table} AS row JOIN old ON row.key = substring(old.key FROM 2)
                    WHERE old.key >= decode('ff', 'hex') AND row.token = {elsewhere} FOR UPDATE OF row SKIP LOCKED
                ), mark AS (
                    UPDATE {table} AS mark SET fence = greatest(mark.fence, highest.fence)
                    FROM (SELECT max(fence) AS fence FROM {table} JOIN old USING (key)) AS highest
                    WHERE mark.key = '' AND highest.fence IS NOT NULL
                    RETURNING 1
                ), gone AS (
                    DELETE FROM {table} AS row USING (SELECT key FROM old UNION ALL SELECT key FROM elsewhere) AS unused
                    WHERE row.key = unused.key AND EXISTS (SELECT FROM mark)
                    RETURNING 1
                )
                SELECT (SELECT count(*) FROM gone), (SELECT encode(key, 'hex') FROM old ORDER BY key DESC LIMIT 1)"#,
                overlooked = micros(SESSION_IDLE_TIMEOUT),
                number = number_of(&place, 1),
                mark = number_of(&place, 25),
            )),
            // Looks first: the second waiter finds the note there, and writes nothing.
            await_release: sql(format!(
                r#"WITH seen AS MATERIALIZED (
                    SELECT awaited FROM {table} WHERE key = $1::bytea AND {is_barred}
                ), noted AS (
                    UPDATE {table} SET awaited = true
                    WHERE key = $1 AND {is_barred} AND EXISTS (SELECT FROM seen WHERE NOT awaited)
                    RETURNING 1
                )
                SELECT EXISTS (SELECT FROM noted) OR EXISTS (SELECT FROM seen WHERE awaited)"#
            )),
            take_name: take_name(&table),
            take_names: take_names(&table),
            read_names: [read_names(&table, true), read_names(&table, false)],
            lock_row: lock_row(&table),
            mark: sql(format!(r#"SELECT holder FROM {table} WHERE key = ''"#)),
            rights: [
                sql(format!(
                    r#"UPDATE {table} SET token = token, fence = fence, expires = expires, awaited = awaited,
                    holder = holder WHERE false"#
                )),
                sql(format!(
                    r#"INSERT INTO {table} (key, token, fence, expires, awaited, holder)
                    SELECT key, token, fence, expires, awaited, holder FROM {table} WHERE false"#
                )),
            ],
        }
    }
}

/// Returns the number of the advisory lock that the row with a fence, called `row`, is of: of a session, from the first
/// byte of its digest on, or of the readers of a locked row, from the 25th on.
fn number_of(place: &str, from: usize) -> String {
    let key = "substring(row.key FROM 2)";
    let digest = format!(
        "sha256(decode('{}', 'hex') || int8send(length({key})::bigint) || {key})",
        hex(&Name::prefix(place))
    );
    format!("('x' || encode(substring({digest} FROM {from} FOR 8), 'hex'))::bit(64)::bigint")
}

/// Returns the table, among all that a name may be of.
pub(super) fn place(table: &TableName) -> String {
    format!("{}.\"{}\"", table.schema().unwrap_or_default(), table.name())
}

/// Returns the source of all tables and views of this name, but for those of sessions, whatever the search path.
pub(super) fn named(table: &TableName) -> String {
    format!(
        "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = '{}' AND relkind IN ('r', 'p', 'v', 'm', 'f') AND relpersistence <> 't'",
        table.name()
    )
}

/// The condition that a table that [`named`] finds was made by a user whom this one trusts: its schema is in this
/// user's search path, by which PostgreSQL draws the line, or its owner is a user whose rights this one has, a
/// superuser, or the owner of the database. A superuser has the rights of all users, which says nothing of trust.
pub(super) const IS_TRUSTED: &str = "(nspname = ANY (current_schemas(false))
    OR relowner = (SELECT datdba FROM pg_database WHERE datname = current_database())
    OR EXISTS (SELECT FROM pg_roles AS owner, pg_roles AS ours WHERE owner.oid = relowner AND ours.rolname = current_user
        AND (owner.rolsuper OR owner.oid = ours.oid OR NOT ours.rolsuper AND pg_has_role(ours.oid, owner.oid, 'USAGE'))))";

/// The schema of the search path in which a table is made that was named without one: the user's own is the last, since
/// no other user has it in the path.
pub(super) const HOME: &str = "SELECT name::text FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (name, place)
    WHERE name !~ '^pg_' ORDER BY NOT has_schema_privilege(name, 'CREATE'), name = current_user, place LIMIT 1";

/// Returns the values of a step as a row, with one moment of the server's clock.
pub(super) fn asked(values: &[(&str, Value<'_>)]) -> String {
    asked_as(values, |_, value| value.literal())
}

/// Returns that row with each value `written` so, at its place from 1 on.
pub(super) fn asked_as(
    values: &[(&str, Value<'_>)],
    written: impl Fn(usize, &Value<'_>) -> String,
) -> String {
    let values: Vec<_> = (1..)
        .zip(values)
        .map(|(place, (name, value))| format!("{} AS {name}", written(place, value)))
        .collect();
    format!("asked AS MATERIALIZED (SELECT {}, clock_timestamp() AS now)", values.join(", "))
}

/// Returns the row of the key, and those of all shares of it at this moment.
pub(super) fn standing(table: &str) -> String {
    let shared = format!("decode('{}', 'hex')", hex(&SHARED));
    format!(
        r"main AS MATERIALIZED (
            SELECT held.token, held.fence, held.expires, held.holder, held.awaited,
                held.token IS NOT NULL AND held.token <> {turn} AND held.expires > now AS is_held,
                {barred} AS is_barred, coalesce(held.token = {turn}, false) AS is_turn,
                coalesce(held.token = {shared} AND held.expires > now, false) AS several,
                coalesce(substring(held.holder FROM ' {SEVERAL}=([0-9]{{1,7}})$')::bigint, 0) AS permits
            FROM asked JOIN {table} AS held ON held.key = asked.main
        ), shares AS MATERIALIZED (
            SELECT held.key = asked.own AS is_own, held.fence, held.expires, held.holder,
                coalesce(substring(held.holder FROM '^([0-9]{{1,7}}) ')::bigint, 1) AS taken
            FROM asked JOIN main ON several JOIN {table} AS held
                ON held.key > asked.preferred AND held.key < asked.beyond AND held.expires > now
        )",
        turn = turn(),
        barred = is_barred("held.", "now"),
    )
}

pub(super) fn us(from: &str) -> String {
    format!("(extract(epoch FROM {from}) * 1000000)::bigint")
}

/// The statements that make the table, for one transaction.
pub(super) fn schema(table: &TableName) -> Vec<SqlStr> {
    statements(SCHEMA, &table.quoted('"'))
}
