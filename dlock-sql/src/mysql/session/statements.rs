//! The statements by which sessions take names, and count grants.

use dlock_core::Fence;

use crate::failure::misplaced;
use crate::mysql::statements::{DIGEST, NOW};
use crate::mysql::values::literal;
use crate::protocol::SqlResult;
use crate::session::name::Name;
use crate::session::protocol::Wanted;
use crate::text::hex;
use crate::way::{ELSEWHERE, Way};

/// The session of the connection.
pub(super) const SESSION: &str = "CAST(CONNECTION_ID() AS SIGNED)";

/// The condition that what this session writes is logged by its rows, if at all. Not every version has this setting.
pub(super) const WRITES_ROWS: &str = "@@SESSION.binlog_format <> 'STATEMENT'";

/// Returns the name on the server: at most 64 characters, in lower case since these names ignore case.
pub(super) fn name_of(name: &Name) -> String {
    format!("dlock:{}", hex(&name.digest[..DIGEST]))
}

/// Returns the turn among those that wait for a lock.
pub(super) fn turn(name: &Name, is_row: bool) -> String {
    let of = if is_row { 'r' } else { 's' };
    format!("dlock:{of}:{}", hex(&name.digest[..DIGEST]))
}

/// Returns the condition that a session has the turn among those that wait for a lock.
pub(super) fn is_awaited(name: &Name, is_row: bool) -> String {
    format!("CAST(IS_USED_LOCK('{}') IS NOT NULL AS SIGNED)", turn(name, is_row))
}

/// Returns a session as the token of a row.
pub(super) fn token(session: i64) -> Vec<u8> {
    i128::from(session).to_be_bytes().to_vec()
}

/// Returns the token of the row with the fence after a grant: none where it is read, since that is no one session's.
pub(super) fn token_of(wanted: &Wanted, session: &str) -> String {
    if wanted.name.is_read() {
        return "NULL".to_owned();
    }
    format!("UNHEX(LPAD(HEX({session}), 32, '0'))")
}

/// Returns the clause that locks a row, to be read or alone.
pub(super) const fn row_lock(reads: bool) -> &'static str {
    if reads { "/*!80001 FOR SHARE */ /*M! LOCK IN SHARE MODE */" } else { "FOR UPDATE" }
}

/// The lowest bits of the fence of a grant. All that is answered is a fence: one with another ending is an answer to
/// another question, as something between here and the server gives them when it repeats a reply.
#[derive(Clone, Copy)]
pub(super) struct Ending(u64);

impl Ending {
    /// Returns the ending of the question of this number.
    pub(super) const fn of(number: u64) -> Self {
        Self(number & Self::ALL)
    }

    const BITS: u32 = 4;
    const ALL: u64 = (1 << Self::BITS) - 1;

    /// Refuses an answer that has another ending.
    pub(super) fn check(self, counted: Option<Fence>) -> SqlResult<Option<Fence>> {
        match counted {
            Some(fence) if fence.get() & Self::ALL != self.0 => Err(misplaced()),
            counted => Ok(counted),
        }
    }
}

/// Counts a grant to a session with a row that is there, where both rows say that the key is locked in this way. The
/// fence is the last insert id. The first of the two statements may wait for the row of the key, and keeps nothing
/// locked.
pub(super) fn counting(
    table: &str,
    wanted: &Wanted,
    session: &str,
    Ending(ending): Ending,
    way: Way,
) -> String {
    let (bits, all) = (Ending::BITS, Ending::ALL);
    // Rounded up to a multiple of 16 before the ending is set, so that the fence still grows.
    format!(
        "SET @dlock_mark = (SELECT COUNT(*) FROM {table} WHERE `key` = X'{}' AND token = {});
        UPDATE {table} SET
            fence = LAST_INSERT_ID((((GREATEST(fence + 1, {NOW}) + {all}) >> {bits}) << {bits}) | {ending}),
            token = {}, holder = X'{}'
        WHERE `key` = X'{}' AND expires = {} AND @dlock_mark = 1",
        hex(&wanted.name.fence[1..]),
        literal(&ELSEWHERE),
        token_of(wanted, session),
        hex(wanted.holder.as_bytes()),
        hex(&wanted.name.fence),
        way.state()
    )
}

/// Takes a named lock if this is that session, and counts the grant where its row is there. The result is kept under
/// its number for [`asking`].
pub(super) fn taking(table: &str, wanted: &Wanted, number: usize, session: &str, ending: Ending) -> String {
    format!(
        "SET @dlock_{number} = IF(CONNECTION_ID() = {session}, GET_LOCK('{}', 0), NULL); {} AND @dlock_{number} = 1",
        name_of(&wanted.name),
        counting(table, wanted, session, ending, Way::Session)
    )
}

/// Asks for the holder, if this session did not get the lock: fence and holder, the session, and whether it has got it.
pub(super) fn asking(table: &str, wanted: &Wanted, number: usize) -> String {
    format!(
        "SELECT held.fence, held.holder, {SESSION}, CAST(@dlock_{number} AS SIGNED)
        FROM (SELECT 1) AS one LEFT JOIN {table} AS held ON held.`key` = X'{}' AND @dlock_{number} = 0",
        hex(&wanted.name.fence)
    )
}
