use dlock::{Error, Locks, Memory, distributed_lock};
use std::sync::LazyLock;

static LOCKS: LazyLock<Locks> = LazyLock::new(|| Locks::new(Memory::new()));

#[distributed_lock(key = "a", locks = LOCKS)]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
