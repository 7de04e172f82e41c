//! One line on a function: one caller at a time for each room.
//!
//! `cargo run --example attribute`

use std::time::Duration;

use dlock::{ErrorKind, distributed_lock};

#[derive(Debug)]
enum BookingError {
    Taken { by: String },
    Lock(dlock::Error),
}

/// The only thing that the attribute asks for: a lock can fail, so the function's error must be able to say so.
impl From<dlock::Error> for BookingError {
    fn from(error: dlock::Error) -> Self {
        Self::Lock(error)
    }
}

struct Room {
    id: u64,
    guest: std::sync::Mutex<Option<String>>,
}

/// The key names an argument, or a field of one. A misspelt one does not compile.
#[distributed_lock(key = "room_<room.id>", wait = "2s", lease = "10s", guard = held)]
async fn book(room: &Room, who: &str) -> Result<u64, BookingError> {
    // Without the lock two callers could both find the room free here.
    let by = room.guest.lock().ok().and_then(|guest| guest.clone());
    tokio::time::sleep(Duration::from_millis(5)).await;
    if let Some(by) = by {
        return Err(BookingError::Taken { by });
    }
    held.check()?;
    if let Ok(mut guest) = room.guest.lock() {
        *guest = Some(who.to_owned());
    }
    Ok(room.id)
}

/// Does not wait, and answers something else instead.
#[distributed_lock(key = "clean_<room.id>", wait = "no", on_busy = Ok("somebody is at it"))]
async fn clean(room: &Room) -> Result<&'static str, dlock::Error> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok("cleaned")
}

#[tokio::main]
async fn main() -> Result<(), dlock::Error> {
    // Once, where the program starts. The only registered backend is the default one. In a service that is
    // `dlock::init().await?`, with the URL of a store in DLOCK_URL.
    dlock::register("rooms", dlock::connect("memory:").await?)?;

    let room = Room { id: 7, guest: std::sync::Mutex::default() };
    let guests = ["Ann", "Bob", "Cid"];
    let (a, b, c) = tokio::join!(book(&room, guests[0]), book(&room, guests[1]), book(&room, guests[2]));
    for (guest, result) in guests.iter().zip([&a, &b, &c]) {
        match result {
            Ok(id) => println!("{guest} has room {id}"),
            Err(BookingError::Taken { by }) => println!("{guest} comes too late, after {by}"),
            Err(BookingError::Lock(error)) if error.kind() == ErrorKind::TimedOut => {
                println!("{guest} gave up");
            }
            Err(BookingError::Lock(error)) => println!("{guest}: {error}"),
        }
    }
    assert_eq!([a, b, c].iter().filter(|result| result.is_ok()).count(), 1);

    let (first, second) = tokio::join!(clean(&room), clean(&room));
    println!("the first cleaner: {}; the second: {}", first?, second?);
    Ok(())
}
