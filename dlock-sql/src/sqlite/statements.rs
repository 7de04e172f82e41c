//! The statements, with the table's name in them.
//!
//! A row is one key. It is free when its token is null, when its lease has ended, or when it is of an earlier boot; it
//! stays after a release, since it keeps the key's fence. The row of the empty key, which no lock can have, is the
//! table's mark: its version, the highest fence of all rows that were deleted, the identity of the file and since when
//! it has been this one, and the name of the [boot](super::boot). Where several hold a key there are rows beside it,
//! and where some wait in order: see [`shares`] and [`line`].
//!
//! `?1`, `?2`, ... mean one thing in all statements of a kind; see the callers.

pub(super) mod line;
pub(super) mod shares;

use dlock_core::backend::LEFT_BEHIND;
use sqlx::SqlStr;

use crate::stored::AWAITED;
use crate::table::TableName;
use crate::text::{sql, statements};
use line::LineStatements;
use shares::ShareStatements;

/// The `holder` of the mark row.
pub(super) const MARK: &str = "dlock table, version 1";

/// The script that makes the table.
pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// The columns by name, type and whether they may be null, as `PRAGMA table_info` reports them.
pub(super) const COLUMNS: [(&str, &str, bool); 6] = [
    ("key", "BLOB", true),
    ("token", "BLOB", false),
    ("fence", "INTEGER", true),
    ("boot", "BLOB", true),
    ("expires", "INTEGER", true),
    ("holder", "TEXT", true),
];

#[derive(Debug)]
pub(super) struct SqliteStatements {
    /// key, token, least fence, boot, expiry, holder, now, fences, bounds of the line: the last fence, or no row when
    /// another claim has it, or waits for it in order.
    pub(super) take: SqlStr,
    /// As `take`, with the token that was left behind in the place of the bounds: takes over what stands under it.
    pub(super) take_over: SqlStr,
    /// key: the row.
    pub(super) read: SqlStr,
    /// after key, boot, now: the rows of some locks that are held, with their keys.
    pub(super) list: SqlStr,
    /// key, boot, now: frees it of any holder.
    pub(super) force: SqlStr,
    /// key, token, boot, now: whether the lease was still running, and a claim waits; or no row when it is not the
    /// claim's.
    pub(super) release: SqlStr,
    /// key, token, boot, now, the token left behind, expiry: whether a claim waits; or no row when it is not the
    /// claim's.
    pub(super) leave: SqlStr,
    /// key, boot, now: notes with the lock that a claim waits.
    pub(super) note: SqlStr,
    /// now, list, boot: extends the leases that are still in place.
    pub(super) renew: SqlStr,
    /// now, list, boot: the places in the list of the leases that are still in place.
    pub(super) ours: SqlStr,
    /// boot, now, latest expiry, after key: deletes some free rows and gives their keys.
    pub(super) prune: SqlStr,
    /// The mark row.
    pub(super) mark: SqlStr,
    /// identity, boot, since, and these three as they were read: notes which file this is.
    pub(super) identify: SqlStr,
    /// The statements for claims that wait in order.
    pub(super) line: LineStatements,
    /// The statements for locks that several hold at a time.
    pub(super) shares: ShareStatements,
    /// The statements for several rows at once.
    pub(super) batch: BatchStatements,
}

/// The number of rows that one statement deletes or lists, so that it does not keep others waiting.
pub(super) const AT_ONCE: usize = 1_000;

