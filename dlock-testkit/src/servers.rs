//! Real servers for tests: started on free loopback ports in directories of their own, gone when dropped.
//!
//! A server is stopped by the process id it was started with, also when the test panics, and also when the whole test
//! process is killed. A program that is missing is an error that names the command to install it, never a skipped test.
//!
//! [`Process`] and [`Ports`] are what every kind of server shares; [`SteppedClock`] lets a test set a server's clock.

#[cfg(any(feature = "mysql-server", feature = "postgres-server"))]
mod account;
mod clock;
mod error;
#[cfg(feature = "mysql-server")]
pub mod mysql;
mod ports;
#[cfg(feature = "postgres-server")]
pub mod postgres;
mod process;
#[cfg(feature = "redis-server")]
pub mod redis;
#[cfg(any(
    feature = "mysql-server",
    feature = "postgres-server",
    feature = "redis-server",
    feature = "zookeeper-tls"
))]
mod tls;
pub mod zookeeper;

pub use clock::SteppedClock;
pub use error::ServerError;
pub use ports::Ports;
pub use process::{Process, Program};
#[cfg(any(
    feature = "mysql-server",
    feature = "postgres-server",
    feature = "redis-server",
    feature = "zookeeper-tls"
))]
pub use tls::Certificates;
