//! How servers meet a connection that opens no session: what the client library does not tell.

use std::io::ErrorKind;
use std::time::Duration;

use dlock_core::backend::within;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long a server may take to accept a connection, or to end one.
const PATIENCE: Duration = Duration::from_millis(500);

/// What becomes of a connection on which nothing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Greeting {
    /// There is none.
    None,
    /// It stays open.
    Silent,
    /// It is ended at once, as by a server that has too many of the host.
    Closed,
}

/// The one of several servers that says the most.
pub(super) async fn of_any(servers: &str) -> Greeting {
    let greetings: JoinSet<_> = servers.split(',').map(|server| of(server.to_owned())).collect();
    greetings.join_all().await.into_iter().max().unwrap_or(Greeting::None)
}

async fn of(server: String) -> Greeting {
    let mut connection = match within(PATIENCE, TcpStream::connect(server)).await {
        Some(Ok(connection)) => connection,
        // It was ended before this process looked whether it had come about.
        Some(Err(error)) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            return Greeting::Closed;
        }
        _ => return Greeting::None,
    };
    match within(PATIENCE, connection.read_u8()).await {
        Some(Err(_)) => Greeting::Closed,
        Some(Ok(_)) | None => Greeting::Silent,
    }
}
