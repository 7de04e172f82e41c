//! The order of looks at what is left of a command, and of kills.
//!
//! ```text
//! known processes  before the limit                       from the limit on, 100 rounds at most
//! alive            pause of 10 ms, doubled up to 1 s      kill them, look for others, kill these
//! gone             look for others: done if none is left  look for others, kill them: done if none is left
//! ```

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::members::Members;

/// The first pause between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// The longest pause between two looks before the limit.
const SELDOM: Duration = Duration::from_secs(1);
/// The number of rounds of killing: what is killed may have started something else meanwhile.
const KILLS: u32 = 100;

/// The end of what a command has left. The processes are asked for it already, and are killed from `limit` on.
#[derive(Debug)]
pub(crate) struct Sweep {
    limit: Instant,
    kills: u32,
    pause: Duration,
    /// Is `true` once the known processes were gone: from then on a process with their id is another one.
    gone: bool,
    /// The time that the last look through all processes took.
    took: Duration,
}

/// The remains of a command.
pub(crate) trait Left {
    /// A process that only a look through all processes finds.
    type Other;

    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Is `true` if a process is there that is known without a look through all processes.
    fn are_there(&self) -> bool;

    /// Kills the known processes.
    fn kill(&self);

    /// Finds the others. There may be many processes to look through.
    fn others(&self) -> Vec<Self::Other>;

    /// Kills one of the others.
    fn kill_other(&self, other: Self::Other);
}

/// The remains of a real command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remains {
    members: Members,
    /// Is `true` if the process id of the command is still its own, or its group's.
    known: bool,
}

impl Remains {
    /// Returns the remains of a command that was not waited for, or has a group.
    pub(crate) const fn of(members: Members) -> Self {
        Self { members, known: true }
    }

    /// Returns the remains of a command that has ended: its process id may be another's, unless it is its group's.
    pub(crate) const fn of_ended(members: Members) -> Self {
        Self { members, known: members.all }
    }
}

impl Left for Remains {
    type Other = Pid;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn are_there(&self) -> bool {
        self.known && self.members.are_there()
    }

    fn kill(&self) {
        if self.known {
            self.members.send(Signal::KILL);
        }
    }

    fn others(&self) -> Vec<Pid> {
        self.members.others()
    }

    fn kill_other(&self, other: Pid) {
        let _ = kill_process(other, Signal::KILL);
    }
}

impl Sweep {
    pub(crate) const fn new(limit: Instant) -> Self {
        Self { limit, kills: KILLS, pause: LOOK, gone: false, took: Duration::ZERO }
    }

    /// Looks once, and kills when it is time. Returns the pause until the next round, or `None` when nothing is left.
    pub(crate) fn round<L: Left>(&mut self, left: &L) -> Option<Duration> {
        let until_limit = self.limit.saturating_duration_since(left.now());
        if until_limit.is_zero() {
            return self.kill(left);
        }
        if !self.are_there(left) {
            // A look may take as long as the last one, and must not delay the kill.
            if until_limit < self.took {
                return Some(until_limit);
            }
            if self.look(left).is_empty() {
                return None;
            }
        }
        // Looks take about a fifth of the time at most.
        let pause = self.pause.max(self.took * 4);
        self.pause = (self.pause * 2).min(SELDOM);
        Some(pause.min(self.limit.saturating_duration_since(left.now())))
    }

    /// Kills the known processes before it looks for others, which takes time.
    fn kill<L: Left>(&mut self, left: &L) -> Option<Duration> {
        self.kills = self.kills.checked_sub(1)?;
        if self.are_there(left) {
            left.kill();
        }
        let others = self.look(left);
        if others.is_empty() && !self.are_there(left) {
            return None;
        }
        others.into_iter().for_each(|other| left.kill_other(other));
        Some(LOOK.max(self.took * 4))
    }

    fn are_there<L: Left>(&mut self, left: &L) -> bool {
        self.gone = self.gone || !left.are_there();
        !self.gone
    }

