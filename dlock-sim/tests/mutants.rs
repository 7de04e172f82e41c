//! The defects that the simulation is measured by still fit the engine.

use std::path::Path;
use std::process::Command;

#[test]
fn every_defect_can_be_put_into_the_engine_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut patches = 0;
    for file in std::fs::read_dir(root.join("dlock-sim/mutants")).unwrap() {
        let path = file.unwrap().path();
        let mut git = Command::new("git");
        // As the program does that tries them.
        let output = git.args(["apply", "--check", "-C1", "--recount"]).arg(&path).current_dir(root).output();
        let output = output.expect("git is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: write it anew for the code as it is: {said}", path.display());
        patches += 1;
    }
    assert!(patches >= 41, "{patches} defects");
}
