//! The guarantees that a program can require of its backend.

use std::fmt;

use crate::backend::{Capabilities, Mode};
use crate::error::Failure;
use crate::options::Options;

/// A guarantee that a program relies on and that not every backend gives. If the backend lacks it, requiring it is an
/// error at start-up, in place of a silent weakness: see [`LocksBuilder::require`](crate::LocksBuilder::require).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// Every grant has a [`Fence`](crate::Fence). [`Capabilities::fencing`].
    Fencing,
    /// Waiters are served in the order in which they came, those of all processes. [`Capabilities::fair`], or
    /// [`Capabilities::fair_on_request`] where it is asked for: [`Lock::with_fairness`](crate::Lock::with_fairness).
    Fair,
    /// A session keeps the lock, so that it ends with its holder's session. [`Capabilities::session_kept`].
    SessionKept,
    /// Waiters are notified of a release by another process, instead of asking now and then.
    /// [`Capabilities::notified`].
    Notified,
    /// A confirmed grant is not forgotten when servers fail over or are started again. [`Capabilities::durable`].
    Durable,
    /// Several may read at a time. [`Capabilities::shared`].
    Shared,
    /// An exclusive lock can become a reader's in one step: [`Guard::downgrade`](crate::Guard::downgrade).
    /// [`Capabilities::downgrades`].
    Downgrade,
    /// There are semaphores. [`Capabilities::permits`].
    Permits,
    /// A key can stay taken for a time after its release:
    /// [`Lock::with_hold_at_least`](crate::Lock::with_hold_at_least). [`Capabilities::leaves`].
    HoldAtLeast,
    /// A lock can be handed over to another task or process: [`Guard::hand_over`](crate::Guard::hand_over).
    /// [`Capabilities::hands_over`].
    HandOver,
}

impl Requirement {
    /// All requirements.
    pub const ALL: [Self; 10] = [
        Self::Fencing,
        Self::Fair,
        Self::SessionKept,
        Self::Notified,
        Self::Durable,
        Self::Shared,
        Self::Downgrade,
        Self::Permits,
        Self::HoldAtLeast,
        Self::HandOver,
    ];

