use dlock::{Error, distributed_lock};

trait Desk {
    #[distributed_lock(key = "a")]
    async fn book(&self) -> Result<u64, Error>;
}

fn main() {}
