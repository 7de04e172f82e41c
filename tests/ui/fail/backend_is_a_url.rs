use dlock::{Error, distributed_lock, leader, once};

#[distributed_lock(key = "a", backend = "redis://cache:6379")]
async fn book(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[leader(key = "a", backend = "redis+sentinel://cache/main")]
async fn lead() -> Result<(), Error> {
    Ok(())
}

#[once(key = "a", every = "1h", backend = "amqp://queue")]
async fn report() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backend = "memory:")]
async fn test(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", backend = "quorum:redis://:secret@a|redis://:secret@b|redis://:secret@c")]
async fn vote(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", backend = "sqlite:/var/lib/app/locks.db")]
async fn write(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", backend = "app:secret@cache")]
async fn read(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
