#![deny(unused_must_use)]

use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
pub async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

pub async fn caller() {
    book(1).await;
}

fn main() {}
