//! The comparison itself, in small.

use std::process::Command;

#[test]
fn rows_are_measured_in_small_without_touching_the_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compared.md");
    let before = std::fs::read_to_string(page).unwrap();
    let mut compare = Command::new(env!("CARGO_BIN_EXE_dlock-compare"));
    compare.args(["--quick", "--store", "redis", "--library", "dlock"]);
    let output = compare.args(["--only", "cancelled", "--only", "killed"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    // How many and how fast depends on the machine.
    for title in ["keys left blocked: ", "next holder after p50 / max: "] {
        assert!(said.contains(title), "{said}");
    }
    assert!(!said.contains("not run"), "{said}");
    assert_eq!(std::fs::read_to_string(page).unwrap(), before);
}
