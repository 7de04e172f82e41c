use dlock::{Error, distributed_lock};

#[distributed_lock(from = text)]
async fn finish(text: &str) -> Result<(), Error> {
    Ok(())
}

fn main() {}
