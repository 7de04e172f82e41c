//! A fleet that holds many locks: what they cost the clients and the server, and what comes through trouble.
//!
//! ```text
//! cargo xtask bench fleet                       # 10,000 clients and 1,000,000 locks, on each backend
//! cargo xtask bench fleet redis --quick         # 200 clients and 20,000 locks, in less than a minute
//! cargo xtask bench fleet redis --clients 1000 --locks 100000 --lease 30 --processes 4 --sharing 10
//! cargo xtask bench fleet redis --clients 1000 --session 10   # by sessions with this timeout in seconds
//! ```
//!
//! The clients have an engine each, and are tasks of some processes. Those of Redis have connections of their own, one
//! for what their tasks ask and one for renewals, unless some share them (`--sharing`); those of databases share the
//! connections of their process. SQLite and MariaDB have a tenth of the locks, unless told otherwise.
//!
//! Of Redis, 10,000 clients with connections of their own are 20,000 connections to one server, and each process needs
//! two descriptors for each of its clients: see `ulimit -n`.

#![forbid(unsafe_code)]

mod part;
mod store;

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dlock_bench::Bench;
use dlock_bench::measure::{Options, runtime};
use dlock_bench::report::Row;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::{RedisCluster, RedisOptions, RedisServer};
use tokio::time::{Instant, sleep_until};

use crate::part::{Part, Running, Said};
use crate::store::Store;

#[derive(Debug, Parser)]
#[command(about = "Measures a fleet that holds many locks", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// How many clients
    #[arg(long)]
    clients: Option<usize>,
    /// How many locks they hold
    #[arg(long)]
    locks: Option<usize>,
    /// How many processes the clients are in
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// The lease, in seconds
    #[arg(long)]
    lease: Option<u64>,
    /// A session of each client keeps its locks, with this timeout in seconds; the lease is then the time of a look
    #[arg(long)]
    session: Option<u64>,
    /// How many clients of a process share their connections to Redis
    #[arg(long, default_value_t = 1)]
    sharing: usize,
    /// How many tasks wait for locks that another client has
    #[arg(long)]
    waiters: Option<usize>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One of the processes, started by the bench itself
    #[command(hide = true)]
    Part(Part),
}

#[derive(Clone)]
struct Fleet {
    clients: usize,
    locks: usize,
    processes: usize,
    lease: u64,
    session: Option<u64>,
    sharing: usize,
    waiters: usize,
    /// Whether the number of locks was not given.
    default_locks: bool,
}

const BENCHES: &[Bench<Fleet>] = &[
    ("redis", on_redis),
    ("cluster", on_cluster),
    ("postgres", on_postgres),
    ("mariadb", on_mariadb),
    ("sqlite", on_sqlite),
];

/// How often the processes are asked in a lease.
const LOOKS: u32 = 30;

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.role {
        Some(Role::Part(part)) => runtime(true)?.block_on(part.play()),
        None => dlock_bench::run(BENCHES, cli.options.filter.as_deref(), || {
            let (clients, locks, lease) =
                if cli.options.quick { (200, 20_000, 6) } else { (10_000, 1_000_000, 120) };
            let locks = cli.locks.unwrap_or(locks);
            Ok(Fleet {
                clients: cli.clients.unwrap_or(clients),
                locks,
                processes: cli.processes.max(1),
                lease: cli.lease.unwrap_or(lease),
                session: cli.session,
                sharing: cli.sharing.max(1),
                waiters: cli.waiters.unwrap_or(locks / 100),
                default_locks: cli.locks.is_none(),
            })
        }),
    }
}

fn on_redis(fleet: &Fleet) -> Result<Vec<Row>> {
    fleet.measure(&mut Store::Redis(durable().start()?))
}

fn on_cluster(fleet: &Fleet) -> Result<Vec<Row>> {
    fleet.measure(&mut Store::Cluster(RedisCluster::start_with(durable())?))
}

/// A server that finds what it had after a restart.
fn durable() -> RedisOptions {
    RedisServer::options().append_only("everysec").argument("maxclients", "30000")
}

fn on_postgres(fleet: &Fleet) -> Result<Vec<Row>> {
    let server = PostgresServer::options().setting("max_connections", "300").start()?;
    fleet.measure(&mut Store::Postgres(server))
}

fn on_mariadb(fleet: &Fleet) -> Result<Vec<Row>> {
    fleet.smaller().measure(&mut Store::Mariadb(MysqlServer::start()?))
}

