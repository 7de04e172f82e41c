//! Fenced writes, optimistic writes and the modes beyond lease rows, on real databases.

#[path = "../by_hand/mod.rs"]
mod by_hand;
mod clocks;
mod documented;
mod fenced;
mod first_row;
mod hostile;
mod kept;
mod kept_by;
mod messages;
mod mishaps;
mod newer;
mod optimistic;
mod pruning;
mod queues;
mod readers;
mod reading;
mod refused;
mod support;
mod timestamps;
mod transactions;
mod ways;
