use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
async fn book(name: Vec<u8>) -> Result<usize, Error> {
    drop(name);
    Ok(name.len())
}

fn main() {}