fn on_sqlite(fleet: &Fleet) -> Result<Vec<Row>> {
    fleet.smaller().measure(&mut Store::Sqlite(tempfile::tempdir()?))
}

impl Fleet {
    /// For what holds fewer locks.
    fn smaller(&self) -> Self {
        let (clients, locks) = if self.default_locks {
            (self.clients / 10, self.locks / 10)
        } else {
            (self.clients, self.locks)
        };
        Self { clients, locks, waiters: self.waiters.min(locks / 100), ..self.clone() }
    }

    fn measure(&self, store: &mut Store) -> Result<Vec<Row>> {
        runtime(true)?.block_on(async {
            let url = store.url();
            // The table is made by one.
            dlock::connect(&url).await?.lock("first").try_acquire().await?;
            let mut parts = Vec::new();
            let (clients, each) = (self.clients / self.processes, self.locks / self.clients);
            for number in 0..self.processes {
                let waiters = self.waiters / self.processes;
                let (lease, sharing, processes) = (self.lease, self.sharing, self.processes);
                let (url, session) = (url.clone(), self.session.unwrap_or(0));
                let part = Part { url, number, processes, clients, each, lease, session, sharing, waiters };
                parts.push(part.start()?);
            }
            let before = all_say(&mut parts).await?;
            let server_before = store.memory();
            let locks = (clients * each * self.processes) as f64;
            let came = told(&mut parts, "come").await?;
            eprintln!("  all came in {:.1} s", came.took);
            let name = store.name();
            let what = format!("{name}, {} clients hold {locks} locks: taken in", clients * self.processes);
            let mut rows = vec![
                Row::new(what, came.took, "s").beside(format!("{:.0} a second", locks / came.took)),
                Row::new("    memory of a client per lock", (came.memory - before.memory) / locks, "B")
                    .beside(format!(
                        "{:.0} kB a client",
                        (came.memory - before.memory) / 1e3 / self.clients as f64
                    )),
                Row::new("    memory of the server per lock", (store.memory() - server_before) / locks, "B"),
            ];
            rows.extend(self.renewals(store, &mut parts, locks).await?);
            rows.extend(self.waiting(store, &mut parts).await?);
            if store.restarts() {
                rows.extend(self.restart(store, &mut parts, locks).await?);
            }
            let deployed = told(&mut parts, "deploy").await?;
            rows.push(
                Row::new(
                    "    a tenth of the clients go, and others take their locks: in",
                    deployed.took,
                    "s",
                )
                .beside(format!("{:.0} locks are held", deployed.held)),
            );
            rows.extend(inherit(&mut parts).await?);
            for part in parts {
                part.end().await?;
            }
            Ok(rows)
        })
    }

    /// How many renewals there are in each of some intervals.
    async fn watch(&self, parts: &mut [Running], looks: u32) -> Result<(Vec<f64>, Said)> {
        let (mut last, mut counts) = (told(parts, "look").await?, Vec::new());
        let (begun, interval) = (Instant::now(), Duration::from_secs(self.lease) / LOOKS);
        for look in 1..=looks {
            sleep_until(begun + interval * look).await;
            let said = told(parts, "look").await?;
            counts.push(said.renewals - last.renewals);
            last = said;
        }
        Ok((counts, last))
    }

    /// While nothing happens.
    async fn renewals(&self, store: &Store, parts: &mut [Running], locks: f64) -> Result<Vec<Row>> {
        // The first ones are as close together as the locks were taken.
        self.watch(parts, LOOKS).await?;
        let (before, calls, used) = (told(parts, "look").await?, store.calls(), store.processor_time());
        let (counts, after) = self.watch(parts, LOOKS).await?;
        let renewed = after.renewals - before.renewals;
        let time = self.lease as f64;
        let mean = renewed / counts.len() as f64;
        let most = counts.iter().copied().fold(0.0, f64::max);
        let mut through = 0.0;
        let through = counts.iter().take_while(|count| {
            let before = through;
            through += **count;
            before < locks
        });
        let through = through.count() as f64 * time / f64::from(LOOKS);
        let mut rows = vec![
            Row::new("    renewals a second", renewed / time, "")
                .beside(format!("{:.2} a lease", renewed / locks)),
            Row::new("    the most in a thirtieth of the lease / mean", most / mean, "x"),
            Row::new("    as many as there are locks within", through, "s").beside(format!("lease {time} s")),
            Row::new(
                "    processor time of the clients per renewal",
                (after.used - before.used) / renewed * 1e6,
                "us",
            ),
            Row::new(
                "    processor time of the server per renewal",
                (store.processor_time() - used) / renewed * 1e6,
                "us",
            )
            .beside(format!("{:.0} % of a core", (store.processor_time() - used) / time * 100.0)),
        ];
        if let (Some(after), Some(before)) = (store.calls(), calls) {
            rows.push(Row::new("    renewals a call", renewed / (after - before), ""));
        }
        rows.push(Row::new("    lost", after.lost - before.lost, "").at_most(
            after.lost - before.lost,
            0.0,
            "",
        ));
        Ok(rows)
    }

