use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait, lease =, guard = held)]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(held.fence().map_or(id, |fence| fence.get()))
}

fn main() {}
