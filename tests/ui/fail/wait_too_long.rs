use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait = "9999999999999999999999h")]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
