//! Checks that services in Rust and in other languages exclude and wake each other when dlock and Redisson, Curator or
//! etcd's Go client lock the same name, and that the OpenTelemetry collector understands what dlock exports.
//!
//! ```text
//! cargo run --release -p dlock-interop              # all of it
//! cargo run --release -p dlock-interop -- redis     # with Redisson
//! cargo run --release -p dlock-interop -- cluster   # with Redisson on a cluster, in its default settings
//! cargo run --release -p dlock-interop -- zookeeper # with Curator, kazoo and go-zookeeper
//! cargo run --release -p dlock-interop -- etcd      # with etcd's own Go client
//! cargo run --release -p dlock-interop -- rows      # with psycopg, by the functions for PostgreSQL
//! cargo run --release -p dlock-interop -- rings     # locks that are handed on from process to process
//! cargo run --release -p dlock-interop -- rings 30000 7 redis # so often, with this seed, on this store
//! cargo run --release -p dlock-interop -- collector # with the OpenTelemetry collector
//! cargo run --release -p dlock-interop -- --full    # all of it, with a minute for each of what is done for a while
//! ```
//!
//! With `--full` locks are handed on 100,000 times. Starts a `redis-server`, a cluster of them, a ZooKeeper and an
//! etcd, builds the Java worker with Maven, and runs worker processes of both sides. Where there is a Go toolchain,
//! builds the collector and has the example `rooms` export to it.

#![forbid(unsafe_code)]

mod checks;
mod elections;
mod mixed;
mod one_queue;
mod rings;
mod rows;
mod scene;
mod telemetry;

use std::future::ready;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dlock_interop::{collector, worker};

use crate::scene::Scene;

