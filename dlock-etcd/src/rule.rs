//! Who holds a lock: the one place of the rule, without I/O and without a clock.
//!
//! All entries of a directory stand in the order of their create revisions, and those that hold stand first:
//!
//! | the first entry is | these hold |
//! |---|---|
//! | exclusive | it alone |
//! | a reader | all readers before the first entry that is none |
//! | of a semaphore | all before the first whose permits, with those before it, are more than there are |
//!
//! So no entry passes another one, and whoever holds goes on to do so whatever comes behind.

use dlock_core::backend::Mode;

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    Holds,
    /// It waits for a change of the entry with this index.
    Behind(usize),
    /// So many permits of entries before it have to come free, or to be added.
    Lacks(u32),
    /// An entry before it uses the key in another way.
    Conflict(Mode),
}

/// Returns how many of the entries with these modes, in their order, hold the lock.
pub(crate) fn holding(modes: &[Mode], permits: u32) -> usize {
    let mut taken = 0_u32;
    let fits = |mode: &&Mode| match mode {
        Mode::Permits { take, .. } => {
            taken = taken.saturating_add(*take);
            taken <= permits
        }
        _ => false,
    };
    match modes.first() {
        Some(Mode::Permits { .. }) => modes.iter().take_while(fits).count(),
        Some(Mode::Shared) => modes.iter().take_while(|mode| **mode == Mode::Shared).count(),
        first => usize::from(first.is_some()),
    }
}

/// Returns the place of the entry at index `at`. For an exclusive one, the first entry and the one before it are
/// enough.
pub(crate) fn place(modes: &[Mode], at: usize, permits: u32) -> Place {
    let (before, own) = (&modes[..at], modes[at]);
    let is_other = |mode: &&Mode| mode.permits().is_some() != own.permits().is_some();
    match before.iter().find(is_other) {
        Some(other) => Place::Conflict(*other),
        None if at < holding(modes, permits) => Place::Holds,
        None => match own {
            Mode::Permits { .. } => {
                let wanted = modes[..=at].iter().map(Mode::taken).fold(0, u32::saturating_add);
                Place::Lacks(wanted.saturating_sub(permits))
            }
            Mode::Shared => {
                Place::Behind(before.iter().rposition(|mode| *mode != Mode::Shared).unwrap_or_default())
            }
            _ => Place::Behind(at.saturating_sub(1)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Mode = Mode::Exclusive;
    const R: Mode = Mode::Shared;

    const fn p(take: u32) -> Mode {
        Mode::Permits { of: 4, take }
    }

    #[test]
    fn those_that_hold_stand_first() {
        for (modes, holding_now) in [
            (&[][..], 0),
            (&[W], 1),
            (&[W, W, R], 1),
            (&[R, R, W, R], 2),
            (&[p(2), p(2), p(1)], 2),
            (&[p(2), p(3), p(1)], 1),
            (&[p(5)], 0),
            (&[p(1), W, p(1)], 1),
            (&[R, p(1)], 1),
            (&[p(u32::MAX), p(u32::MAX)], 0),
        ] {
            assert_eq!(holding(modes, 4), holding_now, "{modes:?}");
        }
    }

    #[test]
    fn each_entry_holds_or_knows_what_it_waits_for() {
        use Place::{Behind, Conflict, Holds, Lacks};
        for (modes, places) in [
            (&[W, W, W][..], &[Holds, Behind(0), Behind(1)][..]),
            (&[W, R, R], &[Holds, Behind(0), Behind(0)]),
            (&[R, R, W, R, W], &[Holds, Holds, Behind(1), Behind(2), Behind(3)]),
            (&[p(3), p(1), p(1)], &[Holds, Holds, Lacks(1)]),
            (&[p(3), p(2), p(1)], &[Holds, Lacks(1), Lacks(2)]),
            (&[W, p(1), R], &[Holds, Conflict(W), Conflict(p(1))]),
            (&[p(1), W, p(1)], &[Holds, Conflict(p(1)), Conflict(W)]),
        ] {
            let found: Vec<_> = (0..modes.len()).map(|at| place(modes, at, 4)).collect();
            assert_eq!(found, places, "{modes:?}");
        }
    }

    #[test]
    fn at_no_time_do_two_hold_that_exclude_each_other() {
        let all = [W, R, p(1), p(2), p(3)];
        for number in 0..5_usize.pow(5) {
            let modes: Vec<_> = (0..5).map(|at| all[number / 5_usize.pow(at) % 5]).collect();
            let held = &modes[..holding(&modes, 4)];
            let taken: u32 = held.iter().map(Mode::taken).sum();
            let fits = match held.first() {
                Some(Mode::Permits { .. }) => taken <= 4 && held.iter().all(|mode| mode.permits().is_some()),
                Some(Mode::Shared) => held.iter().all(|mode| *mode == R),
                _ => held.len() <= 1,
            };
            assert!(fits, "{modes:?}");
            for at in 0..5 {
                let holds = place(&modes, at, 4) == Place::Holds;
                assert_eq!(holds, at < held.len(), "{modes:?} {at}");
            }
        }
    }
}
