//! What the attributes expand to, and what their functions do.
#![cfg(feature = "macros")]

mod support;

mod batons;
mod behaviour;
mod composition;
mod drop_order;
mod errors;
mod future;
mod generics;
mod hygiene;
mod leader;
mod lints;
mod once;
mod patterns;
mod receivers;
mod traits;
