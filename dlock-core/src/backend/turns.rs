//! Turns of the requests of this process about one name, for backends whose requests overtake each other.
//!
//! ```text
//!  no turn --take--> next in line --those before it have ended theirs--> has the turn --drop--> over
//!                          |                                                                     ^
//!                          +------------------------------drop-----------------------------------+
//! ```

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

use super::within;
use crate::sync::plain::Mutex;

/// The turns of the requests of this process, for each name in the order in which they were asked for.
///
/// A backend with a fair queue puts its waiters into the queue in the order of their first attempts. Where one
/// connection carries requests out in any order, or there are several, each waits until the one before it is answered.
/// While a claim waits for its turn, its [`RequestClock`](super::RequestClock) says so. A turn that took too long is no
/// reason to give up: the claim goes on without its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::time::Duration;
/// use dlock_core::backend::Turns;
///
/// let turns = Turns::default();
/// let turn = turns.take("room_7", Duration::from_secs(3)).await;
/// // The request, until its answer.
/// drop(turn);
/// # }
/// ```
#[derive(Default)]
pub struct Turns(Mutex<HashMap<Arc<str>, Arc<Line>>>);

/// The requests that wait for their turn about one name.
#[derive(Default)]
struct Line {
    gate: Arc<Gate<()>>,
    /// The number of turns so far.
    begun: AtomicU64,
}

/// A turn, until it is dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    name: Arc<str>,
    line: Option<Arc<Line>>,
    has: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn of a request about `name`, unless one of those before it takes longer than `limit`: it may be
    /// that of a future that is not polled any more. The answer is then `None`.
    ///
    /// # Cancel safety
    ///
    /// Dropping this gives up the place in line.
    pub async fn take(&self, name: &str, limit: Duration) -> Option<Turn<'_>> {
        let mut turn = self.stand(name);
        let line = turn.line.clone()?;
        {
            let mut begin = pin!(turn.begin());
            loop {
                let begun = line.begun.load(Ordering::Relaxed);
                match within(limit, begin.as_mut()).await {
                    Some(()) => break,
                    None if line.begun.load(Ordering::Relaxed) == begun => return None,
                    None => {}
                }
            }
        }
        Some(turn)
    }

    fn stand(&self, name: &str) -> Turn<'_> {
        let (name, line) = {
            let mut lines = self.0.lock();
            match lines.get_key_value(name) {
                Some((name, line)) => (Arc::clone(name), Arc::clone(line)),
                None => {
                    let (name, line) = (Arc::<str>::from(name), Arc::default());
                    lines.insert(Arc::clone(&name), Arc::clone(&line));
                    (name, line)
                }
            }
        };
        // Made before it has the turn, so that its drop removes a name that is not in use in any case.
        Turn { turns: self, name, line: Some(line), has: None }
    }
}

impl Turn<'_> {
    async fn begin(&mut self) {
        if let Some(line) = &self.line {
            self.has = Some(Arc::clone(&line.gate).lock_owned().await);
            line.begun.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.has.take());
        drop(self.line.take());
        let mut lines = self.turns.0.lock();
        if lines.get(&self.name).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.name);
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("names", &self.0.lock().len()).finish()
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("is_ours", &self.has.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn each_has_its_turn_in_the_order_in_which_it_came() {
        let turns = Turns::default();
        let first = turns.take("a", LONG).await;
        let mut others: Vec<_> = (0..3).map(|_| Box::pin(turns.take("a", LONG))).collect();
        assert!(others.iter_mut().all(|other| other.as_mut().now_or_never().is_none()));
        assert!(turns.take("b", LONG).now_or_never().is_some(), "another name has turns of its own");
        drop(first);
        for mut next in std::mem::take(&mut others) {
            assert!(next.as_mut().now_or_never().is_some());
        }
    }

    #[tokio::test]
    async fn a_turn_that_takes_too_long_is_not_waited_for() {
        let turns = Turns::default();
        let first = turns.take("a", LONG).await;
        assert!(turns.take("a", Duration::from_millis(1)).await.is_none());
        drop(first);
        assert!(turns.take("a", LONG).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn whoever_goes_away_gives_its_place_up_and_no_name_stays() {
        let turns = Turns::default();
        let first = turns.take("a", LONG).await;
        let (mut second, mut third) = (Box::pin(turns.take("a", LONG)), Box::pin(turns.take("a", LONG)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        // It has the turn by now, and was never polled again.
        drop(second);
        assert!(third.as_mut().now_or_never().is_some());
        drop(third);
        assert!(turns.0.lock().is_empty());
    }
}
