//! The attribute whose body is a job that runs once.

use std::time::Duration;

use dlock::{Error, ErrorKind, Locks, Memory, Outcome, once};

#[derive(Debug)]
enum AppError {
    Lock(Error),
    NoPaper,
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// Prints, unless there is no paper.
#[once(key = "report", every = "1h", locks = locks)]
async fn report(locks: &Locks, paper: Vec<u8>, mut pages: u32) -> Result<u32, AppError> {
    pages += 1;
    let sheets = paper;
    if sheets.is_empty() { Err(AppError::NoPaper) } else { Ok(pages) }
}

#[once(key = "invoice:<fire_at>", keep = "25h", on_error = "skip", locks = locks, guard = held)]
async fn invoice<T: std::fmt::Display>(locks: &Locks, fire_at: T) -> Result<Option<u64>, Error> {
    held.check()?;
    let _ = locks;
    Err::<Option<u64>, _>(Locks::new(Memory::new()).lock("").acquire().await.expect_err("an empty key"))
        .map_err(
            |error| if held.fence().is_some() { error } else { unreachable!("memory has fences, {fire_at}") },
        )
}

struct Service {
    locks: Locks,
    window: Duration,
}

impl Service {
    /// The window is an expression, and nobody waits.
    #[once(key = { self.locks.label_of("a") }, every = { self.window }, on_crash = "skip", locks = self.locks, wait = "no")]
    async fn clean(&self) -> Result<(), Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

trait Label {
    fn label_of(&self, text: &str) -> String;
}

impl Label for Locks {
    fn label_of(&self, text: &str) -> String {
        format!("clean-{text}")
    }
}

#[tokio::test]
async fn a_job_runs_once_and_its_twins_learn_who_did_it() {
    let locks = Locks::new(Memory::new());
    assert!(
        matches!(report(&locks, Vec::new(), 1).await, Err(AppError::NoPaper)),
        "it failed, and may run again"
    );
    assert_eq!(report(&locks, vec![1], 1).await.unwrap(), Outcome::Ran(2));
    let Outcome::Skipped { ran_at, by } = report(&locks, vec![1], 1).await.unwrap() else {
        panic!("it ran twice")
    };
    assert!(ran_at.is_some() && by.left_behind && by.pid == Some(std::process::id()));
}

#[tokio::test]
async fn each_firing_has_a_key_of_its_own_and_a_failure_may_close_it() {
    let locks = Locks::new(Memory::new());
    for firing in [1, 2] {
        assert_eq!(invoice(&locks, firing).await.unwrap_err().kind(), ErrorKind::InvalidKey);
        assert!(invoice(&locks, firing).await.unwrap().is_skipped(), "its failure closed the window");
    }
}

#[tokio::test]
async fn methods_with_expressions_are_jobs_too() {
    let service = Service { locks: Locks::new(Memory::new()), window: Duration::from_secs(60) };
    assert_eq!(service.clean().await.unwrap().ran(), Some(()));
    assert!(service.clean().await.unwrap().is_skipped());
    assert!(service.locks.inspect("clean-a").await.unwrap().is_some_and(|holder| holder.left_behind));
}

#[tokio::test]
async fn the_lock_s_failures_are_the_function_s() {
    let locks = Locks::new(Memory::new());
    locks.shutdown(Duration::from_secs(1)).await.unwrap();
    match report(&locks, vec![1], 1).await {
        Err(AppError::Lock(error)) => assert_eq!(error.kind(), ErrorKind::Closed),
        other => panic!("{other:?}"),
    }
}
