//! The holders of the locks of sessions.

use std::collections::HashSet;

use dlock_core::backend::Mode;
use dlock_core::{Holder, Key};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::holder;
use super::statements::{ADVISORY, owning};
use crate::postgres::server::PostgresServer;
use crate::protocol::SqlResult;
use crate::server::Server;
use crate::session::name::{FENCE, Name, key_of_reader};
use crate::session::protocol::{Owners, OwningSession};
use crate::session::session_server::SessionServer;

/// Reads the session that has a lock, and its holder. A transaction that was prepared for a commit in two phases is no
/// session's any more.
fn owner(row: &PgRow) -> SqlResult<(OwningSession, Holder)> {
    let session = row.try_get::<Option<i64>, _>(2)?;
    let mut holder = holder(row)?;
    holder.mode = if row.try_get(3)? { Mode::Shared } else { Mode::Exclusive };
    Ok((session.map_or(OwningSession::Hidden, OwningSession::Known), holder))
}

/// Returns the holders of a lock: see [`owning`].
pub(super) async fn owners(
    table: &str,
    on: &mut PgConnection,
    name: &Name,
    owners: &str,
) -> SqlResult<Owners> {
    let query = sqlx::query(AssertSqlSafe(owning(table, owners))).bind(&name.fence).bind(name.readers());
    query.fetch_all(on).await?.iter().map(owner).collect()
}

/// Returns the grants to sessions that have these advisory locks, by their numbers.
pub(super) async fn granted(
    server: &PostgresServer,
    on: &mut PgConnection,
    number: fn(&Name) -> i64,
) -> SqlResult<Vec<(Key, Holder)>> {
    let place = server.place();
    // The locks, and the grants of the sessions that have locks. Only the names show which grants are of locks that are
    // still held.
    let statement = format!(
        r#"WITH locked AS MATERIALIZED (SELECT * FROM ({ADVISORY}) AS all_of_them WHERE parts = 1)
        SELECT NULL::bigint, NULL::text, NULL::bytea, session, number, reads FROM locked
        UNION ALL
        SELECT held.fence, held.holder, held.key, session, NULL, NULL
        FROM (SELECT DISTINCT session FROM locked) AS alive JOIN {} AS held ON held.token = int8send(session)
        WHERE held.key >= decode('ff', 'hex') OR held.key >= decode('fb', 'hex') AND held.key < decode('fc', 'hex')"#,
        server.quoted()
    );
    let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(on).await?;
    let (mut locked, mut granted) = (HashSet::new(), Vec::new());
    for row in &rows {
        let session: i64 = row.try_get(3)?;
        if let Some(number) = row.try_get::<Option<i64>, _>(4)? {
            locked.insert((session, number, row.try_get::<bool, _>(5)?));
            continue;
        }
        let name: &[u8] = row.try_get(2)?;
        let reads = name.first() != Some(&FENCE);
        let key = if reads { key_of_reader(row.try_get(1)?) } else { Name::key(name) };
        if let Some(key) = key {
            granted.push((session, reads, key, holder(row)?));
        }
    }
    granted.retain(|(session, reads, key, _)| {
        locked.contains(&(*session, number(&Name::of(&place, key)), *reads))
    });
    Ok(granted.into_iter().map(|(_, _, key, holder)| (key, holder)).collect())
}
