//! One key that everybody wants: how often it is granted, and to whom.
//!
//! ```text
//! cargo xtask bench hot                         # all of it, on Redis, PostgreSQL, MariaDB and SQLite
//! cargo xtask bench hot redis                   # the backends with this in their name
//! cargo xtask bench hot --quick                 # shorter, for a first look
//! cargo xtask bench hot redis --only fleet      # one of the settings
//! ```
//!
//! Each process is one of the system, with an engine of its own. With and without handoff take turns in every round, so
//! that they see the same machine. A missed target is shown, and is not a failure of the run.

#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dlock_bench::Bench;
use dlock_bench::crowd::{self, Part};
use dlock_bench::distance::away;
use dlock_bench::measure::{Options, runtime};
use dlock_bench::report::{Row, Spread};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;

#[derive(Debug, Parser)]
#[command(about = "Measures one key that everybody wants", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Only the settings whose name contains this: tasks, far, processes, fleet, remote, greedy
    #[arg(long)]
    only: Option<String>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One of the processes, started by the bench itself
    #[command(hide = true)]
    Crowd(Part),
}

/// How many scripts the server was asked to run so far, and how many commands it carried out, those in scripts too.
type Calls<'a> = dyn Fn() -> [u64; 2] + Sync + 'a;

struct Settings {
    quick: bool,
    only: Option<String>,
}

const BENCHES: &[Bench<Settings>] =
    &[("redis", on_redis), ("postgres", on_postgres), ("mariadb", on_mariadb), ("sqlite", on_sqlite)];

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.role {
        // As many threads as a service would have here.
        Some(Role::Crowd(part)) => {
            runtime(true)?.block_on(async { part.play(dlock::connect(&part.url).await?).await })
        }
        None => dlock_bench::run(BENCHES, cli.options.filter.as_deref(), || {
            Ok(Settings { quick: cli.options.quick, only: cli.only })
        }),
    }
}

fn on_redis(settings: &Settings) -> Result<Vec<Row>> {
    let server = RedisServer::start()?;
    let far = server.url_through(away(server.address(), Duration::from_micros(500))?);
    let calls = || {
        let calls = server.command_calls();
        // What the locks do goes over the wire as calls of scripts.
        [calls.get("evalsha").copied().unwrap_or_default(), calls.values().sum()]
    };
    settings.measure("Redis", &server.url(), Some(&far), Some(&calls))
}

fn on_postgres(settings: &Settings) -> Result<Vec<Row>> {
    // Ten processes open more than the 100 that are the server's default; those that got none would be measured.
    let server = PostgresServer::options().setting("max_connections", "300").start()?;
    settings.measure("PostgreSQL", &format!("{}&migrate=true", server.url()), None, None)
}

fn on_mariadb(settings: &Settings) -> Result<Vec<Row>> {
    let server = MysqlServer::start()?;
    settings.measure("MariaDB", &format!("{}?migrate=true", server.url()), None, None)
}

fn on_sqlite(settings: &Settings) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    settings.measure("SQLite", &url, None, None)
}

/// How the lock goes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Passed on inside the process, which is the default.
    Handoff,
    /// Released and acquired each time.
    Without,
    /// In the order in which they came, those of all processes.
    Fair,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Without => "without",
            Self::Fair => "fair",
        }
    }

    /// What the processes call it.
    const fn mode(self) -> &'static str {
        if matches!(self, Self::Handoff) { "alone" } else { self.name() }
    }
}

/// What came of it: how long each grant was waited for, in microseconds, sorted.
struct Got {
    waits: Vec<u32>,
}

impl Got {
    fn new(mut waits: Vec<u32>) -> Self {
        waits.sort_unstable();
        Self { waits }
    }

    fn grants(&self) -> f64 {
        self.waits.len() as f64
    }

    /// The wait of which so many of a hundred are not longer, in milliseconds.
    fn wait(&self, percent: usize) -> f64 {
        let at = (self.waits.len() * percent / 100).min(self.waits.len().saturating_sub(1));
        self.waits.get(at).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }

