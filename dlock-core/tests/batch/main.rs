//! Several locks as one: over memory, which takes them in one step, and over a wire to it that takes them one after the
//! other.

mod cancelling;
mod contending;
mod failing;
mod mixing;
mod ordering;
mod owning;
mod rounds;
mod taking;

use dlock_core::{Locks, Memory};
use dlock_testkit::wire::{Wire, Wired};

/// One process over a store.
#[derive(Clone)]
struct Process {
    memory: Memory,
    locks: Locks,
}

impl Process {
    fn over(memory: &Memory, in_one_step: bool) -> Self {
        let builder = match in_one_step {
            true => Locks::builder(memory.clone()),
            false => {
                let wire = Wire::default();
                wire.take_one_by_one();
                Locks::builder(Wired::new(memory.clone(), wire))
            }
        };
        Self { memory: memory.clone(), locks: builder.build().unwrap() }
    }

    /// A process with a store of its own, in both ways.
    fn both() -> [Self; 2] {
        [true, false].map(|in_one_step| Self::over(&Memory::new(), in_one_step))
    }

    /// Somebody else over the same store.
    fn rival(&self) -> Locks {
        Locks::new(self.memory.clone())
    }

    /// Resolves when nothing is held and nothing goes on in the background.
    async fn settled(&self) {
        let settled = async {
            while self.memory.held() > 0 || self.locks.stats().background > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        let settled = tokio::time::timeout(std::time::Duration::from_secs(20), settled).await;
        assert!(settled.is_ok(), "{} locks are left, and {:?}", self.memory.held(), self.locks.stats());
    }
}
