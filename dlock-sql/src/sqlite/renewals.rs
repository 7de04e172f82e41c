//! Renewing leases in the database file.

use std::fmt::Write;
use std::time::Duration;

use dlock_core::Failure;
use sqlx::{Row, SqlStr};

use super::connections::Until;
use super::database::{Database, FileState};
use super::failure::classify;
use super::time;
use crate::renewals::{Extended, Renew, Renewal, shortest_limit};

/// How long a statement is tried again while other processes are in the way, at the most.
const LIMIT: Duration = Duration::from_secs(1);

impl Renew for Database {
    const AT_ONCE: usize = 1_000;

    async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
        renew(self, renewals).await
    }
}

async fn renew(database: &Database, renewals: &[Renewal]) -> Result<Extended, Failure> {
    if database.file_state()? != FileState::Same {
        return Ok(Extended::Some(std::collections::HashSet::new()));
    }
    let list = list(renewals);
    let statements = &database.statements;
    let failed = |error| classify(error, database.connections.path());
    let asking = |statement: &SqlStr, now: i64| {
        sqlx::query(statement.clone()).bind(now).bind(list.clone()).bind(database.boot.clone())
    };
    let until = Until::after(LIMIT.min(shortest_limit(renewals)));
    let mut connection = database.connections.renewer(until).await?;
    let extended = connection.run(until, |now| asking(&statements.renew, now)).await.map_err(failed)?;
    if extended.changed == renewals.len() as u64 {
        return Ok(Extended::All);
    }
    // What was extended runs on; what was not has ended, or is not ours any more.
    let rows = connection.run(until, |now| asking(&statements.ours, now)).await.map_err(failed)?.rows;
    let places =
        rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(Extended::Some(places.into_iter().filter_map(|place| usize::try_from(place).ok()).collect()))
}

/// A JSON array of `[key, token, lease in nanoseconds]`, the first two in hexadecimal.
fn list(renewals: &[Renewal]) -> String {
    let mut list = String::with_capacity(renewals.len() * 128);
    for (n, renewal) in renewals.iter().enumerate() {
        list.push_str(if n == 0 { "[[\"" } else { ",[\"" });
        for byte in renewal.key.as_str().bytes() {
            for nibble in [byte >> 4, byte & 15] {
                list.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        let _ = write!(list, "\",\"{}\",{}]", renewal.token.to_hex(), time::nanos(renewal.lease));
    }
    list.push(']');
    list
}