    /// What all of them got.
    fn all(parts: &[Self]) -> Self {
        Self::new(parts.iter().flat_map(|part| &part.waits).copied().collect())
    }
}

/// The processes of one setting: how many, with how many tasks each, which hold the lock for so many microseconds.
struct Fleet<'a> {
    name: &'a str,
    processes: &'a [usize],
    hold: u64,
}

impl Settings {
    fn measure(
        &self,
        backend: &str,
        url: &str,
        far: Option<&str>,
        calls: Option<&Calls<'_>>,
    ) -> Result<Vec<Row>> {
        runtime(true)?.block_on(async {
            // The table is made by one.
            dlock::connect(url).await?.lock("first").try_acquire().await?;
            let mut rows = Vec::new();
            let tasks = Fleet { name: "tasks", processes: &[64], hold: 0 };
            if self.wants(&tasks) {
                let what = format!("{backend}, one process of 64 tasks");
                rows.extend(self.rates(&what, url, &tasks, 20.0).await?);
            }
            let tasks = Fleet { name: "far", ..tasks };
            if let Some(far) = far.filter(|_| self.wants(&tasks)) {
                let what = format!("{backend}, the same, 0.5 ms away");
                rows.extend(self.rates(&what, far, &tasks, 100.0).await?);
            }
            let processes = Fleet { name: "processes", processes: &[16; 4], hold: 0 };
            if self.wants(&processes) {
                let what = format!("{backend}, four processes of 16 tasks");
                rows.extend(self.rates(&what, url, &processes, 5.0).await?);
            }
            let fleet = Fleet { name: "fleet", processes: &[100; 10], hold: 5_000 };
            if self.wants(&fleet) {
                rows.extend(self.shares(backend, (url, calls), &fleet).await?);
            }
            let remote = Fleet { name: "remote", processes: &[20, 1], hold: 1_000 };
            if self.wants(&remote) {
                let got = self.last(url, &remote, Way::Handoff).await?;
                let part = part_of(&got[1], &got);
                let what = format!("{backend}, one task against 20 of another process: its part");
                rows.push(Row::new(what, part, "").at_least(part, 0.25, ""));
            }
            let greedy = Fleet { name: "greedy", processes: &[1, 20], hold: 0 };
            if self.wants(&greedy) {
                let got = self.last(url, &greedy, Way::Handoff).await?;
                let part = part_of(&got[0], &got);
                let what = format!("{backend}, one that takes it again and again against 20: its part");
                rows.push(Row::new(what, part, "").at_most(part, 0.6, ""));
            }
            Ok(rows)
        })
    }

    /// Whether the setting is measured, which is said then: each takes half a minute to two minutes.
    fn wants(&self, fleet: &Fleet<'_>) -> bool {
        let wanted = self.only.as_ref().is_none_or(|only| fleet.name.contains(&**only));
        if wanted {
            eprintln!("  {} ...", fleet.name);
        }
        wanted
    }

    /// How often the lock is granted, with and without handoff.
    async fn rates(&self, what: &str, url: &str, fleet: &Fleet<'_>, limit: f64) -> Result<Vec<Row>> {
        let time = if self.quick { 1_000 } else { 3_000 };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..if self.quick { 3 } else { 5 } {
            for (way, rounds) in [(Way::Handoff, &mut with), (Way::Without, &mut without)] {
                rounds.push(Got::all(&play(url, fleet, time, way).await?));
            }
        }
        let rate = |got: &Got| got.grants() * 1e3 / time as f64;
        let median =
            |rounds: &[Got], figure: &dyn Fn(&Got) -> f64| Spread::of(rounds.iter().map(figure).collect());
        let mut rows = Vec::new();
        for (name, rounds) in [("handoff", &with), ("without", &without)] {
            let row = Row::spread(format!("{what}, {name}: sections a second"), median(rounds, &rate), "");
            rows.push(row);
            let [p50, p99] = [50, 99].map(|part| median(rounds, &|got| got.wait(part)).median);
            rows.push(Row::new("    p99 of the wait", p99, "ms").beside(format!("p50 {p50:.2} ms")));
        }
        let ratios = with.iter().zip(&without).map(|(with, without)| rate(with) / rate(without));
        let ratio = Spread::of(ratios.collect());
        rows.push(Row::spread("    handoff / without", ratio, "x").at_least(ratio.median, limit, "x"));
        Ok(rows)
    }

