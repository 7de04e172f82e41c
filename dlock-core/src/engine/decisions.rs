//! The decisions that the engine makes without I/O and without a clock, for the models that explore them. No part of
//! the public API.

/// Decides what follows an attempt to acquire, and keeps what may be on the servers meanwhile.
pub mod acquire {
    pub use crate::engine::acquire::decide::{
        Answer, BusyOutcome, End, Failed, Leaves, Next, Outcome, Pause, Progress, Terms,
    };
    pub use crate::engine::acquire::unsettled::{Sent, Unsettled};
}

/// The validity of a hold, the times of its renewals, and what becomes of it at the end of its section.
pub mod hold {
    pub use crate::engine::hold::Condition;
    pub use crate::engine::hold::lease::{After, LeaseTerms, Plan, Report, Standing};
    pub use crate::engine::hold::pass::{ReservedFences, SectionEnd};
}

/// The end of the session of another process.
pub mod session {
    pub use crate::engine::session::watch::{Look, Watch};
}

/// The moments at which the first waiter of a process asks for a lock.
pub mod ask {
    pub use crate::backend::backoff::PauseLimit;
    pub use crate::engine::wait_queue::ask::{AskAt, AskPlan};
}
