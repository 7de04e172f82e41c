//! Handing a lock over, and taking it over.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use crate::backend::requirement::check_takes_over;
use crate::baton::Baton;
use crate::engine::baton::hand_over;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::batch::{Batch, BatchGuard};
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::handles::locks::Locks;
use crate::handles::semaphore::Semaphore;

/// A lock that is about to be handed over: to be awaited. See [`Guard::hand_over`].
#[derive(Debug)]
#[must_use = "nothing is handed over before it is awaited"]
pub struct HandOver {
    held: Held,
    at_most: Option<Duration>,
}

impl HandOver {
    /// Sets for how long no other process gets the lock if the baton is not taken over: 50 ms to 24 h, from when the
    /// request arrives. The default is the lock's lease.
    pub const fn for_at_most(mut self, time: Duration) -> Self {
        self.at_most = Some(time);
        self
    }
}

impl IntoFuture for HandOver {
    type Output = Result<Baton>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Baton>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { held, at_most } = self;
            if held.holds().len() > 1 {
                return Err(unsupported("these are several locks; hand them over by `hand_over_all`"));
            }
            let mut batons = hand_over_all(&held, at_most).await?;
            Ok(batons.swap_remove(0))
        })
    }
}

/// All locks of a batch that are about to be handed over: to be awaited. See [`BatchGuard::hand_over_all`].
#[derive(Debug)]
#[must_use = "nothing is handed over before it is awaited"]
pub struct HandOverAll(HandOver);

impl HandOverAll {
    /// Sets for how long the keys stay taken if they are not taken over; see [`HandOver::for_at_most`].
    pub fn for_at_most(self, time: Duration) -> Self {
        Self(self.0.for_at_most(time))
    }
}

impl IntoFuture for HandOverAll {
    type Output = Result<Vec<Baton>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Vec<Baton>>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self(HandOver { held, at_most }) = self;
        Box::pin(async move { hand_over_all(&held, at_most).await })
    }
}

async fn hand_over_all(held: &Held, at_most: Option<Duration>) -> Result<Vec<Baton>> {
    if held.holds().is_empty() {
        return Err(unsupported("this body runs without the lock, which can therefore not be handed over"));
    }
    hand_over(held.holds(), at_most).await
}

fn unsupported(what: &'static str) -> Error {
    Error::new(Operation::HandOver, Failure::new(ErrorKind::Unsupported, what))
}

impl Guard {
    /// Hands the lock over to the process that brings the baton that comes of it, and holds it no more.
    ///
    /// * **The guard ends first**, before any request: [`check`](Self::check) is an error from then on, and so it is
    ///   for every view. Dropping or releasing the guard afterwards does nothing.
    /// * **The baton is not renewed.** It can be taken over for a lease, or for the time of
    ///   [`for_at_most`](HandOver::for_at_most); then others get the lock.
    /// * **Only the last share.** While the owner has further guards of the hold, or bodies or tasks run under it, it
    ///   is refused: they rely on the lock.
    /// * A key that stays taken by [`with_hold_at_least`](Lock::with_hold_at_least) is kept for the baton for at least
    ///   what is missing of that. The process that takes it over releases it by options of its own.
    /// * **A failure that may pass is asked again** until the lease would have ended, unless
    ///   [`with_rechecks(0)`](Lock::with_rechecks) forbids that.
    ///
    /// One request. A reader's share and permits are handed over as they are held, where the backend
    /// [can](crate::Capabilities::hands_over_shares): they count as taken meanwhile. The lock must not be `fair`. A
    /// lock that a session keeps cannot leave it, and a quorum has no tokens of its own: see
    /// [`Requirement::HandOver`](crate::Requirement::HandOver).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let guard = locks.lock("order_7").acquire().await?;
    /// // The queue may take its time.
    /// let baton = guard.hand_over().for_at_most(Duration::from_secs(600)).await?;
    /// println!("order_7 is on its way until {:?}", baton.until());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was changed, and the guard holds as before:
    ///
    /// * [`ErrorKind::Unsupported`]: the backend cannot, or not in this mode; the lock is fair; it is a leader's term
    ///   or the lock of a job.
    /// * [`ErrorKind::Conflict`]: it has further shares, as above, or is being downgraded.
    /// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the time is out of bounds.
    /// * [`ErrorKind::Suspect`], [`ErrorKind::Lost`] and [`ErrorKind::NotHeld`] as of [`check`](Self::check).
    ///
    /// The guard holds nothing any more, and there is no baton:
    ///
    /// * [`ErrorKind::NotHeld`]: the server did not have the lock for it.
    /// * [`ErrorKind::Unknown`], [`ErrorKind::Unavailable`] and other kinds of the backend: it did not confirm. The
    ///   lock is released in the background.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed before the first poll. When dropped later, the lock is released in the background: its baton
    /// is with no process.
    pub fn hand_over(&self) -> HandOver {
        self.held().hand_over()
    }
}

