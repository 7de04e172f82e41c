use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", lease = "10ms")]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
