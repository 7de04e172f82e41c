//! Keys that come to be locked in another [way](crate::way).
//!
//! ```text
//!     lock the row of the key, then the row with the fence (made where they are missing)
//!       |
//!       v                                          yes
//!     held in the other way? (`found`, in this order) ---> that way; nothing is changed
//!       a lease, or those in line, or a share
//!       a session: its name is taken
//!       a locked row: `free` has skipped it
//!       | no
//!       v
//!     both rows say the new way, with the highest fence of all; then the grant is counted, if one is to be
//! ```

use std::time::Duration;

use dlock_core::Fence;
use dlock_core::backend::sleep;
use sqlx::{PgConnection, Row};

use super::statements::state;
use super::{fence, number};
use crate::postgres::server::PostgresServer;
use crate::postgres::statements::is_barred;
use crate::postgres::values::Value::Bytes;
use crate::protocol::SqlResult;
use crate::rows::shares::Beside;
use crate::server::Server;
use crate::session::name::Name;
use crate::stored::SHARED;
use crate::way::{ELSEWHERE, HELD_ELSEWHERE, Way};

/// A pause that is longer than a few hundred rows stay locked by the statement that deletes them.
const MOMENT: Duration = Duration::from_millis(10);

impl PostgresServer {
    /// Moves a key to this way, and counts a grant if it is to. Returns its fence, which is higher than all before, or
    /// the other way in which the key is held. A session or transaction that wants to count its grant has the server's
    /// lock already.
    ///
    /// Both rows are locked first, and what a session or a transaction would lock stays locked to the end.
    pub(in crate::postgres) async fn move_to(
        &self,
        on: &mut PgConnection,
        name: &Name,
        way: Way,
        counting: Option<String>,
    ) -> SqlResult<Result<Option<Fence>, Way>> {
        let (table, elsewhere) = (self.quoted(), Bytes(&ELSEWHERE).literal());
        let beside = Beside::of(&Name::key(&name.fence).ok_or(sqlx::Error::RowNotFound)?);
        let [main, counted, row] = [&name.fence[1..], &name.fence, &name.row].map(|key| Bytes(key).literal());
        // An upsert that changes nothing locks the row where it is there, and makes it where it is not. Both are
        // needed: on a row that is missing no lock would keep another move out.
        let lock = |key: &str, token: &str, expires: &str, line: &str| {
            format!(
                "INSERT INTO {table} AS held (key, token, fence, expires, holder)
                VALUES ({key}, {token}, 0, {expires}, '{line}') ON CONFLICT (key) DO UPDATE SET token = held.token WHERE false"
            )
        };
        let (token, expires, line) = match way {
            Way::Lease => ("NULL", "'epoch'", ""),
            Way::Session | Way::Row => (&*elsewhere, "'infinity'", HELD_ELSEWHERE),
        };
        // One statement decides and changes, so that nothing can come between. The name is tried as a lock of this
        // transaction and the row with `SKIP LOCKED`: a holder is seen at once and never waited for, and a session that
        // comes later is refused until this is over, and then finds the key moved. `-1` means that there is nothing to
        // move.
        let change = format!(
            "WITH free AS MATERIALIZED (SELECT FROM {table} WHERE key = {row} FOR UPDATE SKIP LOCKED),
            main AS MATERIALIZED (
                SELECT fence, held.token IS NOT DISTINCT FROM {elsewhere} AS is_elsewhere,
                    {barred} AND (held.token <> {shared} OR EXISTS (
                        SELECT FROM {table} WHERE key > {from} AND key < {to} AND expires > clock_timestamp()
                    )) AS is_barred
                FROM {table} AS held WHERE key = {main}
            ), found AS MATERIALIZED (
                SELECT CASE
                    WHEN {to_lease} AND NOT is_elsewhere THEN -1
                    WHEN is_barred AND NOT is_elsewhere THEN {lease}
                    WHEN {to_other} AND NOT pg_try_advisory_xact_lock({number}) THEN {session}
                    WHEN {to_session} AND EXISTS (SELECT FROM {table} WHERE key = {row})
                        AND NOT EXISTS (SELECT FROM free) THEN {of_row} END::bigint AS other,
                    greatest(main.fence, counted.fence, (SELECT fence FROM {table} WHERE key = '')) AS last
                FROM main, {table} AS counted WHERE counted.key = {counted}
            ), moved AS (
                UPDATE {table} AS held
                SET token = {token}, expires = {expires}, holder = '{line}', fence = last, awaited = false
                FROM found WHERE held.key = {main} AND other IS NULL
            ), counts AS (
                UPDATE {table} AS held SET token = NULL, expires = {state}, fence = last
                FROM found WHERE held.key = {counted} AND other IS NULL
            )
            SELECT NULL::bigint, other FROM found",
            barred = is_barred("held.", "clock_timestamp()"),
            to_lease = way == Way::Lease,
            to_other = way != Way::Session,
            to_session = way != Way::Row,
            lease = Way::Lease.state(),
            session = Way::Session.state(),
            of_row = Way::Row.state(),
            number = number(name),
            shared = Bytes(&SHARED).literal(),
            from = Bytes(&beside.preferred).literal(),
            to = Bytes(&beside.beyond).literal(),
            state = state(way),
        );
        // All moves lock the two rows in this order, so that two of them never wait for each other.
        let lock_main = lock(&main, &elsewhere, "'infinity'", HELD_ELSEWHERE);
        let lock_counted = lock(&counted, "NULL", &state(Way::Lease), "");
        // The count last, in the same transaction: it finds both rows of the new way, or changes nothing.
        let statements: Vec<_> = [lock_main, lock_counted, change].into_iter().chain(counting).collect();
        let mut is_again = false;
        loop {
            // A grant that was not counted leaves the row before as the last one.
            let row = self.in_one_message(on, &statements).await?.ok_or(sqlx::Error::RowNotFound)?;
            match row.try_get::<Option<i64>, _>(1)?.and_then(Way::of) {
                // A statement that prunes the table locks the row for a moment, too: looked at once more.
                Some(Way::Row) if !is_again => sleep(MOMENT).await,
                other => return Ok(other.map_or(Ok(fence(&row, 0)?), Err)),
            }
            is_again = true;
        }
    }
}
