//! Every backend of dlock through the conformance suite.

use std::time::Duration;

use dlock_core::{MAX_LEASE, Memory, Prefixed, Result};
use dlock_quorum::Quorum;
use dlock_testkit::BatchOfOne;
use dlock_testkit::conformance::{self, Harness};

struct OverMemory(Memory);

impl OverMemory {
    fn new() -> Self {
        Self(Memory::with_clock(conformance::clock()))
    }
}

impl Harness for OverMemory {
    type Backend = Memory;

    async fn open(&self) -> Result<Memory> {
        Ok(self.0.clone())
    }

    fn virtual_time(&self) -> bool {
        true
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[conformance::WAITERS]
    }
}

/// Every lock as a batch of one.
struct ByBatches<H>(H);

/// The same, where only locks that are held alone are taken in one step.
#[cfg(feature = "sqlite")]
struct ByExclusiveBatches(sqlite::OverSqlite);

#[cfg(feature = "sqlite")]
impl Harness for ByExclusiveBatches {
    type Backend = BatchOfOne<dlock_sql::Sqlite>;

    async fn open(&self) -> Result<Self::Backend> {
        Ok(BatchOfOne::of_exclusive_locks(self.0.open().await?))
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[
            conformance::WAITERS,
            conformance::SHARING,
            conformance::DOWNGRADING,
            conformance::PERMITS,
            conformance::FAIRNESS,
            conformance::CARRYING_SHARES,
            conformance::SESSIONS_BESIDE_SHARES,
        ]
    }
}

impl<H: Harness> Harness for ByBatches<H> {
    type Backend = BatchOfOne<H::Backend>;

    async fn open(&self) -> Result<Self::Backend> {
        Ok(BatchOfOne::new(self.0.open().await?))
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn virtual_time(&self) -> bool {
        self.0.virtual_time()
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        self.0.left_out()
    }
}

/// Two services in one memory.
struct InNamespace<H>(H);

impl<H: Harness> Harness for InNamespace<H> {
    type Backend = Prefixed<H::Backend>;

    async fn open(&self) -> Result<Self::Backend> {
        let prefixed = Prefixed::new(self.0.open().await?, "a service:");
        prefixed.map_err(|failure| dlock_core::Error::new(dlock_core::Operation::Configure, failure))
    }

    fn virtual_time(&self) -> bool {
        self.0.virtual_time()
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        self.0.left_out()
    }
}

/// A majority of these. Nobody forgets, or everybody is asked whether it does.
struct OverQuorum(Vec<Memory>, Forgets);

#[derive(Clone, Copy)]
enum Forgets {
    Never,
    Maybe,
}

impl OverQuorum {
    fn of(nodes: usize, forgets: Forgets) -> Self {
        let nodes: Vec<_> = (0..nodes).map(|_| Memory::with_clock(conformance::clock())).collect();
        for node in &nodes {
            // Requests take a while, so that they can be dropped under way.
            node.faults().set_stepping(true);
        }
        Self(nodes, forgets)
    }
}

impl Harness for OverQuorum {
    type Backend = Quorum;

    async fn open(&self) -> Result<Quorum> {
        let builder = Quorum::builder(self.0.clone());
        match self.1 {
            Forgets::Never => builder.with_durable_nodes().build(),
            Forgets::Maybe => {
                let quorum = builder.with_longest_lease(MAX_LEASE).build()?;
                quorum.bootstrap().await?;
                Ok(quorum)
            }
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(900)
    }

    fn virtual_time(&self) -> bool {
        true
    }

    fn tries_can_split(&self) -> bool {
        true
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[
            conformance::WITH_FENCES,
            conformance::WAITERS,
            conformance::DOWNGRADING,
            conformance::PERMITS,
            conformance::FAIRNESS,
            conformance::LEAVING,
            conformance::CARRYING,
            conformance::SESSIONS,
            conformance::CARRYING_SHARES,
        ]
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

        fn left_out(&self) -> &'static [&'static [&'static str]] {
            &[dlock_testkit::conformance::WAITERS]
        }
    }
}

fn main() {
    let arguments = conformance::Arguments::from_args();
    let mut tests = conformance::tests("memory", OverMemory::new);
    tests.extend(conformance::tests("quorum-of-3", || OverQuorum::of(3, Forgets::Never)));
    tests.extend(conformance::tests("quorum-of-5", || OverQuorum::of(5, Forgets::Maybe)));
    #[cfg(feature = "sqlite")]
    tests.extend(conformance::tests("sqlite", sqlite::OverSqlite::new));
    #[cfg(feature = "sqlite")]
    tests.extend(conformance::tests("sqlite_batch_of_one", || ByExclusiveBatches(sqlite::OverSqlite::new())));
    tests.extend(conformance::tests("batch_of_one", || ByBatches(OverMemory::new())));
    tests.extend(conformance::tests("prefix", || InNamespace(OverMemory::new())));
    conformance::run(&arguments, tests).exit();
}
