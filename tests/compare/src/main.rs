//! The same faults against dlock and other lock libraries, side by side.
//!
//! ```text
//! cargo run --release -p dlock-compare -- [--store redis|zookeeper|postgres] [--only ROW] [--library NAME] [--quick]
//! ```
//!
//! Writes the figures into docs/compared.md; those of a part of the rows or libraries replace the same ones there.

#![forbid(unsafe_code)]

mod contender;
mod page;
mod peers;
mod rows;
mod stage;
#[expect(clippy::future_not_send, reason = "all of it runs on one thread")]
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use dlock_interop::collector::of_the_project;

use page::Table;
use peers::{PEERS, Peer, Programs};
use rows::{Cell, Row};
use stage::{Hall, Stage, Store, Volume};

/// Puts the same faults to dlock and other lock libraries, and writes the figures into docs/compared.md.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only these faults.
    #[arg(long)]
    only: Vec<Row>,
    /// Only on this server.
    #[arg(long)]
    store: Vec<Store>,
    /// Only libraries whose name contains this; dlock is always one of them in a crowd, which is compared with it.
    #[arg(long)]
    library: Vec<String>,
    /// In small, and without writing the page: shows that it works.
    #[arg(long)]
    quick: bool,
    /// The seed of all that is random here.
    #[arg(long)]
    seed: Option<u64>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Works as a process that uses a library.
    #[command(hide = true)]
    Worker { library: String, url: String, lease_ms: u64 },
}

/// Leases, and the timeouts of sessions.
const LEASE: Duration = Duration::from_secs(6);
const QUICK: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Some(Command::Worker { library, url, lease_ms }) => {
            worker::serve(library, url, Duration::from_millis(*lease_ms))
        }
        None => compare(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn compare(arguments: &Arguments) -> Result<()> {
    let volume =
        Volume { quick: arguments.quick, seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32)) };
    let lease = if volume.quick { QUICK } else { LEASE };
    println!("seed {} (repeat with --seed {0}); a lease is {lease:?}", volume.seed);
    let started = Instant::now();
    let wanted: Vec<Peer> = PEERS.into_iter().filter(|peer| arguments.wants(peer)).collect();
    let programs = Programs::build(&wanted).await;
    let page = of_the_project("docs/compared.md");
    for store in Store::value_variants() {
        let peers: Vec<&Peer> = wanted.iter().filter(|peer| peer.store == *store).collect();
        if peers.is_empty() {
            continue;
        }
        let columns =
            PEERS.iter().filter(|peer| peer.store == *store).map(|peer| peer.name.to_owned()).collect();
        let known = page::read(&page)?.remove(store.name()).filter(|known| known.columns == columns);
        let mut table = Table { columns, lines: known.map(|known| known.lines).unwrap_or_default() };
        let hall = Hall::start(*store, volume.quick)?;
        for row in Row::value_variants() {
            if !arguments.only.is_empty() && !arguments.only.contains(row) {
                continue;
            }
            let mut ours = None;
            for peer in &peers {
                let stage = Stage::new(**peer, lease, volume, &hall, &programs);
                let text = text(row.measure(&stage).await, peer, &mut ours);
                println!(
                    "[{:>4.0?}] {}, {}: {}: {text}",
                    started.elapsed(),
                    store.name(),
                    peer.name,
                    row.title()
                );
                table.set(row.title(), peer.name, &text);
            }
        }
        let place = |title: &str| Row::value_variants().iter().position(|row| row.title() == title);
        table.lines.retain(|(title, _)| place(title).is_some());
        table.lines.sort_by_key(|(title, _)| place(title));
        if !volume.quick {
            save(&page, *store, table)?;
        }
    }
    Ok(())
}

/// The text of a cell. What is timed is compared with `ours`, the time of dlock, which comes first.
fn text(measured: Result<Cell>, peer: &Peer, ours: &mut Option<Duration>) -> String {
    match measured {
        Ok(Cell::Text(text)) => text,
        Ok(Cell::Timed(time, rest)) => {
            println!("{}: {time:.1?}", peer.name);
            if peer.is_dlock() && ours.is_none() {
                *ours = Some(time);
            }
            let ratio = ours.map(|ours| time.as_secs_f64() / ours.as_secs_f64());
            ratio.map_or_else(|| rest.clone(), |ratio| format!("{ratio:.1}; {rest}"))
        }
        Err(error) => {
            println!("not run: {error:#}");
            "not run".to_owned()
        }
    }
}

/// Puts the table of a store into the page.
fn save(page: &Path, store: Store, table: Table) -> Result<()> {
    let mut tables = page::read(page)?;
    tables.insert(store.name().to_owned(), table);
    let names = Store::value_variants().iter().map(|store| store.name().to_owned());
    let ordered: Vec<_> = names.filter_map(|name| tables.remove(&name).map(|table| (name, table))).collect();
    page::write(page, &ordered)
}

impl Arguments {
    fn wants(&self, peer: &Peer) -> bool {
        let named = self.library.is_empty()
            || self.library.iter().any(|name| peer.name.to_lowercase().contains(&name.to_lowercase()))
            || (peer.is_dlock() && self.only == [Row::Crowd]);
        named && (self.store.is_empty() || self.store.contains(&peer.store))
    }
}
