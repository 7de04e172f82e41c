//! The handles of users, which carry options and forward to the [engine](crate::engine).

pub(crate) mod batch;
pub(crate) mod baton;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod once;
pub(crate) mod section;
pub(crate) mod segment;
pub(crate) mod semaphore;
