//! Acquire and release of locks that nobody else wants.

use std::sync::Arc;

use anyhow::{Context, Result};
use dlock_bench_common::measure::{best, pace_row};
use dlock_bench_common::report::{Row, Spread};
use dlock_sql::{Mysql, MysqlOptions, Postgres, PostgresOptions};

use crate::Bench;
use crate::bare::{BareMysql, BarePostgres};
use crate::clients::{self, Client, Way};
use crate::statements;

const TASKS: [usize; 2] = [1, 8];
/// What dlock has to achieve of what the same statements do through the bare driver.
const PART: f64 = 0.9;

/// One of dlock's modes, and the clients it has to stand beside, with what it has to achieve in relation to each.
struct Contest {
    ours: Client,
    others: Vec<(Client, f64)>,
}

pub(crate) fn postgres(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let server = bench.postgres()?;
        let url = server.url();
        PostgresOptions::from_url(&url)?.migrate().await?;
        let ours = clients::dlock(Postgres::connect(&url).await?)?;
        let statements = statements::of_postgres(&server, &ours).await?;
        let bare = BarePostgres::connect(&url, TASKS[1], statements).await?;
        let contest = Contest {
            ours: Client { name: "dlock on PostgreSQL", way: Way::Dlock(Arc::new(ours)) },
            others: vec![(
                Client { name: "the same statements, sqlx", way: Way::Postgres(Arc::new(bare)) },
                PART,
            )],
        };
        contest.measure(bench).await
    })
}

pub(crate) fn mysql(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let server = bench.mysql()?;
        let url = server.url();
        MysqlOptions::from_url(&url)?.migrate().await?;
        let ours = clients::dlock(Mysql::connect(&url).await?)?;
        let statements = statements::of_mysql(&server, &ours).await?;
        let bare = BareMysql::connect(&url, TASKS[1], statements).await?;
        let contest = Contest {
            ours: Client { name: "dlock on MariaDB", way: Way::Dlock(Arc::new(ours)) },
            others: vec![(
                Client { name: "the same statements, sqlx", way: Way::Mysql(Arc::new(bare)) },
                PART,
            )],
        };
        contest.measure(bench).await
    })
}

impl Contest {
    async fn measure(&self, bench: &Bench) -> Result<Vec<Row>> {
        let clients: Vec<&Client> =
            std::iter::once(&self.ours).chain(self.others.iter().map(|(client, _)| client)).collect();
        // paces[tasks][client][round]
        let mut paces = vec![vec![Vec::new(); clients.len()]; TASKS.len()];
        // The first round warms up and is not counted.
        for round in 0..=bench.rounds {
            for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
                for turn in 0..clients.len() {
                    // Each round begins with another one.
                    let which = (turn + round) % clients.len();
                    let pace = clients[which].drive(tasks, bench.slice).await?;
                    if round > 0 {
                        paces[which].push(pace);
                    }
                }
            }
        }
        let mut rows = Vec::new();
        for (&tasks, paces) in TASKS.iter().zip(&paces) {
            let (ours, others) = paces.split_first().context("no figures")?;
            let what = |client: &Client| format!("pairs a second, {tasks} at a time: {}", client.name);
            rows.push(pace_row(&what(&self.ours), ours));
            for ((client, part), theirs) in self.others.iter().zip(others) {
                rows.push(pace_row(&what(client), theirs));
                let ratio = Spread::of(ours.iter().zip(theirs).map(|(a, b)| a.rate / b.rate).collect());
                let best = best(ours) / best(theirs);
                let what = format!("    dlock / {} (of the best rounds: {best:.2})", client.name);
                rows.push(Row::spread(what, ratio, "x").at_least(ratio.median, *part, "x"));
            }
        }
        Ok(rows)
    }
}
