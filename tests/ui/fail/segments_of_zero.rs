use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", segments = 0)]
async fn book(id: u64, who: String) -> Result<u64, Error> {
    drop(who);
    Ok(id)
}

fn main() {}
