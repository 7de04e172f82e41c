use dlock::{Error, distributed_lock};

struct Room {
    id: u64,
}

#[distributed_lock(key = "room_<room.number>")]
async fn book(room: Room) -> Result<u64, Error> {
    Ok(room.id)
}

fn main() {}
