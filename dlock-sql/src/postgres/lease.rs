//! Lease rows in PostgreSQL.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{Holder, Key, Token};
use sqlx::{AssertSqlSafe, PgConnection, Row, SqlStr};

use super::answers::{bytes, holder, placed, released, taken};
use super::server::PostgresServer;
use super::values::Value;
use crate::protocol::{Ask, Lease, Pruned, Released, RowIdentity, SqlResult, Taken};
use crate::rows::LeaseTable;
use crate::server::Server;
use crate::session::session_server::SessionServer;
use crate::text::{micros, unhex};
use crate::way::Way;

impl PostgresServer {
    /// Makes an attempt by this statement, whose last value is `last`.
    async fn attempt(
        &self,
        on: &mut PgConnection,
        statement: &SqlStr,
        ask: &Ask,
        last: Value<'_>,
    ) -> SqlResult<Taken> {
        let (key, token) = (Value::Bytes(bytes(&ask.key)), Value::Bytes(ask.token.as_bytes()));
        let (lease, holder) = (Value::Number(micros(ask.lease)), Value::Text(&ask.holder));
        let rows = self.all(on, statement, &[key, token, lease, holder, last]).await?;
        // No row: another transaction changed it between the look and the write. The claim asks again.
        rows.first().map_or(Ok(Taken::Busy(None)), |row| taken(row, 0))
    }
}

impl LeaseTable for PostgresServer {
    const RENEWED_AT_ONCE: usize = 500;
    const TOGETHER: usize = 64;
    const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

    async fn take(&self, on: &mut PgConnection, ask: &Ask, _: bool) -> SqlResult<Taken> {
        self.attempt(on, &self.statements.take, ask, Value::Number(i64::from(ask.fences))).await
    }

