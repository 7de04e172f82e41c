//! What a body runs under.

use std::sync::Arc;

use crate::engine::hold::Hold;

/// One lock, several, or none.
#[derive(Clone)]
pub(crate) enum HeldLocks {
    /// For a body that runs without the lock, because that was asked for.
    None,
    One(Arc<Hold>),
    All(Arc<[Arc<Hold>]>),
}

impl HeldLocks {
    /// In the order in which they were taken.
    pub(crate) fn holds(&self) -> &[Arc<Hold>] {
        match self {
            Self::None => &[],
            Self::One(hold) => std::slice::from_ref(hold),
            Self::All(holds) => holds,
        }
    }
}
