//! What goes wrong with real Redis servers, and what a lock makes of it.

mod support;

mod administering;
mod administrators;
mod batches;
mod cancelling;
mod carrying;
mod clients;
mod clocks;
mod cluster;
mod commands;
mod disturbances;
mod failover;
mod fairness;
mod freezing;
mod handover;
mod limits;
mod majority;
mod migrating;
mod newer;
mod outcomes;
mod proxies;
mod redisson;
mod refusals;
mod renewing;
mod repetitions;
mod restarts;
mod rights;
mod rules;
mod secrets;
mod sentinel;
mod sharding;
mod shortages;
mod tracking;
mod versions;
mod waiting;
