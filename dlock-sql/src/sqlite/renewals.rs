//! Many renewals in one statement.
//!
//! The keeper asks for the renewal of every lock that is due at about the same time. Whatever has come in when the
//! connection is free goes out together, so that ten thousand locks cost a handful of statements.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::Renewed;
use dlock_core::{Failure, Key, Token};
use sqlx::{Row, SqlStr};
use tokio::sync::{mpsc, oneshot};

use super::connections::Until;
use super::database::{Database, Place};
use super::failure::{classify, copy};
use super::time;

/// How many rows one statement changes, so that it does not keep other processes waiting.
const AT_ONCE: usize = 1_000;
/// How long a statement is tried again while other processes are in the way.
const LIMIT: Duration = Duration::from_secs(1);

/// A lease that is to be extended.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) lease: Duration,
    pub(super) answer: oneshot::Sender<Result<Renewed, Failure>>,
}

/// Carries out renewals until the database is dropped.
pub(super) fn look_after(
    database: &Arc<Database>,
    inbox: mpsc::UnboundedReceiver<Renewal>,
) -> Result<(), Failure> {
    dlock_core::keeper::runtime()?.spawn(work(Arc::downgrade(database), inbox));
    Ok(())
}

async fn work(database: Weak<Database>, mut inbox: mpsc::UnboundedReceiver<Renewal>) {
    let mut renewals = Vec::new();
    while inbox.recv_many(&mut renewals, AT_ONCE).await > 0 {
        // Those who went away have no use for it any more.
        renewals.retain(|renewal| !renewal.answer.is_closed());
        let Some(database) = database.upgrade() else { return };
        if renewals.is_empty() {
            continue;
        }
        let answer = renew(&database, &renewals).await;
        for (n, renewal) in renewals.drain(..).enumerate() {
            let answer = match &answer {
                Ok(Extended::All) => Ok(Renewed::Extended),
                Ok(Extended::Some(places)) if places.contains(&n) => Ok(Renewed::Extended),
                Ok(_) => Ok(Renewed::Gone),
                Err(failure) => Err(copy(failure)),
            };
            let _ = renewal.answer.send(answer);
        }
    }
}

/// Which of a list were extended.
enum Extended {
    All,
    Some(HashSet<usize>),
}

async fn renew(database: &Database, renewals: &[Renewal]) -> Result<Extended, Failure> {
    if database.place()? != Place::Same {
        return Ok(Extended::Some(HashSet::new()));
    }
    let list = list(renewals);
    let statements = &database.statements;
    let failed = |error| classify(error, database.connections.path());
    let asking = |statement: &SqlStr, now: i64| {
        sqlx::query(statement.clone()).bind(now).bind(list.clone()).bind(database.boot.clone())
    };
    let until = Until::after(LIMIT);
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
