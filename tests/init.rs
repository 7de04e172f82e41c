//! The first line of a program, by the environment of real processes.
#![cfg(all(feature = "macros", feature = "sqlite"))]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use dlock::{Error, ErrorKind, Outcome, distributed_lock, once};

const ROLE: &str = "DLOCK_TEST_INIT_ROLE";

#[distributed_lock(key = "room_<id>", guard = held)]
async fn by_default(id: u64) -> Result<u64, Error> {
    held.check()?;
    Ok(id)
}

#[distributed_lock(key = "room_<id>", backend = "orders", guard = held)]
async fn by_name(id: u64) -> Result<u64, Error> {
    held.check()?;
    Ok(id)
}

#[once(key = "report", every = "1h", backend = "shop-orders")]
async fn by_another_spelling() -> Result<u64, Error> {
    Ok(7)
}

/// Runs the test `one_process` of this file in a process of its own, with these variables and no others of dlock.
fn run(role: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this test is a file"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DLOCK_") {
            command.env_remove(name);
        }
    }
    command.args(["--exact", "one_process", "--nocapture"]).env(ROLE, role);
    command.envs(variables.iter().copied()).output().expect("it can be run")
}

fn succeeded(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
}

fn url(directory: &Path, file: &str) -> String {
    format!("sqlite://{}", directory.join(file).display())
}

#[test]
fn a_process_connects_to_what_its_environment_names_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("there is room");
    let [main, orders, shop] = ["main.db", "orders.db", "shop.db"].map(|file| url(directory.path(), file));
    let variables = [
        ("DLOCK_URL", &*main),
        ("DLOCK_ORDERS_URL", &orders),
        ("DLOCK_SHOP_ORDERS_URL", &shop),
        ("DLOCK_ZK_URL", ""),
        ("DLOCK_LEASE", "1h"),
        ("DLOCK_LABEL", "all"),
        ("DLOCK_ORDERS_LABEL", "one"),
    ];
    succeeded(&run("all", &variables));
    // The second process would wait for the leases of an hour, had the first one left anything.
    succeeded(&run("all", &variables));
    for file in ["main.db", "orders.db", "shop.db"] {
        assert!(directory.path().join(file).exists(), "{file}");
    }
}

#[test]
fn a_process_that_takes_some_names_does_not_look_at_the_others() {
    let directory = tempfile::tempdir().expect("there is room");
    let (orders, other) = (url(directory.path(), "orders.db"), url(directory.path(), "other.db"));
    succeeded(&run(
        "some",
        &[("DLOCK_ORDERS_URL", &orders), ("DLOCK_URL", &other), ("DLOCK_BAD_URL", "bad")],
    ));
    assert!(!directory.path().join("other.db").exists());
}

#[test]
fn a_process_without_the_first_line_is_answered_with_it_where_its_variables_are_set() {
    succeeded(&run("no_init", &[("DLOCK_ORDERS_URL", "memory:"), ("DLOCK_URL", "memory:")]));
}

#[test]
fn a_name_that_is_taken_is_refused_before_anything_is_connected_to() {
    let directory = tempfile::tempdir().expect("there is room");
    let [main, orders] = ["main.db", "orders.db"].map(|file| url(directory.path(), file));
    succeeded(&run("taken", &[("DLOCK_URL", &main), ("DLOCK_ORDERS_URL", &orders)]));
    assert!(!directory.path().join("main.db").exists() && !directory.path().join("orders.db").exists());
}

#[test]
fn a_variable_that_is_wrong_ends_the_start_by_its_name_and_without_its_password() {
    for (variables, named) in [
        (&[][..], "set DLOCK_URL"),
        (&[("DLOCK_URL", "memory:"), ("DLOCK_ORDERS_URL", "http://u:hunter2@h")], "DLOCK_ORDERS_URL"),
        (&[("DLOCK_URL", "memory:"), ("DLOCK_DEFAULT_URL", "redis://:hunter2@h")], "DLOCK_DEFAULT_URL"),
        (&[("DLOCK_URL", "memory:"), ("DLOCK_orders_URL", "redis://:hunter2@h")], "write DLOCK_ORDERS_URL"),
        (&[("DLOCK_URL", "memory:"), ("DLOCK_LEASE", "10")], "DLOCK_LEASE"),
        (&[("DLOCK_ORDERS_URL", "memory:"), ("DLOCK_ORDERS_WAIT", "never")], "DLOCK_ORDERS_WAIT"),
    ] {
        let output = run("wrong", variables);
        succeeded(&output);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("InvalidConfig") && said.contains(named), "{named}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

/// What each of the processes runs; nothing in a run of the tests.
#[tokio::test]
async fn one_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "all" => all().await,
        "some" => some().await,
        "no_init" => no_init().await,
        "taken" => taken().await,
        "wrong" => println!("{:?}", dlock::init().await.expect_err("a variable is wrong")),
        other => panic!("there is no role {other}"),
    }
}

async fn all() {
    let backends = dlock::init().await.expect("all variables are right");
    assert_eq!(by_default(7).await.expect("it is free") + by_name(7).await.expect("it is free"), 14);
    let once = by_another_spelling().await.expect("it runs or has run");
    assert!(matches!(once, Outcome::Ran(7) | Outcome::Skipped { .. }), "{once:?}");
    for (name, label) in [("default", "all"), ("orders", "one"), ("shop_orders", "all")] {
        let locks = dlock::registered(name).expect("its variable is set");
        let guard = locks.lock("left").acquire().await.expect("nobody left it held");
        let holder = locks.inspect("left").await.expect("the file is there").expect("it is held");
        assert_eq!(holder.label.as_deref(), Some(label), "{name}");
        // Released in the background, which the shutdown waits for.
        drop(guard);
    }
    let error = dlock::registered("zk").expect_err("its variable is empty");
    assert!(error.to_string().contains("dlock::init() found no DLOCK_ZK_URL"), "{error}");
    assert_eq!(dlock::init().await.expect_err("it was called").kind(), ErrorKind::InvalidConfig);
    backends.shutdown(Duration::from_secs(60)).await.expect("the files are there");
    assert_eq!(by_name(8).await.expect_err("it is the end").kind(), ErrorKind::Closed);
}

async fn some() {
    let backends = dlock::init().only(["orders"]).await.expect("its variable is set");
    // The only one is the default.
    assert_eq!(by_default(7).await.expect("it is free") + by_name(7).await.expect("it is free"), 14);
    let error = dlock::registered("bad").expect_err("it was left out");
    assert!(error.to_string().contains("DLOCK_BAD_URL is set, but dlock::init() did not read it"), "{error}");
    backends.shutdown(Duration::from_secs(60)).await.expect("the file is there");
}

async fn no_init() {
    for (error, variable) in [(by_name(7).await, "DLOCK_ORDERS_URL"), (by_default(7).await, "DLOCK_URL")] {
        let error = error.expect_err("nothing is registered");
        assert_eq!(error.kind(), ErrorKind::UnknownBackend);
        let text = error.to_string();
        assert!(text.contains(&format!("{variable} is set, but dlock::init() was not called")), "{text}");
    }
    let text = by_another_spelling().await.expect_err("nothing is registered").to_string();
    assert!(text.contains("set DLOCK_SHOP_ORDERS_URL and call dlock::init()"), "{text}");
}

async fn taken() {
    let by_hand = dlock::connect("memory:").await.expect("it needs nothing");
    dlock::register("orders", by_hand).expect("the name is free");
    let error = dlock::init().await.expect_err("the name is taken");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("DLOCK_ORDERS_URL is set"), "{error}");
}
