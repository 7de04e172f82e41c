//! What goes wrong with real ZooKeeper servers, and what a lock makes of it.

mod support;

mod administrators;
mod cancelling;
mod carrying;
mod connections;
mod crowds;
mod downgrading;
mod dropping;
mod ensemble;
mod leaving;
mod majority;
mod meddlers;
mod members;
mod numbers;
mod outcomes;
mod permits;
mod queue;
mod restarts;
mod rights;
mod sessions;
mod sharing;
mod watches;
