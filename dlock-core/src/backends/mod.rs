//! Backends that need no server: the memory of this process, and decorators of other backends.

pub(crate) mod memory;
pub(crate) mod prefix;
