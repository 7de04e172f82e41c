//! Random histories of one key on a real store, which has to answer as the rules of [`dlock_core::backend::shares`] do.

use std::time::Duration;

use dlock_core::backend::shares::{Answer, Downgraded, KeyState, LockRequest, Verdict};
use dlock_core::backend::{
    Attempt, Backend, Claim, ClaimRequest, Mode, PREFERENCE, PREFERENCE_ALIVE, Renewed,
};
use dlock_core::{ErrorKind, Failure, Fence, Key, Timestamp, Token};
use dlock_testkit::claim_request;

use crate::servers::SteppedClock;

/// No time of a history is nearer than this to one at which something ends: the store and the rules read the clock at
/// different moments of a step.
const MARGIN: Duration = Duration::from_millis(400);
/// A step that took longer cannot be compared.
const LONGEST: Duration = Duration::from_millis(300);
/// How many claims a key has at the most.
const CLAIMS: usize = 8;

/// The clock of a store on this machine, which only a history sets.
struct StoreClock<'a> {
    stepped: &'a SteppedClock,
    ahead: Duration,
}

impl StoreClock<'_> {
    /// What the store's clock shows.
    fn now(&self) -> Duration {
        std::time::UNIX_EPOCH.elapsed().unwrap_or_default() + self.ahead
    }

    fn advance(&mut self, by: Duration) {
        self.ahead += by;
        self.stepped.ahead(self.ahead);
    }
}

/// Compares so many steps, or as many as `DLOCK_HISTORIES` says, in histories of 60 steps with a key each.
///
/// # Panics
///
/// When the backend and the rules answer differently, with all steps of the history.
#[expect(clippy::future_not_send, reason = "a test awaits it where it was made")]
pub async fn compare_histories<B: Backend>(backend: &B, stepped: &SteppedClock, steps: usize) {
    let steps = std::env::var("DLOCK_HISTORIES").ok().and_then(|steps| steps.parse().ok()).unwrap_or(steps);
    let mut clock = StoreClock { stepped, ahead: Duration::ZERO };
    let (mut made, mut seed) = (0, 0);
    while made < steps {
        made += compare(backend, &mut clock, seed, 60).await;
        seed += 1;
    }
}

/// Has the backend and the rules carry out each step of a history at one time, and returns how many steps: fewer where
/// the machine was too busy for one to be compared.
#[expect(clippy::future_not_send, reason = "a test awaits it where it was made")]
async fn compare<B: Backend>(backend: &B, clock: &mut StoreClock<'_>, seed: u64, steps: usize) -> usize {
    let mut history = History {
        backend,
        key: format!("history-{seed}"),
        random: fastrand::Rng::with_seed(seed),
        rules: KeyState::new(),
        now: Timestamp::from_nanos(0),
        is_semaphore: seed % 2 == 1,
        actors: Vec::new(),
        left: Vec::new(),
        log: Vec::new(),
    };
    for step in 0..steps {
        // A claim that keeps newcomers out has to ask every two seconds.
        let pauses: &[u64] = match history.preferred() {
            Some(_) => &[0, 100, 300, 600],
            None => &[0, 0, 0, 100, 700, 1_500, 3_000, 9_000],
        };
        let pause = *history.random.choice(pauses).unwrap_or(&0);
        clock.advance(Duration::from_millis(pause));
        let mut now = clock.now();
        while history.is_near_an_end(now) {
            clock.advance(MARGIN);
            now = clock.now();
        }
        history.now = timestamp(now);
        let compared = history.step().await;
        let occupancy = history.occupancy().await;
        if clock.now().saturating_sub(now) > LONGEST {
            return step;
        }
        if let Err(difference) = compared.and_then(|()| history.compare_holders(occupancy)) {
            panic!("seed {seed}, step {step}: {difference}\n{}", history.log.join("\n"));
        }
    }
    steps
}

fn timestamp(since_epoch: Duration) -> Timestamp {
    Timestamp::from_nanos(0) + since_epoch
}

/// A claim on the key, as the store and the rules have it.
struct Actor<C> {
    claim: C,
    request: ClaimRequest,
    was_granted: bool,
}

