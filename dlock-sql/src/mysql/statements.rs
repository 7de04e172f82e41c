//! The statements, with the table's name in them.
//!
//! Times are microseconds of the server's clock in UTC, of the start of the statement, whatever the session's time
//! zone. There is no conditional upsert with an answer: the fence comes back as `LAST_INSERT_ID`. What takes a lock
//! does nothing where it would not be committed. An empty text is written and bound as bytes: in some modes `''` is
//! null.

use dlock_core::backend::LEFT_BEHIND;
use sqlx::SqlStr;

use super::values::literal;
use crate::protocol::AT_ONCE;
use crate::rows::line::KEPT_FOR_LINE;
use crate::session::name::Name;
use crate::stored::{self, IN_LINE, SEVERAL, TURN};
use crate::table::TableName;
use crate::text::{hex, sql, statements};
use crate::way::ELSEWHERE;

/// The script that makes the table.
pub(super) const SCHEMA: &str = include_str!("schema.sql");

#[derive(Debug)]
pub(super) struct MysqlStatements {
    /// token, fences, twice, token, fences, holder, token, lease, key, token: takes a row that is there; the last fence
    /// is the last insert id.
    pub(super) take: SqlStr,
    /// token, holder, token, lease, key, token, the token left behind: takes over what stands under that; the fence is
    /// the last insert id.
    pub(super) take_over: SqlStr,
    /// key, token, fences, lease, holder: makes the row of a key that has none; the last fence is the last insert id.
    pub(super) insert: SqlStr,
    /// token, key: whether another claim has it, or it is kept for those in line (null: no row), fence, remaining us,
    /// holder, whether statements commit, whether it is held at all.
    pub(super) look: SqlStr,
    /// key, token: the last insert id has [`RUNNING`] where the lease was still running, and [`AWAITED`] where a claim
    /// waits.
    pub(super) release: SqlStr,
    /// us, the token left behind, us, the token left behind, twice, key, token, the token left behind: the last insert
    /// id as of `release`.
    pub(super) leave: SqlStr,
    /// key: notes with the lock that a claim waits.
    pub(super) note: SqlStr,
    /// after key: key, fence, remaining us, holder of some.
    pub(super) list: SqlStr,
    /// key: frees it.
    pub(super) force: SqlStr,
    /// key, token, fence: frees it of this grant.
    pub(super) force_of: SqlStr,
    /// after key, unused for us, three times: keys and fences of some free rows.
    pub(super) old: SqlStr,
    /// fence: keeps it in the mark.
    pub(super) keep: SqlStr,
    /// Reads the mark.
    pub(super) mark: SqlStr,
    /// Changes nothing, and fails without the right to change.
    pub(super) rights: [SqlStr; 2],
    table: String,
}

/// The server's time in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The number of bytes of the digest of a name in a name.
pub(super) const DIGEST: usize = 24;

/// The bits of the answer to a release.
pub(super) const RUNNING: u64 = 1;
pub(super) const AWAITED: u64 = 2;
/// The number of bytes of a line that are stored.
pub(super) const LONGEST_LINE: usize = 2048;

/// The number of bytes that a waiter in line adds to the line about the holder of a row: the token of the first in
/// line, and what every waiter adds.
pub(super) const MARK_LENGTH: usize = IN_LINE.len() + 34 + stored::AWAITED.len();

/// Returns the condition that a claim stands in line for the key of this row; it holds for every row of [`TURN`].
pub(super) fn is_wanted(row: &str) -> String {
    format!("SUBSTRING({row}holder, -{MARK_LENGTH}, {}) = ' {IN_LINE}='", IN_LINE.len() + 2)
}

/// Returns the line about the holder of this row without the additions of waiters.
pub(super) fn unmarked(row: &str) -> String {
    let awaited = stored::AWAITED;
    format!(
        "CASE WHEN {} THEN LEFT({row}holder, LENGTH({row}holder) - {MARK_LENGTH}) WHEN RIGHT({row}holder, {length}) = '{awaited}'
            THEN LEFT({row}holder, LENGTH({row}holder) - {length}) ELSE {row}holder END",
        is_wanted(row),
        length = awaited.len(),
    )
}

/// Returns the end of the line about the holder of a row for which this token is the first in line.
pub(super) fn mark_of(token: &str) -> String {
    format!("CONCAT(' {IN_LINE}=', LOWER(HEX({token})), '{}')", stored::AWAITED)
}

/// Returns the token [`TURN`].
pub(super) fn turn() -> String {
    literal(&TURN)
}

/// Returns the microseconds for which a row is kept for those in line.
pub(super) const fn kept_for_line() -> u128 {
    KEPT_FOR_LINE.as_micros()
}

/// Returns the condition that a row is not to be had: it is held, or kept for those in line.
pub(super) fn is_barred(row: &str) -> String {
    let (wanted, turn, kept) = (is_wanted(row), turn(), kept_for_line());
    format!(
        "({row}token IS NOT NULL AND {row}expires > {NOW} - IF({wanted} AND {row}token <> {turn}, {kept}, 0))"
    )
}

