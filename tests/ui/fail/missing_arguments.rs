use dlock::{Error, distributed_lock};

#[distributed_lock]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