    /// Returns the name, as in the attribute's `requires`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fencing => "fencing",
            Self::Fair => "fair",
            Self::SessionKept => "session_kept",
            Self::Notified => "notified",
            Self::Durable => "durable",
            Self::Shared => "shared",
            Self::Downgrade => "downgrade",
            Self::Permits => "permits",
            Self::HoldAtLeast => "hold_at_least",
            Self::HandOver => "hand_over",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Fencing => "every grant has a fencing token",
            Self::Fair => "waiters of all processes are served in their order",
            Self::SessionKept => "the lock ends with its holder's session",
            Self::Notified => "waiters are notified of a release",
            Self::Durable => "a confirmed grant outlives a failover or restart of the servers",
            Self::Shared => "several may read at a time",
            Self::Downgrade => "a writer can become a reader in one step",
            Self::Permits => "a semaphore with permits",
            Self::HoldAtLeast => "a key stays taken for a time after its release",
            Self::HandOver => "a lock can be handed over to another process",
        }
    }

    /// Returns whether a backend with these capabilities meets the requirement.
    #[must_use]
    pub const fn is_met_by(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::Fencing => capabilities.fencing,
            Self::Fair => capabilities.fair || capabilities.fair_on_request,
            Self::SessionKept => capabilities.session_kept,
            Self::Notified => capabilities.notified,
            Self::Durable => capabilities.durable,
            Self::Shared => capabilities.shared,
            Self::Downgrade => capabilities.downgrades,
            Self::Permits => capabilities.permits,
            Self::HoldAtLeast => capabilities.leaves,
            Self::HandOver => capabilities.leaves && capabilities.hands_over,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Refuses a mode that the backend does not have.
pub(crate) fn check_mode(mode: Mode, capabilities: &Capabilities) -> Result<(), Failure> {
    match mode {
        Mode::Exclusive => Ok(()),
        Mode::Shared => check(&[Requirement::Shared], capabilities),
        Mode::Permits { .. } => check(&[Requirement::Permits], capabilities),
    }
}

/// Refuses a lock that is to be fair on a backend that cannot keep its waiters in a queue.
pub(crate) fn check_fair(mode: Mode, capabilities: &Capabilities) -> Result<(), Failure> {
    if capabilities.fair {
        return Ok(());
    }
    check(&[Requirement::Fair], capabilities)?;
    if mode.is_exclusive() {
        return Ok(());
    }
    let what =
        "it keeps only those in a queue who want a lock alone; leave out `fair` for readers and permits";
    Err(Failure::new(crate::error::ErrorKind::Unsupported, what))
}

/// Refuses a lock whose key is to stay taken after its release, if the backend or the lock's kind cannot do that.
pub(crate) fn check_hold_at_least(
    mode: Mode,
    fair: bool,
    capabilities: &Capabilities,
) -> Result<(), Failure> {
    check(&[Requirement::HoldAtLeast], capabilities)?;
    if mode.is_exclusive() && !fair {
        return Ok(());
    }
    let what = "only a lock that is held alone, and is not fair, can stay taken after its release; leave out \
                `hold_at_least` for readers, permits and fair locks";
    Err(Failure::new(crate::error::ErrorKind::Unsupported, what))
}

/// Refuses a lock that is to be taken over, if the backend or the lock's kind cannot do that.
pub(crate) fn check_takes_over(options: &Options, capabilities: &Capabilities) -> Result<(), Failure> {
    let Options { mode, fair, role, takes_over, .. } = *options;
    check_handing_over(mode, fair, capabilities)?;
    if role.is_some() {
        let what = "a leader's term and the lock of a job are not taken over from a baton; take the lock over by itself";
        return Err(Failure::new(crate::error::ErrorKind::Unsupported, what));
    }
    // The number of permits of the semaphore may have been changed since, so only this hold's part is compared.
    if let Some((_, left)) = takes_over.filter(|(_, left)| !left.has_same_part(&mode)) {
        return Err(Failure::invalid_config(format!(
            "the baton is one of a lock that was held as `{left}`, and this asks for `{mode}`; take it over as it was \
             held, or by `Locks::take_over`"
        )));
    }
    Ok(())
}

/// Refuses to hand a lock over, or to take it over, if the backend cannot do that in its mode.
pub(crate) fn check_handing_over(mode: Mode, fair: bool, capabilities: &Capabilities) -> Result<(), Failure> {
    check(&[Requirement::HandOver], capabilities)?;
    let what = if fair && !capabilities.fair {
        "a fair lock cannot be handed over; leave out `fair` for this key"
    } else if !mode.is_exclusive() && !capabilities.hands_over_shares {
        "the backend hands over only what is held alone, and neither the share of a reader nor permits"
    } else {
        return Ok(());
    };
    Err(Failure::new(crate::error::ErrorKind::Unsupported, what))
}

/// Refuses locks that lack any of these: by their backend, or because they do not ask it for their order.
pub(crate) fn check_asked(
    required: &[Requirement],
    capabilities: &Capabilities,
    asks_fair: bool,
) -> Result<(), Failure> {
    check(required, capabilities)?;
    if capabilities.fair || asks_fair || !required.contains(&Requirement::Fair) {
        return Ok(());
    }
    let what = "these locks are not `fair`, which is required and the backend leaves to them; build them with \
                `LocksBuilder::require(Requirement::Fair)` or `with_fairness(true)`";
    Err(Failure::new(crate::error::ErrorKind::Unsupported, what))
}

/// Refuses a backend that lacks any of these, and names all that it lacks.
pub(crate) fn check(required: &[Requirement], capabilities: &Capabilities) -> Result<(), Failure> {
    let missing: Vec<String> = required
        .iter()
        .filter(|required| !required.is_met_by(capabilities))
        .map(|missing| format!("`{missing}` ({})", missing.sentence()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        crate::error::ErrorKind::Unsupported,
        format!("it does not give {}, which is required; use a backend that does", missing.join(", ")),
    ))
}
