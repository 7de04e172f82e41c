//! The statements, with the table's name in them.
//!
//! Times are microseconds of the server's clock in UTC, of the start of the statement, whatever the session's time
//! zone. There is no conditional upsert with an answer: the fence comes back as `LAST_INSERT_ID`. What takes a lock
//! does nothing where it would not be committed. An empty text is written and bound as bytes: in some modes `''` is
//! null.

use dlock_core::backend::LEFT_BEHIND;
use sqlx::SqlStr;

use crate::rows::{AT_ONCE, MARK};
use crate::stored;
use crate::table::TableName;
use crate::text::sql;

#[derive(Debug)]
pub(super) struct MysqlStatements {
    /// token, fences, twice, token, fences, holder, token, lease, key, token: takes a row that is there; the last fence
    /// is the last insert id.
    pub(super) take: SqlStr,
    /// key, token, fences, lease, holder: makes the row of a key that has none; the last fence is the last insert id.
    pub(super) insert: SqlStr,
    /// token, key: whether somebody else has it (null: no row), fence, remaining us, holder, whether statements commit.
    pub(super) look: SqlStr,
    /// key, token: the last insert id has [`RUNNING`] where the lease was still running, and [`AWAITED`] where somebody
    /// waits.
    pub(super) release: SqlStr,
    /// token, us, the token left behind, key, token, the token left behind: the last insert id as of `release`.
    pub(super) leave: SqlStr,
    /// key: notes with the lock that somebody waits.
    pub(super) note: SqlStr,
    /// after key: key, fence, remaining us, holder of some.
    pub(super) list: SqlStr,
    /// key: frees it.
    pub(super) force: SqlStr,
    /// after key, unused for us, three times: keys and fences of some free rows.
    pub(super) old: SqlStr,
    /// fence: keeps it in the mark.
    pub(super) keep: SqlStr,
    /// The mark.
    pub(super) mark: SqlStr,
    /// Change nothing, and fail without the right to change.
    pub(super) rights: [SqlStr; 2],
    table: String,
}

/// The server's time in microseconds.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// What a release says.
pub(super) const RUNNING: u64 = 1;
pub(super) const AWAITED: u64 = 2;
/// So many bytes of a line are stored.
const LONGEST_LINE: usize = 2048;

