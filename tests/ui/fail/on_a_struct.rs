use dlock::distributed_lock;

#[distributed_lock(key = "a")]
struct Room {
    id: u64,
}

fn main() {
    let _ = Room { id: 1 }.id;
}
