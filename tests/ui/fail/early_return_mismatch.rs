use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
async fn book(id: u64) -> Result<u64, Error> {
    if id == 0 {
        return Err("none");
    }
    Ok(id)
}

fn main() {}