    /// Tasks wait for locks that others have, each for one of its own, so that each is the first in its line.
    async fn waiting(&self, store: &Store, parts: &mut [Running]) -> Result<Vec<Row>> {
        let waiters = (self.waiters / self.processes * self.processes) as f64;
        if waiters == 0.0 {
            return Ok(Vec::new());
        }
        const LONG: Duration = Duration::from_secs(10);
        let measured = async |parts: &mut [Running]| {
            let (before, calls, used) = (told(parts, "look").await?, store.calls(), store.processor_time());
            tokio::time::sleep(LONG).await;
            let (after, calls_after) = (told(parts, "look").await?, store.calls());
            let calls = calls.zip(calls_after).map_or(f64::NAN, |(before, after)| after - before);
            let of_server = store.processor_time() - used;
            anyhow::Ok((
                after,
                [calls, after.used - before.used, of_server].map(|all| all / LONG.as_secs_f64()),
            ))
        };
        let (before, without) = measured(parts).await?;
        let server = store.memory();
        told(parts, "wait").await?;
        // Until they have asked for the first time, and listen.
        tokio::time::sleep(LONG / 2).await;
        let (after, with) = measured(parts).await?;
        let memory = (after.memory - before.memory) / waiters;
        let what = format!("    {waiters} tasks wait, for a lock each: memory of the clients for each");
        let rows = vec![
            Row::new(what, memory, "B")
                .beside(format!("{:.0} B of the server", (store.memory() - server) / waiters)),
            Row::new("    calls a second for each", (with[0] - without[0]) / waiters, ""),
            Row::new(
                "    processor time a second for each: clients",
                (with[1] - without[1]) / waiters * 1e6,
                "us",
            )
            .beside(format!("server {:.1} us", (with[2] - without[2]) / waiters * 1e6)),
        ];
        told(parts, "leave").await?;
        Ok(rows)
    }

    /// The server is stopped and started again, with what it had.
    async fn restart(&self, store: &mut Store, parts: &mut [Running], locks: f64) -> Result<Vec<Row>> {
        let before = told(parts, "look").await?;
        let begun = Instant::now();
        store.restart()?;
        let took = begun.elapsed().as_secs_f64();
        let (counts, after) = self.watch(parts, LOOKS).await?;
        let mean = locks * 3.4 / f64::from(LOOKS);
        let most = counts.iter().copied().fold(0.0, f64::max);
        let lost = after.lost - before.lost;
        Ok(vec![
            Row::new("    a restart of the server takes", took, "s")
                .beside(format!("{:.0} renewals failed", after.failed - before.failed)),
            Row::new("    the most renewals after it / mean", most / mean, "x"),
            Row::new("    lost by it", lost, "").at_most(lost, 0.0, ""),
        ])
    }
}

/// One process is killed, and another one waits for some of its locks.
async fn inherit(parts: &mut Vec<Running>) -> Result<Vec<Row>> {
    if parts.len() < 2 {
        return Ok(Vec::new());
    }
    let killed = parts.remove(0);
    // The last one waits for those of the first.
    let Some(heir) = parts.last_mut() else { return Ok(Vec::new()) };
    heir.tell("inherit").await?;
    // Until they have asked for the first time, and wait.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let begun = Instant::now();
    killed.kill().await?;
    let said = heir.says().await?;
    let took = begun.elapsed().as_secs_f64();
    let what = format!(
        "    a process is killed: the {:.0} locks that another one waits for are free in",
        said.inherited
    );
    Ok(vec![Row::new(what, took, "s")])
}

/// Has all processes do something, and returns what they say in the end.
async fn told(parts: &mut [Running], word: &str) -> Result<Said> {
    for part in parts.iter_mut() {
        part.tell(word).await?;
    }
    all_say(parts).await
}

async fn all_say(parts: &mut [Running]) -> Result<Said> {
    let mut said = Vec::new();
    for part in parts {
        said.push(part.says().await?);
    }
    Ok(Said::all(&said))
}
