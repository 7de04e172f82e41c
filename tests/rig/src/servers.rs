//! Real servers for tests: started on free loopback ports in directories of their own, gone when dropped.
//!
//! A server is stopped by the process id it was started with, also when the test panics, and also when the whole test
//! process is killed. A program that is missing is an error that names the command to install it, never a skipped test.
//!
//! [`Process`], [`Ports`] and [`Running`] are what every kind of server shares; [`SteppedClock`] lets a test set a
//! server's clock.

mod account;
mod clock;
mod directory;
mod error;
pub mod etcd;
pub mod mysql;
pub mod pgbouncer;
mod ports;
pub mod postgres;
mod process;
pub mod redis;
mod running;
mod tls;
pub mod zookeeper;

pub use clock::SteppedClock;
pub use error::ServerError;
pub use ports::Ports;
pub use process::{Process, Program};
pub use running::Running;
pub use tls::Certificates;
