//! What the attribute costs where it is compiled: processor time of `cargo check`, bytes of a debug binary, size of a
//! call's future. 200 annotated functions beside the same 200 plain ones, each in a package of its own.
//!
//! ```text
//! cargo xtask bench attribute
//! cargo xtask bench attribute --quick      # fewer rounds
//! ```
//!
//! The two packages are compiled in turns, after a first time in which their dependencies are; what counts is the
//! median. In a checkout of an older version the same program shows what a change has brought.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use dlock_bench::report::{self, Row, Spread};

#[derive(Debug, Parser)]
#[command(about = "Measures what the attribute costs to compile, and in the futures it makes")]
struct Cli {
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
}

const FUNCTIONS: usize = 200;

fn main() -> Result<()> {
    let cli = Cli::parse();
    let rounds = if cli.quick { 3 } else { 9 };
    let [plain, locked] = [Package::write("plain")?, Package::write("locked")?];
    for package in [&plain, &locked] {
        eprintln!("{}: dependencies ...", package.name);
        package.cargo("check")?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds} ...");
        for (times, package) in times.iter_mut().zip([&plain, &locked]) {
            package.touch()?;
            let before = children_time()?;
            package.cargo("check")?;
            times.push(children_time()? - before);
        }
    }
    let [plain_time, locked_time] = times.map(Spread::of);
    eprintln!("binaries ...");
    let [plain, locked] = [plain.build()?, locked.build()?];
    let more = |of: fn(&Built) -> u64| of(&locked).saturating_sub(of(&plain)) as f64;
    let rows = [
        Row::spread(format!("check of {FUNCTIONS} plain functions"), plain_time, "s"),
        Row::spread(format!("check of {FUNCTIONS} annotated functions"), locked_time, "s"),
        Row::new(
            "more per annotated function",
            (locked_time.median - plain_time.median) * 1e3 / FUNCTIONS as f64,
            "ms",
        ),
        Row::new(
            "more of a debug binary per annotated function",
            more(|built| built.binary) / FUNCTIONS as f64 / 1e3,
            "kB",
        ),
        Row::new("future of a plain call", plain.small as f64, "B"),
        Row::new("more by the attribute", more(|built| built.small), "B"),
        Row::new("future of a plain call with 4096 bytes", plain.large as f64, "B"),
        Row::new("more by the attribute", more(|built| built.large), "B"),
        Row::new("more by the attribute with `on_busy`", more(|built| built.large_busy), "B"),
    ];
    println!("{}", report::table(&rows));
    Ok(())
}

/// The seconds of processor time that the children of this process have used: what else runs on the machine counts
/// less than by the wall clock.
fn children_time() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").context("needs Linux's /proc")?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks =
        after_name.split_whitespace().skip(13).take(2).map(str::parse::<u32>).sum::<Result<u32, _>>()?;
    Ok(f64::from(ticks) / rustix::param::clock_ticks_per_second() as f64)
}

/// One of the two packages.
struct Package {
    name: &'static str,
    directory: PathBuf,
    source: String,
}

/// What a debug build came to.
struct Built {
    binary: u64,
    small: u64,
    large: u64,
    large_busy: u64,
}

impl Package {
    /// Writes it below the workspace's target directory, where its dependencies stay compiled.
    fn write(name: &'static str) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the bench is in the workspace")?;
        let directory = root.join("target/attribute").join(name);
        fs::create_dir_all(directory.join("src"))?;
        let manifest = format!(
            "[package]\nname = \"{name}\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
             dlock-sdk = {{ path = {root:?} }}\n\
             tokio = {{ version = \"1\", features = [\"rt\", \"time\"] }}\n"
        );
        fs::write(directory.join("Cargo.toml"), manifest)?;
        fs::copy(root.join("Cargo.lock"), directory.join("Cargo.lock"))?;
        Ok(Self { name, directory, source: source(name == "locked")? })
    }

    /// Writes the source anew, so that it is compiled again.
    fn touch(&self) -> Result<()> {
        Ok(fs::write(self.directory.join("src/main.rs"), &self.source)?)
    }

    fn cargo(&self, command: &str) -> Result<String> {
        if !self.directory.join("src/main.rs").exists() {
            self.touch()?;
        }
        let output = Command::new(env!("CARGO"))
            .args([command, "--quiet", "--target-dir"])
            .arg(self.directory.with_file_name("target"))
            .current_dir(&self.directory)
            .env("CARGO_INCREMENTAL", "0")
            .output()?;
        if !output.status.success() {
            bail!("cargo {command} of {}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn build(&self) -> Result<Built> {
        let printed = self.cargo("run")?;
        let sizes: Vec<u64> = printed.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let &[small, large, large_busy] = sizes.as_slice() else { bail!("{}: {printed}", self.name) };
        let binary = fs::metadata(self.directory.with_file_name("target/debug").join(self.name))?.len();
        Ok(Built { binary, small, large, large_busy })
    }
}

/// The program: its functions, each of which awaits, and a `main` that calls them all and prints sizes.
fn source(locked: bool) -> Result<String> {
    let mut text = "#![allow(unused)]\nuse dlock::{Error, Locks, Memory, distributed_lock};\n".to_owned();
    let attribute =
        |options: String| if locked { format!("#[distributed_lock({options})]\n") } else { String::new() };
    let await_something = "tokio::task::yield_now().await;";
    for n in 0..FUNCTIONS {
        let attribute = attribute(format!("key = \"room_{n}_<id>\", wait = \"5s\""));
        write!(
            text,
            "{attribute}async fn book_{n}(id: u64, who: String) -> Result<String, Error> {{\n\
             {await_something}\nOk(format!(\"{{id}} {{who}}\"))\n}}\n"
        )?;
    }
    for (name, options) in [("large", "key = \"a\""), ("large_busy", "key = \"a\", on_busy = Ok(0)")] {
        let attribute = attribute(options.to_owned());
        write!(
            text,
            "{attribute}async fn {name}(data: [u8; 4096]) -> Result<u8, Error> {{\n\
             {await_something}\nOk(data[0])\n}}\n"
        )?;
    }
    text += "fn main() {\nlet runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();\n\
             runtime.block_on(dlock::with_backend(\"rooms\", Locks::new(Memory::new()), async {\n";
    for n in 0..FUNCTIONS {
        writeln!(text, "Box::pin(book_{n}({n}, String::new())).await.unwrap();")?;
    }
    text += "}));\nprintln!(\"{} {} {}\", size_of_val(&book_0(0, String::new())), \
             size_of_val(&large([0; 4096])), size_of_val(&large_busy([0; 4096])));\n}\n";
    Ok(text)
}
