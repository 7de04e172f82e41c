use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait = "forever", on_busy = Ok(0))]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
