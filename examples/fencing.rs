//! What makes it safe whatever happens: the resource refuses the writes of a holder that has been overtaken.
//!
//! `cargo run --example fencing`

use std::sync::Mutex;
use std::time::Duration;

use dlock::{Error, Fence, Locks, ManualClock, Memory};

/// Any store that can compare: in SQL it is `UPDATE ... SET price = ?, fence = ? WHERE id = ? AND fence <= ?`.
#[derive(Default)]
struct Price(Mutex<(u32, u64)>);

impl Price {
    /// Whether the write was accepted.
    fn write(&self, price: u32, fence: Option<Fence>) -> bool {
        let Ok(mut row) = self.0.lock() else { return false };
        let fence = fence.map_or(0, Fence::get);
        let accepted = row.1 <= fence;
        if accepted {
            *row = (price, fence);
        }
        accepted
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let clock = ManualClock::stopped();
    let backend = Memory::with_clock(clock.clock());
    let (slow, quick) = (Locks::new(backend.clone()), Locks::new(backend));
    let price = &Price::default();

    let guard = slow.lock("price_7").acquire().await?;
    guard.check()?;
    println!("slow checks its lock, finds it held, and is paused before it writes");

    // A minute passes: a virtual machine was moved, a disk stood still. The lease of 30 s is over.
    clock.advance(Duration::from_secs(60));

    let accepted =
        quick.lock("price_7").run_with(|held| async move { price.write(20, held.fence()) }).await?;
    println!("quick takes over and writes 20: {}", if accepted { "accepted" } else { "refused" });
    assert!(accepted);

    let accepted = price.write(10, guard.fence());
    println!(
        "slow wakes up and writes 10 with its old fence: {}",
        if accepted { "accepted" } else { "refused" }
    );
    assert!(!accepted);

    println!("had it looked again, it had known: {}", guard.check().expect_err("it was overtaken"));
    Ok(())
}
