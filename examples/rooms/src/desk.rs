//! What the service does, each under the lock it needs.

use std::time::Duration;

use dlock::{Error, Fence, Held, Locks, distributed_lock};
use serde::Serialize;
use thiserror::Error as Failure;

use crate::bookings::{Bookings, Write};

/// How long it takes to ask the payment provider, or whatever else is done between looking and booking.
const WORK: Duration = Duration::from_millis(4);

/// Why something was not done.
#[derive(Debug, Failure)]
pub(crate) enum Refusal {
    #[error("the room is booked on that day")]
    Booked,
    #[error("there is no such booking")]
    NoBooking,
    #[error("a booking moves to another room")]
    SameRoom,
    #[error("somebody else took over; try again")]
    Overtaken,
    #[error(transparent)]
    Lock(#[from] Error),
    #[error("the bookings cannot be read or written: {0}")]
    Data(#[from] sqlx::Error),
}

/// What became of a night's settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Settlement {
    /// Done here, with so many bookings.
    Done(u64),
    /// Another replica is at it, or has done it.
    Skipped,
}

/// One replica's desk.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) replica: String,
    pub(crate) locks: Locks,
    pub(crate) bookings: Bookings,
}

impl Desk {
    /// Books a room. The look, the work and the booking are one step to everybody who wants the same room.
    #[distributed_lock(key = "room_<room>", locks = self.locks, wait = "5s", lease = "10s", guard = held)]
    pub(crate) async fn book(&self, room: &str, day: u32, guest: &str) -> Result<(), Refusal> {
        let fence = fence_of(&held)?;
        accepted(self.bookings.enter(room, fence).await?)?;
        if self.bookings.guest(room, day).await?.is_some() {
            return Err(Refusal::Booked);
        }
        tokio::time::sleep(WORK).await;
        accepted(self.bookings.add(room, day, guest, fence).await?)
    }

    /// Moves a booking to another room, under the locks of both. They are always taken in the same order, so that two
    /// moves in opposite directions do not wait for each other.
    #[distributed_lock(
        keys = ["room_<from>", "room_<to>"],
        locks = self.locks,
        wait = "5s",
        lease = "10s",
        guard = held
    )]
    pub(crate) async fn relocate(&self, from: &str, to: &str, day: u32) -> Result<(), Refusal> {
        if from == to {
            return Err(Refusal::SameRoom);
        }
        let fence_of = |room| held.fence_of(&format!("room_{room}")).ok_or(Refusal::Overtaken);
        let (from_fence, to_fence) = (fence_of(from)?, fence_of(to)?);
        accepted(self.bookings.enter(from, from_fence).await?)?;
        accepted(self.bookings.enter(to, to_fence).await?)?;
        if self.bookings.guest(from, day).await?.is_none() {
            return Err(Refusal::NoBooking);
        }
        if self.bookings.guest(to, day).await?.is_some() {
            return Err(Refusal::Booked);
        }
        tokio::time::sleep(WORK).await;
        accepted(self.bookings.relocate((from, from_fence), (to, to_fence), day).await?)
    }

    /// Cancels a booking, under the lock of the room that the request was given.
    pub(crate) async fn cancel(&self, room: &str, day: u32, held: &Held) -> Result<(), Refusal> {
        let fence = fence_of(held)?;
        accepted(self.bookings.enter(room, fence).await?)?;
        if self.bookings.guest(room, day).await?.is_none() {
            return Err(Refusal::NoBooking);
        }
        accepted(self.bookings.cancel(room, day, fence).await?)
    }

    /// Settles a night, unless another replica does.
    #[distributed_lock(
        key = "settlement",
        locks = self.locks,
        wait = "no",
        lease = "10s",
        on_busy = Ok(Settlement::Skipped)
    )]
    pub(crate) async fn settle(&self, night: u64) -> Result<Settlement, Refusal> {
        if self.bookings.is_settled(night).await? {
            return Ok(Settlement::Skipped);
        }
        tokio::time::sleep(WORK * 5).await;
        Ok(Settlement::Done(self.bookings.settle(night, &self.replica).await?))
    }
}

fn fence_of(held: &Held) -> Result<Fence, Refusal> {
    // Every backend that this service can be given has fences.
    held.fence().ok_or(Refusal::Overtaken)
}

fn accepted(write: Write) -> Result<(), Refusal> {
    match write {
        Write::Done => Ok(()),
        Write::Stale => Err(Refusal::Overtaken),
    }
}