struct History<'a, B: Backend> {
    backend: &'a B,
    key: String,
    random: fastrand::Rng,
    rules: KeyState<()>,
    now: Timestamp,
    is_semaphore: bool,
    actors: Vec<Actor<B::Claim>>,
    /// What was left, and may be taken over.
    left: Vec<(Token, Mode)>,
    log: Vec<String>,
}

/// What a store answered to an attempt.
#[derive(Debug)]
enum Said {
    Granted(u64),
    Busy(Option<Duration>),
    Conflict,
}

type Compared = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, store: T, rules: T) -> Compared {
    if store == rules {
        Ok(())
    } else {
        Err(format!("{what}: the store says {store:?}, the rules {rules:?}"))
    }
}

impl<B: Backend> History<'_, B> {
    fn is_near_an_end(&self, now: Duration) -> bool {
        let preferred = self.rules.preferred();
        let preferred =
            preferred.map(|it| [it.alive_until, it.since + PREFERENCE, it.since + PREFERENCE * 2]);
        let ends = self.rules.entries().map(|entry| entry.expires).chain(preferred.into_iter().flatten());
        let now = timestamp(now);
        ends.into_iter().any(|end| end + MARGIN > now && now + MARGIN > end)
    }

    fn key(&self) -> Key {
        Key::new(&self.key).expect("a key")
    }

    async fn request(&mut self) -> ClaimRequest {
        let lease =
            Duration::from_millis(*self.random.choice(&[2_500, 5_000, 12_000, 31_000]).unwrap_or(&5_000));
        let is_semaphore = self.is_semaphore != (self.random.u32(0..12) == 0);
        let take = self.random.u32(1..=2);
        let mode = match self.random.u32(0..10) {
            _ if is_semaphore => Mode::Permits { of: 3 + u32::from(self.random.u32(0..6) == 0), take },
            0..4 => Mode::Exclusive,
            _ => Mode::Shared,
        };
        // A reader that waits has a chance of its own on some stores, before those who write.
        let waits = mode != Mode::Shared && self.random.u32(0..3) > 0;
        let mut request = claim_request(&self.key, lease, waits).await.expect("a request");
        request.mode = mode;
        request
    }

    async fn step(&mut self) -> Compared {
        let count = self.actors.len();
        if let Some((index, ends_soon)) = self.preferred()
            && self.random.u32(0..12) < if ends_soon { 11 } else { 2 }
        {
            return self.attempt(index).await;
        }
        let kind = self.random.u32(0..16);
        match kind {
            0..4 if count < CLAIMS => {
                let request = self.request().await;
                self.enter(request).await
            }
            _ if count == 0 => Ok(()),
            0..7 => {
                let index = self.random.usize(0..count);
                let actor = &self.actors[index];
                // Nothing asks again under a token that had the lock and lost it.
                if actor.was_granted && self.rules.holder(&actor.request.token, self.now).is_none() {
                    return Ok(());
                }
                self.attempt(index).await
            }
            7..10 | 12 => {
                let Some(index) = self.any_granted() else { return Ok(()) };
                match kind {
                    12 => self.leave(index).await,
                    9 => self.downgrade(index).await,
                    _ => self.renew(index).await,
                }
            }
            10 | 11 => {
                let index = self.random.usize(0..count);
                self.withdraw(index).await
            }
            13 | 14 => self.take_over().await,
            _ => self.resize().await,
        }
    }

    /// The claim that keeps newcomers out, or lets them in after it did, and whether it has to ask soon.
    fn preferred(&self) -> Option<(usize, bool)> {
        let preferred = self.rules.preferred().filter(|preferred| !preferred.is_over(self.now))?;
        let index = self.actors.iter().position(|actor| actor.request.token == preferred.token)?;
        Some((index, preferred.alive_until < self.now + PREFERENCE_ALIVE * 3 / 4))
    }

    fn any_granted(&mut self) -> Option<usize> {
        let granted = self.actors.iter().enumerate().filter(|(_, actor)| actor.was_granted);
        self.random.choice(granted.map(|(index, _)| index).collect::<Vec<_>>())
    }

    async fn enter(&mut self, request: ClaimRequest) -> Compared {
        let claim = self.backend.claim(request.clone());
        self.actors.push(Actor { claim, request, was_granted: false });
        self.attempt(self.actors.len() - 1).await
    }

    async fn attempt(&mut self, index: usize) -> Compared {
        let actor = &mut self.actors[index];
        let said = match actor.claim.attempt().await {
            Ok(Attempt::Granted(grant)) => Said::Granted(grant.fence.map_or(0, Fence::get)),
            Ok(Attempt::Busy(busy)) => Said::Busy(busy.retry_after),
            Err(failure) if failure.kind() == ErrorKind::Conflict => Said::Conflict,
            Err(failure) => return Err(format!("an attempt failed: {failure}")),
        };
        let asked = actor.request.to_lock_request();
        let left = actor.request.takes_over;
        self.log(&format!("attempt of {} ({left:?}): {said:?}", name(&asked)));
        self.answer(index, asked, left, &said)
    }

    /// Has the rules answer, with the fence that the store drew.
    fn answer(&mut self, index: usize, asked: LockRequest, left: Option<Token>, said: &Said) -> Compared {
        let least = if let Said::Granted(fence) = said { Fence::new(*fence) } else { Fence::new(1) };
        let (asked, now) = (asked.with_fences(1, least), self.now);
        let verdict = self.rules.judge(&asked, now);
        // The statement by which a database gives a free key to one alone knows nothing of a preference.
        let is_kept_out = asked.mode == Mode::Exclusive && matches!(verdict, Verdict::KeptOut(_));
        let has_statement = ["mysql", "postgres", "sqlite"].contains(&self.backend.name());
        let answer = match left {
            None if has_statement && is_kept_out && matches!(said, Said::Granted(_)) => {
                Answer::Granted(self.rules.grant(&asked, now, || ()))
            }
            Some(left) => self.rules.take_over(&asked, &left, now, || ()),
            None => self.rules.attempt(&asked, now, || ()),
        };
        match (said, answer) {
            (Said::Granted(fence), Answer::Granted(granted)) => {
                self.actors[index].was_granted = true;
                same("the fence", *fence, granted.fence.get())
            }
            (Said::Busy(after), Answer::Busy { until }) => {
                let latest = until.since(now) + MARGIN;
                if after.is_some_and(|after| after > latest) {
                    return Err(format!(
                        "{verdict:?}: the store says free in {after:?}, the rules in {latest:?}"
                    ));
                }
                // When a writer ends, and for how long newcomers are kept out, a store knows exactly.
                let is_alone = self.rules.holders(now).any(|held| held.mode == Mode::Exclusive);
                let is_exact = left.is_none() && (is_alone || matches!(verdict, Verdict::KeptOut(_)));
                if is_exact && after.is_some_and(|after| after + MARGIN * 2 < latest) {
                    return Err(format!(
                        "{verdict:?}: the store says free in {after:?}, the rules in {latest:?}"
                    ));
                }
                Ok(())
            }
            (Said::Conflict, Answer::Conflict(_)) => Ok(()),
            (said, answer) => Err(format!("{verdict:?}: the store says {said:?}, the rules {answer:?}")),
        }
    }

    async fn renew(&mut self, index: usize) -> Compared {
        let actor = &mut self.actors[index];
        let said = actor.claim.renew().await.map_err(text)?;
        let request = actor.request.to_lock_request();
        self.log(&format!("renewal of {}: {said:?}", name(&request)));
        let renewed = self.rules.renew(&request.token, request.lease, self.now);
        same("a renewal", said == Renewed::Extended, renewed)
    }

    async fn downgrade(&mut self, index: usize) -> Compared {
        let actor = &mut self.actors[index];
        if actor.request.mode != Mode::Exclusive {
            return Ok(());
        }
        let said = actor.claim.downgrade().await.map_err(text)?;
        let request = actor.request.to_lock_request();
        self.log(&format!("downgrade of {}: {said:?}", name(&request)));
        let downgraded = self.rules.downgrade(&request.token, request.lease, self.now);
        same("a downgrade", said == Renewed::Extended, downgraded != Downgraded::Gone)
    }

    async fn withdraw(&mut self, index: usize) -> Compared {
        let mut actor = self.actors.swap_remove(index);
        let said = actor.claim.withdraw().await.map_err(text)?;
        let token = actor.request.token;
        self.log(&format!("withdrawal of {}: {said:?}", name(&actor.request.to_lock_request())));
        let withdrawn = self.rules.withdraw(&token, self.now);
        same("a withdrawal", said.removed, withdrawn.entry.is_some_and(|entry| entry.expires > self.now))
    }

    async fn leave(&mut self, index: usize) -> Compared {
        let mut actor = self.actors.swap_remove(index);
        let token = actor.request.token;
        // Also a second time, as after an answer that was lost.
        for seconds in [self.random.u64(3..20), self.random.u64(3..20)] {
            let taken_for = Duration::from_secs(seconds);
            let said = actor.claim.leave(taken_for).await.map_err(text)?;
            self.log(&format!(
                "{} leaves it for {seconds} s: {said:?}",
                name(&actor.request.to_lock_request())
            ));
            let left = self.rules.leave(&token, taken_for, self.now).map(|entry| (entry.token, entry.mode));
            same("what is left", said.removed, left.is_some())?;
            self.left.extend(left);
        }
        Ok(())
    }

    async fn take_over(&mut self) -> Compared {
        let count = self.left.len();
        if count == 0 || self.actors.len() >= CLAIMS {
            return Ok(());
        }
        let (left, mode) = self.left[self.random.usize(0..count)];
        let mut request = self.request().await;
        let other = Mode::Permits { of: 3, take: 1 };
        let is_other = mode.permits().is_some() && self.random.u32(0..4) == 0;
        (request.mode, request.takes_over) = (if is_other { other } else { mode }, Some(left));
        self.enter(request).await
    }

    async fn resize(&mut self) -> Compared {
        let permits = self.random.u32(2..=4);
        let administration = self.backend.administration().expect("a store that is compared has one");
        let said = match administration.resize(self.key(), permits).await {
            Ok(before) => Ok(before),
            Err(failure) if failure.kind() == ErrorKind::Conflict => Err(()),
            Err(failure) => return Err(text(failure)),
        };
        self.log(&format!("resize to {permits}: {said:?}"));
        same("a resize", said, self.rules.resize(permits, self.now).map_err(drop))
    }

    #[expect(clippy::future_not_send, reason = "a test awaits it where it was made")]
    async fn occupancy(&self) -> Result<dlock_core::backend::Occupancy, Failure> {
        self.backend.occupancy(&self.key()).await
    }

    /// Who holds it, and for how long.
    fn compare_holders(&self, found: Result<dlock_core::backend::Occupancy, Failure>) -> Compared {
        let found = found.map_err(text)?;
        same("the number of permits", found.permits, self.rules.permits(self.now))?;
        let mut store: Vec<_> = found.holders.iter().collect();
        let mut rules: Vec<_> = self.rules.holders(self.now).collect();
        store.sort_by_key(|holder| holder.fence);
        rules.sort_by_key(|holder| holder.fence);
        let shown: Vec<_> = store.iter().map(|held| (held.fence, held.mode, held.left_behind)).collect();
        let held = rules.iter().map(|held| (Some(held.fence), held.mode, held.left_behind)).collect();
        same("the holders", shown, held)?;
        for (shown, held) in store.iter().zip(&rules) {
            let (left, expected) = (shown.expires_in.unwrap_or_default(), held.expires.since(self.now));
            if left.abs_diff(expected) > MARGIN {
                return Err(format!(
                    "{held:?} ends in {expected:?} by the rules, and in {left:?} by the store"
                ));
            }
        }
        Ok(())
    }

    fn log(&mut self, what: &str) {
        self.log.push(format!("{:>9} ms  {what}", self.now.as_nanos() / 1_000_000 % 1_000_000_000));
    }
}

fn text(failure: Failure) -> String {
    failure.to_string()
}

fn name(request: &LockRequest) -> String {
    let prefers = if request.prefers { ", which prefers" } else { "" };
    format!("{} ({}{prefers}) for {:?}", &request.token.to_hex()[..6], request.mode, request.lease)
}
