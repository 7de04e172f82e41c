//! Models of the protocols that dlock runs, explored to the last state.
//!
//! Each module states the protocol, what it assumes, and its bounds. Each test in `tests/` explores a model with all of
//! its assumptions and finds no counterexample, or drops one of them and finds one. The page `docs/models.md` has the
//! results.
//!
//! A model is not the code, but where it calls the code: the lease, the hand-off, the queue and the session decide by
//! the engine's state machines, and readers, writers and permits are judged by that of the stores. What a model takes
//! over otherwise is said with the name of the file; time is counted in ticks, and whatever a process does between two
//! events takes no time, or any time, since a step that can be taken need not be.

pub mod baton;
pub mod explore;
pub mod handoff;
pub mod lease;
pub mod queue;
pub mod quorum;
pub mod session;
pub mod shares;
pub mod zookeeper;
