use dlock::distributed_lock;

#[distributed_lock(key = "a")]
async fn book(id: u64) -> u64 {
    id
}

fn main() {}
