#![deny(unused_variables)]

use dlock::{Error, distributed_lock};

#[distributed_lock(key = "grid")]
pub async fn book(id: u64) -> Result<u64, Error> {
    Ok(1)
}

fn main() {}
