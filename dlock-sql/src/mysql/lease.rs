//! Lease rows in MariaDB and MySQL.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dlock_core::{Holder, Key, Token};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::answers::{Standing, bytes, granted, holder};
use super::failure::{LOCKED, number};
use super::server::{MysqlServer, committed};
use super::statements::{AWAITED, RUNNING, name_in_sql, place};
use super::values::Value::{self, Bytes, Number};
use super::values::{execute, literal, rows};
use crate::protocol::{Ask, Lease, Pruned, Released, RowIdentity, SqlResult, Taken};
use crate::rows::LeaseTable;
use crate::server::Server;
use crate::session::name::{FENCE, ROW};
use crate::session::session_server::SessionServer;
use crate::text::{hex, micros};
use crate::way::{ELSEWHERE, HELD_ELSEWHERE, Way};

/// The error of a row that is there already.
const DUPLICATE: u16 = 1062;

impl MysqlServer {
    /// Reads the row of a key.
    async fn look(&self, on: &mut MySqlConnection, key: &Key, token: &[u8]) -> SqlResult<Standing> {
        let rows = rows(on, &self.statements.look, &[Bytes(token), Bytes(bytes(key))]).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        committed(row.try_get(4)?)?;
        Ok(match row.try_get::<Option<i64>, _>(0)? {
            None => Standing::Missing,
            Some(0) => Standing::Free,
            Some(_) if row.try_get::<&[u8], _>(3)?.starts_with(HELD_ELSEWHERE.as_bytes()) => {
                Standing::Elsewhere
            }
            // A row that is kept for those in line has no holder.
            Some(_) if row.try_get::<Option<i64>, _>(5)? != Some(1) => Standing::Kept,
            Some(_) => Standing::Held(Box::new(holder(row, 1)?)),
        })
    }

    /// Takes the lock with a row that is there.
    async fn update(&self, on: &mut MySqlConnection, ask: &Ask) -> SqlResult<Option<Taken>> {
        let token = ask.token.as_bytes().as_slice();
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let (key, token, fences) = (Bytes(bytes(&ask.key)), Bytes(token), Number(i64::from(ask.fences)));
        let values = [token, fences, fences, token, fences, holder, token, lease, key, token];
        Ok(granted(&execute(on, &self.statements.take, &values).await?))
    }

    /// Takes the lock with a new row. Fails when there is one.
    async fn insert(&self, on: &mut MySqlConnection, ask: &Ask) -> SqlResult<Option<Taken>> {
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let fences = Number(i64::from(ask.fences));
        let values = [Bytes(bytes(&ask.key)), Bytes(ask.token.as_bytes()), fences, lease, holder];
        Ok(granted(&execute(on, &self.statements.insert, &values).await?))
    }

