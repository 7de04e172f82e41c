use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait = "no", on_busy = |error, again| Err(error))]
async fn two() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "no", on_busy = async |error| Err(error))]
async fn awaits() -> Result<(), Error> {
    Ok(())
}

fn main() {}