impl Held {
    /// Hands the lock over from inside its body, which goes on without it: [`Guard::hand_over`]. The end of the body
    /// then releases nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] of a batch of several, and of a body that runs without the lock; otherwise those of
    /// [`Guard::hand_over`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::hand_over`].
    pub fn hand_over(&self) -> HandOver {
        HandOver { held: self.clone(), at_most: None }
    }

    /// Hands all locks of the batch over, as [`BatchGuard::hand_over_all`] does; of one lock, that one.
    ///
    /// # Errors
    ///
    /// Those of [`BatchGuard::hand_over_all`], and [`ErrorKind::Unsupported`] for a body that runs without the lock.
    ///
    /// # Cancel safety
    ///
    /// As [`BatchGuard::hand_over_all`].
    pub fn hand_over_all(&self) -> HandOverAll {
        HandOverAll(self.hand_over())
    }
}

impl BatchGuard {
    /// Hands all locks of the batch over, to the process that brings the batons: one for each lock, in the order of
    /// [`fences`](Self::fences). Each is a baton as [`Guard::hand_over`] makes it: together they are taken over by
    /// [`Locks::take_over_all`], and each by itself by [`Locks::take_over`].
    ///
    /// All are closed first, and then all keys are left at the same time. Each costs what [`Guard::hand_over`] costs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let batons = locks.lock_all(["account_9", "account_4"]).acquire().await?.hand_over_all().await?;
    /// // In another process, to which they went along with the work:
    /// let guard = locks.take_over_all(&batons).await?;
    /// assert_eq!(guard.fences().count(), 2);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Guard::hand_over`], of the first lock that has one. If that is an error after which nothing was
    /// changed, nothing was changed of the others either; otherwise there are no batons, and all locks are freed in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed before the first poll. When dropped later, the locks are released in the background: their
    /// batons are with no process.
    pub fn hand_over_all(&self) -> HandOverAll {
        self.held().hand_over_all()
    }
}

impl Lock {
    /// Returns the lock whose acquire takes over what was handed over by [`Guard::hand_over`], with the options of this
    /// one: its lease, `max_hold` and so on. So do [`try_acquire`](Self::try_acquire) and [`run`](Self::run).
    ///
    /// The lock goes from the baton to the guard in one step of the server, with a new fence, and no other process has
    /// it in between. Such an acquire never waits for others; the [wait](Self::with_wait) is there for requests that
    /// fail.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let baton = locks.lock("order_7").acquire().await?.hand_over().await?;
    /// let lock = locks.lock("order_7").with_lease(Duration::from_secs(10)).from_baton(&baton)?;
    /// lock.run(async { /* goes on with the work */ }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the baton is one of another key, kind of
    ///   backend or [mode](Baton::mode): a reader's is taken over by [`Lock::read`], and permits by as many.
    /// * [`ErrorKind::Unsupported`]: the backend cannot, or not in this mode.
    ///
    /// The acquire has these of its own, beside those of every [`acquire`](Self::acquire):
    ///
    /// * [`ErrorKind::NotHeld`]: the baton was taken over before, or its time is over; [`Error::holder`] returns the
    ///   holder of the lock, where it has one. Nothing was changed.
    /// * [`ErrorKind::Unknown`]: a request was sent, and its effect could not be found out. What it took is withdrawn
    ///   in the background, and the lock is then free.
    ///
    /// # Cancel safety
    ///
    /// If the acquire is dropped midway, the baton is as before, or the lock is released in the background.
    pub fn from_baton(&self, baton: &Baton) -> Result<Self> {
        let refuse = |failure| Err(self.error(Operation::Acquire, failure));
        let lock = self.clone().taking_over(baton.token(), baton.mode());
        if let Err(failure) = check_takes_over(lock.options(), &self.engine().capabilities) {
            return refuse(failure);
        }
        // An invalid key is refused by the acquire.
        if self.key().is_some_and(|key| key != baton.key_of_lock()) {
            return refuse(Failure::invalid_config(format!("the baton is one of the key {:?}", baton.key())));
        }
        if self.engine().name != baton.backend() {
            let (theirs, ours) = (baton.backend(), self.engine().name);
            return refuse(Failure::invalid_config(format!(
                "the baton is one of a lock on {theirs:?}, and this is one on {ours:?}"
            )));
        }
        Ok(lock)
    }
}

impl Semaphore {
    /// Returns the semaphore whose acquire takes over permits that were handed over by [`Guard::hand_over`], as
    /// [`Lock::from_baton`] does: as many as were held.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::from_baton`].
    pub fn from_baton(&self, baton: &Baton) -> Result<Self> {
        Ok(self.clone().with_lock(self.lock().from_baton(baton)?))
    }
}

