//! Puts each defect of `dlock-sim/mutants` into a copy of the engine, one at a time, and counts the runs until it is
//! found: `cargo run --release -p dlock-sim --bin mutants [-- <part of a name>]`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Every defect is to be found within so many runs.
const RUNS: &str = "100000";

/// Those that change nothing that a run could show, and why.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    (
        "deadline-counts-from-the-recheck",
        "a backend that is asked again extends the lease, or says since when it runs",
    ),
    ("keeper-ends-at-a-panic", "what may panic is caught before it gets there"),
];

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    match all(&wanted) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            println!("{missed} were not found");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn all(wanted: &str) -> Fallible<usize> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate is in a workspace")?;
    let place = root.join("target/sim-mutants");
    let tree = place.join("tree");
    copy(root, &tree)?;
    let mut patches: Vec<PathBuf> = fs::read_dir(root.join("dlock-sim/mutants"))?
        .map(|file| file.map(|f| f.path()))
        .collect::<Result<_, _>>()?;
    patches.retain(|patch| patch.extension().is_some_and(|ext| ext == "patch"));
    patches.sort();
    let mut missed = 0;
    println!("| defect | found in run | as |\n|---|---|---|");
    for patch in patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !name.contains(wanted) {
            continue;
        }
        apply(&tree, &patch, &[])?;
        // Those of jobs are looked for among jobs, and so are those of modes, quorums and batons.
        let series: &[&str] = match &name {
            name if name.contains("job") => &["--jobs"],
            name if name.contains("mode") => &["--modes"],
            name if name.contains("quorum") => &["--quorums"],
            name if name.contains("baton") => &["--batons"],
            _ => &[],
        };
        let found = find(&tree, &place.join("build"), series);
        apply(&tree, &patch, &["-R"])?;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                println!("| {} | {error} | |", name.replace('-', " "));
                continue;
            }
        };
        match found {
            Some((run, what)) => println!("| {} | {run} | {what} |", name.replace('-', " ")),
            None => {
                let why = WITHOUT_EFFECT.iter().find(|(of, _)| *of == name).map(|(_, why)| *why);
                missed += usize::from(why.is_none());
                println!("| {} | not in {RUNS} | {} |", name.replace('-', " "), why.unwrap_or_default());
            }
        }
    }
    Ok(missed)
}

/// Copies what is under version control, and touches nothing that is the same.
fn copy(root: &Path, tree: &Path) -> Fallible<()> {
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    for name in String::from_utf8(list.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), tree.join(name));
        let Ok(text) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|old| old == text) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(tree))?;
        fs::write(to, text)?;
    }
    Ok(())
}

fn apply(tree: &Path, patch: &Path, extra: &[&str]) -> Fallible<()> {
    let mut git = Command::new("git");
    // The copy lies inside a repository, and is none.
    git.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
    let done = git.args(["apply", "-C1", "--recount"]).args(extra).arg(patch).current_dir(tree).status()?;
    if done.success() { Ok(()) } else { Err(format!("{} does not apply", patch.display()).into()) }
}

/// The run that finds the defect, and what it says.
fn find(tree: &Path, build: &Path, series: &[&str]) -> Fallible<Option<(String, String)>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--package", "dlock-sim", "--bin", "dlock-sim"]);
    // Unused code is what a defect often leaves.
    let built =
        cargo.env("CARGO_TARGET_DIR", build).env("RUSTFLAGS", "-Awarnings").current_dir(tree).status()?;
    if !built.success() {
        return Err("it does not compile".into());
    }
    let output =
        Command::new(build.join("release/dlock-sim")).args(["--runs", RUNS]).args(series).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| {
        let (_, rest) = line.strip_prefix("seed ")?.split_once(" (run ")?;
        let (run, what) = rest.split_once("): ")?;
        Some((run.to_owned(), what.to_owned()))
    });
    if found.is_none() && !output.status.success() {
        return Ok(Some(("?".into(), format!("the program ends: {}", output.status))));
    }
    Ok(found)
}
