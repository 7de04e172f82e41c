use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", keys = ["a", "b"])]
async fn book(id: u64, who: String) -> Result<u64, Error> {
    drop(who);
    Ok(id)
}

fn main() {}
