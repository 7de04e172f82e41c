//! The process that may open sessions.

use std::sync::OnceLock;

use dlock_core::{ErrorKind, Failure};

/// The process that opens sessions.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Notes that this process opens sessions.
pub(super) fn opens_in_this_process() {
    // The first process stays noted: a child must not pass for the owner of a reactor whose thread it does not have.
    PROCESS.get_or_init(std::process::id);
}

/// Refuses sessions to a child, made by `fork`, of a process that has opened one. There is one reactor for all of a
/// process. Its thread is not in the child, where nothing would be answered, and the handles that it waits with are the
/// parent's.
pub(super) fn refuse_in_child() -> Result<(), Failure> {
    if PROCESS.get().is_none_or(|process| *process == std::process::id()) {
        return Ok(());
    }
    let what = "the process that was forked had opened a session of ZooKeeper, and its client works in that process \
                only; fork before the first session, or start a program in the child";
    Err(Failure::new(ErrorKind::Unsupported, what))
}