    /// Deletes the row with the fence of sessions and locked rows, the row by which the key is theirs, and the row that
    /// is locked, unless they are in use.
    async fn prune_kept(&self, on: &mut MySqlConnection, fence: &[u8], highest: i64) -> SqlResult<u64> {
        let row: Vec<u8> = std::iter::once(ROW).chain(fence.iter().skip(1).copied()).collect();
        let (table, row, main, fence) = (self.quoted(), hex(&row), hex(&fence[1..]), hex(fence));
        let name = name_in_sql(&place(self.table()));
        let statements = [
            // In the order in which a key is moved, which therefore never finds the row locked by this. A row that is
            // missing may be made from now on, in a transaction that then waits for this one: it is not touched.
            self.lock(&format!("X'{main}'")),
            "SET @dlock_main = @dlock_count".to_owned(),
            self.lock(&format!("X'{fence}'")),
            format!("SELECT COUNT(*) INTO @dlock_row FROM {table} WHERE `key` = X'{row}' FOR UPDATE NOWAIT"),
            format!(
                "DELETE FROM {table} WHERE `key` = X'{fence}' AND fence <= {highest} AND IS_USED_LOCK({name}) IS NULL"
            ),
            "SET @dlock_count = ROW_COUNT()".to_owned(),
            format!(
                "DELETE FROM {table} WHERE `key` = X'{main}' AND token = {} AND @dlock_count = 1 AND @dlock_main = 1",
                literal(&ELSEWHERE)
            ),
            "SET @dlock_count = @dlock_count + ROW_COUNT()".to_owned(),
            format!("DELETE FROM {table} WHERE `key` = X'{row}' AND @dlock_row = 1"),
            "SELECT CAST(@dlock_count + ROW_COUNT() AS SIGNED)".to_owned(),
        ];
        match self.in_one_message(on, &statements).await {
            Ok(rows) => Ok(rows.last().ok_or(sqlx::Error::RowNotFound)?.try_get::<i64, _>(0)?.unsigned_abs()),
            // A row is in use: nothing was deleted, and the next call tries again.
            Err(error) if LOCKED.contains(&number(&error)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl LeaseTable for MysqlServer {
    const RENEWED_AT_ONCE: usize = 256;

    // A statement that changes many rows cannot say which.
    const TOGETHER: usize = 1;

    const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

    async fn take(&self, on: &mut MySqlConnection, ask: &Ask, contended: bool) -> SqlResult<Taken> {
        let token = ask.token.as_bytes().as_slice();
        let mut standing = if contended { Some(self.look(on, &ask.key, token).await?) } else { None };
        // Writing first costs one statement when the lock is free; looking first disturbs no other claim when it is
        // not.
        for _ in 0..3 {
            match standing {
                Some(Standing::Held(holder)) => return Ok(Taken::Busy(Some(holder))),
                Some(Standing::Kept) => return Ok(Taken::Busy(None)),
                Some(Standing::Elsewhere) => return Ok(Taken::Elsewhere(Way::Session)),
                Some(Standing::Missing) => match self.insert(on, ask).await {
                    // Another claim was faster to make the row: looked at once more.
                    Err(error) if number(&error) == Some(DUPLICATE) => {}
                    other => {
                        if let Some(taken) = other? {
                            return Ok(taken);
                        }
                    }
                },
                Some(Standing::Free) | None => {
                    if let Some(taken) = self.update(on, ask).await? {
                        return Ok(taken);
                    }
                }
            }
            // Nothing was written, so that the row says why. Between the look and the next write it may change again,
            // which is why this ends after a few rounds.
            standing = Some(self.look(on, &ask.key, token).await?);
        }
        Ok(Taken::Busy(None))
    }

    async fn take_back(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Option<Way>> {
        Ok(self.move_to(on, &self.name(key), Way::Lease, None).await?.err())
    }

    async fn take_over(&self, on: &mut MySqlConnection, ask: &Ask, left: &Token) -> SqlResult<Taken> {
        let (key, token) = (Bytes(bytes(&ask.key)), ask.token.as_bytes());
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let (ours, left) = (Bytes(token), Bytes(left.as_bytes()));
        let values = [ours, holder, ours, lease, key, ours, left];
        if let Some(taken) = granted(&execute(on, &self.statements.take_over, &values).await?) {
            return Ok(taken);
        }
        // The row is looked at only where nothing could be taken over.
        Ok(match self.look(on, &ask.key, token).await? {
            Standing::Held(holder) => Taken::Busy(Some(holder)),
            Standing::Elsewhere => Taken::Elsewhere(Way::Session),
            Standing::Missing | Standing::Free | Standing::Kept => Taken::Busy(None),
        })
    }

    async fn release(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
    ) -> SqlResult<Option<Released>> {
        let values = [Bytes(bytes(key)), Bytes(token.as_bytes())];
        let done = execute(on, &self.statements.release, &values).await?;
        let found = done.last_insert_id();
        let released = Released { running: found & RUNNING > 0, awaited: found & AWAITED > 0 };
        Ok((done.rows_affected() == 1).then_some(released))
    }

    async fn leave_taken(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<Option<Released>> {
        let left_behind = token.left_behind();
        let (ours, left_behind) = (Bytes(token.as_bytes()), Bytes(left_behind.as_bytes()));
        let (time, key) = (Number(micros(taken_for)), Bytes(bytes(key)));
        // One value for each place in the text, in its order: the server has no numbered ones.
        let values = [time, left_behind, time, left_behind, left_behind, key, ours, left_behind];
        let done = execute(on, &self.statements.leave, &values).await?;
        let awaited = done.last_insert_id() & AWAITED > 0;
        Ok((done.rows_affected() == 1).then_some(Released { running: true, awaited }))
    }

    async fn renew(&self, on: &mut MySqlConnection, leases: &[Lease]) -> SqlResult<Option<HashSet<usize>>> {
        let mut by_length: HashMap<Duration, Vec<&Lease>> = HashMap::new();
        for lease in leases {
            by_length.entry(lease.length).or_default().push(lease);
        }
        // One statement for each length: a lease is one value in it.
        let mut extended = 0;
        for (length, mut some) in by_length {
            // A few lengths of lists, so that the server knows the statements already.
            let count = some.len().next_power_of_two();
            let first = some[0];
            some.resize(count, first);
            let values: Vec<_> = std::iter::once(Number(micros(length))).chain(listed(&some)).collect();
            extended += execute(on, &self.statements.renew(count), &values).await?.rows_affected();
        }
        if extended == leases.len() as u64 {
            return Ok(None);
        }
        // The leases that were extended run on; the others have ended, or have another holder.
        let mut all_of_them: Vec<&Lease> = leases.iter().collect();
        let count = leases.len().next_power_of_two();
        all_of_them.resize(count, &leases[0]);
        let values: Vec<_> = listed(&all_of_them).collect();
        let rows = rows(on, &self.statements.ours(count), &values).await?;
        let tokens = rows.iter().map(|row| row.try_get::<Vec<u8>, _>(0)).collect::<SqlResult<Vec<_>>>()?;
        let is_ours = |lease: &Lease| tokens.iter().any(|token| token == lease.token.as_bytes());
        Ok(Some(leases.iter().enumerate().filter(|(_, lease)| is_ours(lease)).map(|(n, _)| n).collect()))
    }

    async fn read(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Option<Holder>> {
        Ok(match self.look(on, key, &[0]).await? {
            Standing::Held(holder) => Some(*holder),
            Standing::Missing | Standing::Free | Standing::Kept | Standing::Elsewhere => None,
        })
    }

    async fn list(&self, on: &mut MySqlConnection, after: &[u8]) -> SqlResult<Vec<(Vec<u8>, Holder)>> {
        let rows = rows(on, &self.statements.list, &[Bytes(after)]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, holder(row, 1)?))).collect()
    }

    async fn identify(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Option<RowIdentity>> {
        let (table, key) = (self.quoted(), literal(bytes(key)));
        let read = format!("SELECT token, fence FROM {table} WHERE `key` = {key} AND token IS NOT NULL");
        let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_optional(on).await?;
        row.map(|row| Ok(RowIdentity { token: row.try_get(0)?, fence: row.try_get(1)? })).transpose()
    }

    async fn force(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        only: Option<&RowIdentity>,
    ) -> SqlResult<bool> {
        let key = Bytes(bytes(key));
        let done = match only {
            Some(RowIdentity { token, fence }) => {
                execute(on, &self.statements.force_of, &[key, Bytes(token), Number(*fence)]).await?
            }
            None => execute(on, &self.statements.force, &[key]).await?,
        };
        Ok(done.rows_affected() == 1)
    }

    async fn prune(&self, on: &mut MySqlConnection, unused: Duration, after: &[u8]) -> SqlResult<Pruned> {
        let unused = Number(micros(unused));
        let rows = rows(on, &self.statements.old, &[Bytes(after), unused, unused, unused]).await?;
        let mut pruned = Pruned { count: 0, last: None };
        let (mut leases, mut others, mut highest) = (Vec::new(), Vec::new(), 0);
        for row in &rows {
            let key: Vec<u8> = row.try_get(0)?;
            highest = highest.max(row.try_get::<i64, _>(1)?);
            pruned.last = Some(key.clone());
            if key.first() == Some(&FENCE) { others.push(key) } else { leases.push(key) }
        }
        if rows.is_empty() {
            return Ok(pruned);
        }
        // First the mark, where the next row of any key starts: what is deleted afterwards is not above it.
        execute(on, &self.statements.keep, &[Number(highest)]).await?;
        if !leases.is_empty() {
            let count = leases.len().next_power_of_two();
            leases.resize(count, leases[0].clone());
            let values = [Number(highest), unused, unused].into_iter();
            let values: Vec<_> = values.chain(leases.iter().map(|key| Bytes(key))).collect();
            pruned.count += execute(on, &self.statements.prune(count), &values).await?.rows_affected();
        }
        for fence in others {
            pruned.count += self.prune_kept(on, &fence, highest).await?;
        }
        Ok(pruned)
    }

    async fn await_release(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<bool> {
        // The note first, which is one statement where the lock is held, and only then the question why it changed
        // nothing.
        if execute(on, &self.statements.note, &[Bytes(bytes(key))]).await?.rows_affected() == 1 {
            return Ok(true);
        }
        Ok(matches!(self.look(on, key, &[0]).await?, Standing::Held(_) | Standing::Kept))
    }
}

/// Returns the keys, then the tokens.
fn listed<'q>(leases: &[&'q Lease]) -> impl Iterator<Item = Value<'q>> {
    let keys = leases.iter().map(|lease| Bytes(bytes(&lease.key)));
    keys.chain(leases.iter().map(|lease| Bytes(lease.token.as_bytes())))
}