    async fn take_back(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Option<Way>> {
        Ok(self.move_to(on, &self.name(key), Way::Lease, None).await?.err())
    }

    async fn take_over(&self, on: &mut PgConnection, ask: &Ask, left: &Token) -> SqlResult<Taken> {
        self.attempt(on, &self.statements.take_over, ask, Value::Bytes(left.as_bytes())).await
    }

    async fn release(&self, on: &mut PgConnection, key: &Key, token: &Token) -> SqlResult<Option<Released>> {
        let channel = self.channel(key);
        let values = [Value::Bytes(bytes(key)), Value::Bytes(token.as_bytes()), Value::Text(&channel)];
        let rows = self.all(on, &self.statements.release, &values).await?;
        rows.first().map(|row| released(row, 0)).transpose()
    }

    async fn leave_taken(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<Option<Released>> {
        let (channel, left_behind) = (self.channel(key), token.left_behind());
        let values = [
            Value::Bytes(bytes(key)),
            Value::Bytes(token.as_bytes()),
            Value::Text(&channel),
            Value::Bytes(left_behind.as_bytes()),
            Value::Number(micros(taken_for)),
        ];
        let rows = self.all(on, &self.statements.leave, &values).await?;
        rows.first().map(|row| released(row, 0)).transpose()
    }

    async fn take_all(&self, on: &mut PgConnection, asks: &[Ask]) -> SqlResult<Vec<Option<Taken>>> {
        if let [one] = asks {
            return Ok(vec![Some(self.take(on, one, false).await?)]);
        }
        let values = [
            Value::ManyBytes(asks.iter().map(|ask| bytes(&ask.key)).collect()),
            Value::ManyBytes(asks.iter().map(|ask| ask.token.as_bytes().as_slice()).collect()),
            Value::Numbers(asks.iter().map(|ask| micros(ask.lease)).collect()),
            Value::Texts(asks.iter().map(|ask| &*ask.holder).collect()),
            Value::Numbers(asks.iter().map(|ask| i64::from(ask.fences)).collect()),
        ];
        let rows = self.all(on, &self.statements.take_all, &values).await?;
        placed(&rows, asks.len(), |row| taken(row, 1))
    }

    async fn release_all(
        &self,
        on: &mut PgConnection,
        held: &[(Key, Token)],
    ) -> SqlResult<Vec<Option<Released>>> {
        if let [(key, token)] = held {
            return Ok(vec![self.release(on, key, token).await?]);
        }
        let channels: Vec<String> = held.iter().map(|(key, _)| self.channel(key)).collect();
        let values = [
            Value::ManyBytes(held.iter().map(|(key, _)| bytes(key)).collect()),
            Value::ManyBytes(held.iter().map(|(_, token)| token.as_bytes().as_slice()).collect()),
            Value::Texts(channels.iter().map(|channel| &**channel).collect()),
        ];
        let rows = self.all(on, &self.statements.release_all, &values).await?;
        placed(&rows, held.len(), |row| released(row, 1))
    }

    async fn renew(&self, on: &mut PgConnection, leases: &[Lease]) -> SqlResult<Option<HashSet<usize>>> {
        let values = [
            Value::ManyBytes(leases.iter().map(|lease| bytes(&lease.key)).collect()),
            Value::ManyBytes(leases.iter().map(|lease| lease.token.as_bytes().as_slice()).collect()),
            Value::Numbers(leases.iter().map(|lease| micros(lease.length)).collect()),
        ];
        let rows = self.all(on, &self.statements.renew, &values).await?;
        // Almost always: then no list of places is made.
        if rows.len() == leases.len() {
            return Ok(None);
        }
        let places = rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<SqlResult<Vec<_>>>()?;
        Ok(Some(places.into_iter().filter_map(|place| usize::try_from(place - 1).ok()).collect()))
    }

    async fn read(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Option<Holder>> {
        let rows = self.all(on, &self.statements.read, &[Value::Bytes(bytes(key))]).await?;
        rows.first().map(|row| holder(row, 0)).transpose()
    }

    async fn list(&self, on: &mut PgConnection, after: &[u8]) -> SqlResult<Vec<(Vec<u8>, Holder)>> {
        let rows = self.all(on, &self.statements.list, &[Value::Bytes(after)]).await?;
        rows.iter().map(|row| Ok((unhex(row.try_get(0)?), holder(row, 1)?))).collect()
    }

    async fn identify(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Option<RowIdentity>> {
        let (table, key) = (self.quoted(), Value::Bytes(bytes(key)).literal());
        let read = format!(
            "SELECT encode(token, 'hex'), fence FROM {table} WHERE key = {key} AND token IS NOT NULL"
        );
        let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_optional(on).await?;
        row.map(|row| Ok(RowIdentity { token: unhex(row.try_get(0)?), fence: row.try_get(1)? })).transpose()
    }

    async fn force(&self, on: &mut PgConnection, key: &Key, only: Option<&RowIdentity>) -> SqlResult<bool> {
        let channel = self.channel(key);
        let mut values = vec![Value::Bytes(bytes(key)), Value::Text(&channel)];
        let statement = match only {
            Some(RowIdentity { token, fence }) => {
                values.extend([Value::Bytes(token), Value::Number(*fence)]);
                &self.statements.force_of
            }
            None => &self.statements.force,
        };
        Ok(!self.all(on, statement, &values).await?.is_empty())
    }

    async fn prune(&self, on: &mut PgConnection, unused: Duration, after: &[u8]) -> SqlResult<Pruned> {
        let values = [Value::Number(micros(unused)), Value::Bytes(after)];
        let rows = self.all(on, &self.statements.prune, &values).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Pruned {
            count: row.try_get::<i64, _>(0)?.unsigned_abs(),
            last: row.try_get::<Option<&str>, _>(1)?.map(unhex),
        })
    }

    async fn await_release(&self, on: &mut PgConnection, key: &Key) -> SqlResult<bool> {
        let rows = self.all(on, &self.statements.await_release, &[Value::Bytes(bytes(key))]).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0))
    }
}
