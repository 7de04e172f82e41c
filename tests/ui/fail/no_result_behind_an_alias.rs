use dlock::distributed_lock;

type Answer = Option<u64>;

#[distributed_lock(key = "a")]
async fn book(id: u64) -> Answer {
    Some(id)
}

fn main() {}
