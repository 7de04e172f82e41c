//! A service that books rooms, in several replicas that share its locks.
//!
//! Bookings are read, worked on and written back, so that two bookings of one room at the same time would both succeed.
//! A `#[distributed_lock]` on that function keeps them apart over all replicas, and a fence keeps out what comes too
//! late. Moving a booking takes the locks of both rooms, and the nightly settlement is done by whichever replica comes
//! first.
//!
//! ```text
//! cargo run -p rooms -- --replicas 3
//! cargo run -p rooms -- --replicas 3 --locks redis://127.0.0.1/
//! cargo run -p rooms --features etcd -- --replicas 3 --locks etcd://127.0.0.1/rooms
//! OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 cargo run -p rooms -- --replicas 3
//! cargo run -p rooms -- serve --listen 127.0.0.1:8080 --data rooms.db --locks sqlite://locks.db
//! ```

#![forbid(unsafe_code)]

mod bookings;
mod desk;
mod fleet;
mod load;
mod serve;
mod telemetry;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    about = "Books rooms in several replicas that share their locks",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(flatten)]
    show: Show,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One replica of the service
    Serve(Serve),
}

/// Starts replicas on loopback and a small load, and says what happened.
#[derive(Debug, Args)]
struct Show {
    /// Replicas of the service
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: u32,
    /// Requests in all
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Clients that send them
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Where the locks are, as `dlock::connect` takes it [default: a SQLite database in a temporary directory]
    #[arg(long, value_name = "URL", env = "DLOCK_URL", hide_env_values = true)]
    locks: Option<String>,
    /// Length of a night, in milliseconds: how often a settlement is due
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=86_400_000))]
    night: u64,
}

#[derive(Debug, Args)]
struct Serve {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// What this replica is called
    #[arg(long, default_value = "rooms-1")]
    name: String,
    /// Where the locks are
    #[arg(long, value_name = "URL", env = "DLOCK_URL", hide_env_values = true)]
    locks: String,
    /// The database of the bookings, which is made if it is missing
    #[arg(long)]
    data: PathBuf,
    /// Length of a night, in milliseconds: how often a settlement is due
    #[arg(long, value_name = "MS", default_value_t = 86_400_000, value_parser = clap::value_parser!(u64).range(50..=86_400_000))]
    night: u64,
    /// For whoever wants to see it suffer: `POST /block/{milliseconds}` blocks all threads of its runtime.
    #[arg(long, hide = true)]
    faults: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.role {
        Some(Role::Serve(serve)) => serve::serve(&serve).await,
        None => fleet::show(&cli.show).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rooms: {error:#}");
            ExitCode::FAILURE
        }
    }
}
