//! Every backend of dlock through the conformance suite.

use dlock_core::{Failure, Memory};
use dlock_testkit::conformance::{self, Harness};

#[derive(Default)]
struct OverMemory(Memory);

impl Harness for OverMemory {
    type Backend = Memory;

    async fn open(&self) -> Result<Memory, Failure> {
        Ok(self.0.clone())
    }
}

fn main() {
    let arguments = conformance::Arguments::from_args();
    let mut tests = conformance::tests("memory", OverMemory::default);
    #[cfg(feature = "sqlite")]
    tests.extend(conformance::tests("sqlite", sqlite::OverSqlite::default));
    conformance::run(&arguments, tests).exit();
}
