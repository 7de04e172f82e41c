//! Methods: every receiver, and keys and backends that come out of `self`.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};
use dlock::{Error, Locks, distributed_lock};
use std::pin::Pin;
use std::sync::Arc;

struct Room {
    id: u64,
    guests: Vec<String>,
    locks: Locks,
    place: Place,
}

struct Place(&'static str, u8);

impl Room {
    fn new(locks: &Locks) -> Self {
        Self { id: 7, guests: vec!["ann".to_owned()], locks: locks.clone(), place: Place("north", 3) }
    }

    #[distributed_lock(key = "room_<id>", backend = "memory")]
    async fn open(id: u64, locks: &Locks) -> Result<Self, Error> {
        assert!(is_held(locks, "room_8").await);
        Ok(Self { id, ..Self::new(locks) })
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn first(&self) -> Result<&str, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        Ok(&self.guests[0])
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn add(&mut self, name: &str) -> Result<&mut String, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        self.guests.push(name.to_owned());
        Ok(self.guests.last_mut().expect("one was pushed"))
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn close(self) -> Result<Vec<String>, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        Ok(self.guests)
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn close_empty(mut self) -> Result<Self, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        self.guests.clear();
        Ok(self)
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn shared(self: Arc<Self>) -> Result<usize, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        Ok(self.guests.len())
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn borrowed(self: &Arc<Self>) -> Result<Arc<Self>, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        Ok(Arc::clone(self))
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn boxed(self: Box<Self>) -> Result<Box<Self>, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        Ok(self)
    }

    #[distributed_lock(key = "room_<self.id>", backend = "memory")]
    async fn pinned(mut self: Pin<&mut Self>) -> Result<Pin<&mut Self>, Error> {
        assert!(is_held(&self.locks, "room_7").await);
        self.as_mut().get_mut().id += 1;
        Ok(self)
    }

    #[distributed_lock(key = "<self.place.0>:{self.place.1}", backend = "memory")]
    async fn nested_fields(&self) -> Result<(), Error> {
        assert!(is_held(&self.locks, "north:3").await);
        Ok(())
    }

    #[distributed_lock(key = { self.key() }, backend = "memory")]
    async fn computed_key(&self) -> Result<(), Error> {
        assert!(is_held(&self.locks, "computed 7").await);
        Ok(())
    }

    fn key(&self) -> String {
        format!("computed {}", self.id)
    }
}

/// The body takes `self` away, or borrows it for writing, while the lock is held through its field.
impl Room {
    #[distributed_lock(key = "own", locks = self.locks)]
    async fn own_by_reference(&self) -> Result<bool, Error> {
        Ok(is_held(&self.locks, "own").await)
    }

    #[distributed_lock(key = "own", locks = self.locks)]
    async fn own_by_mutable_reference(&mut self) -> Result<bool, Error> {
        self.guests.clear();
        Ok(is_held(&self.locks, "own").await)
    }

    #[distributed_lock(key = "own", locks = self.locks())]
    async fn own_by_value(self) -> Result<bool, Error> {
        let Self { locks, .. } = self;
        Ok(is_held(&locks, "own").await)
    }

    fn locks(&self) -> Locks {
        self.locks.clone()
    }
}

struct Pair(u8, Locks);

impl Pair {
    #[distributed_lock(key = "pair_<self.0>", locks = self.1)]
    async fn lock(&self) -> Result<bool, Error> {
        Ok(is_held(&self.1, "pair_5").await)
    }
}

#[tokio::test]
async fn every_receiver_reaches_the_body_and_the_key() -> Result<(), Error> {
    on_memory(async |locks| {
        assert_eq!(Room::open(8, &locks).await?.id, 8);

        let mut room = Room::new(&locks);
        assert_eq!(room.first().await?, "ann");
        room.add("bob").await?.push('!');
        assert_eq!(room.guests, ["ann", "bob!"]);
        room.nested_fields().await?;
        room.computed_key().await?;
        assert_eq!(room.close().await?, ["ann", "bob!"]);
        assert!(Room::new(&locks).close_empty().await?.guests.is_empty());

        let room = Arc::new(Room::new(&locks));
        assert_eq!(room.borrowed().await?.shared().await?, 1);
        assert_eq!(Box::new(Room::new(&locks)).boxed().await?.id, 7);
        assert_eq!(Pin::new(&mut Room::new(&locks)).pinned().await?.id, 8);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_locks_of_a_field_serve_every_receiver() -> Result<(), Error> {
    let locks = Locks::new(dlock::Memory::new());
    assert!(Room::new(&locks).own_by_reference().await?);
    assert!(Room::new(&locks).own_by_mutable_reference().await?);
    assert!(Room::new(&locks).own_by_value().await?);
    assert!(Pair(5, locks.clone()).lock().await?);
    assert!(!is_held(&locks, "own").await);
    Ok(())
}
