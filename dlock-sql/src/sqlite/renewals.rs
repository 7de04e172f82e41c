//! The renewal of leases in the database file.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::Mode;
use sqlx::{Row, SqlStr};

use super::connections::Until;
use super::database::{Database, FileState};
use super::failure::classify;
use super::shares::kept;
use super::statements::shares::own;
use super::time;
use crate::renewals::{Extended, Renew, Renewal, shortest_limit};
use crate::text::push_hex;

/// The longest time for which a statement is tried again while other processes are in the way.
const LIMIT: Duration = Duration::from_secs(1);

impl Renew for Database {
    const AT_ONCE: usize = 1_000;

    async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
        renew(self, renewals).await
    }
}

async fn renew(database: &Database, renewals: &[Renewal]) -> Result<Extended, Failure> {
    // First of all: in a file that the path does not lead to, nothing is held any more.
    if database.file_state()? != FileState::Same {
        return Ok(Extended::Some(HashSet::new()));
    }
    let failed = |error| classify(error, database.connections.path());
    // The shortest limit holds for all: a renewal that is given up must not be carried out much later.
    let until = Until::after(LIMIT.min(shortest_limit(renewals)));
    let mut connection = database.connections.renewer(until).await?;
    // Both kinds on one connection: shares are the rarer one, and need the rows of their keys as well.
    let is_shared = |renewal: &Renewal| renewal.mode != Mode::Exclusive;
    let (mut places, mut all) = (HashSet::new(), true);
    for shared in [false, true] {
        let some: Vec<_> = renewals.iter().enumerate().filter(|(_, one)| is_shared(one) == shared).collect();
        if some.is_empty() {
            continue;
        }
        let (list, statements) = (list(&some), &database.statements);
        let (renew, ours) = match shared {
            true => (&statements.shares.renew, &statements.shares.ours),
            false => (&statements.renew, &statements.ours),
        };
        let asking = |statement: &SqlStr, now: i64| {
            sqlx::query(statement.clone()).bind(now).bind(list.clone()).bind(database.boot.clone())
        };
        if shared {
            // First the rows of the keys, which are to be taken for as long as any of those beside them.
            let keep = statements.shares.keep();
            connection.run(until, |now| asking(keep, now)).await.map_err(failed)?;
        }
        let extended = connection.run(until, |now| asking(renew, now)).await.map_err(failed)?;
        if extended.changed == some.len() as u64 {
            places.extend(some.iter().map(|(place, _)| *place));
            continue;
        }
        // The leases that were extended run on; the others have ended, or have another holder. By a second statement,
        // since the first one counts rows and does not name them. What it has extended does not end between the two.
        all = false;
        for row in connection.run(until, |now| asking(ours, now)).await.map_err(failed)?.rows {
            let place = usize::try_from(row.try_get::<i64, _>(0).map_err(failed)?).unwrap_or(usize::MAX);
            places.extend(some.get(place).map(|(place, _)| *place));
        }
    }
    Ok(if all { Extended::All } else { Extended::Some(places) })
}

/// Makes a JSON array of `[key, token, lease in nanoseconds, for how long the key is kept, key beside it]`, where keys
/// and tokens are hexadecimal. A lock that is held alone has the first three.
fn list(renewals: &[(usize, &Renewal)]) -> String {
    let mut list = String::with_capacity(renewals.len() * 128);
    for (n, (_, renewal)) in renewals.iter().enumerate() {
        list.push_str(if n == 0 { "[[\"" } else { ",[\"" });
        // Hexadecimal, so that no key has to be escaped.
        push_hex(&mut list, renewal.key.as_str().as_bytes());
        let _ = write!(list, "\",\"{}\",{}", renewal.token.to_hex(), time::nanos(renewal.lease));
        if renewal.mode != Mode::Exclusive {
            let kept = kept(renewal.mode, renewal.lease);
            let _ = write!(list, ",{},\"", time::nanos(kept));
            push_hex(&mut list, &own(&renewal.key, &renewal.token));
            list.push('"');
        }
        list.push(']');
    }
    list.push(']');
    list
}
