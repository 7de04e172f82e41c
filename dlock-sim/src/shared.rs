//! What several hold at a time in the simulated store, who waits for it in order, and who keeps newcomers out.

use std::collections::BTreeMap;

use dlock_core::Token;
use dlock_core::backend::{Mode, PREFERENCE, PREFERENCE_ALIVE};

use crate::lease::{Answer, Changes, Command, One};

/// The keys of runs of modes.
#[derive(Default)]
pub(crate) struct SharedKeys {
    keys: BTreeMap<usize, SharedKey>,
    fence: u64,
    interest: Vec<(usize, usize)>,
}

#[derive(Default)]
struct SharedKey {
    holders: Vec<Holder>,
    /// Who waits for all of it, since when, and until when it is alive.
    preferred: Option<(Token, u64, u64)>,
    /// Who waits in order, and until when each is alive.
    line: Vec<(Token, u64)>,
}

struct Holder {
    token: Token,
    claim: u64,
    mode: Mode,
    /// The first of its fences.
    fence: u64,
    expires: u64,
}

impl SharedKey {
    /// Whether there is room for one of this mode beside those who hold it.
    fn has_room(&self, mode: Mode) -> bool {
        match mode {
            Mode::Shared => self.holders.iter().all(|holder| holder.mode == Mode::Shared),
            Mode::Permits { of, take } => {
                self.holders.iter().map(|holder| holder.mode.taken()).sum::<u32>() + take <= of
            }
            _ => self.holders.is_empty(),
        }
    }

    /// Until when another one than `token` keeps newcomers out.
    fn kept_out(&self, token: Token, time: u64) -> Option<u64> {
        let (who, since, alive) = self.preferred.filter(|(who, ..)| *who != token)?;
        let until = alive.min(since + nanos(PREFERENCE));
        (who != token && until > time).then_some(until)
    }

    /// Until when it is another one's turn.
    fn others_turn(&mut self, token: Token, time: u64) -> Option<u64> {
        while let Some((first, alive)) = self.line.first() {
            if *alive > time || *first == token {
                return (*first != token).then_some(*alive);
            }
            self.line.remove(0);
        }
        None
    }

    /// One that waits, and is not served.
    fn waits(&mut self, one: &One, time: u64) {
        let alive = time + nanos(PREFERENCE_ALIVE);
        if one.fair {
            match self.line.iter_mut().find(|(token, _)| *token == one.token) {
                Some(place) => place.1 = alive,
                None => self.line.push((one.token, alive)),
            }
        }
        let shared = self.holders.iter().any(|holder| holder.mode != Mode::Exclusive);
        if !shared || !one.mode.has_preference() {
            return;
        }
        match &mut self.preferred {
            Some((token, since, until)) if *until > time && *since + 2 * nanos(PREFERENCE) > time => {
                if *token == one.token {
                    *until = alive;
                }
            }
            preferred => *preferred = Some((one.token, time, alive)),
        }
    }
}

fn nanos(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

impl SharedKeys {
    /// Carries out one command, in one step, at `time` of the store's clock.
    pub(crate) fn carry_out(&mut self, command: &Command, time: u64, changes: &mut Changes) -> Answer {
        match command {
            Command::Attempt(all) => self.attempt(all, time),
            Command::Renew(one) => match self.own(one, time) {
                Some(holder) => {
                    holder.expires = time + one.lease;
                    Answer::Extended
                }
                None => Answer::Gone,
            },
            Command::Downgrade(one) => {
                let Some(holder) = self.own(one, time) else { return Answer::Gone };
                (holder.mode, holder.expires) = (Mode::Shared, time + one.lease);
                self.tell(one.key, changes);
                Answer::Extended
            }
            Command::Withdraw(one) => {
                let live = self.own(one, time).is_some();
                let key = self.keys.entry(one.key).or_default();
                let before = (key.holders.len(), key.line.len());
                key.holders.retain(|holder| holder.token != one.token);
                key.line.retain(|(token, _)| *token != one.token);
                let kept_out = key.preferred.take_if(|(token, ..)| *token == one.token).is_some();
                if kept_out || before != (key.holders.len(), key.line.len()) {
                    self.tell(one.key, changes);
                }
                Answer::Removed(live)
            }
            Command::Leave(..) => Answer::Removed(false),
            Command::Inspect(key) => Answer::Held(self.keys.get(key).and_then(|key| {
                key.holders
                    .iter()
                    .filter_map(|holder| holder.expires.checked_sub(time))
                    .filter(|left| *left > 0)
                    .max()
            })),
        }
    }

    /// What a token has, if its lease runs.
    fn own(&mut self, one: &One, time: u64) -> Option<&mut Holder> {
        let key = self.keys.get_mut(&one.key)?;
        key.holders.iter_mut().find(|holder| holder.token == one.token && holder.expires > time)
    }

    /// All or none.
    fn attempt(&mut self, all: &[One], time: u64) -> Answer {
        for (place, one) in all.iter().enumerate() {
            let key = self.keys.entry(one.key).or_default();
            key.holders.retain(|holder| holder.expires > time);
            if key.holders.iter().any(|holder| holder.token == one.token) {
                continue;
            }
            let end = key.holders.iter().map(|holder| holder.expires).min();
            let busy_until = if key.has_room(one.mode) {
                // Whose turn it is, is said by the line alone.
                let kept_out = if one.fair { None } else { key.kept_out(one.token, time) };
                kept_out.or(key.others_turn(one.token, time))
            } else {
                end.or(Some(time))
            };
            let Some(until) = busy_until else { continue };
            if one.waits {
                key.waits(one, time);
            }
            let interest = (one.key, one.process);
            if !self.interest.contains(&interest) {
                self.interest.push(interest);
            }
            return Answer::Busy(place, until.saturating_sub(time).max(1));
        }
        let grants = all.iter().map(|one| {
            let key = self.keys.entry(one.key).or_default();
            if let Some(own) = key.holders.iter_mut().find(|holder| holder.token == one.token) {
                own.expires = time + one.lease;
                return (own.fence, 1);
            }
            key.line.retain(|(token, _)| *token != one.token);
            key.preferred.take_if(|(token, ..)| *token == one.token || one.mode == Mode::Exclusive);
            let fences = if one.mode == Mode::Exclusive && !one.fair { one.fences } else { 1 };
            let fence = time.max(self.fence + 1);
            self.fence = fence + u64::from(fences) - 1;
            let expires = time + one.lease;
            key.holders.push(Holder { token: one.token, claim: one.claim, mode: one.mode, fence, expires });
            (fence, fences)
        });
        Answer::Granted(grants.collect())
    }

    /// Has those told who wait for a key.
    fn tell(&mut self, key: usize, changes: &mut Changes) {
        let told = self.interest.extract_if(.., |(of, _)| *of == key);
        changes.tell.extend(told);
    }

    /// The claim of somebody who holds a key, if anybody does.
    pub(crate) fn held(&self, time: u64) -> Option<u64> {
        let mut holders = self.keys.values().flat_map(|key| &key.holders);
        holders.find(|holder| holder.expires > time).map(|holder| holder.claim)
    }
}
