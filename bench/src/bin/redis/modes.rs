//! Readers, permits and waiters in line, beside the exclusive lock; on Redis beside Redisson as well.

use std::time::{Duration, Instant};

use anyhow::Result;
use dlock_bench::crowd::{self, Part};
use dlock_bench::measure::runtime;
use dlock_bench::report::{Row, Spread};
use dlock_interop::peer::{Peer, Setting};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::PostgresOptions;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use crate::Bench;
use crate::clients::{self, LEASE};
use crate::handoff;

/// What some processes did: the waits of each, in microseconds.
type Waits = Vec<Vec<u32>>;

/// Processes of one kind: how many, of how many tasks each, in which mode.
type Group<'a> = (usize, usize, &'a str);

pub(crate) fn readers(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(many_readers(bench, &bench.server.url(), true))
}

pub(crate) fn endless(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(that_never_stop(bench, &bench.server.url()))
}

pub(crate) fn permits(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(of_eight(bench))
}

pub(crate) fn fair(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(in_order(bench))
}

/// The lease rows of PostgreSQL, whose server does not wait for its disk: what a mode costs shows beside another one.
pub(crate) fn postgres(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(async {
        let server = PostgresServer::start()?;
        let url = &*server.url();
        PostgresOptions::from_url(url)?.migrate().await?;
        let mut rows = many_readers(bench, url, false).await?;
        rows.extend(that_never_stop(bench, url).await?);
        rows.push(equal_shares(bench, url).await?);
        Ok(rows.into_iter().map(|row| row.on("PostgreSQL")).collect())
    })
}

impl Bench {
    fn rounds_of_modes(&self) -> usize {
        self.settings.handoff_rounds
    }

    /// The same with Redisson; how many grants a second.
    async fn java(&self, key: &str, (processes, tasks, kind): Group<'_>, hold: u64) -> Result<f64> {
        let (url, histories) = (self.server.url(), tempfile::tempdir()?);
        let mut workers = Vec::new();
        for process in (0..).take(processes) {
            let setting = Setting { url: &url, lease: LEASE, process, histories: histories.path() };
            workers.push(Peer::java(&self.jar, &[], setting).await?);
        }
        let mut rate = 0.0;
        // The first time the virtual machines compile.
        for time in [ROUND / 2, ROUND] {
            for worker in &mut workers {
                worker.tell(&format!("crowd {kind} {key} {tasks} {time} {hold}")).await?;
            }
            rate = 0.0;
            for worker in &mut workers {
                rate += worker.answer().await?.parse::<f64>()? * 1e3 / time as f64;
            }
        }
        Ok(rate)
    }
}

