//! Proxies that pool transactions, and do not know prepared statements.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresOptions};

use crate::support::{Db, is_error, once, take, until};

/// A PgBouncer in front of a server, which gives each transaction any of two connections.
struct PgBouncer {
    child: Child,
    command: Command,
    port: u16,
    url: String,
    _directory: tempfile::TempDir,
}

impl PgBouncer {
    async fn start(server: &PostgresServer) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nserver_round_robin = 1\n",
            server.address().port()
        );
        std::fs::write(&file, settings).unwrap();
        // It refuses to run as root.
        let is_root =
            std::fs::metadata("/proc/self").is_ok_and(|us| std::os::unix::fs::MetadataExt::uid(&us) == 0);
        let mut command = if is_root {
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(directory.path(), readable).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--", "pgbouncer"]);
            command
        } else {
            Command::new("pgbouncer")
        };
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("pgbouncer is installed");
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        let this = Self { child, command, port, url, _directory: directory };
        this.listens().await;
        this
    }

    async fn listens(&self) {
        let port = self.port;
        until("PgBouncer listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
    }

    /// Kills it, and starts it again where it was.
    async fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = self.command.spawn().unwrap();
        self.listens().await;
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_rows_work_behind_a_pooler_without_prepared_statements() {
    let server = <PostgresServer as Db>::start();
    let pooler = PgBouncer::start(&server).await;
    let url = format!("{}&statements=simple&migrate=true", pooler.url);
    let backend = Postgres::connect(&url).await.unwrap();
    let locks = Locks::builder(backend.clone())
        .with_lease(Duration::from_secs(2))
        .with_label("it's \\ a \"label\" $1");
    let locks = locks.with_wait(Duration::from_secs(20)).build().unwrap();
    let kept: Vec<_> =
        [take(&locks, "'; DROP TABLE dlock; --").await, take(&locks, "$1 zürich \\ 🔒").await].into();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    take(&locks, "a").await.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let renewals = locks.stats().renewals;
    until("renewals", || locks.stats().renewals >= renewals + 4).await;
    let theirs = Locks::new(Postgres::connect(&server.url()).await.unwrap());
    for guard in kept {
        guard.check().unwrap();
        is_error(once(&theirs, guard.key()).acquire().await, ErrorKind::Busy, &[]);
        let holder = locks.inspect(guard.key()).await.unwrap().unwrap();
        assert_eq!((holder.fence, holder.label.as_deref()), (guard.fence(), Some("it's \\ a \"label\" $1")));
        guard.release().await.unwrap();
    }
    assert_eq!(locks.holders().await.unwrap(), []);
    server.age("a");
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(server.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_restarted_costs_no_lock() {
    let server = <PostgresServer as Db>::start();
    let mut pooler = PgBouncer::start(&server).await;
    let backend = Postgres::connect(&format!("{}&statements=simple&migrate=true", pooler.url)).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(6)).with_wait(Duration::from_secs(20));
    let locks = locks.build().unwrap();
    let guard = take(&locks, "a").await;
    for _ in 0..2 {
        pooler.restart().await;
        assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
        take(&locks, "b").await.release().await.unwrap();
        let renewals = locks.stats().renewals;
        until("a renewal through the new one", || locks.stats().renewals > renewals).await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simple_statements_are_one_message_each() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let proxy = server.proxy();
    let options = PostgresOptions::from_url(&server.url_through(proxy.address())).unwrap();
    let locks = Locks::new(options.with_simple_statements(true).connect().await.unwrap());
    take(&locks, "a").await.release().await.unwrap();
    // What is asked next is one message, whose reply is the grant.
    proxy.lose_reply(1, "QUERY", dlock_rig::proxy::Loss::Cut);
    let guard = take(&locks, "a").await;
    assert_eq!((proxy.lost(), locks.stats().rechecks), (1, 1), "the grant was adopted");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simple_statements_list_and_prune_however_the_database_writes_bytes() {
    let server = <PostgresServer as Db>::start();
    server.query("ALTER DATABASE postgres SET bytea_output = 'escape'");
    let backend =
        Postgres::connect(&format!("{}&migrate=true&statements=simple", server.url())).await.unwrap();
    let locks = Locks::new(backend.clone());
    let key = "a\\b\tc 🔒";
    let guard = take(&locks, key).await;
    let held = locks.holders().await.unwrap();
    assert_eq!(held.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [key]);
    guard.release().await.unwrap();
    take(&locks, "old").await.release().await.unwrap();
    server.age("old");
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
}
