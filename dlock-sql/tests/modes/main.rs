//! Fenced writes, optimistic writes and the modes beyond lease rows, on real databases.

mod documented;
mod fenced;
mod first_row;
mod kept;
mod kept_by;
mod messages;
mod optimistic;
mod pruning;
mod queues;
mod support;
mod transactions;
