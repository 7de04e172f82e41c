//! Several rows in one statement: all of them or none.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{BatchAttempt, Busy, Grant, Mode, Validity};
use dlock_core::{ErrorKind, Failure};
use sqlx::Row;

use super::SqliteClaim;
use crate::failure::unchanged;
use crate::sqlite::connections::{Until, Writer};
use crate::sqlite::database::Database;
use crate::sqlite::failure::classify;
use crate::sqlite::time;
use crate::stored;
use crate::text::push_hex;

/// Takes the rows of all these claims, or none.
pub(in crate::sqlite) async fn attempt_all(claims: &mut [&mut SqliteClaim]) -> Result<BatchAttempt, Failure> {
    if claims.iter().any(|claim| claim.request.mode != Mode::Exclusive || claim.request.fair) {
        return Ok(BatchAttempt::Separately);
    }
    // First all steps without a caller, so that the writers below are known.
    for claim in claims.iter_mut() {
        claim.settle().await;
    }
    let Some(first) = claims.first_mut() else { return Ok(BatchAttempt::Granted(Vec::new())) };
    let until = first.until();
    let (database, writer) = first.database().await?;
    for claim in claims.iter_mut() {
        let (same, other) = claim.database().await?;
        if !Arc::ptr_eq(&same, &database) {
            return Err(Failure::unavailable("the database was replaced; it is tried again"));
        }
        // An attempt in flight must come first on its writer, and the statement can go by one only.
        if other != writer {
            return Ok(BatchAttempt::Separately);
        }
        database.may_grant(claim.request.usual_lease)?;
    }
    let list = list(claims);
    // Writing first: a batch that is free costs one statement. Which key was busy is looked up only when it was
    // refused.
    match take(claims, &database, writer, &list, until).await? {
        Some(grants) => Ok(BatchAttempt::Granted(grants)),
        None => {
            let (place, busy) = busy(&database, &list, until).await?;
            Ok(BatchAttempt::Busy { place: place.min(claims.len() - 1), busy })
        }
    }
}

/// Takes the rows. Returns the grants, or `None` when one of them is held.
async fn take(
    claims: &mut [&mut SqliteClaim],
    database: &Database,
    writer: Writer,
    list: &str,
    until: Until,
) -> Result<Option<Vec<Grant>>, Failure> {
    let (mut turn, slot) = database.connections.writer(writer, until).await?;
    // All of them are in flight, since the statement may be carried out without its caller.
    claims.iter_mut().for_each(|claim| claim.in_flight.begin(slot));
    let answer = turn
        .run(until, |now| {
            sqlx::query(database.statements.batch.take.clone())
                .bind(now)
                .bind(list.to_owned())
                .bind(database.boot.clone())
                .bind(time::wall_micros())
        })
        .await;
    drop(turn);
    let fences = answer.and_then(|answer| {
        let rows = answer.rows.iter();
        rows.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<HashMap<Vec<u8>, i64>, _>>()
    });
    let fences = match fences {
        Ok(fences) => fences,
        Err(error) => {
            let failure = classify(error, database.connections.path());
            // A failure that certainly changed nothing leaves the claims as they were.
            if failure.kind() != ErrorKind::Unknown {
                claims.iter_mut().for_each(|claim| claim.in_flight.took_nothing(&slot));
            }
            return Err(failure);
        }
    };
    if fences.is_empty() {
        // Nothing was taken now; what an earlier attempt took stays open.
        claims.iter_mut().for_each(|claim| claim.in_flight.took_nothing(&slot));
        return Ok(None);
    }
    let grants = claims.iter_mut().map(|claim| {
        let fence = fences.get(claim.request.key.as_str().as_bytes())?;
        let grant = Grant::new(Validity::Lease(claim.request.lease));
        Some(stored::fence(*fence).into_iter().fold(grant, Grant::with_fence))
    });
    let grants = grants.collect::<Option<Vec<_>>>();
    let grants = grants.ok_or_else(|| Failure::unknown("the database did not answer for all locks"))?;
    // Only when every claim has its grant: otherwise all stay in flight, and are withdrawn.
    for claim in claims.iter_mut() {
        claim.in_flight.answered(&slot);
        claim.held = true;
    }
    Ok(Some(grants))
}

/// Returns which one is held. If none is any more, the first is to be tried again at once.
async fn busy(database: &Database, list: &str, until: Until) -> Result<(usize, Busy), Failure> {
    let failed = |error| unchanged(classify(error, database.connections.path()));
    let mut turn = database.connections.reader(until).await?;
    let answer = turn
        .run(until, |now| {
            sqlx::query(database.statements.batch.busy.clone())
                .bind(now)
                .bind(list.to_owned())
                .bind(database.boot.clone())
        })
        .await
        .map_err(failed)?;
    drop(turn);
    let mut busy = Busy::default();
    let Some(row) = answer.rows.first() else {
        busy.retry_after = Some(Duration::ZERO);
        return Ok((0, busy));
    };
    let place: i64 = row.try_get(0).map_err(failed)?;
    let expires: i64 = row.try_get(2).map_err(failed)?;
    let left = Duration::from_nanos(expires.saturating_sub(time::now()).max(0).unsigned_abs());
    let (line, last) = (row.try_get(3).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let holder = stored::holder(line, last, left);
    busy.retry_after = holder.expires_in;
    busy.holder = Some(Box::new(holder));
    Ok((usize::try_from(place).unwrap_or(0), busy))
}

/// Makes a JSON array of `[key, token, lease in nanoseconds, holder]`, all but the lease in hexadecimal.
fn list(claims: &[&mut SqliteClaim]) -> String {
    let mut list = String::with_capacity(claims.len() * 256);
    for claim in claims {
        let request = &claim.request;
        list.push_str(if list.is_empty() { "[[\"" } else { ",[\"" });
        push_hex(&mut list, request.key.as_str().as_bytes());
        let _ = write!(list, "\",\"{}\",{},\"", request.token.to_hex(), time::nanos(request.lease));
        push_hex(&mut list, request.describe().as_bytes());
        list.push_str("\"]");
    }
    list.push(']');
    list
}
