use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a_<id>", segments = 3)]
async fn book(id: u64, who: Vec<u8>) -> Result<u64, Error> {
    drop(who);
    Ok(id)
}

fn main() {}
