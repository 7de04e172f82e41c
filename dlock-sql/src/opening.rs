//! Opens the connections of a backend.

use std::sync::Arc;

use dlock_core::Failure;

use crate::gateway::Connections;
use crate::keeper_task::on_the_keeper;
use crate::options::ServerOptions;
use crate::server::Server;

impl<S: Server> ServerOptions<S> {
    /// Opens a connection and finds the table, which is made if the URL says so. The table is looked at later.
    /// `for_leases`: attempts use the pool's connections, or those of their runtime.
    pub(crate) async fn open(mut self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        self.settings.check()?;
        on_the_keeper(async move {
            // Taken, so that `connections` keeps no maker: what was made here is not made once more at the first use.
            if std::mem::take(&mut self.settings.makes) {
                self.make().await?;
            }
            let mut connection = self.connector().open().await?;
            // With its schema from here on: the search path of a connection that is opened later may lead to another
            // table.
            self.settings.table = Self::located(&mut connection, &self.settings.table).await?;
            let connections = self.connections(for_leases)?;
            // The first request finds it open, and pays for no log-in.
            connections.put_back(connection);
            Ok(connections)
        })
        .await
    }

    /// Prepares the connections without opening one. The schema of the table cannot be asked for then, and a lock has
    /// to have one id in all processes.
    pub(crate) fn open_later(self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        self.settings.check()?;
        if self.settings.table.schema().is_none() {
            return Err(Failure::invalid_config(
                "where the server is connected to later, the table has to be named with its schema, on MariaDB and \
                 MySQL with its database, such as table=public.dlock",
            ));
        }
        self.connections(for_leases)
    }

    fn connections(self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        let (connector, settings) = (self.connector(), self.settings.clone());
        let server = Arc::new(S::on_table(&settings.table, &connector, &settings));
        // What keeps a lock must not come from a pool that lends it to others, and closes it when it likes.
        let pool = self.pool.clone().filter(|_| for_leases);
        let maker = settings.makes.then_some(self);
        Connections::start(server, connector, pool, for_leases, &settings, maker)
    }
}
