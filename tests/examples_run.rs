//! Every example runs to its end, and the index names it.

// One of them has the attribute.
#![cfg(feature = "macros")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn examples() -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(directory)
        .expect("the examples are there")
        .map(|file| file.expect("it can be listed").path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().expect("it has a name").to_string_lossy().into_owned())
        .collect()
}

/// Where cargo puts examples: next to the directory of this test.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test is a file");
    let profile = this.parent().and_then(Path::parent).expect("it is in target/<profile>/deps");
    profile.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION)
}

#[test]
fn every_example_succeeds_and_has_something_to_say() {
    let examples = examples();
    assert!(examples.len() >= 7, "{examples:?}");
    for name in examples {
        let program = program(&name);
        let output = match Command::new(&program).output() {
            Ok(output) => output,
            Err(error) => panic!("{}: {error}; build it with `cargo build --examples`", program.display()),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}: {}\n{said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.lines().count() >= 3, "{name} says only: {said}");
    }
}

#[test]
fn the_index_has_a_line_for_every_example() {
    let index = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/README.md");
    let index = fs::read_to_string(index).expect("the index is there");
    for name in examples() {
        assert!(
            index.contains(&format!("- [`{name}`]({name}.rs): ")),
            "{name} is missing in examples/README.md"
        );
    }
}
