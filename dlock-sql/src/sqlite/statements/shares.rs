//! The rows beside that of a key that several hold at a time: their keys, and the statements on them.

use dlock_core::{Key, Token};
use sqlx::SqlStr;

use super::line::first_of;
use crate::stored::SHARED;
use crate::table::TableName;
use crate::text::sql;

/// The first byte of the keys of the rows beside a key, with which no text begins.
const BESIDE: u8 = 0xfd;
/// The byte that follows the key there.
const END: u8 = 0xfe;

/// Returns the key of the row that all have in common.
pub(in crate::sqlite) fn common(key: &Key) -> Vec<u8> {
    [&[BESIDE], key.as_str().as_bytes(), &[END]].concat()
}

/// Returns the key of the row of one of them.
pub(in crate::sqlite) fn own(key: &Key, token: &Token) -> Vec<u8> {
    [&common(key), token.as_bytes().as_slice()].concat()
}

/// Returns a key that is higher than those of all of them.
pub(in crate::sqlite) fn beyond(key: &Key) -> Vec<u8> {
    [&[BESIDE], key.as_str().as_bytes(), &[END + 1]].concat()
}

/// Returns the key that a row is beside of, and whether all have that row in common.
pub(in crate::sqlite) fn parse(bytes: &[u8]) -> Option<(&str, bool)> {
    let rest = bytes.strip_prefix(&[BESIDE])?;
    let end = rest.iter().position(|byte| *byte == END)?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, end + 1 == rest.len()))
}

/// The statements. A list is as in those that renew, with how long the row of the key is kept and the key of what is
/// extended after that.
#[derive(Debug)]
pub(in crate::sqlite) struct ShareStatements {
    /// Changes nothing, and keeps all others from writing.
    pub(in crate::sqlite) lock: SqlStr,
    /// key, key of what is in common, key of the claim's share, a key that is higher than all, boot, now, bounds of the
    /// line, the token that asks: the state, with all shares but that one as a sum.
    pub(in crate::sqlite) state: SqlStr,
    /// key, token, fence, boot, expiry, holder: writes a row.
    pub(in crate::sqlite) put: SqlStr,
    /// key: deletes a row.
    pub(in crate::sqlite) delete: SqlStr,
    /// key of what is in common, a key that is higher than all: deletes that row and those between.
    pub(in crate::sqlite) clear: SqlStr,
    /// key of what is in common, a key that is higher than all, boot, now: the rows between, the first to end first.
    pub(in crate::sqlite) all: SqlStr,
    /// now, list, boot: keeps the rows of keys that several hold.
    pub(in crate::sqlite) keep: SqlStr,
    /// now, list, boot: extends the leases that are still in place.
    pub(in crate::sqlite) renew: SqlStr,
    /// now, list, boot: the places in the list of the leases that are still in place.
    pub(in crate::sqlite) ours: SqlStr,
}

impl ShareStatements {
    pub(in crate::sqlite) fn of(table: &TableName) -> Self {
        let shared = format!("x'{}'", SHARED.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let listed = "(SELECT json_each.key AS place, unhex(value ->> 0) AS key, unhex(value ->> 1) AS token, \
                      value ->> 2 AS lease, value ->> 3 AS kept, unhex(value ->> 4) AS beside FROM json_each(?2)) AS listed";
        let is_shared = format!("main.token = {shared} AND main.boot = ?3 AND main.expires > ?1");
        let is_ours = format!(
            r#"held.key = listed.beside AND held.token = listed.token AND held.boot = ?3 AND held.expires > ?1
            AND EXISTS (SELECT 1 FROM "{table}" AS main WHERE main.key = listed.key AND {is_shared})"#
        );
        Self {
            lock: sql(format!(r#"DELETE FROM "{table}" WHERE false"#)),
            state: sql(format!(
                r#"SELECT mark.fence, main.token, main.fence, main.boot, main.expires, main.holder,
                    common.fence, common.boot, common.holder, own.fence, own.boot, own.expires, own.holder,
                    others.taken, others.first, others.last, {}
                FROM "{table}" AS mark LEFT JOIN "{table}" AS main ON main.key = ?1
                LEFT JOIN "{table}" AS common ON common.key = ?2 LEFT JOIN "{table}" AS own ON own.key = ?3
                LEFT JOIN (SELECT sum(CAST(holder AS INTEGER)) AS taken, min(expires) AS first, max(expires) AS last
                    FROM "{table}" WHERE key > ?2 AND key < ?4 AND key IS NOT ?3
                        AND boot = ?5 AND expires > ?6) AS others
                WHERE mark.key = x''"#,
                first_of(table, ["?7", "?8", "?5", "?6", "?9"])
            )),
            put: sql(format!(
                r#"INSERT INTO "{table}" (key, token, fence, boot, expires, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                ON CONFLICT (key) DO UPDATE SET token = excluded.token, fence = excluded.fence, boot = excluded.boot,
                    expires = excluded.expires, holder = excluded.holder"#
            )),
            delete: sql(format!(r#"DELETE FROM "{table}" WHERE key = ?1"#)),
            clear: sql(format!(r#"DELETE FROM "{table}" WHERE key >= ?1 AND key < ?2"#)),
            all: sql(format!(
                r#"SELECT fence, expires, holder FROM "{table}"
                WHERE key > ?1 AND key < ?2 AND boot = ?3 AND expires > ?4 ORDER BY expires"#
            )),
            keep: sql(format!(
                r#"UPDATE "{table}" AS main SET expires = max(main.expires, ?1 + listed.kept)
                FROM (SELECT listed.key, max(listed.kept) AS kept FROM {listed} CROSS JOIN "{table}" AS held
                    WHERE {is_ours} GROUP BY listed.key) AS listed
                WHERE main.key = listed.key AND {is_shared}"#
            )),
            renew: sql(format!(
                r#"UPDATE "{table}" AS held SET expires = ?1 + listed.lease FROM {listed} WHERE {is_ours}"#
            )),
            ours: sql(format!(
                r#"SELECT listed.place FROM {listed} CROSS JOIN "{table}" AS held WHERE {is_ours}"#
            )),
        }
    }

    pub(in crate::sqlite) const fn keep(&self) -> &SqlStr {
        &self.keep
    }
}
