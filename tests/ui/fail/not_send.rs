use dlock::{Error, distributed_lock};

use std::rc::Rc;

#[distributed_lock(key = "a")]
async fn book(id: u64) -> Result<u64, Error> {
    let shared = Rc::new(id);
    tokio::task::yield_now().await;
    Ok(*shared)
}

fn main() {
    tokio::spawn(book(7));
}