    fn look<L: Left>(&mut self, left: &L) -> Vec<L::Other> {
        let began = left.now();
        let others = left.others();
        self.took = left.now().saturating_duration_since(began);
        others
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const SLOW: Duration = Duration::from_millis(100);
    const GRACE: Duration = Duration::from_secs(10);

    /// A command on a host where a look through all processes is slow, and what was done about it when.
    struct Host {
        begun: Instant,
        now: Cell<Instant>,
        ends: Duration,
        has_group: bool,
        looks: Cell<u32>,
        group_killed: RefCell<Vec<Duration>>,
        others_killed: RefCell<Vec<Duration>>,
    }

    impl Host {
        fn new(has_group: bool, ends: Duration) -> Self {
            let begun = Instant::now();
            let now = Cell::new(begun);
            let killed = || RefCell::new(Vec::new());
            let (group_killed, others_killed) = (killed(), killed());
            Self { begun, now, ends, has_group, looks: Cell::new(0), group_killed, others_killed }
        }

        fn elapsed(&self) -> Duration {
            self.now.get() - self.begun
        }

        fn pass(&self, time: Duration) {
            self.now.set(self.now.get() + time);
        }

        /// The longest pause.
        fn sweep(&self) -> Duration {
            let mut longest = Duration::ZERO;
            let mut sweep = Sweep::new(self.begun + GRACE);
            while let Some(pause) = sweep.round(self) {
                longest = longest.max(pause);
                self.pass(pause);
            }
            longest
        }
    }

    impl Left for Host {
        type Other = ();

        fn now(&self) -> Instant {
            self.now.get()
        }

        fn are_there(&self) -> bool {
            self.has_group && self.elapsed() < self.ends && self.group_killed.borrow().is_empty()
        }

        fn kill(&self) {
            self.group_killed.borrow_mut().push(self.elapsed());
        }

        fn others(&self) -> Vec<()> {
            self.looks.set(self.looks.get() + 1);
            self.pass(SLOW);
            let ended = self.elapsed() >= self.ends || !self.others_killed.borrow().is_empty();
            if ended { Vec::new() } else { vec![()] }
        }

        fn kill_other(&self, (): ()) {
            self.others_killed.borrow_mut().push(self.elapsed());
        }
    }

    #[test]
    fn a_group_is_killed_at_the_limit_however_long_a_look_takes_and_the_others_after_one_look() {
        for has_group in [true, false] {
            let host = Host::new(has_group, Duration::MAX);
            assert!(host.sweep() <= SELDOM);
            let group_killed: &[_] = if has_group { &[GRACE] } else { &[] };
            assert_eq!(*host.group_killed.borrow(), group_killed);
            assert_eq!(*host.others_killed.borrow(), [GRACE + SLOW], "{has_group}");
            assert!(host.looks.get() < 20, "{} looks", host.looks.get());
        }
    }

    #[test]
    fn what_ends_by_itself_is_killed_by_nobody_and_waited_for_no_longer() {
        for has_group in [true, false] {
            let host = Host::new(has_group, GRACE / 2);
            host.sweep();
            assert!(host.group_killed.borrow().is_empty() && host.others_killed.borrow().is_empty());
            assert!(host.elapsed() <= GRACE / 2 + SELDOM + SLOW * 2, "{:?}", host.elapsed());
        }
    }

    #[test]
    fn what_cannot_be_killed_is_given_up() {
        struct Immortal;

        impl Left for Immortal {
            type Other = ();

            fn now(&self) -> Instant {
                Instant::now()
            }

            fn are_there(&self) -> bool {
                true
            }

            fn kill(&self) {}

            fn others(&self) -> Vec<()> {
                vec![()]
            }

            fn kill_other(&self, (): ()) {}
        }

        let mut sweep = Sweep::new(Instant::now());
        let rounds = std::iter::from_fn(|| sweep.round(&Immortal)).count();
        assert_eq!(rounds, usize::try_from(KILLS).unwrap());
    }
}