impl Locks {
    /// Returns the lock whose acquire takes over what was handed over by [`Guard::hand_over`], as [`Lock::from_baton`]
    /// does, with the key and in the mode of the baton: for a baton that may be of a lock, a reader's share or permits.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let baton = locks.semaphore("gpu", 4).take(2).acquire().await?.hand_over().await?;
    /// let guard = locks.from_baton(&baton)?.with_lease(Duration::from_secs(10)).acquire().await?;
    /// assert_eq!(guard.mode(), baton.mode());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::from_baton`].
    pub fn from_baton(&self, baton: &Baton) -> Result<Lock> {
        self.lock(baton.key()).with_mode(baton.mode()).from_baton(baton)
    }

    /// Takes over what was handed over by [`Guard::hand_over`], in this process or another, with the options of these
    /// locks. For other options, and to run a body, see [`from_baton`](Self::from_baton).
    ///
    /// # Errors
    ///
    /// Those of [`Lock::from_baton`] and of its acquire.
    ///
    /// # Cancel safety
    ///
    /// As the acquire of [`Lock::from_baton`].
    pub async fn take_over(&self, baton: &Baton) -> Result<Guard> {
        self.from_baton(baton)?.acquire().await
    }

    /// Takes over all that was handed over by [`BatchGuard::hand_over_all`], as a batch: all of it or nothing.
    ///
    /// One request for each, one after the other. A baton that is given twice counts once.
    ///
    /// # Errors
    ///
    /// Those of [`take_over`](Self::take_over), for the first lock that cannot be had. The locks that were taken over
    /// before it are released then: their batons are used up.
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig), before any request: two different batons of one
    /// key, which a batch has once. At most one of them can be taken over of a lock that is held alone; batons of
    /// shares are taken over one by one.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, what was taken over is released in the background, and the other batons are as before.
    pub async fn take_over_all<'a>(&self, batons: impl IntoIterator<Item = &'a Baton>) -> Result<BatchGuard> {
        let mut of_keys: HashMap<&str, &Baton> = HashMap::new();
        let take = |baton: &'a Baton| {
            if of_keys.insert(baton.key(), baton).is_some_and(|other| other != baton) {
                let what = "two different batons of this key, which a batch has once; bring the one that was handed \
                            over last, or take over shares one by one";
                return Err(self.lock(baton.key()).error(Operation::Acquire, Failure::invalid_config(what)));
            }
            self.from_baton(baton)
        };
        let locks = batons.into_iter().map(take).collect::<Result<Vec<_>>>()?;
        Batch::of(locks).acquire().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::{Attempt, Mode};
    use crate::engine::Spec;
    use crate::options::Options;
    use crate::telemetry::Site;
    use crate::{Key, ManualClock, Memory, Token};

    fn baton(backend: &str) -> Baton {
        let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
        Baton::new(backend, (key, Mode::Exclusive), token, None, std::time::SystemTime::now())
    }

    #[tokio::test]
    async fn two_batons_of_one_key_are_refused_by_a_batch_and_stay_as_they_are() {
        let locks = Locks::new(Memory::new());
        let (first, second) = (locks.lock("first"), locks.lock("second"));
        let old = first.acquire().await.unwrap().hand_over().await.unwrap();
        let new = locks.take_over(&old).await.unwrap().hand_over().await.unwrap();
        let other = second.acquire().await.unwrap().hand_over().await.unwrap();
        for batons in [[&other, &old, &new], [&new, &other, &old]] {
            let error = locks.take_over_all(batons).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains("first"), "{error}");
        }
        let guard = locks.take_over_all([&other, &new, &other, &new]).await.unwrap();
        assert_eq!(guard.fences().count(), 2);
    }

    /// The hand-over was dropped, and its request arrives after the one that retracts it.
    #[tokio::test]
    async fn what_was_left_and_is_about_to_end_is_not_left_for_longer() {
        let clock = ManualClock::stopped();
        let locks = Locks::new(Memory::with_clock(clock.clock()));
        let (engine, key) = (Arc::clone(locks.engine()), Key::new("k").unwrap());
        let spec = Spec { engine, key, site: Site::default(), options: Options::default() };
        let mut claim = spec.claim(None).unwrap();
        assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
        let (hour, last) = (Duration::from_secs(3_600), Duration::from_millis(1));
        for time in [hour, last, hour] {
            assert!(claim.leave(time).await.unwrap().removed);
        }
        clock.advance(last);
        assert!(locks.inspect("k").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_baton_of_another_key_or_backend_is_refused_before_any_request() {
        let locks = Locks::new(Memory::new());
        let error = locks.take_over(&baton("redis")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("redis"), "{error}");
        let ours = baton("memory");
        let error = locks.lock("other").from_baton(&ours).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = locks.lock("k").read().from_baton(&ours).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        // Nor can it become a reader's, or fair, once it is to be taken over.
        let lock = || locks.lock("k").from_baton(&ours).unwrap();
        assert_eq!(lock().read().acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        assert_eq!(lock().with_fairness(true).acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
        let error = locks.take_over(&ours).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert!(locks.inspect("k").await.unwrap().is_none(), "nothing is made anew");
    }
}
