//! The sessions of other processes that are in the way of acquires here.
//!
//! Each of them is watched by one task, which begins with the first answer that names the session, and ends when no
//! acquire has asked about it since its last looks. So a session that nobody waits for costs nothing, and one that
//! thousands wait for costs a look for each lease of its record.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::clock::Timestamp;
use crate::engine::session::SessionId;
use crate::engine::session::watch::{Look, Watch};
use crate::sync::Mutex;

/// The number of sessions from which on those that are over are forgotten: they are watched anew if they are met again.
const MOST: usize = 1_024;

/// The time that a look and the answer to it are given before an acquire asks about it.
const ANSWERED: Duration = Duration::from_millis(20);

/// The number of looks after which a live session that no acquire has met is forgotten. An acquire meets it a moment
/// after each look.
const MOST_UNMET: u32 = 2;

/// The sessions that are watched.
#[derive(Default)]
pub(crate) struct Watching {
    sessions: Mutex<HashMap<SessionId, Watched, RandomState>>,
}

struct Watched {
    watch: Watch,
    /// The number of looks since an acquire has met it.
    unmet: u32,
}

/// The state of the session of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It may be live, and is watched. Whether it is may be known in this time.
    KnownIn(Duration),
    /// It may be live, and is to be watched from now on.
    New,
    /// It is over.
    Over,
}

impl Found {
    /// Returns the time after which an acquire asks again.
    pub(crate) const fn ask_in(self) -> Duration {
        match self {
            Self::KnownIn(time) => time,
            Self::New => ANSWERED,
            Self::Over => Duration::ZERO,
        }
    }
}

impl Watching {
    /// Returns the state of a session that an acquire has met at `now`.
    pub(crate) fn find(&self, id: &SessionId, now: Timestamp) -> Found {
        let mut sessions = self.sessions.lock();
        if let Some(watched) = sessions.get_mut(id) {
            watched.unmet = 0;
            return match watched.watch.look_at() {
                Some(look_at) => Found::KnownIn(look_at.since(now) + ANSWERED),
                None => Found::Over,
            };
        }
        if sessions.len() >= MOST {
            sessions.retain(|_, watched| !watched.watch.is_over());
        }
        sessions.insert(id.clone(), Watched { watch: Watch::new(id.lease(), now), unmet: 0 });
        Found::New
    }

    /// Notes the answer to a look. Returns the time of the next one, if there is to be one.
    pub(crate) fn looked(&self, id: &SessionId, look: Look, now: Timestamp) -> Option<Timestamp> {
        let mut sessions = self.sessions.lock();
        let watched = sessions.get_mut(id)?;
        watched.watch.looked(look, now);
        watched.unmet += 1;
        if watched.watch.is_live() && watched.unmet > MOST_UNMET {
            sessions.remove(id);
            return None;
        }
        watched.watch.look_at()
    }

    /// Forgets a session that is not watched any more.
    pub(crate) fn forget(&self, id: &SessionId) {
        self.sessions.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn id(number: u32) -> SessionId {
        SessionId::parse(&format!("1000-{number:032x}")).unwrap()
    }

    #[test]
    fn a_live_session_that_no_acquire_meets_is_forgotten_and_one_that_is_gone_is_not() {
        let watching = Watching::default();
        let there = Look::There(Some(Duration::from_secs(1)));
        assert_eq!(watching.find(&id(1), at(0)), Found::New);
        assert_eq!(watching.looked(&id(1), there, at(0)), Some(at(1_005)));
        assert_eq!(watching.find(&id(1), at(1_000)), Found::KnownIn(Duration::from_millis(25)));
        for now in [2_000, 3_000] {
            assert!(watching.looked(&id(1), there, at(now)).is_some());
        }
        assert_eq!(watching.looked(&id(1), there, at(4_000)), None, "it has not been met for three looks");
        assert_eq!(watching.looked(&id(1), there, at(5_000)), None);
        assert_eq!(watching.find(&id(2), at(0)), Found::New);
        for now in [0, 100, 200, 300] {
            assert_eq!(watching.looked(&id(2), Look::Absent, at(now)), Some(at(1_010)));
        }
        assert_eq!(watching.looked(&id(2), Look::Absent, at(1_010)), None);
        assert_eq!(watching.find(&id(2), at(5_000)), Found::Over);
    }

    #[test]
    fn of_too_many_sessions_those_that_are_over_are_forgotten() {
        let watching = Watching::default();
        for number in 0..1_024 {
            assert_eq!(watching.find(&id(number), at(0)), Found::New);
        }
        for now in [0, 1_010] {
            watching.looked(&id(0), Look::Absent, at(now));
        }
        assert_eq!(watching.find(&id(0), at(1_010)), Found::Over);
        assert_eq!(watching.find(&id(1_024), at(1_010)), Found::New);
        assert_eq!(watching.find(&id(0), at(1_010)), Found::New, "watched anew");
        assert!(matches!(watching.find(&id(1), at(0)), Found::KnownIn(_)));
    }
}
