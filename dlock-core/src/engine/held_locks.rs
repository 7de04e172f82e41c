//! The locks that a body runs under.

use std::sync::Arc;

use crate::engine::hold::Hold;

/// One lock, several, or none.
#[derive(Clone)]
pub(crate) enum HeldLocks {
    /// No lock: the body runs without it, because that was asked for.
    None,
    One(Arc<Hold>),
    All(Arc<[Arc<Hold>]>),
}

impl HeldLocks {
    /// Returns the holds, in the order in which they were taken.
    pub(crate) fn holds(&self) -> &[Arc<Hold>] {
        match self {
            Self::None => &[],
            Self::One(hold) => std::slice::from_ref(hold),
            Self::All(holds) => holds,
        }
    }
}