/// Returns the condition that a row is held.
fn is_taken() -> String {
    format!("{} AND token NOT IN ({}, {})", is_held(), turn(), literal(&ELSEWHERE))
}

impl MysqlStatements {
    pub(super) fn of(table: &TableName) -> Self {
        let place = place(table);
        let table = table.quoted('`');
        let is_old = is_old();
        let mark = stored::AWAITED;
        let (is_barred, is_taken, wanted, turn) = (is_barred(""), is_taken(), is_wanted(""), turn());
        let kept = format!("IF({wanted}, LEAST(expires, {NOW} + {}), expires)", kept_for_line());
        let is_awaited = format!("RIGHT(holder, {}) = '{mark}'", mark.len());
        let force = |only: &str| {
            sql(format!(
                "UPDATE {table} SET token = IF({wanted}, {turn}, NULL), expires = {kept}, fence = fence + 1
                WHERE `key` = ? AND {is_taken} {only}"
            ))
        };
        Self {
            // Assignments are made from left to right. An attempt that finds its own lock and reserves several fences
            // was overtaken by a later attempt, whose line about the holder is kept. The id has no sign, and a fence
            // below zero that another program has written stays one.
            take: sql(format!(
                "UPDATE {table} SET
                    fence = CAST(LAST_INSERT_ID(IF(token = ? AND expires > {NOW}, fence, GREATEST(fence + ?, {NOW} + ? - 1)))
                        AS SIGNED),
                    holder = IF(token = ? AND expires > {NOW} AND ? > 1, holder, ?), token = ?, expires = {NOW} + ?
                WHERE `key` = ? AND (token = ? OR NOT {is_barred}) AND @@SESSION.autocommit"
            )),
            // The additions of waiters to the line stay.
            take_over: sql(format!(
                "UPDATE {table} SET
                    fence = CAST(LAST_INSERT_ID(IF(token = ?, fence, GREATEST(fence + 1, {NOW}))) AS SIGNED),
                    holder = CONCAT(LEFT(?, {}), RIGHT(holder, IF({wanted}, {MARK_LENGTH}, IF({is_awaited}, {}, 0)))),
                    token = ?, expires = {NOW} + ?
                WHERE `key` = ? AND (token = ? OR token = ?) AND expires > {NOW}",
                LONGEST_LINE - MARK_LENGTH,
                mark.len()
            )),
            insert: sql(format!(
                "INSERT INTO {table} (`key`, token, fence, expires, holder)
                SELECT ?, ?, LAST_INSERT_ID(GREATEST({NOW}, COALESCE(MAX(mark.fence), 0) + 1) + ? - 1),
                    {NOW} + ?, ?
                FROM {table} AS mark WHERE mark.`key` = X'' HAVING @@SESSION.autocommit"
            )),
            look: sql(format!(
                "SELECT IF(`key` IS NULL, NULL, CAST({is_barred} AND NOT (token <=> ?) AS SIGNED)), fence,
                    CAST(GREATEST(expires - {NOW}, IF({wanted}, 50000, 0)) AS SIGNED), holder,
                    CAST(@@SESSION.autocommit AS SIGNED), CAST({is_taken} AS SIGNED)
                FROM (SELECT 1) AS one LEFT JOIN {table} ON `key` = ?"
            )),
            // The last insert id is never that large.
            release: sql(format!(
                "UPDATE {table} SET token = IF(LAST_INSERT_ID((expires > {NOW}) * {RUNNING} + ({is_awaited}) * {AWAITED}) > 3,
                    token, IF({wanted}, {turn}, NULL)), expires = {kept}
                WHERE `key` = ? AND token = ?"
            )),
            leave: sql(format!(
                "UPDATE {table} SET
                    expires = IF(LAST_INSERT_ID({RUNNING} + ({is_awaited}) * {AWAITED}) > 3, expires,
                        LEAST({NOW} + ?, IF(token = ?, expires, {NOW} + ?))),
                    holder = IF(token = ?, holder, LEFT(CONCAT('{LEFT_BEHIND}', holder), {LONGEST_LINE})), token = ?
                WHERE `key` = ? AND token IN (?, ?) AND expires > {NOW}"
            )),
            note: sql(format!(
                "UPDATE {table} SET holder = CONCAT(holder, '{mark}')
                WHERE `key` = ? AND {is_barred} AND NOT {is_awaited} AND LENGTH(holder) <= {longest}",
                longest = LONGEST_LINE - mark.len()
            )),
            list: sql(format!(
                "SELECT `key`, fence, CAST(expires - {NOW} AS SIGNED), holder FROM {table}
                WHERE `key` > COALESCE(?, X'') AND {is_taken} ORDER BY `key` LIMIT {AT_ONCE}"
            )),
            force: force(""),
            force_of: force("AND token = ? AND fence = ?"),
            // Read without locks. The rows by which sessions and transactions keep locks are deleted one by one.
            old: sql(format!(
                "SELECT `key`, fence FROM {table} WHERE `key` > COALESCE(?, X'') AND (`key` < X'FE' AND {is_old}
                    OR `key` >= X'FF' AND fence <= {NOW} - ? AND IS_USED_LOCK({}) IS NULL)
                ORDER BY `key` LIMIT {AT_ONCE}",
                name_in_sql(&place)
            )),
            keep: sql(format!("UPDATE {table} SET fence = GREATEST(fence, ?) WHERE `key` = X''")),
            mark: sql(format!("SELECT holder FROM {table} WHERE `key` = X''")),
            rights: [
                sql(format!(
                    "UPDATE {table} SET token = token, fence = fence, expires = expires, holder = holder WHERE 1 = 0"
                )),
                sql(format!(
                    "INSERT INTO {table} (`key`, token, fence, expires, holder)
                    SELECT `key`, token, fence, expires, holder FROM {table} AS old WHERE 1 = 0"
                )),
            ],
            table,
        }
    }

    /// lease, keys, tokens, `count` of each: extends the leases that are still in place. A token stands in the row of
    /// its own key only. The index is named, since a server that read the whole of a small table would wait for rows
    /// that others keep locked.
    pub(super) fn renew(&self, count: usize) -> SqlStr {
        let list = places(count);
        sql(format!(
            "UPDATE {} FORCE INDEX (PRIMARY) SET expires = {NOW} + ?
            WHERE `key` IN ({list}) AND token IN ({list}) AND expires > {NOW}",
            self.table
        ))
    }

    /// fence, unused for us, twice, `count` keys: deletes those that are free. Only these rows are locked for it.
    pub(super) fn prune(&self, count: usize) -> SqlStr {
        let (table, list) = (&self.table, places(count));
        sql(format!("DELETE FROM {table} WHERE fence <= ? AND {} AND `key` IN ({list})", is_old()))
    }

    /// keys, tokens, `count` of each: the tokens of the leases that are still in place. It decides what is lost: a
    /// proxy that sends statements that only read to replicas, which may lag behind, sends this to the primary. The
    /// index is named as in `renew`.
    pub(super) fn ours(&self, count: usize) -> SqlStr {
        let list = places(count);
        sql(format!(
            "SELECT token FROM {} FORCE INDEX (PRIMARY)
            WHERE `key` IN ({list}) AND token IN ({list}) AND expires > {NOW} FOR UPDATE",
            self.table
        ))
    }
}

