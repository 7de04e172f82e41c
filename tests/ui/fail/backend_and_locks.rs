use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", locks = locks, backend = "memory")]
async fn book(locks: &dlock::Locks) -> Result<u64, Error> {
    Ok(locks.backend().len() as u64)
}

fn main() {}
