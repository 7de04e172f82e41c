//! The program is built with the tests, which have compiled most of what it consists of.

use std::process::Command;

#[test]
fn a_word_that_names_no_check_is_refused_with_those_that_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_dlock-interop")).arg("consul").output().expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    for check in ["redis", "cluster", "zookeeper", "etcd", "rows", "rings", "collector"] {
        assert!(said.contains(check), "{said}");
    }
}
