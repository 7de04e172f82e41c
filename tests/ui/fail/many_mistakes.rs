use dlock::{Error, distributed_lock};

#[distributed_lock(key = "room_<idd>", wait = 5, on_lost = "stop", bakend = "memory")]
async fn book(id: u64, who: &str) -> Result<u64, Error> {
    Ok(id + who.len() as u64)
}

fn main() {}
