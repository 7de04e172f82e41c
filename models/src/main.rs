//! Explores the models of dlock's protocols in a larger size than the tests, and prints what was found.

use std::hash::Hash;
use std::process::ExitCode;
use std::{env, fmt};

use dlock_models::explore::{Until, explore};
use dlock_models::{baton, handoff, lease, queue, quorum, session, shares, zookeeper};
use stateright::Model;

const HELP: &str = "\
usage: cargo run --release -p dlock-models -- [--small] [name ...]

Explores the models in a larger size than the tests do, each to the last state: minutes, and gigabytes of memory.
--small takes the size of the tests. Names: lease, zookeeper, handoff, quorum, baton, shares, queue,
session; all of them if none is given.";

const NAMES: [&str; 8] = ["lease", "zookeeper", "handoff", "quorum", "baton", "shares", "queue", "session"];

fn main() -> ExitCode {
    let (options, names): (Vec<_>, Vec<_>) = env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let unknown = names.iter().any(|name| !NAMES.contains(&name.as_str()));
    if unknown || options.iter().any(|option| option != "--small") {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    }
    let large = options.is_empty();
    let wanted = |name: &&str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let broken = NAMES.into_iter().filter(wanted).filter(|name| !run(name, large)).count();
    ExitCode::from(u8::from(broken > 0))
}

fn run(name: &str, large: bool) -> bool {
    match (name, large) {
        ("lease", true) => show(name, lease::Lease::large(lease::Rules::default())),
        ("lease", false) => show(name, lease::Lease::small(lease::Rules::default())),
        ("zookeeper", true) => show(name, zookeeper::Queue::large(zookeeper::Rules::default())),
        ("zookeeper", false) => {
            show(name, zookeeper::Queue::split(zookeeper::Rules::default()))
                && show(name, zookeeper::Queue::sessions(zookeeper::Rules::default()))
        }
        ("handoff", true) => show(name, handoff::Handoff::large(handoff::Rules::default())),
        ("handoff", false) => show(name, handoff::Handoff::small(handoff::Rules::default())),
        ("quorum", true) => show(name, quorum::Quorum::large(quorum::Rules::default())),
        ("quorum", false) => show(name, quorum::Quorum::small(quorum::Rules::default())),
        ("baton", true) => show(name, baton::Baton::large(baton::Rules::default())),
        ("baton", false) => show(name, baton::Baton::small(baton::Rules::default())),
        ("queue", true) => show(name, queue::Queue::large(queue::Rules::default())),
        ("queue", false) => show(name, queue::Queue::small(queue::Rules::default())),
        ("session", true) => show(name, session::Session::large(session::Rules::default())),
        ("session", false) => {
            show(name, session::Session::one_waiter(session::Rules::default()))
                && show(name, session::Session::two_waiters(session::Rules::default()))
        }
        ("shares", true) => show(name, shares::Shares::large(shares::Rules::default())),
        ("shares", false) => {
            show(name, shares::Shares::readers(shares::Rules::default()))
                && show(name, shares::Shares::permits(shares::Rules::default()))
        }
        _ => false,
    }
}

fn show<M>(name: &str, model: M) -> bool
where
    M: Model + fmt::Debug + Send + Sync + 'static,
    M::State: Clone + fmt::Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + fmt::Debug + PartialEq + Send + Sync + 'static,
{
    println!("{name}: {model:?}");
    let explored = explore(model, Until::Everything, |states, steps| {
        println!("{name}: {states} states in {steps} steps so far");
    });
    println!("{name}: {explored}");
    explored.holds()
}
