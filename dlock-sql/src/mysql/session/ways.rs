//! Keys that come to be locked in another [way](crate::way).
//!
//! ```text
//!     lock the row of the key, then the row with the fence (made where they are missing)
//!       |
//!       v                               locked by a transaction
//!     the row that transactions lock, NOWAIT ------------------> locked rows; nothing is changed
//!       | (not where the key becomes theirs)
//!       v                                                 yes
//!     a lease, those in line, a share, or a session's name? ---> that way; nothing is changed
//!       | no
//!       v
//!     both rows say the new way, with the highest fence of all; then the grant is counted, if one is to be
//! ```

use std::time::{Duration, Instant};

use dlock_core::Fence;
use sqlx::{MySqlConnection, Row};

use super::statements::name_of;
use crate::mysql::failure::{LOCKED, NO_WAIT, number};
use crate::mysql::server::MysqlServer;
use crate::mysql::shares::shares;
use crate::mysql::statements::is_barred;
use crate::mysql::values::literal;
use crate::protocol::SqlResult;
use crate::rows::shares::Beside;
use crate::server::Server;
use crate::session::name::Name;
use crate::stored::{self, SHARED};
use crate::way::{ELSEWHERE, HELD_ELSEWHERE, Way};

/// The number of times that a key is tried to be moved whose row is locked for moments only.
const TRIES: u32 = 3;

/// A time that is shorter than the least for which these servers let a statement wait for a row.
const WAITED: Duration = Duration::from_millis(900);

impl MysqlServer {
    /// Moves a key to this way, and counts a grant if it is to. Returns its fence, which is higher than all before, or
    /// the other way in which the key is held. A session or transaction that wants to count its grant has the server's
    /// lock already.
    ///
    /// Both rows are locked first, and what a transaction would lock stays locked to the end.
    pub(in crate::mysql) async fn move_to(
        &self,
        on: &mut MySqlConnection,
        name: &Name,
        way: Way,
        counting: Option<String>,
    ) -> SqlResult<Result<Option<Fence>, Way>> {
        let (table, elsewhere) = (self.quoted(), literal(&ELSEWHERE));
        let [main, counted, row] = [&name.fence[1..], &name.fence, &name.row].map(literal);
        let beside = Beside::of(&Name::key(&name.fence).ok_or(sqlx::Error::RowNotFound)?);
        let line = literal(HELD_ELSEWHERE.as_bytes());
        // An insert locks the row where it is there, and makes it where it is not: on a row that is missing no lock
        // would keep another move out.
        let lock = |key: &str, token: &str, expires: i64, line: &str| {
            format!(
                "INSERT INTO {table} (`key`, token, fence, expires, holder) VALUES ({key}, {token}, 0, {expires}, {line})
                ON DUPLICATE KEY UPDATE fence = fence"
            )
        };
        let (token, expires, of_main) = match way {
            Way::Lease => ("NULL", 0, "X''"),
            Way::Session | Way::Row => (&*elsewhere, i64::MAX, &*line),
        };
        let lock_row =
            format!("SELECT COUNT(*) INTO @dlock_count FROM {table} WHERE `key` = {row} FOR UPDATE NOWAIT");
        // `-2` is "not held", and the condition of each change; `-1` means that there is nothing to move. What is
        // decided here cannot change before the commit: rows are locked by then, and a session that gets its name later
        // counts in the row with the fence, for which it waits.
        let look = format!(
            "SELECT CASE WHEN {to_lease} AND NOT (main.token <=> {elsewhere}) THEN -1
                WHEN NOT (main.token <=> {elsewhere}) AND {barred} AND (main.token <> {shared}
                    OR EXISTS (SELECT 1 FROM {table} AS held WHERE {shares})) THEN {lease}
                WHEN {to_other} AND IS_USED_LOCK('{used}') IS NOT NULL THEN {session} ELSE -2 END,
                GREATEST(main.fence, counted.fence, COALESCE(mark.fence, 0)) INTO @dlock_other, @dlock_last
            FROM {table} AS main JOIN {table} AS counted ON counted.`key` = {counted}
            LEFT JOIN {table} AS mark ON mark.`key` = X'' WHERE main.`key` = {main}",
            to_lease = way == Way::Lease,
            to_other = way != Way::Session,
            barred = is_barred("main."),
            shared = literal(&SHARED),
            shares = shares(&beside),
            used = name_of(name),
            lease = Way::Lease.state(),
            session = Way::Session.state(),
        );
        let change = |key: &str, token: &str, expires: i64, line: &str| {
            format!(
                "UPDATE {table} SET token = {token}, expires = {expires}, holder = {line}, fence = @dlock_last
                WHERE `key` = {key} AND @dlock_other = -2"
            )
        };
        // All moves, and the pruning, lock these rows in this order, so that no two of them wait for each other.
        let mut statements = vec![
            lock(&main, &elsewhere, i64::MAX, &line),
            lock(&counted, "NULL", Way::Lease.state(), "X''"),
            look,
            change(&main, token, expires, of_main),
            change(&counted, "NULL", way.state(), "holder"),
        ];
        if way != Way::Row {
            // Between the locks and the look. A transaction that makes it, or locks it, after that counts when this is
            // over. `NOWAIT`: no transaction is waited for.
            statements.insert(2, lock_row);
        }
        statements.extend(counting.map(|counting| format!("{counting} AND @dlock_other = -2")));
        let answer = "SELECT CAST(@dlock_other AS SIGNED), IF(ROW_COUNT() = 1, CAST(LAST_INSERT_ID() AS SIGNED), NULL)";
        statements.push(answer.to_owned());
        let mut tries = 1;
        let rows = loop {
            let begun = Instant::now();
            match self.in_one_message(on, &statements).await {
                Err(error) if way != Way::Row && LOCKED.contains(&number(&error)) => {
                    // The error does not say which row was locked: this asks for the one whose lock means that the key
                    // is held.
                    if self.is_locked(on, &name.row, false).await? {
                        return Ok(Err(Way::Row));
                    }
                    // It was locked for a moment, as by a question for its holder. Or one of the others was waited for
                    // in vain, which MariaDB reports by the same number.
                    // Waiting in vain takes a second: there is no time for another try.
                    if tries == TRIES || number(&error) != NO_WAIT && begun.elapsed() >= WAITED {
                        return Err(error);
                    }
                    tries += 1;
                }
                rows => break rows?,
            }
        };
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let fence = row.try_get::<Option<i64>, _>(1)?.and_then(stored::fence);
        Ok(Way::of(row.try_get(0)?).map_or(Ok(fence), Err))
    }
}