/// Returns the table, among all that a name may be of. Some servers ignore the case of these names; elsewhere two such
/// tables only wait for each other.
pub(super) fn place(table: &TableName) -> String {
    table.quoted('`').to_lowercase()
}

/// Returns the name of the row with the fence that a statement looks at.
pub(super) fn name_in_sql(place: &str) -> String {
    let (prefix, key) = (hex(&Name::prefix(place)), "SUBSTRING(`key`, 2)");
    let input = format!("CONCAT(X'{prefix}', UNHEX(LPAD(HEX(LENGTH({key})), 16, '0')), {key})");
    format!("CONCAT('dlock:', LEFT(SHA2({input}, 256), {}))", DIGEST * 2)
}

/// The part of a line that is free for additions to it.
pub(super) const SPARE: usize = 96;

/// The verdicts on an attempt, as numbers in the statements.
pub(super) const GRANTED: i64 = 1;
pub(super) const ADOPTED: i64 = 2;
pub(super) const BUSY: i64 = 3;
pub(super) const KEPT_OUT: i64 = 4;
pub(super) const CONFLICT: i64 = 5;

/// Returns the number of permits by the row `of`.
pub(super) fn permits(of: &str) -> String {
    format!(
        "IF(LOCATE(' {SEVERAL}=', {of}.holder) = 0, 0, CAST(SUBSTRING_INDEX(SUBSTRING_INDEX({of}.holder, ' {SEVERAL}=', -1), \
         ' ', 1) AS SIGNED))"
    )
}

pub(super) fn text(line: &str) -> String {
    let bytes = line.as_bytes();
    literal(&bytes[..bytes.len().min(LONGEST_LINE - SPARE)])
}

fn is_held() -> String {
    format!("token IS NOT NULL AND expires > {NOW}")
}

/// unused for us, twice.
fn is_old() -> String {
    format!("NOT ({}) AND expires <= {NOW} - ? AND fence <= {NOW} - ?", is_held())
}

fn places(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// The statements that make the table.
pub(super) fn schema(table: &TableName) -> Vec<SqlStr> {
    statements(SCHEMA, &table.quoted('`'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_whether_a_lock_is_ours_is_asked_of_the_primary() {
        let statements = MysqlStatements::of(&TableName::default());
        assert!(statements.ours(2).as_str().ends_with(" FOR UPDATE"));
    }

    #[test]
    fn the_longest_line_has_room_in_the_table() {
        assert!(SCHEMA.contains(&format!("holder VARBINARY({LONGEST_LINE}) NOT NULL")));
    }
}
