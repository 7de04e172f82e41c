use async_trait::async_trait;
use dlock::{Error, distributed_lock};

#[async_trait]
trait Desk {
    async fn book(&self, pair: (u64, u64)) -> Result<u64, Error>;
}

#[async_trait]
impl Desk for () {
    #[distributed_lock(key = "<id>")]
    async fn book(&self, (id, _): (u64, u64)) -> Result<u64, Error> {
        Ok(id)
    }
}

fn main() {}
