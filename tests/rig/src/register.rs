//! A register for other processes, over a socket of the loopback device.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use dlock_core::Fence;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use dlock_testkit::register::{Register, Stale};

/// Serves one register; ends when dropped.
#[derive(Debug)]
pub struct RegisterServer {
    register: Arc<Register>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl RegisterServer {
    /// Serves `register` on a free port of the loopback device.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn start(register: Register) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let (register, address) = (Arc::new(register), listener.local_addr()?);
        let mut tasks = JoinSet::new();
        let served = Arc::clone(&register);
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                clients.spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Ok(Self { register, address, _tasks: tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The register.
    #[must_use]
    pub fn register(&self) -> &Register {
        &self.register
    }
}

/// A client that disappears, killed for example, ends its task.
async fn serve(stream: TcpStream, register: Arc<Register>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        let Some(answer) = answer(&register, &line) else { return };
        let answer = match answer {
            Ok(value) => format!("value {value}\n"),
            Err(stale) => format!("stale {}\n", stale.highest),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
    }
}

/// `read FENCE` or `write FENCE READ VALUE`; nothing for anything else.
fn answer(register: &Register, line: &str) -> Option<Result<u64, Stale>> {
    let mut words = line.split_ascii_whitespace();
    let what = words.next()?;
    let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    match (what, numbers.as_slice()) {
        ("read", [fence]) => Some(register.read(Fence::new(*fence))),
        ("write", [fence, read, value]) => Some(register.write(Fence::new(*fence), *read, *value)),
        _ => None,
    }
}

/// A connection to a [`RegisterServer`].
#[derive(Debug)]
pub struct RegisterClient(BufReader<TcpStream>);

impl RegisterClient {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The value, or the refusal.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: connect anew after dropping it midway.
    pub async fn read(&mut self, fence: u64) -> io::Result<Result<u64, Stale>> {
        self.ask(format!("read {fence}\n")).await
    }

    /// Replaces the value, or is refused.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: connect anew after dropping it midway.
    pub async fn write(&mut self, fence: u64, read: u64, value: u64) -> io::Result<Result<u64, Stale>> {
        self.ask(format!("write {fence} {read} {value}\n")).await
    }

    async fn ask(&mut self, line: String) -> io::Result<Result<u64, Stale>> {
        self.0.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        let number = |text: &str| text.trim_end().parse().map_err(|_| io::Error::other("not a number"));
        if let Some(value) = answer.strip_prefix("value ") {
            return Ok(Ok(number(value)?));
        }
        match answer.strip_prefix("stale ") {
            Some(highest) => Ok(Err(Stale { highest: Fence::new(number(highest)?) })),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_remote_register_refuses_what_a_local_one_refuses() {
        let server = RegisterServer::start(Register::fenced()).await.unwrap();
        let mut old = RegisterClient::connect(server.address()).await.unwrap();
        let mut new = RegisterClient::connect(server.address()).await.unwrap();
        assert_eq!(old.read(1).await.unwrap(), Ok(0));
        assert_eq!(new.read(2).await.unwrap(), Ok(0));
        assert_eq!(new.write(2, 0, 1).await.unwrap(), Ok(1));
        assert_eq!(old.write(1, 0, 1).await.unwrap(), Err(Stale { highest: Fence::new(2) }));
        assert_eq!(server.register().record().len(), 4);
    }

    #[tokio::test]
    async fn nonsense_ends_the_connection_and_not_the_server() {
        let server = RegisterServer::start(Register::unfenced()).await.unwrap();
        let mut client = RegisterClient::connect(server.address()).await.unwrap();
        assert!(client.ask("write 1\n".into()).await.is_err());
        let mut client = RegisterClient::connect(server.address()).await.unwrap();
        assert_eq!(client.write(1, 0, 5).await.unwrap(), Ok(5));
    }
}
