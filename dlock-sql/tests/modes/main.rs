//! Fenced writes, optimistic writes and the modes beyond lease rows, on real databases.

mod fenced;
mod kept;
mod kept_by;
mod optimistic;
mod support;
mod transactions;
