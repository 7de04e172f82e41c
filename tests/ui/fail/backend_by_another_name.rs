use dlock::{Error, distributed_lock, leader, once};

#[distributed_lock(key = "a", backend = "zookeeper")]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[leader(key = "a", backend = "postgresql")]
async fn lead() -> Result<(), Error> {
    Ok(())
}

#[once(key = "a", every = "1h", backend = "valkey")]
async fn report() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backend = "Redis")]
async fn cancel(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
