//! Checks that services in Rust and in Java exclude and wake each other when dlock and Redisson lock the same name.
//!
//! ```text
//! cargo run --release -p dlock-interop
//! ```
//!
//! Starts a `redis-server`, builds the Java worker with Maven, and runs worker processes of both sides.

#![forbid(unsafe_code)]

mod checks;
mod scene;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dlock_interop::worker;

use crate::scene::Scene;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => check_all().await,
        ["worker", url, lease, process, _, history] => be_worker(url, lease, process, history).await,
        _ => Err(anyhow::anyhow!("this program takes no arguments")),
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

async fn check_all() -> Result<()> {
    let scene = Scene::open().await?;
    let mut failures = 0;
    macro_rules! check {
        ($($name:literal => $check:expr,)*) => {$(
            match $check.await.context($name) {
                Ok(found) => println!("ok      {}: {found}", $name),
                Err(error) => {
                    failures += 1;
                    println!("FAILED  {error:#}");
                }
            }
        )*};
    }
    check! {
        "without a lock the workers lose updates" => checks::control(&scene),
        "both sides exclude each other" => checks::exclusion(&scene, "rlock", 500),
        "both sides exclude each other on a fenced lock" => checks::exclusion(&scene, "fenced", 100),
        "a release by either side wakes a waiter of the other by message" => checks::wakes(&scene),
        "Redisson sees a lock that dlock holds" => checks::rust_holds(&scene),
        "dlock sees a lock that Redisson holds" => checks::java_holds(&scene),
        "a killed holder in Java is taken over in Rust" => checks::take_over(&scene, "java"),
        "a killed holder in Rust is taken over in Java" => checks::take_over(&scene, "rust"),
        "a lock that Redisson unlocks by force is lost in Rust" => checks::forced(&scene),
    }
    if failures > 0 {
        bail!("{failures} checks failed");
    }
    Ok(())
}
