//! Finds out how servers treat a connection that opens no session, which the client library does not report.

use std::io::ErrorKind;
use std::time::Duration;

use dlock_core::backend::within;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The time that a server may take to accept a connection, or to end one.
const PATIENCE: Duration = Duration::from_millis(500);

/// The fate of a connection on which nothing is sent; the greater, the more it says of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Greeting {
    /// No connection comes about.
    None,
    /// The connection stays open.
    Silent,
    /// The connection is ended at once, as by a server that has too many of this host.
    Closed,
}

/// Returns the greeting that says the most, of several servers.
pub(super) async fn of_any(servers: &str) -> Greeting {
    // All at once: the caller waits for this, only to learn why it has no session.
    let greetings: JoinSet<_> = servers.split(',').map(|server| of(server.to_owned())).collect();
    greetings.join_all().await.into_iter().max().unwrap_or(Greeting::None)
}

#[expect(clippy::disallowed_methods, reason = "it runs on the threads of dlock alone")]
async fn of(server: String) -> Greeting {
    let mut connection = match within(PATIENCE, TcpStream::connect(server)).await {
        Some(Ok(connection)) => connection,
        // The server ended the connection before this process saw that it was established.
        Some(Err(error)) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            return Greeting::Closed;
        }
        _ => return Greeting::None,
    };
    match within(PATIENCE, connection.read_u8()).await {
        // Also the end of the stream, which `read_u8` reports as an error.
        Some(Err(_)) => Greeting::Closed,
        Some(Ok(_)) | None => Greeting::Silent,
    }
}
