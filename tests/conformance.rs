//! Every backend of dlock through the conformance suite.

use dlock_core::{Memory, Result};
use dlock_testkit::conformance::{self, Harness};

#[derive(Default)]
struct OverMemory(Memory);

impl Harness for OverMemory {
    type Backend = Memory;

    async fn open(&self) -> Result<Memory> {
        Ok(self.0.clone())
    }

    fn left_out(&self) -> &'static [&'static str] {
        conformance::WAITERS
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use dlock_core::Result;
    use dlock_sql::{Sqlite, SqliteOptions};
    use dlock_testkit::conformance::Harness;

    /// A database of its own for each case, opened anew for each process.
    pub(crate) struct OverSqlite(tempfile::TempDir);

    impl OverSqlite {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory for the database"))
        }
    }

    impl Harness for OverSqlite {
        type Backend = Sqlite;

        async fn open(&self) -> Result<Sqlite> {
            SqliteOptions::new(self.0.path().join("locks.db")).connect().await
        }

        fn left_out(&self) -> &'static [&'static str] {
            dlock_testkit::conformance::WAITERS
        }
    }
}

fn main() {
    let arguments = conformance::Arguments::from_args();
    #[cfg_attr(not(feature = "sqlite"), expect(unused_mut, reason = "there are more with it"))]
    let mut tests = conformance::tests("memory", OverMemory::default);
    #[cfg(feature = "sqlite")]
    tests.extend(conformance::tests("sqlite", sqlite::OverSqlite::new));
    conformance::run(&arguments, tests).exit();
}
