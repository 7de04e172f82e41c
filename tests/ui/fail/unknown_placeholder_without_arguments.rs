use dlock::{Error, distributed_lock};

#[distributed_lock(key = "room_<id>")]
async fn book() -> Result<u64, Error> {
    Ok(1)
}

fn main() {}