impl MysqlStatements {
    pub(super) fn of(table: &TableName) -> Self {
        let place = super::session::place(table);
        let table = table.quoted('`');
        let is_held = is_held();
        let is_old = is_old();
        let mark = stored::AWAITED;
        let is_awaited = format!("RIGHT(holder, {}) = '{mark}'", mark.len());
        Self {
            // Assignments are made from left to right. One that finds its own lock and reserves several fences was
            // overtaken by a later one: the line about the holder is the later one's.
            take: sql(format!(
                "UPDATE {table} SET
                    fence = LAST_INSERT_ID(IF(token = ? AND expires > {NOW}, fence, GREATEST(fence + ?, {NOW} + ? - 1))),
                    holder = IF(token = ? AND expires > {NOW} AND ? > 1, holder, ?), token = ?, expires = {NOW} + ?
                WHERE `key` = ? AND (token IS NULL OR token = ? OR expires <= {NOW}) AND @@SESSION.autocommit"
            )),
            insert: sql(format!(
                "INSERT INTO {table} (`key`, token, fence, expires, holder)
                SELECT ?, ?, LAST_INSERT_ID(GREATEST({NOW}, COALESCE(MAX(mark.fence), 0) + 1) + ? - 1),
                    {NOW} + ?, ?
                FROM {table} AS mark WHERE mark.`key` = X'' HAVING @@SESSION.autocommit"
            )),
            look: sql(format!(
                "SELECT IF(`key` IS NULL, NULL, CAST({is_held} AND NOT (token <=> ?) AS SIGNED)), fence, CAST(expires - {NOW} AS SIGNED), holder,
                    CAST(@@SESSION.autocommit AS SIGNED)
                FROM (SELECT 1) AS one LEFT JOIN {table} ON `key` = ?"
            )),
            // The token becomes null either way.
            release: sql(format!(
                "UPDATE {table} SET token = IF(LAST_INSERT_ID((expires > {NOW}) * {RUNNING} + ({is_awaited}) * {AWAITED}) > 3,
                    token, NULL)
                WHERE `key` = ? AND token = ?"
            )),
            // The last insert id is never that large.
            leave: sql(format!(
                "UPDATE {table} SET
                    expires = {NOW} + IF(LAST_INSERT_ID({RUNNING} + ({is_awaited}) * {AWAITED}) > 3, 0, 0),
                    holder = IF(token = ?, LEFT(CONCAT('{LEFT_BEHIND}', holder), {LONGEST_LINE}), holder),
                    expires = expires + ?, token = ?
                WHERE `key` = ? AND (token = ? OR token = ?) AND expires > {NOW}"
            )),
            note: sql(format!(
                "UPDATE {table} SET holder = CONCAT(holder, '{mark}')
                WHERE `key` = ? AND {is_held} AND NOT {is_awaited} AND LENGTH(holder) <= {longest}",
                longest = LONGEST_LINE - mark.len()
            )),
            list: sql(format!(
                "SELECT `key`, fence, CAST(expires - {NOW} AS SIGNED), holder FROM {table}
                WHERE `key` > COALESCE(?, X'') AND {is_held} ORDER BY `key` LIMIT {AT_ONCE}"
            )),
            force: sql(format!("UPDATE {table} SET token = NULL, fence = fence + 1 WHERE `key` = ? AND {is_held}")),
            // Read without locks. What keeps locks by sessions and transactions is deleted row by row.
            old: sql(format!(
                "SELECT `key`, fence FROM {table} WHERE `key` > COALESCE(?, X'') AND (`key` < X'FE' AND {is_old}
                    OR `key` >= X'FF' AND fence <= {NOW} - ? AND IS_USED_LOCK({}) IS NULL)
                ORDER BY `key` LIMIT {AT_ONCE}",
                super::session::name_in_sql(&place)
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

    /// lease, keys, tokens, `count` of each: extends what is ours. A token stands in the row of its own key only.
    pub(super) fn renew(&self, count: usize) -> SqlStr {
        let list = places(count);
        sql(format!(
            "UPDATE {} SET expires = {NOW} + ? WHERE `key` IN ({list}) AND token IN ({list}) AND expires > {NOW}",
            self.table
        ))
    }

    /// fence, unused for us, twice, `count` keys: deletes those that are free. Only these rows are locked for it.
    pub(super) fn prune(&self, count: usize) -> SqlStr {
        let (table, list) = (&self.table, places(count));
        sql(format!("DELETE FROM {table} WHERE fence <= ? AND {} AND `key` IN ({list})", is_old()))
    }

    /// keys, tokens, `count` of each: the tokens of what is ours.
    pub(super) fn ours(&self, count: usize) -> SqlStr {
        let list = places(count);
        sql(format!(
            "SELECT token FROM {} WHERE `key` IN ({list}) AND token IN ({list}) AND expires > {NOW}",
            self.table
        ))
    }
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
pub(super) fn schema(table: &TableName) -> [SqlStr; 2] {
    let table = table.quoted('`');
    [
        sql(format!(
            "CREATE TABLE IF NOT EXISTS {table} (
                `key` VARBINARY(513) NOT NULL PRIMARY KEY,
                token BINARY(16),
                fence BIGINT NOT NULL,
                expires BIGINT NOT NULL,
                holder VARBINARY({LONGEST_LINE}) NOT NULL
            ) ENGINE = InnoDB"
        )),
        sql(format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder) VALUES (X'', NULL, 0, 0, '{MARK}')"
        )),
    ]
}
