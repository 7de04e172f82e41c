use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
async fn book(name: String) -> Result<usize, Error> {
    drop(name);
    Ok(name.len())
}

fn main() {}
