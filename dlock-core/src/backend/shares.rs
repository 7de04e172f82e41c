//! The rules of a key that several may hold, as a state machine without clock, I/O or randomness.
//!
//! A store of locks keeps one [`KeyState`] for each key and changes it atomically. It loads the state, calls one method
//! with the request and the time of its own clock, and stores the state again. The state decides which claim gets the
//! lock, which is kept out, what has run out, and which fence comes next. The form in which the state is stored is up
//! to the store. A store with a row for each holder may load the rows of the tokens that a step names, and the rest as
//! [`Others`].
//!
//! ```
//! use std::time::Duration;
//! use dlock_core::backend::Mode;
//! use dlock_core::backend::shares::{Answer, KeyState, LockRequest};
//! use dlock_core::{Timestamp, Token};
//!
//! # fn main() -> Result<(), dlock_core::Failure> {
//! let (reader, writer) = (Token::random()?, Token::random()?);
//! let (lease, now) = (Duration::from_secs(30), Timestamp::from_nanos(1_000));
//! let mut state = KeyState::new();
//! let answer = state.attempt(&LockRequest::new(reader, Mode::Shared, lease), now, || "who reads");
//! assert!(matches!(answer, Answer::Granted(_)));
//! let answer = state.attempt(&LockRequest::new(writer, Mode::Exclusive, lease), now, || "who writes");
//! assert!(matches!(answer, Answer::Busy { until } if until == now + lease));
//! # Ok(()) }
//! ```
//!
//! # States
//!
//! Entries whose time has ended count for nothing in any rule; a grant deletes them.
//!
//! | state | entries | writer asks | reader asks | *take* permits of *n* are asked for |
//! |---|---|---|---|---|
//! | free | none | granted, or kept out | granted, or kept out | granted, and *n* is stored; or kept out |
//! | alone | one writer | busy until its end | busy until its end | conflict |
//! | readers | one or more readers | busy until the first end; preferred | granted, or kept out | conflict |
//! | semaphore of *n* | holders of permits, or none for 24 hours | conflict | conflict | granted if they fit, else busy until the first end, and preferred if *take* > 1; or kept out |
//! | semaphore of another number | as above | conflict | conflict | conflict |
//!
//! | step | changes |
//! |---|---|
//! | [`attempt`](KeyState::attempt) | the above. A token that holds the key already keeps its entry and fence, and its lease starts again, whatever the request says: the answer to its earlier attempt was lost |
//! | [`renew`](KeyState::renew) | the entry's lease starts again, if it has not ended |
//! | [`downgrade`](KeyState::downgrade) | alone to readers, with the same fence, and ends any preference; of a reader it renews |
//! | [`withdraw`](KeyState::withdraw) | deletes the token's entry and its preference |
//! | [`leave`](KeyState::leave) | moves the token's entry, alone or share, under the token that is left behind; a repetition only shortens the time |
//! | [`take_over`](KeyState::take_over) | moves an entry that was left under the token that asks, with a new fence, whatever turn or preference there is |
//! | [`resize`](KeyState::resize) | the number of permits, of a semaphore that is known; a conflict for a lock that is held |
//!
//! # Rules
//!
//! * **Fences**: each grant and each take-over draws a fence that is higher than all before. A writer draws a block of
//!   them; a share has one. An adopted entry, a renewal and a downgrade draw none.
//! * **Preference**: a claim that waits for all of a lock or for several permits, and finds no room, keeps newcomers
//!   out for [`PREFERENCE`], and lets them in for as long after that; then it may begin again. It counts while it asks
//!   at least every [`PREFERENCE_ALIVE`]. There is one at a time. A grant to a writer ends any preference: the holders
//!   that were waited for have left. No claim is preferred behind a writer, since no newcomer gets in there.
//! * **Order**: while the store names a [first in the queue](KeyState::with_first_in_queue) that is alive, only that
//!   claim is granted the key. A claim that waits in order is not kept out by preference.
//! * **Permits**: the number is kept for [`PERMITS_REMEMBERED`] after the last request that granted, renewed, withdrew
//!   or took over permits, and for as long as any are held or left. All entries count as taken, also those left under a
//!   baton. After the number was lowered, nothing is granted until enough were released.
//!
//! # Other homes of these rules
//!
//! `Memory` and SQLite (`dlock-sql`) keep such a state; SQLite takes a free key exclusively by a statement of its own.
//! PostgreSQL, MariaDB and MySQL (`dlock-sql`) and Redis (`dlock-redis`, as Lua) have copies of the rules: there a step
//! is one message, which the server carries out though its sender is paused, far away or gone. With the state in the
//! client a step is two messages. If the row is locked between them, a client that is paused there keeps the key and
//! its renewals waiting; if not, a client that is further away than others writes too late each time. Random histories
//! on these stores are compared with this module.
//!
//! Others decide without these rules: etcd (`rule.rs` of `dlock-etcd`) and ZooKeeper (`recipe/order.rs` and
//! `semaphore.rs` of `dlock-zk`) by the order of a queue that all claims stand in; locks of sessions and locked rows by
//! the server's own locks (`session/strategy.rs` of `dlock-sql`). A quorum has what its nodes have.
//!
//! Where a copy decides differently:
//!
//! | rule | here | copies that differ |
//! |---|---|---|
//! | an attempt to read under a token that holds the key exclusively, which no claim makes | keeps it exclusive | SQL servers: busy |
//! | another claim's preference when a writer is granted the key | ends | SQLite's statement: goes on |
//! | a writer that asks for the first time, of a key without holders, while another claim is preferred | kept out | databases: granted |
//! | when a busy key may be free | when the first entry ends | Redis: a lower bound of that, and with a queue the later of preference and turn |
//! | permits whose number is not asked for again after a baton was taken over | remembered as after a grant | Redis: no longer than before, or than the lease |
//! | room | as many readers as ask | Redis: 10,000 holders; Redisson's format: 10,000 readers |
//! | a reader that waited while a writer held the key | equal to the others | Redis: only readers are let in for 100 ms (5 ms after the first came) |
//! | a release while others wait in order | the store notifies the first | Redis: grants it the key |
//! | number of permits after a release by force | forgotten | Redisson's format: kept |
//!
//! [`PREFERENCE`]: crate::backend::PREFERENCE
//! [`PREFERENCE_ALIVE`]: crate::backend::PREFERENCE_ALIVE
//! [`PERMITS_REMEMBERED`]: crate::backend::PERMITS_REMEMBERED

mod entries;
#[cfg(test)]
mod histories;
mod request;
mod state;
#[cfg(test)]
mod tests;

pub use self::entries::{HolderEntry, Others, Permits, Preference, QueueEntry};
pub use self::request::{Answer, Downgraded, Granted, LockRequest, Verdict, Withdrawn};
pub use self::state::KeyState;
