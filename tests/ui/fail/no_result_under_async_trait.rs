use async_trait::async_trait;
use dlock::distributed_lock;

#[async_trait]
trait Desk {
    async fn book(&self) -> u64;
}

#[async_trait]
impl Desk for () {
    #[distributed_lock(key = "a")]
    async fn book(&self) -> u64 {
        1
    }
}

fn main() {}
