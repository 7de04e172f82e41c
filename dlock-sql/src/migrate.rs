//! Finds the lock table, and makes it where it is missing.

use dlock_core::backend::within;
use dlock_core::{Failure, Result};

use crate::connector::end;
use crate::driver::Conn;
use crate::failure::unchanged;
use crate::keeper_task::on_the_keeper;
use crate::limits::QUESTION;
use crate::options::ServerOptions;
use crate::server::Server;
use crate::table::{TableName, verify};

impl<S: Server> ServerOptions<S> {
    /// Makes the table where it is missing. Does nothing to a lock table that is there.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), except that the table need not be there.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it goes on in the background; call it again.
    pub async fn migrate(&self) -> Result<()> {
        self.clone().make_on_the_keeper().await.map_err(Self::refused)
    }

    pub(crate) async fn make_on_the_keeper(self) -> Result<(), Failure> {
        on_the_keeper(async move { self.make().await }).await
    }

    pub(crate) async fn make(&self) -> Result<(), Failure> {
        self.settings.check()?;
        let connector = self.connector();
        let mut connection = connector.open().await?;
        let found = Self::locate(&mut connection, &self.settings.table).await?;
        let table = found.as_ref().unwrap_or(&self.settings.table);
        let failed = |error| unchanged(S::classify(error, table).failure);
        let server = S::on_table(table, &connector, &self.settings);
        let mark = if found.is_some() { server.mark(&mut connection).await } else { Ok(None) };
        match mark {
            Ok(Some(_)) => {}
            Err(error) if !S::is_missing(&error) => return Err(failed(error)),
            Ok(None) | Err(_) => server.make(&mut connection).await.map_err(failed)?,
        }
        let table = Self::located(&mut connection, table).await?;
        let server = S::on_table(&table, &connector, &self.settings);
        let mark = server.mark(&mut connection).await.map_err(failed)?;
        end(connection).await;
        verify(mark.as_deref(), &table)
    }

    /// Returns the table with the one schema that has it, if any does: wherever the search path of a user or of a
    /// connection leads, this is the table. A table of a stranger, who may have made it to run code in its users, is
    /// looked into only where it was named with its schema, and is in the way of no table that can be trusted.
    async fn locate(on: &mut Conn<S>, table: &TableName) -> Result<Option<TableName>, Failure> {
        if table.schema().is_some() {
            return Ok(Some(table.clone()));
        }
        let schemas = within(QUESTION, S::schemas_of(on, table)).await;
        let schemas =
            schemas.ok_or_else(|| Failure::unavailable(format!("no answer within {QUESTION:?}")))?;
        let schemas = schemas.map_err(|error| unchanged(S::classify(error, table).failure))?;
        match &*schemas.trusted {
            [] => strangers(table, &schemas.strange).map_or(Ok(None), Err),
            [only] => Ok(Some(table.clone().within(only.clone()))),
            [first, ..] => Err(Failure::invalid_config(format!(
                "table {table} is in several schemas ({}), and who has another search path would lock in another one; name the \
                 one that all are to use, such as table={first}.{table}",
                schemas.trusted.join(", ")
            ))),
        }
    }

    pub(crate) async fn located(on: &mut Conn<S>, table: &TableName) -> Result<TableName, Failure> {
        Self::locate(on, table).await?.ok_or_else(|| S::nowhere(table))
    }
}

/// Refuses a table that only other users have made, which need not be trusted. Another table beside it would split the
/// programs that lock in it, if there are any, in two.
fn strangers(table: &TableName, strange: &[(String, String)]) -> Option<Failure> {
    let what = match strange {
        [] => return None,
        [(schema, owner)] => {
            format!("is in schema {schema}, outside the search path, and belongs to {owner}, whose")
        }
        several => {
            let all = several.iter().map(|(schema, owner)| format!("{schema} of {owner}"));
            let all = all.collect::<Vec<_>>().join(", ");
            format!("is in several schemas outside the search path, of others ({all}), whose")
        }
    };
    Some(Failure::invalid_config(format!(
        "table {table} {what} rights this user does not have; name the one that all are to use, such as table={}.{table}",
        strange[0].0
    )))
}
