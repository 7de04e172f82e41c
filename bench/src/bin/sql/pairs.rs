//! Acquire and release of locks that nobody else wants.

use std::time::Duration;

use anyhow::Result;
use dlock_bench::contest::{Client, Goal, compare, not_asked, take_turns};
use dlock_bench::report::Row;
use dlock_sql::{
    BareRows, Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions,
};

use crate::Bench;
use crate::bare::{BareLeases, My, Pg};
use crate::clients::dlock;
use crate::sessions::{MysqlRow, MysqlSession, PostgresAdvisory, PostgresRow, PostgresSession};
use crate::statements;

const TASKS: &[usize] = &[1, 8];
/// More than there are connections: what waits for one goes out together.
const MANY: &[usize] = &[32];
/// As many connections as dlock has by default, or all on one, as dlock's sessions are.
const EACH: usize = 8;
const ONE: usize = 1;
/// What dlock has to achieve of what the same statements do through the bare driver: of one statement and of several.
const PART: f64 = 0.95;
const PART_OF_ROWS: f64 = 0.9;

/// The same statements on connections whose sockets another thread watches.
const ELSEWHERE: &str = "the same, watched by a thread of its own";

/// One of dlock's modes, and the clients it has to stand beside, with what it has to achieve in relation to each.
struct Contest<'a> {
    ours: &'a Client,
    others: Vec<(&'a Client, f64)>,
    tasks: &'static [usize],
}

pub(crate) fn postgres(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let server = bench.postgres()?;
        let url = &*server.url();
        PostgresOptions::from_url(url)?.migrate().await?;
        let leases = dlock(Postgres::connect(url).await?)?;
        // Each is recorded as the latest.
        let sessions = dlock(PostgresSessions::connect(url).await?)?;
        let of_sessions = statements::of_postgres(&server, &sessions).await?;
        let rows = dlock(PostgresRowLocks::connect(url).await?)?;
        let of_rows = statements::of_postgres_rows(&server).await?;
        let of_leases = BareRows::new(&PostgresOptions::from_url(url)?);
        let bare = BareLeases { connections: Pg::connect(url, EACH).await?, rows: of_leases };
        let plain = PostgresOptions::from_url(url)?.with_fences(false);
        let plain = dlock(PostgresSessions::with_options(plain).await?)?;
        let plain = Client::new("dlock, session locks without fences on PostgreSQL", plain);
        let (leases, bare) = (
            Client::new("dlock, lease rows on PostgreSQL", leases),
            Client::new("the same statements, sqlx", bare),
        );
        let sessions = Client::new("dlock, session locks on PostgreSQL", sessions);
        let session = |connections| PostgresSession { connections, statements: of_sessions.clone() };
        let bare_session = session(Pg::connect(url, ONE).await?);
        let bare_session = Client::new("the same statements on one connection, sqlx", bare_session);
        let session_elsewhere = session(Pg::connect_elsewhere(url, ONE).await?);
        let session_elsewhere = Client::new(ELSEWHERE, session_elsewhere);
        let advisory = PostgresAdvisory::new(Pg::connect(url, ONE).await?);
        let advisory = Client::new("PgAdvisoryLock on one connection", advisory);
        let advisory_elsewhere = PostgresAdvisory::new(Pg::connect_elsewhere(url, ONE).await?);
        let advisory_elsewhere = Client::new(ELSEWHERE, advisory_elsewhere);
        let row_elsewhere =
            PostgresRow::new(Pg::connect_elsewhere(url, EACH).await?, &rows, &of_rows).await?;
        let row_elsewhere = Client::new(ELSEWHERE, row_elsewhere);
        let bare_row = PostgresRow::new(Pg::connect(url, EACH).await?, &rows, &of_rows).await?;
        let bare_row = Client::new("the same statements, sqlx", bare_row);
        let rows = Client::new("dlock, locked rows on PostgreSQL", rows);
        let contests = [
            Contest { ours: &leases, others: vec![(&bare, PART)], tasks: TASKS },
            Contest { ours: &leases, others: vec![(&bare, 1.5)], tasks: MANY },
            Contest {
                ours: &sessions,
                others: vec![(&bare_session, PART), (&session_elsewhere, 0.0)],
                tasks: TASKS,
            },
            Contest {
                ours: &plain,
                others: vec![(&advisory, 1.0), (&advisory_elsewhere, 0.0)],
                tasks: TASKS,
            },
            Contest {
                ours: &rows,
                others: vec![(&bare_row, PART_OF_ROWS), (&row_elsewhere, 0.0)],
                tasks: TASKS,
            },
        ];
        measure(bench, &contests).await
    })
}

pub(crate) fn mysql(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let server = bench.mysql()?;
        let url = &*server.url();
        MysqlOptions::from_url(url)?.migrate().await?;
        let leases = dlock(Mysql::connect(url).await?)?;
        let of_leases = BareRows::new(&MysqlOptions::from_url(url)?);
        let bare = BareLeases { connections: My::connect(url, EACH).await?, rows: of_leases };
        let (leases, bare) = (
            Client::new("dlock, lease rows on MariaDB", leases),
            Client::new("the same statements, sqlx", bare),
        );
        let sessions = dlock(MysqlSessions::connect(url).await?)?;
        let of_sessions = statements::of_mysql_sessions(&server, &sessions).await?;
        let bare_session = MysqlSession::new(My::connect(url, ONE).await?, &sessions, &of_sessions).await?;
        let sessions = Client::new("dlock, session locks on MariaDB", sessions);
        let bare_session = Client::new("the same statements on one connection, sqlx", bare_session);
        let rows = dlock(MysqlRowLocks::connect(url).await?)?;
        let of_rows = statements::of_mysql_rows(&server, &rows).await?;
        let bare_row = MysqlRow::new(My::connect(url, EACH).await?, &rows, &of_rows).await?;
        let rows = Client::new("dlock, locked rows on MariaDB", rows);
        let bare_row = Client::new("the same statements, sqlx", bare_row);
        let contests = [
            Contest { ours: &leases, others: vec![(&bare, PART_OF_ROWS)], tasks: TASKS },
            Contest { ours: &sessions, others: vec![(&bare_session, PART_OF_ROWS)], tasks: TASKS },
            Contest { ours: &rows, others: vec![(&bare_row, PART_OF_ROWS)], tasks: TASKS },
        ];
        measure(bench, &contests).await
    })
}

async fn measure(bench: &Bench, contests: &[Contest<'_>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let is_wanted =
        |contest: &&Contest<'_>| bench.client.as_ref().is_none_or(|part| contest.ours.name.contains(part));
    for contest in contests.iter().filter(is_wanted) {
        eprintln!("  {} ...", contest.ours.name);
        let measured = contest.measure(bench.rounds, bench.slice).await;
        rows.extend(measured.unwrap_or_else(|error| vec![Row::failed(contest.ours.name, &error)]));
    }
    Ok(rows)
}

impl Contest<'_> {
    async fn measure(&self, rounds: usize, slice: Duration) -> Result<Vec<Row>> {
        let (others, parts): (Vec<_>, Vec<_>) = self.others.iter().copied().unzip();
        let clients = [vec![self.ours], others].concat();
        let goals: Vec<_> = parts.iter().map(|part| Goal { pairs: Some(*part), used: None }).collect();
        let paces = take_turns(&clients, self.tasks, rounds, slice, not_asked).await?;
        let mut rows = Vec::new();
        for (tasks, paces) in self.tasks.iter().zip(&paces) {
            rows.extend(compare(&format!("pairs a second, {tasks} at a time"), &clients, paces, &goals)?);
        }
        Ok(rows)
    }
}
