//! What several hold at a time: who was beside whom, and how their fences lie.

use super::holds::{HoldRecord, holds};
use crate::history::{Event, HeldAs};

/// The verdict of [`sharing`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Holds that were looked at.
    pub holds: usize,
    /// How many were believed in at one time, at the most, of one key.
    pub most: usize,
    /// Who was beside whom, and should not have been.
    pub beside: Vec<Misplaced>,
    /// Whose fences do not fit.
    pub inversions: Vec<Misplaced>,
}

/// A hold that does not go with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The key.
    pub key: String,
    /// Process and hold of both, the earlier one first.
    pub holds: [(u32, u64); 2],
    /// What is wrong.
    pub what: &'static str,
}

impl Misplaced {
    /// As [`Inversion::TOO_EARLY`](super::Inversion::TOO_EARLY).
    pub const TOO_EARLY: &'static str = super::Inversion::TOO_EARLY;

    fn new(before: &HoldRecord<'_>, hold: &HoldRecord<'_>, what: &'static str) -> Self {
        let holds = [(before.process, before.hold), (hold.process, hold.hold)];
        Self { key: hold.key.to_owned(), holds, what }
    }
}

/// Checks locks that are read and written, and semaphores:
///
/// * while one owner believes to hold a lock alone, no other believes to hold it;
/// * no more permits are believed in at a time than there are;
/// * a fence of a lock that is held alone lies between those before and those after it: nobody else has it, whoever
///   has a lower one has left, or was promised no more time, and asked no later than the higher one was granted.
///
/// Readers may have fences in any order among each other, and so may those who have permits.
#[must_use]
pub fn sharing(events: &[Event]) -> Sharing {
    let holds = holds(events);
    let mut verdict = Sharing { holds: holds.len(), ..Sharing::default() };
    beside(&holds, &mut verdict);
    order(&holds, &mut verdict);
    verdict
}

const fn is_alone(hold: &HoldRecord<'_>) -> bool {
    matches!(hold.held_as, HeldAs::Alone)
}

fn beside(holds: &[HoldRecord<'_>], verdict: &mut Sharing) {
    let mut order: Vec<&HoldRecord<'_>> = holds.iter().collect();
    order.sort_by_key(|hold| (hold.key, hold.acquired));
    // Those that are believed in when the next one begins.
    let mut believed: Vec<&HoldRecord<'_>> = Vec::new();
    for hold in order {
        believed.retain(|other| other.key == hold.key && other.end() > hold.acquired);
        // What was never believed in after it was granted is beside nobody.
        if hold.end() <= hold.acquired {
            continue;
        }
        let mut taken = match hold.held_as {
            HeldAs::Permits { taken, .. } => taken,
            HeldAs::Alone | HeldAs::Reader => 0,
        };
        for other in &believed {
            let what = match (hold.held_as, other.held_as) {
                (HeldAs::Alone, _) | (_, HeldAs::Alone) => "held beside one who holds it alone",
                (HeldAs::Permits { of, .. }, HeldAs::Permits { taken: others, .. }) => {
                    taken += others;
                    if taken <= of {
                        continue;
                    }
                    "more permits than there are"
                }
                _ => continue,
            };
            verdict.beside.push(Misplaced::new(other, hold, what));
        }
        believed.push(hold);
        verdict.most = verdict.most.max(believed.len());
    }
}

/// The hold for which something is the latest, of a key.
#[derive(Clone, Copy, Default)]
struct Latest<'a>(Option<&'a HoldRecord<'a>>);

impl<'a> Latest<'a> {
    fn note(&mut self, hold: &'a HoldRecord<'a>, when: impl Fn(&HoldRecord<'a>) -> u64) {
        if self.0.is_none_or(|before| when(before) < when(hold)) {
            self.0 = Some(hold);
        }
    }
}

fn order(holds: &[HoldRecord<'_>], verdict: &mut Sharing) {
    let fenced = holds.iter().filter(|hold| !matches!(hold.held_as, HeldAs::Permits { .. }));
    let mut order: Vec<(u64, &HoldRecord<'_>)> =
        fenced.filter_map(|hold| hold.fence.map(|fence| (fence, hold))).collect();
    order.sort_by_key(|(fence, hold)| (hold.key, *fence, hold.acquired));
    let mut before: Option<(u64, &HoldRecord<'_>)> = None;
    // Of those with lower fences: who left last, and who asked last. Of all, and of those who had it alone.
    let [mut left, mut left_alone, mut asked, mut asked_alone] = [Latest::default(); 4];
    for (fence, hold) in order {
        if before.is_none_or(|(_, before)| before.key != hold.key) {
            [left, left_alone, asked, asked_alone] = [Latest::default(); 4];
            before = None;
        }
        let alone = is_alone(hold);
        if let Some((_, other)) =
            before.filter(|(lower, other)| *lower == fence && (alone || is_alone(other)))
        {
            verdict.inversions.push(Misplaced::new(other, hold, "the fence of one who holds it alone"));
        }
        let (last, last_asked) = if alone { (left, asked) } else { (left_alone, asked_alone) };
        if let Some(other) = last.0.filter(|other| hold.acquired < other.promised_until()) {
            verdict.inversions.push(Misplaced::new(other, hold, Misplaced::TOO_EARLY));
        }
        if let Some(other) = last_asked.0.filter(|other| hold.acquired < other.invoked) {
            let what = "the lower fence was asked for after the higher one was granted";
            verdict.inversions.push(Misplaced::new(other, hold, what));
        }
        left.note(hold, HoldRecord::promised_until);
        asked.note(hold, |hold| hold.invoked);
        if alone {
            left_alone.note(hold, HoldRecord::promised_until);
            asked_alone.note(hold, |hold| hold.invoked);
        }
        before = Some((fence, hold));
    }
}