    /// What each process gets, and how long each task waits.
    async fn shares(
        &self,
        backend: &str,
        (url, calls): (&str, Option<&Calls<'_>>),
        fleet: &Fleet<'_>,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let fair = dlock::connect(url).await?.capabilities().fair_on_request;
        for way in [Way::Handoff, Way::Without].into_iter().chain(fair.then_some(Way::Fair)) {
            let before = calls.map(|calls| calls());
            let got = self.last(url, fleet, way).await?;
            let made = calls.zip(before).map(|(calls, before)| {
                let after = calls();
                [after[0] - before[0], after[1] - before[1]]
            });
            let all = Got::all(&got);
            let parts = Spread::of(got.iter().map(|part| part_of(part, &got) * got.len() as f64).collect());
            let name = way.name();
            let what = format!("{backend}, ten processes of 100, 5 ms each, {name}: least share");
            let longest = all.wait(100) / all.wait(50);
            let (least, most) =
                (Row::new(what, parts.min, "x"), Row::new("    largest share", parts.max, "x"));
            let waits = Row::new("    longest wait / median", longest, "x");
            let waits = waits.beside(format!("{:.0} ms, {} grants", all.wait(50), all.waits.len()));
            rows.extend(match way {
                Way::Handoff => [
                    least.at_least(parts.min, 0.5, "x"),
                    most.at_most(parts.max, 2.0, "x"),
                    waits.at_most(longest, 3.0, "x"),
                ],
                Way::Without | Way::Fair => [least, most, waits],
            });
            if let Some(made) = made {
                let [sent, made] = made.map(|made| made as f64 / all.grants());
                let row = Row::new("    requests to the server for a grant", sent, "");
                let row = row.beside(format!("{made:.1} commands with those in scripts"));
                rows.push(if way == Way::Handoff { row.at_most(sent, 1.5, "") } else { row });
            }
            let index = jain(&got);
            let row = Row::new("    Jain's index of the processes", index, "");
            rows.push(if way == Way::Fair { row.at_least(index, 0.98, "") } else { row });
        }
        Ok(rows)
    }

    /// What comes of one long round.
    async fn last(&self, url: &str, fleet: &Fleet<'_>, way: Way) -> Result<Vec<Got>> {
        let time = match (fleet.name, self.quick) {
            ("fleet", true) => 16_000,
            ("fleet", false) => 40_000,
            (_, true) => 3_000,
            (_, false) => 10_000,
        };
        play(url, fleet, time, way).await
    }
}

/// Its part of all grants.
fn part_of(one: &Got, all: &[Got]) -> f64 {
    one.grants() / all.iter().map(Got::grants).sum::<f64>()
}

/// Jain's index of fairness: 1 where all processes got the same, and one part of their number where one got all.
fn jain(all: &[Got]) -> f64 {
    let (sum, squares) = all
        .iter()
        .map(Got::grants)
        .fold((0.0, 0.0), |(sum, squares), grants| (sum + grants, grants.mul_add(grants, squares)));
    sum * sum / (squares * all.len() as f64)
}

/// Lets the processes have the lock for so many milliseconds.
async fn play(url: &str, fleet: &Fleet<'_>, time: u64, way: Way) -> Result<Vec<Got>> {
    let part = |tasks: &usize| Part::new(url, fleet.name, way.mode(), *tasks, fleet.hold, time);
    let waits = crowd::play(fleet.processes.iter().map(part)).await?;
    Ok(waits.into_iter().map(Got::new).collect())
}
