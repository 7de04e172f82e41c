use dlock::distributed_lock;

#[distributed_lock(key = "a")]
async fn book(id: u64) -> Result<u64, &'static str> {
    Ok(id)
}

fn main() {}
