//! Lease rows in PostgreSQL.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, PgConnection, Postgres, Row};

use super::failure::{classify, is_made_twice, is_missing};
use super::listen::Hub;
use super::statements::{Statements, schema};
use crate::rows::{Ask, Fault, Lease, Listener, Server, Settings, Taken};
use crate::table::TableName;
use crate::text::number;

type Answer<T> = Result<T, sqlx::Error>;

/// How to get to a server, and the table there.
#[derive(Debug)]
pub struct PostgresRows {
    connect: Shown<PgConnectOptions>,
    table: TableName,
    statements: Statements,
    hub: Option<Hub>,
}

/// Options that may contain a password.
pub(super) struct Shown<T>(pub(super) T);

impl<T> std::fmt::Debug for Shown<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl PostgresRows {
    pub(super) fn new(connect: PgConnectOptions, settings: &Settings, notified: bool) -> Arc<Self> {
        let connect = connect.disable_statement_logging();
        let hub = notified.then(|| Hub::new(&connect, settings.connect_timeout));
        let (table, statements) = (settings.table.clone(), Statements::of(&settings.table));
        Arc::new(Self { connect: Shown(connect), table, statements, hub })
    }

    async fn create(&self, on: &mut PgConnection) -> Answer<()> {
        let mut transaction = on.begin().await?;
        for statement in schema(&self.table) {
            sqlx::query(statement).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    /// The channel on which releases of `key` are told.
    fn channel(&self, key: &Key) -> String {
        let name = self.table.to_string();
        format!("dlock_{:016x}", number(name.bytes().chain([0]).chain(key.as_str().bytes())))
    }
}

/// The rows of a statement that was run to its end.
async fn all(on: &mut PgConnection, query: Query<'_, Postgres, PgArguments>) -> Answer<Vec<PgRow>> {
    query.fetch_all(on).await
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// The holder by fence, remaining time and description from this column on.
fn holder(row: &PgRow, from: usize) -> Answer<Holder> {
    let mut holder = Holder::parse(row.try_get(from + 2)?);
    holder.fence = Some(Fence::new(row.try_get::<i64, _>(from)?.unsigned_abs()));
    let left = row.try_get::<i64, _>(from + 1)?;
    holder.expires_in = Some(Duration::from_micros(left.max(0).unsigned_abs()));
    Ok(holder)
}

fn bytes(key: &Key) -> &[u8] {
    key.as_str().as_bytes()
}

impl Server for PostgresRows {
    type Database = Postgres;

    const NAME: &'static str = "postgres";
    const RENEWED_AT_ONCE: usize = 1_000;

    async fn connect(&self) -> Answer<PgConnection> {
        self.connect.0.connect().await
    }

    async fn mark(&self, on: &mut PgConnection) -> Answer<Option<String>> {
        let mark = all(on, sqlx::query(self.statements.mark.clone())).await?;
        for statement in &self.statements.rights {
            all(on, sqlx::query(statement.clone())).await?;
        }
        mark.first().map(|row| row.try_get(0)).transpose()
    }

    async fn make(&self, on: &mut PgConnection) -> Answer<()> {
        let mut tries = 5;
        loop {
            match self.create(on).await {
                // Another process makes the table too.
                Err(error) if tries > 0 && is_made_twice(&error) => tries -= 1,
                other => return other,
            }
        }
    }

    fn is_missing(&self, error: &sqlx::Error) -> bool {
        is_missing(error)
    }

    fn address(&self) -> String {
        let to = &self.connect.0;
        let host = to.get_socket().map_or_else(|| to.get_host().into(), |path| path.display().to_string());
        let database = to.get_database().unwrap_or_default();
        format!("postgres://{host}:{}/{database}/{}", to.get_port(), self.table)
    }

    fn table(&self) -> String {
        self.table.to_string()
    }

    async fn take(&self, on: &mut PgConnection, ask: &Ask, _: bool) -> Answer<Taken> {
        let query = sqlx::query(self.statements.take.clone())
            .bind(bytes(&ask.key))
            .bind(ask.token.as_bytes().as_slice())
            .bind(micros(ask.lease))
            .bind(&*ask.holder);
        let rows = all(on, query).await?;
        let Some(row) = rows.first() else { return Ok(Taken::Busy(None)) };
        if row.try_get::<Option<i64>, _>(1)?.is_none() {
            return Ok(Taken::Granted(Fence::new(row.try_get::<i64, _>(0)?.unsigned_abs())));
        }
        Ok(Taken::Busy(Some(Box::new(holder(row, 0)?))))
    }

    async fn release(&self, on: &mut PgConnection, key: &Key, token: &Token) -> Answer<Option<bool>> {
        let query = sqlx::query(self.statements.release.clone())
            .bind(bytes(key))
            .bind(token.as_bytes().as_slice())
            .bind(self.channel(key));
        all(on, query).await?.first().map(|row| row.try_get(0)).transpose()
    }

    async fn renew(&self, on: &mut PgConnection, leases: &[Lease]) -> Answer<Option<HashSet<usize>>> {
        let keys: Vec<&[u8]> = leases.iter().map(|lease| bytes(&lease.key)).collect();
        let tokens: Vec<&[u8]> = leases.iter().map(|lease| lease.token.as_bytes().as_slice()).collect();
        let lengths: Vec<i64> = leases.iter().map(|lease| micros(lease.length)).collect();
        let query = sqlx::query(self.statements.renew.clone()).bind(keys).bind(tokens).bind(lengths);
        let rows = all(on, query).await?;
        if rows.len() == leases.len() {
            return Ok(None);
        }
        let places = rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<Answer<Vec<_>>>()?;
        Ok(Some(places.into_iter().filter_map(|place| usize::try_from(place - 1).ok()).collect()))
    }

    async fn read(&self, on: &mut PgConnection, key: &Key) -> Answer<Option<Holder>> {
        let rows = all(on, sqlx::query(self.statements.read.clone()).bind(bytes(key))).await?;
        rows.first().map(|row| holder(row, 0)).transpose()
    }

    async fn list(&self, on: &mut PgConnection, after: &[u8]) -> Answer<Vec<(Vec<u8>, Holder)>> {
        let rows = all(on, sqlx::query(self.statements.list.clone()).bind(after)).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, holder(row, 1)?))).collect()
    }

    async fn force(&self, on: &mut PgConnection, key: &Key) -> Answer<bool> {
        let query = sqlx::query(self.statements.force.clone()).bind(bytes(key)).bind(self.channel(key));
        Ok(!all(on, query).await?.is_empty())
    }

    async fn prune(&self, on: &mut PgConnection, unused: Duration) -> Answer<u64> {
        let rows = all(on, sqlx::query(self.statements.prune.clone()).bind(micros(unused))).await?;
        Ok(rows.first().map_or(Ok(0), |row| row.try_get::<i64, _>(0))?.unsigned_abs())
    }

    fn classify(&self, error: sqlx::Error) -> Fault {
        classify(error, &self.table)
    }

    fn listen(&self, key: &Key) -> Result<Option<Listener>, Failure> {
        self.hub.as_ref().map(|hub| hub.listen(&self.channel(key))).transpose()
    }

    fn join(&self, key: &Key) -> Option<Listener> {
        let hub = self.hub.as_ref()?;
        hub.channels().join(&self.channel(key))
    }

    async fn await_release(&self, on: &mut PgConnection, key: &Key) -> Answer<bool> {
        let rows = all(on, sqlx::query(self.statements.await_release.clone()).bind(bytes(key))).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0))
    }

    fn close(&self) {
        if let Some(hub) = &self.hub {
            hub.close();
        }
    }
}