/// Lets processes of dlock have one lock of the server at `url`, for as long as a round.
async fn crowd(url: &str, key: &str, groups: &[Group<'_>], hold: u64) -> Result<Vec<Waits>> {
    let parts = groups.iter().flat_map(|&(processes, tasks, mode)| {
        (0..processes).map(move |_| Part::new(url, key, mode, tasks, hold, ROUND))
    });
    let mut waits = crowd::play(parts).await?.into_iter();
    Ok(groups.iter().map(|(processes, ..)| waits.by_ref().take(*processes).collect()).collect())
}

/// How many milliseconds a crowd has the lock.
const ROUND: u64 = 2_000;

fn rate(waits: &[Vec<u32>]) -> f64 {
    waits.iter().map(Vec::len).sum::<usize>() as f64 * 1e3 / ROUND as f64
}

/// Grants a second of several clients, in turns; the first is ours, the others are compared with.
fn compared(what: &str, rates: &[(&str, Vec<f64>, Option<f64>)]) -> Vec<Row> {
    let mut rows = Vec::new();
    let Some((ours, others)) = rates.split_first() else { return rows };
    let row = |name: &str, rates: &[f64]| {
        Row::spread(format!("{what}, {name}: grants a second"), Spread::of(rates.to_vec()), "")
    };
    rows.push(row(ours.0, &ours.1));
    for (name, theirs, limit) in others {
        rows.push(row(name, theirs));
        let ratio = Spread::of(ours.1.iter().zip(theirs).map(|(a, b)| a / b).collect());
        let shown = Row::spread(format!("    {} / {name}", ours.0), ratio, "x");
        rows.push(match limit {
            Some(limit) => shown.at_least(ratio.median, *limit, "x"),
            None => shown,
        });
    }
    rows
}

async fn many_readers(bench: &Bench, url: &str, beside_java: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for millis in [5, 1] {
        let (mut mixed, mut alone, mut java) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.rounds_of_modes() {
            let (key, hold) = (|name| format!("readers_{millis}_{name}_{round}"), millis * 1_000);
            mixed.push(rate(&crowd(url, &key("mixed"), &[(4, 16, "mixed")], hold).await?[0]));
            alone.push(rate(&crowd(url, &key("alone"), &[(4, 16, "alone")], hold).await?[0]));
            if beside_java {
                java.push(bench.java(&key("java"), (4, 16, "mixed"), hold).await?);
            }
        }
        let mut rates = vec![("dlock", mixed, None), ("the exclusive lock", alone, Some(10.0))];
        if beside_java {
            rates.push(("RReadWriteLock", java, Some(3.0)));
        }
        let what = format!("four processes of 16 tasks, 19 of 20 read, {millis} ms each");
        rows.extend(compared(&what, &rates));
    }
    Ok(rows)
}

/// One that writes among readers that never stop, and the other way round.
async fn that_never_stop(bench: &Bench, url: &str) -> Result<Vec<Row>> {
    const HOLD: u64 = 5_000;
    let section = section(Duration::from_micros(HOLD)).await;
    let mut rows = vec![Row::new("a section that sleeps for 5 ms, p50", section / 1e3, "ms")];
    for (who, many, one) in
        [("writer among readers", "read", "alone"), ("reader among writers", "alone", "read")]
    {
        let (mut middle, mut longest) = (Vec::new(), Vec::new());
        for round in 0..bench.rounds_of_modes() {
            let key = format!("endless_{one}_{round}");
            let all = crowd(url, &key, &[(2, 16, many), (1, 1, one)], HOLD).await?;
            let mut waits = all[1][0].clone();
            waits.sort_unstable();
            let at = |index: usize| waits.get(index).map_or(f64::NAN, |wait| f64::from(*wait) / section);
            middle.push(at(waits.len() / 2));
            longest.push(at(waits.len().saturating_sub(1)));
        }
        let (middle, longest) = (Spread::of(middle), Spread::of(longest));
        let what = format!("one {who} that never stop, in two processes of 16: its wait, in such sections");
        rows.push(Row::spread(what, middle, "").at_most(middle.median, 3.0, ""));
        rows.push(Row::spread("    the longest of 2 s", longest, ""));
    }
    Ok(rows)
}

/// How many microseconds a section takes whose work is a sleep, the median: timers round up.
async fn section(hold: Duration) -> f64 {
    let mut took = Vec::new();
    for _ in 0..101 {
        let begin = Instant::now();
        tokio::time::sleep(hold).await;
        took.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Spread::of(took).median
}

async fn of_eight(bench: &Bench) -> Result<Vec<Row>> {
    let (mut ours, mut java) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds_of_modes() {
        let key = |name| format!("permits_{name}_{round}");
        ours.push(rate(&crowd(&bench.server.url(), &key("dlock"), &[(4, 16, "permits-8")], 1_000).await?[0]));
        java.push(bench.java(&key("java"), (4, 16, "permits-8"), 1_000).await?);
    }
    Ok(compared(
        "four processes of 16 tasks, 8 permits, 1 ms each",
        &[("dlock", ours, None), ("RPermitExpirableSemaphore", java, Some(2.0))],
    ))
}

/// Jain's index of the grants of ten processes that wait in order.
async fn equal_shares(bench: &Bench, url: &str) -> Result<Row> {
    let mut index = Vec::new();
    for round in 0..bench.rounds_of_modes() {
        let ten = crowd(url, &format!("order_ten_{round}"), &[(10, 10, "fair")], 1_000).await?;
        let grants: Vec<f64> = ten[0].iter().map(|waits| waits.len() as f64).collect();
        let (sum, squares) =
            (grants.iter().sum::<f64>(), grants.iter().map(|grants| grants * grants).sum::<f64>());
        index.push(sum * sum / (squares * grants.len() as f64));
    }
    let index = Spread::of(index);
    let row = Row::spread("ten processes of 10, fair, 1 ms each: Jain's index", index, "");
    Ok(row.at_least(index.median, 0.98, ""))
}

async fn in_order(bench: &Bench) -> Result<Vec<Row>> {
    let (mut fair, mut alone, mut java) = (Vec::new(), Vec::new(), Vec::new());
    let url = &*bench.server.url();
    for round in 0..bench.rounds_of_modes() {
        let key = |name| format!("order_{name}_{round}");
        fair.push(rate(&crowd(url, &key("fair"), &[(4, 4, "fair")], 0).await?[0]));
        alone.push(rate(&crowd(url, &key("alone"), &[(4, 4, "alone")], 0).await?[0]));
        java.push(bench.java(&key("java"), (4, 4, "fair"), 0).await?);
    }
    let mut rows = compared(
        "four processes of 4 tasks, fair, empty sections",
        &[("dlock", fair, None), ("the default", alone, None), ("RFairLock", java, Some(5.0))],
    );
    rows.push(equal_shares(bench, url).await?);
    let (mut passed, mut told, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.rounds_of_modes() {
        told.push(publish(bench, false).await?);
        apart.push(publish(bench, true).await?);
        passed.push(handoff::of_fair_locks(bench, &format!("handed_fair_{round}")).await?);
    }
    let ratio =
        |other: &[f64]| Spread::of(passed.iter().zip(other).map(|(passed, other)| passed / other).collect());
    let (of_told, of_apart) = (ratio(&told), ratio(&apart));
    for (what, took) in [
        ("from a bare publish to a process that waits for it, p50", told),
        ("from one to a process with a thread for its messages, as dlock has it, p50", apart),
        ("from a fair release to the acquire of the next process, p50", passed),
    ] {
        rows.push(Row::spread(what, Spread::of(took), "us"));
    }
    rows.push(Row::spread("    fair / publish", of_told, "x").at_most(of_told.median, 1.3, "x"));
    rows.push(Row::spread("    fair / publish to such a process", of_apart, "x"));
    Ok(rows)
}

/// The messages on a channel, which are read by another thread if `apart`.
async fn messages(url: &str, channel: &'static str, apart: bool) -> Result<BoxStream<'static, ()>> {
    let client = redis::Client::open(url)?;
    let listen = async move {
        let mut messages = client.get_async_pubsub().await?;
        messages.subscribe(channel).await?;
        anyhow::Ok(messages.into_on_message().map(drop))
    };
    if !apart {
        return Ok(listen.await?.boxed());
    }
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        runtime(false)?.block_on(async {
            let mut messages = listen.await?;
            while messages.next().await.is_some() && sender.send(()).is_ok() {}
            anyhow::Ok(())
        })
    });
    Ok(futures_util::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
        .boxed())
}

/// How many microseconds a message takes, the median: half of the way to a process that answers by another one.
async fn publish(bench: &Bench, apart: bool) -> Result<f64> {
    let url = bench.server.url();
    let mut process = tokio::process::Command::new(std::env::current_exe()?);
    let apart_too = apart.then_some("--apart");
    let mut process = process.args(["echo", &*url]).args(apart_too).kill_on_drop(true).spawn()?;
    let mut connection = clients::connection(&url).await?;
    let mut messages = messages(&url, "echo_back", apart).await?;
    // Until it listens.
    while redis::cmd("PUBLISH").arg("echo").arg("").query_async::<u32>(&mut connection).await? == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _first = messages.next().await;
    let mut took = Vec::new();
    for _ in 0..500 {
        let begin = Instant::now();
        redis::cmd("PUBLISH").arg("echo").arg("").exec_async(&mut connection).await?;
        let _back = messages.next().await;
        took.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
        // As long as the lock is held, so that both sides have gone to sleep.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    process.kill().await?;
    Ok(Spread::of(took).median)
}

/// Answers each message by another one, until it is killed.
pub(crate) async fn echo(url: &str, apart: bool) -> Result<()> {
    let mut connection = clients::connection(url).await?;
    let mut messages = messages(url, "echo", apart).await?;
    while messages.next().await.is_some() {
        redis::cmd("PUBLISH").arg("echo_back").arg("").exec_async(&mut connection).await?;
    }
    Ok(())
}