impl SqliteStatements {
    pub(super) fn of(table: &TableName) -> Self {
        // A list is a JSON array of [key, token, lease]: one bound value, whatever its length.
        let listed = "(SELECT json_each.key AS place, unhex(value ->> 0) AS key, unhex(value ->> 1) AS token, \
                      value ->> 2 AS lease FROM json_each(?2)) AS listed";
        let is_ours =
            "held.key = listed.key AND held.token = listed.token AND held.boot = ?3 AND held.expires > ?1";
        let is_awaited = format!("substr(holder, -{}) = '{AWAITED}'", AWAITED.len());
        Self {
            take: sql(format!(
                r#"INSERT INTO "{table}" AS held (key, token, fence, boot, expires, holder)
                VALUES (?1, ?2, max(?3, (SELECT mark.fence + 1 FROM "{table}" AS mark WHERE mark.key = x'')) + ?8 - 1, ?4, ?5, ?6)
                ON CONFLICT (key) DO UPDATE SET
                    fence = CASE WHEN held.token = ?2 AND held.boot = ?4 AND held.expires > ?7 THEN held.fence
                            ELSE max(held.fence + ?8, excluded.fence) END,
                    token = excluded.token, boot = excluded.boot, expires = excluded.expires, holder = excluded.holder
                WHERE held.token = ?2 OR (held.token IS NULL OR held.boot <> ?4 OR held.expires <= ?7) AND NOT {}
                RETURNING fence"#,
                line::exists(table, ["?9", "?10", "?4", "?7"])
            )),
            // The mark of a waiter stays.
            take_over: sql(format!(
                r#"UPDATE "{table}" SET
                    fence = iif(token = ?2, fence,
                        max(fence + ?8, (SELECT mark.fence + 1 FROM "{table}" AS mark WHERE mark.key = x''), ?3)),
                    holder = ?6 || iif({is_awaited}, '{AWAITED}', ''), token = ?2, expires = ?5
                WHERE key = ?1 AND token IN (?2, ?9) AND boot = ?4 AND expires > ?7
                RETURNING fence"#
            )),
            read: sql(format!(r#"SELECT token, fence, boot, expires, holder FROM "{table}" WHERE key = ?1"#)),
            list: sql(format!(
                r#"SELECT token, fence, boot, expires, holder, key FROM "{table}"
                WHERE key > ?1 AND token IS NOT NULL AND boot = ?2 AND expires > ?3 ORDER BY key LIMIT {AT_ONCE}"#
            )),
            force: sql(format!(
                r#"UPDATE "{table}" SET token = NULL, fence = fence + 1
                WHERE key = ?1 AND token IS NOT NULL AND boot = ?2 AND expires > ?3"#
            )),
            release: sql(format!(
                r#"UPDATE "{table}" SET token = NULL WHERE key = ?1 AND token = ?2
                RETURNING boot = ?3 AND expires > ?4, {is_awaited}"#
            )),
            leave: sql(format!(
                r#"UPDATE "{table}" SET holder = iif(token = ?2, '{LEFT_BEHIND}' || holder, holder), token = ?5,
                    expires = iif(token = ?2, ?6, min(expires, ?6))
                WHERE key = ?1 AND token IN (?2, ?5) AND boot = ?3 AND expires > ?4
                RETURNING {is_awaited}"#
            )),
            note: sql(format!(
                r#"UPDATE "{table}" SET holder = holder || '{AWAITED}'
                WHERE key = ?1 AND token IS NOT NULL AND boot = ?2 AND expires > ?3 AND NOT {is_awaited}"#
            )),
            renew: sql(format!(
                r#"UPDATE "{table}" AS held SET expires = ?1 + listed.lease FROM {listed} WHERE {is_ours}"#
            )),
            ours: sql(format!(
                r#"SELECT listed.place FROM {listed} CROSS JOIN "{table}" AS held WHERE {is_ours}"#
            )),
            prune: sql(format!(
                r#"DELETE FROM "{table}" WHERE key IN (
                    SELECT key FROM "{table}" WHERE key > ?4
                    AND (token IS NULL OR boot <> ?1 OR expires <= ?2)
                    AND CASE WHEN boot = ?1 THEN expires ELSE 0 END <= ?3
                    ORDER BY key LIMIT {AT_ONCE})
                RETURNING key"#
            )),
            mark: sql(format!(r#"SELECT holder, token, boot, expires FROM "{table}" WHERE key = x''"#)),
            identify: sql(format!(
                r#"UPDATE "{table}" SET token = ?1, boot = ?2, expires = ?3 WHERE key = x''
                AND token IS ?4 AND boot = ?5 AND expires = ?6"#
            )),
            line: LineStatements::of(table),
            shares: ShareStatements::of(table),
            batch: BatchStatements::of(table),
        }
    }
}

/// The statements for several rows at once, in which `?1` is now, `?2` the list, `?3` the boot, and `?4` the least
/// fence.
#[derive(Debug)]
pub(super) struct BatchStatements {
    /// Takes all rows and gives their keys and fences, or changes nothing and gives no row.
    pub(super) take: SqlStr,
    /// The first of the list that another claim has: its place, fence, expiry and holder.
    pub(super) busy: SqlStr,
}

impl BatchStatements {
    pub(super) fn of(table: &TableName) -> Self {
        // A list is a JSON array of [key, token, lease, holder]: one bound value, whatever its length.
        let busy = format!(
            r#"FROM json_each(?2) AS other CROSS JOIN "{table}" AS theirs
            WHERE theirs.key = unhex(other.value ->> 0) AND theirs.token <> unhex(other.value ->> 1)
            AND theirs.boot = ?3 AND theirs.expires > ?1"#
        );
        // If claims wait in order, it is not for this statement to see whose turn it is.
        let bounds = ["'fe'", "'ff'"].map(|end| format!("unhex('fc' || (waited.value ->> 0) || {end})"));
        let line = line::exists(table, [&bounds[0], &bounds[1], "?3", "?1"]);
        let line = format!("SELECT 1 FROM json_each(?2) AS waited WHERE {line}");
        Self {
            take: sql(format!(
                r#"INSERT INTO "{table}" AS held (key, token, fence, boot, expires, holder)
                SELECT unhex(value ->> 0), unhex(value ->> 1),
                    max(?4, (SELECT mark.fence + 1 FROM "{table}" AS mark WHERE mark.key = x'')),
                    ?3, ?1 + (value ->> 2), CAST(unhex(value ->> 3) AS TEXT)
                FROM json_each(?2) WHERE NOT EXISTS (SELECT 1 {busy}) AND NOT EXISTS ({line})
                ON CONFLICT (key) DO UPDATE SET
                    fence = CASE WHEN held.token = excluded.token AND held.boot = excluded.boot AND held.expires > ?1
                            THEN held.fence ELSE max(held.fence + 1, excluded.fence) END,
                    token = excluded.token, boot = excluded.boot, expires = excluded.expires, holder = excluded.holder
                RETURNING key, fence"#
            )),
            busy: sql(format!(
                "SELECT other.key, theirs.fence, theirs.expires, theirs.holder {busy} ORDER BY other.key LIMIT 1"
            )),
        }
    }
}

/// The statements that make the table, for one transaction.
pub(super) fn schema(table: &TableName) -> Vec<SqlStr> {
    let mut all = statements(SCHEMA, &table.to_string());
    // Not in a transaction: see `migrate`.
    all.retain(|statement| !statement.as_str().starts_with("PRAGMA"));
    all
}
