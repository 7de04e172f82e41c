use dlock::{Error, distributed_lock};

struct Room(u64);

#[distributed_lock(key = "room_<room>")]
async fn book(room: Room) -> Result<u64, Error> {
    Ok(room.0)
}

fn main() {}
