//! The rows of claims that wait for a lock in order: their keys, and the statements on them.

use dlock_core::backend::shares::QueueEntry;
use dlock_core::{Key, Token};
use sqlx::SqlStr;

use crate::sqlite::time;
use crate::table::TableName;
use crate::text::sql;

/// The first byte of the keys of these rows, with which no text begins.
const LINE: u8 = 0xfc;
/// The byte that follows the key there.
const END: u8 = 0xfe;

/// Returns a key that is lower than those of all places, and a key that is higher.
pub(in crate::sqlite) fn bounds(key: &Key) -> [Vec<u8>; 2] {
    [END, END + 1].map(|end| [&[LINE], key.as_str().as_bytes(), &[end]].concat())
}

pub(in crate::sqlite) fn row(key: &Key, place: i64) -> Vec<u8> {
    let [mut name, _] = bounds(key);
    name.extend_from_slice(&place.to_be_bytes());
    name
}

/// Returns the condition that a claim has a place, in a statement where these are the bounds, the boot and now.
pub(in crate::sqlite) fn exists(table: &TableName, [low, high, boot, now]: [&str; 4]) -> String {
    format!(
        r#"EXISTS (SELECT 1 FROM "{table}" AS line WHERE line.key > {low} AND line.key < {high}
            AND line.boot = {boot} AND line.expires > {now})"#
    )
}

#[derive(Debug)]
pub(in crate::sqlite) struct LineStatements {
    /// bounds, holder: the place.
    pub(in crate::sqlite) find: SqlStr,
    /// bounds: the last place.
    pub(in crate::sqlite) last: SqlStr,
    /// key, boot, expiry, holder: keeps a place.
    pub(in crate::sqlite) keep: SqlStr,
    /// key, holder: gives a place up.
    pub(in crate::sqlite) leave: SqlStr,
    /// key below, key that is the last: deletes places.
    pub(in crate::sqlite) clear: SqlStr,
    /// key of the lock, key of the place, bounds, boot, now, holder: the row of the lock, until when the place is kept,
    /// and the first in line.
    pub(in crate::sqlite) look: SqlStr,
}

impl LineStatements {
    pub(in crate::sqlite) fn of(table: &TableName) -> Self {
        Self {
            find: sql(format!(
                r#"SELECT fence FROM "{table}" WHERE key > ?1 AND key < ?2 AND holder = ?3 LIMIT 1"#
            )),
            last: sql(format!(
                r#"SELECT fence FROM "{table}" WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1"#
            )),
            keep: sql(format!(
                r#"UPDATE "{table}" SET boot = ?2, expires = ?3 WHERE key = ?1 AND holder = ?4"#
            )),
            leave: sql(format!(r#"DELETE FROM "{table}" WHERE key = ?1 AND holder = ?2"#)),
            clear: sql(format!(r#"DELETE FROM "{table}" WHERE key > ?1 AND key <= ?2"#)),
            look: sql(format!(
                r#"SELECT main.token, main.fence, main.boot, main.expires, main.holder,
                    (SELECT expires FROM "{table}" WHERE key = ?2 AND holder = ?7), {}
                FROM "{table}" AS main WHERE main.key = ?1"#,
                first_of(table, ["?3", "?4", "?5", "?6", "?7"])
            )),
        }
    }
}

/// Returns the query for the first in line, as [`First::parse`] reads it, in a statement where these are the bounds,
/// the boot, now, and the token that asks, whose waiter is alive in any case.
pub(in crate::sqlite) fn first_of(table: &TableName, [low, high, boot, now, asking]: [&str; 5]) -> String {
    format!(
        r#"(SELECT fence || ' ' || expires || ' ' || holder FROM "{table}" WHERE key > {low} AND key < {high}
            AND boot = {boot} AND (expires > {now} OR holder = {asking}) ORDER BY key LIMIT 1)"#
    )
}

/// The first in line.
pub(in crate::sqlite) struct First {
    pub(in crate::sqlite) place: i64,
    /// The moment until which its place is kept if its waiter is silent.
    pub(in crate::sqlite) until: i64,
    token: String,
}

impl First {
    pub(in crate::sqlite) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (place, until) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { place, until, token: parts.next()?.to_owned() })
    }

    /// Returns the entry of this waiter for the rules; `None` where its row has no token.
    pub(in crate::sqlite) fn to_entry(&self) -> Option<QueueEntry> {
        Some(QueueEntry { token: Token::from_hex(&self.token)?, alive_until: time::timestamp(self.until) })
    }

    pub(in crate::sqlite) fn is(&self, token: &Token) -> bool {
        self.token == token.to_hex()
    }

    /// Returns the largest possible number of waiters before this place.
    pub(in crate::sqlite) fn before(&self, place: i64) -> u32 {
        u32::try_from(place.saturating_sub(self.place)).unwrap_or(u32::MAX)
    }
}
