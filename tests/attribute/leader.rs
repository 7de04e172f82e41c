//! The attribute whose body is a term of office.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock::{Eligibility, Error, ErrorKind, Locks, Memory, Term, leader};

/// Leads until it has begun so often; each time it waits for the loss, but for the last.
#[leader(key = "billing_<tenant>", term = term, locks = locks, lease = "10s")]
async fn lead(
    locks: &Locks,
    tenant: &str,
    memory: Memory,
    terms: Arc<AtomicU32>,
    mut numbers: Vec<u64>,
    until: u32,
) -> Result<Vec<u64>, Error> {
    term.check()?;
    let term: &Term = term;
    numbers.extend(term.number());
    if terms.fetch_add(1, Ordering::SeqCst) + 1 < until {
        assert!(memory.lose(&format!("billing_{tenant}")));
        std::future::pending::<()>().await;
    }
    Ok(std::mem::take(&mut numbers))
}

#[tokio::test]
async fn the_body_runs_anew_in_each_term_until_it_returns() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let terms = Arc::new(AtomicU32::new(0));
    let numbers = lead(&locks, "a", memory.clone(), Arc::clone(&terms), Vec::new(), 3).await.unwrap();
    assert_eq!((terms.load(Ordering::SeqCst), numbers.len()), (3, 3));
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert_eq!(memory.held(), 0, "the last term was resigned");
}

#[tokio::test]
async fn shutting_down_ends_it_and_it_says_so() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let terms = Arc::new(AtomicU32::new(0));
    let guard = locks.lock("billing_b").acquire().await.unwrap();
    let (leads, shut) = tokio::join!(lead(&locks, "b", memory.clone(), terms, Vec::new(), 1), async {
        tokio::task::yield_now().await;
        drop(guard);
        locks.shutdown(std::time::Duration::from_secs(5)).await
    });
    shut.unwrap();
    assert_eq!(leads.unwrap_err().kind(), ErrorKind::Closed);
}

struct Service {
    locks: Locks,
    eligibility: Eligibility,
}

impl Service {
    #[leader(key = "service", locks = self.locks, priority = 0, eligibility = self.eligibility)]
    async fn serve(&self, led: &mut u32) -> Result<(), Error> {
        *led += 1;
        if *led == 1 {
            self.eligibility.set(false);
            self.eligibility.set(true);
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_method_leads_again_after_it_was_not_eligible() {
    let service = Service { locks: Locks::new(Memory::new()), eligibility: Eligibility::new() };
    let mut led = 0;
    service.serve(&mut led).await.unwrap();
    assert_eq!(led, 2);
}

#[tokio::test]
async fn it_can_be_spawned() {
    let (memory, terms) = (Memory::new(), Arc::new(AtomicU32::new(0)));
    let locks = Locks::new(memory.clone());
    let task = tokio::spawn(async move { lead(&locks, "c", memory, terms, Vec::new(), 2).await });
    assert_eq!(task.await.unwrap().unwrap().len(), 2);
}
