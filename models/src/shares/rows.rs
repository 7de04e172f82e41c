//! The rows of a key in a store: what stands in them, and the state that they are of.

use std::collections::BTreeMap;

use dlock_core::backend::Mode;
use dlock_core::backend::shares::{HolderEntry, KeyState, Permits, Preference};
use dlock_core::{Fence, Timestamp};

use super::{NOW, Shares, TICK, claim_of, token};

/// What is stored for the key. Times are ticks from now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Rows {
    pub(super) row: Row,
    pub(super) shares: BTreeMap<u8, Share>,
    pub(super) preferred: Option<(u8, u8)>,
}

/// The row of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) by: By,
    pub(super) fence: u8,
    pub(super) left: u8,
    /// A claim sleeps.
    pub(super) awaited: bool,
    /// By how little its end was moved, so that it differs: less than a tick, whatever the number.
    pub(super) moved: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum By {
    Nobody,
    Alone(u8),
    Several,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Share {
    pub(super) fence: u8,
    pub(super) left: u8,
}

pub(super) fn at(left: u8) -> Timestamp {
    NOW + TICK * u32::from(left)
}

pub(super) fn ticks(until: Timestamp) -> u8 {
    u8::try_from(until.since(NOW).as_secs()).unwrap_or(u8::MAX)
}

pub(super) fn small(fence: Fence) -> u8 {
    u8::try_from(fence.get()).unwrap_or(u8::MAX)
}

impl Rows {
    pub(super) const NEW: Self = Self {
        row: Row { by: By::Nobody, fence: 0, left: 0, awaited: false, moved: 0 },
        shares: BTreeMap::new(),
        preferred: None,
    };

    pub(super) fn is_held(&self) -> bool {
        self.row.by != By::Nobody && self.row.left > 0
    }

    pub(super) fn state(&self, model: &Shares) -> KeyState<()> {
        let entry = |claim: u8, fence: u8, left: u8| HolderEntry {
            token: token(claim),
            mode: model.request(claim).mode,
            fence: Fence::new(u64::from(fence)),
            expires: at(left),
            left_behind: false,
            detail: (),
        };
        let preferred = self.preferred.map(|(claim, alive)| Preference {
            token: token(claim),
            since: NOW,
            alive_until: at(alive),
        });
        let rules = KeyState::new().with_last_fence(Fence::new(u64::from(self.row.fence)));
        let rules = rules.with_preference(preferred.filter(|preferred| !preferred.is_over(NOW)));
        match self.row.by {
            By::Alone(claim) if self.row.left > 0 => {
                rules.with_holder(entry(claim, self.row.fence, self.row.left))
            }
            By::Several if self.row.left > 0 => {
                let of = model.request(0).mode.permits();
                let permits = of.map(|of| Permits { of, remembered_until: at(self.row.left) });
                let shares = self.shares.iter().filter(|(_, share)| share.left > 0);
                shares.fold(rules.with_permits(permits), |rules, (claim, share)| {
                    rules.with_holder(entry(*claim, share.fence, share.left))
                })
            }
            _ => rules,
        }
    }

    /// The rows that keep this state.
    pub(super) fn keeping(&self, rules: &KeyState<()>) -> Self {
        let mut rows = Self { shares: BTreeMap::new(), ..self.clone() };
        rows.row.fence = small(rules.last_fence());
        rows.preferred = rules
            .preferred()
            .map(|preferred| (claim_of(preferred.token), ticks(preferred.alive_until)))
            .filter(|(_, alive)| *alive > 0);
        (rows.row.by, rows.row.left) = (By::Nobody, 0);
        for entry in rules.holders(NOW) {
            let (claim, left) = (claim_of(entry.token), ticks(entry.expires));
            rows.row.left = rows.row.left.max(left);
            if entry.mode == Mode::Exclusive {
                rows.row.by = By::Alone(claim);
            } else {
                rows.row.by = By::Several;
                rows.shares.insert(claim, Share { fence: small(entry.fence), left });
            }
        }
        rows
    }

    /// Writes what differs after a step from what was read before.
    pub(super) fn write(&mut self, before: &Self, after: &Self) {
        if after.row != before.row {
            self.row = after.row;
        }
        if after.preferred != before.preferred {
            self.preferred = after.preferred;
        }
        for claim in before.shares.keys().chain(after.shares.keys()) {
            match after.shares.get(claim) {
                of if of == before.shares.get(claim) => {}
                Some(share) => drop(self.shares.insert(*claim, *share)),
                None => drop(self.shares.remove(claim)),
            }
        }
    }

    pub(super) fn tick(&mut self) {
        self.row.left = self.row.left.saturating_sub(1);
        self.shares.values_mut().for_each(|share| share.left = share.left.saturating_sub(1));
        self.preferred = self.preferred.map(|(claim, alive)| (claim, alive - 1)).filter(|of| of.1 > 0);
    }
}