/// How often locks are handed over on each of three stores.
const SHORT: u64 = 1_000;
const FULL: u64 = 33_334;
const SEED: u64 = 1;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let full = arguments.iter().any(|argument| argument == "--full");
    let length = Duration::from_secs(if full { 60 } else { 15 });
    let mixed = Duration::from_secs(if full { 60 } else { 3 });
    let arguments: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|argument| *argument != "--full").collect();
    let outcome = match arguments[..] {
        [] => {
            let redis = check_redis(mixed).await.and(check_cluster(mixed).await);
            let zookeeper = check_zookeeper(length, mixed).await;
            let rows = check_rows().await.and(check_rings(if full { FULL } else { SHORT }).await);
            let etcd = check_etcd(length).await;
            redis.and(zookeeper).and(etcd).and(rows).and(check_collector().await)
        }
        ["redis"] => check_redis(mixed).await,
        ["cluster"] => check_cluster(mixed).await,
        ["zookeeper"] => check_zookeeper(length, mixed).await,
        ["etcd"] => check_etcd(length).await,
        ["rows"] => check_rows().await,
        ["rings"] => check_rings(if full { FULL } else { SHORT }).await,
        ["rings", hops, seed, store] => hand_on(hops, seed, store).await,
        ["ring-worker", url, lease, journal, values] => {
            rings::worker::serve(url, lease, journal, values).await
        }
        ["collector"] => check_collector().await,
        ["worker", url, lease, process, _, history] => be_worker(url, lease, process, history).await,
        _ => Err(anyhow::anyhow!(
            "write nothing, redis, cluster, zookeeper, etcd, rows, rings or collector after the name of this program"
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn be_worker(url: &str, lease: &str, process: &str, history: &str) -> Result<()> {
    let lease = Duration::from_millis(lease.parse()?);
    worker::serve(url, lease, process.parse()?, Path::new(history)).await
}

/// Runs checks in turn, and says how many failed.
macro_rules! check {
    ($($name:literal => $check:expr,)*) => {{
        let mut failures = 0;
        $(
            match $check.await.context($name) {
                Ok(found) => println!("ok      {}: {found}", $name),
                Err(error) => {
                    failures += 1;
                    println!("FAILED  {error:#}");
                }
            }
        )*
        match failures {
            0 => Ok(()),
            _ => bail!("{failures} checks failed"),
        }
    }};
}

async fn check_redis(mixed: Duration) -> Result<()> {
    let scene = Scene::redis().await?;
    check! {
        "without a lock the workers lose updates" => checks::control(&scene),
        "both sides exclude each other" => checks::exclusion(&scene, "rlock", 500),
        "both sides exclude each other on a fenced lock" => checks::exclusion(&scene, "fenced", 100),
        "a release by either side wakes a waiter of the other by message" => checks::wakes(&scene),
        "Redisson sees a lock that dlock holds" => checks::rust_holds(&scene),
        "dlock sees a lock that Redisson holds" => checks::java_holds(&scene),
        "a killed holder in Java is taken over in Rust" => checks::take_over(&scene, "java"),
        "a killed holder in Rust is taken over in Java" => checks::take_over(&scene, "rust"),
        "a lock that Redisson unlocks by force is lost in Rust" => checks::forced(&scene, 0.35),
        "readers and writers of both sides exclude each other" => mixed::readers_and_writers(&scene, mixed),
        "both sides share the permits of a semaphore" => mixed::permits(&scene, mixed),
        "both sides exclude each other on a fair lock" => checks::exclusion(&scene, "fair", 50),
        "both sides wait in one line for a fair lock" => mixed::in_line(&scene, 5),
        "a killed reader makes room for a writer of the other side" => mixed::outlived(&scene, ("read", "write")),
        "a killed writer makes room for a reader of the other side" => mixed::outlived(&scene, ("write", "read")),
        "the permit of a killed process is back" => mixed::outlived(&scene, ("permits-1", "permits-1")),
    }
}

async fn check_cluster(mixed: Duration) -> Result<()> {
    let scene = Scene::redis_cluster().await?;
    check! {
        "both sides exclude each other on a cluster" => checks::exclusion(&scene, "rlock", 100),
        "both sides exclude each other on a fenced lock of a cluster" => checks::exclusion(&scene, "fenced", 50),
        "a release by either side wakes a waiter of the other on a cluster" => checks::wakes(&scene),
        "names with hash tags are the same lock on both sides" => checks::tagged(&scene),
        "a killed holder in Java is taken over in Rust on a cluster" => checks::take_over(&scene, "java"),
        "readers and writers of both sides exclude each other on a cluster" =>
            mixed::readers_and_writers(&scene, mixed),
        "both sides share the permits of a semaphore of a cluster" => mixed::permits(&scene, mixed),
        "both sides exclude each other on a fair lock of a cluster" => checks::exclusion(&scene, "fair", 50),
    }
}

async fn check_zookeeper(length: Duration, mixed: Duration) -> Result<()> {
    let scene = Scene::zookeeper().await?;
    check! {
        "without a lock the workers lose updates" => checks::control(&scene),
        "both sides exclude each other" => checks::exclusion(&scene, "mutex", 100),
        "both sides wait in one line" => checks::in_line(&scene, 500),
        "a release by either side wakes a waiter of the other" => checks::wakes(&scene),
        "Curator lists the holder and the waiters of both sides" => checks::participants(&scene),
        "a killed holder in Java is taken over in Rust" => checks::take_over(&scene, "java"),
        "a killed holder in Rust is taken over in Java" => checks::take_over(&scene, "rust"),
        "a lock whose node is deleted in Java is lost in Rust" => checks::forced(&scene, 0.5),
        "Curator, kazoo and go-zookeeper wait for a key that stays taken after its release" => checks::left(&scene),
        "dlock, Curator, kazoo and go-zookeeper wait behind each other" => one_queue::behind_each_other(&scene),
        "dlock, Curator, kazoo and go-zookeeper share one queue" => one_queue::all_at_once(&scene, length),
        "readers and writers of both sides exclude each other" => mixed::readers_and_writers(&scene, mixed),
        "dlock and Curator's leader latches see the same leader" => elections::seen(&scene),
        "dlock and Curator's leader latches exclude each other" => elections::exclusion(&scene, 50),
        "dlock and Curator's leader latches have one leader while some are killed" => elections::killed(&scene, length),
    }
}

async fn check_etcd(length: Duration) -> Result<()> {
    if !collector::can_be_built().await {
        println!("left out: etcd's own client needs Go 1.21 or later, see https://go.dev/dl");
        return Ok(());
    }
    let scene = Scene::etcd().await?;
    check! {
        "without a lock the workers lose updates" => checks::control(&scene),
        "dlock and Go's Mutex exclude each other and wait in one line" => checks::in_line(&scene, 100),
        "dlock and Go's Mutex wait behind each other" => one_queue::behind_each_other(&scene),
        "dlock and Go's Mutex share one queue" => one_queue::all_at_once(&scene, length),
        "a release by either side wakes a waiter of the other" => checks::wakes(&scene),
        "a killed holder in Go is taken over in Rust" => checks::take_over(&scene, "go"),
        "a killed holder in Rust is taken over in Go" => checks::take_over(&scene, "rust"),
        "a lock whose key is deleted in Go is lost in Rust" => checks::forced(&scene, 0.5),
        "Go's Mutex waits for a key that stays taken after its release" => checks::left(&scene),
        "dlock's readers and Go's Mutex exclude each other" => mixed::readers_beside(&scene),
        "dlock and Go's Election see the same leader, and an observer sees each" => elections::observed(&scene),
        "dlock and Go's Election exclude each other" => elections::exclusion(&scene, 50),
        "dlock and Go's Election have one leader while some are killed" => elections::killed(&scene, length),
    }
}

async fn check_rows() -> Result<()> {
    check! {
        "dlock and psycopg exclude each other on a lock row" => rows::counted_by_psycopg_too(100),
        "dlock and PyMySQL exclude each other on a lock row" => rows::counted_by_pymysql_too(100),
    }
}

async fn check_rings(hops: u64) -> Result<()> {
    check! {
        "locks go round between Rust, Python and Go on Redis" => rings::go_round("redis", hops, SEED),
        "locks go round between Rust, Python and Go on PostgreSQL" => rings::go_round("postgres", hops, SEED),
        "locks go round between processes on SQLite" => rings::go_round("sqlite", hops, SEED),
        "workers that break a promise on Redis are found out" => rings::found_out("redis", 200, SEED),
        "workers that break a promise on PostgreSQL are found out" => rings::found_out("postgres", 200, SEED),
    }
}

async fn hand_on(hops: &str, seed: &str, store: &str) -> Result<()> {
    println!("{}", rings::go_round(store, hops.parse()?, seed.parse()?).await?);
    Ok(())
}

async fn check_collector() -> Result<()> {
    if !collector::can_be_built().await {
        println!(
            "left out: the checks with the OpenTelemetry collector need Go 1.21 or later, see https://go.dev/dl"
        );
        return Ok(());
    }
    let run = telemetry::Run::new().await?;
    check! {
        "metrics arrive under the names that the dashboard asks for" => ready(telemetry::metrics(&run)),
        "waiters are linked to the holders in other replicas" => ready(telemetry::traces(&run)),
        "nothing that was exported has a key or what it stands for" => ready(telemetry::secrets(&run)),
    }
}
