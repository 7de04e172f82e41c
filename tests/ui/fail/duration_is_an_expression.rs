use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait = Duration::from_secs(5))]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", lease = {})]
async fn cancel(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
