use dlock::{Error, distributed_lock};

#[tokio::main]
#[distributed_lock(key = "a")]
async fn main() -> Result<(), Error> {
    Ok(())
}
