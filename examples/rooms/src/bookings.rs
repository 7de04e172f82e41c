//! The database of the bookings.

use std::path::Path;
use std::time::Duration;

use dlock::Fence;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

/// A room can be booked twice here: only the lock prevents it.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS bookings (
        room TEXT NOT NULL, day INTEGER NOT NULL, guest TEXT NOT NULL, settled INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX IF NOT EXISTS bookings_by_day ON bookings (room, day);
    CREATE TABLE IF NOT EXISTS rooms (room TEXT PRIMARY KEY, fence INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS settlements (
        night INTEGER NOT NULL, replica TEXT NOT NULL, bookings INTEGER NOT NULL
    ) STRICT;
";

/// A connection to the database.
#[derive(Clone, Debug)]
pub(crate) struct Bookings(SqlitePool);

/// Whether a write was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Write {
    Done,
    /// A later holder of the room's lock has been here already.
    Stale,
}

/// What the database says in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) bookings: i64,
    /// Days on which a room is booked more than once.
    pub(crate) double: i64,
    pub(crate) nights: i64,
    /// Nights that were settled more than once.
    pub(crate) twice: i64,
}

impl Bookings {
    pub(crate) async fn open(path: &Path) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        Ok(Self(pool))
    }

    /// Announces the holder of a room's lock: from here on nothing is accepted of earlier ones.
    pub(crate) async fn enter(&self, room: &str, fence: Fence) -> Result<Write, sqlx::Error> {
        let entered = sqlx::query(
            "INSERT INTO rooms (room, fence) VALUES (?1, ?2)
             ON CONFLICT (room) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence",
        );
        let done = entered.bind(room).bind(number(fence)).execute(&self.0).await?;
        Ok(if done.rows_affected() == 1 { Write::Done } else { Write::Stale })
    }

    /// Who has booked the room for the day.
    pub(crate) async fn guest(&self, room: &str, day: u32) -> Result<Option<String>, sqlx::Error> {
        let guest = sqlx::query_scalar("SELECT guest FROM bookings WHERE room = ? AND day = ?");
        guest.bind(room).bind(day).fetch_optional(&self.0).await
    }

    pub(crate) async fn add(
        &self,
        room: &str,
        day: u32,
        guest: &str,
        fence: Fence,
    ) -> Result<Write, sqlx::Error> {
        let added = sqlx::query(
            "INSERT INTO bookings (room, day, guest)
             SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM rooms WHERE room = ?1 AND fence <= ?4)",
        );
        let done = added.bind(room).bind(day).bind(guest).bind(number(fence)).execute(&self.0).await?;
        Ok(if done.rows_affected() == 1 { Write::Done } else { Write::Stale })
    }

    /// Cancels a booking, if no later holder of the room's lock has been here.
    pub(crate) async fn cancel(&self, room: &str, day: u32, fence: Fence) -> Result<Write, sqlx::Error> {
        let cancelled = sqlx::query(
            "DELETE FROM bookings WHERE room = ?1 AND day = ?2
             AND EXISTS (SELECT 1 FROM rooms WHERE room = ?1 AND fence <= ?3)",
        );
        let done = cancelled.bind(room).bind(day).bind(number(fence)).execute(&self.0).await?;
        Ok(if done.rows_affected() == 1 { Write::Done } else { Write::Stale })
    }

    /// Moves a booking to another room, if no later holder of either room's lock has been here.
    pub(crate) async fn relocate(
        &self,
        (from, from_fence): (&str, Fence),
        (to, to_fence): (&str, Fence),
        day: u32,
    ) -> Result<Write, sqlx::Error> {
        let moved = sqlx::query(
            "UPDATE bookings SET room = ?2 WHERE room = ?1 AND day = ?3
             AND EXISTS (SELECT 1 FROM rooms WHERE room = ?1 AND fence <= ?4)
             AND EXISTS (SELECT 1 FROM rooms WHERE room = ?2 AND fence <= ?5)",
        );
        let moved = moved.bind(from).bind(to).bind(day).bind(number(from_fence)).bind(number(to_fence));
        let done = moved.execute(&self.0).await?;
        Ok(if done.rows_affected() == 1 { Write::Done } else { Write::Stale })
    }

    pub(crate) async fn is_settled(&self, night: u64) -> Result<bool, sqlx::Error> {
        let settled = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM settlements WHERE night = ?)");
        settled.bind(night.cast_signed()).fetch_one(&self.0).await
    }

    /// Settles what is not settled yet, and says how many bookings that were.
    pub(crate) async fn settle(&self, night: u64, replica: &str) -> Result<u64, sqlx::Error> {
        let mut transaction = self.0.begin_with("BEGIN IMMEDIATE").await?;
        let settled = sqlx::query("UPDATE bookings SET settled = 1 WHERE settled = 0");
        let count = settled.execute(&mut *transaction).await?.rows_affected();
        sqlx::query("INSERT INTO settlements (night, replica, bookings) VALUES (?, ?, ?)")
            .bind(night.cast_signed())
            .bind(replica)
            .bind(count.cast_signed())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(count)
    }

    pub(crate) async fn sums(&self) -> Result<Sums, sqlx::Error> {
        let sums: (i64, i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM bookings),
                (SELECT count(*) FROM (SELECT 1 FROM bookings GROUP BY room, day HAVING count(*) > 1)),
                (SELECT count(DISTINCT night) FROM settlements),
                (SELECT count(*) FROM (SELECT 1 FROM settlements GROUP BY night HAVING count(*) > 1))",
        )
        .fetch_one(&self.0)
        .await?;
        let (bookings, double, nights, twice) = sums;
        Ok(Sums { bookings, double, nights, twice })
    }
}

fn number(fence: Fence) -> i64 {
    fence.get().cast_signed()
}
