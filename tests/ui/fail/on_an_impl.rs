use dlock::distributed_lock;

struct Room;

#[distributed_lock(key = "a")]
impl Room {
    fn new() -> Self {
        Self
    }
}

fn main() {
    let Room = Room::new();
}
