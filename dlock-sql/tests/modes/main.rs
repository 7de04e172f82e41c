//! Fenced writes, optimistic writes and the modes beyond lease rows, on real databases.

mod fenced;
mod optimistic;
mod support;
mod transactions;
