//! Lease rows on real database servers.

mod addresses;
mod attacks;
#[path = "../by_hand/mod.rs"]
mod by_hand;
#[path = "../by_hand/carrying.rs"]
mod carried;
mod carrying;
mod clocks;
mod connections;
mod failover;
mod faults;
mod full;
#[path = "../by_hand/handoff.rs"]
mod handed_off;
mod handoff;
mod line;
mod lost_replies;
#[path = "../by_hand/mixing.rs"]
mod mixing;
mod named;
mod opening;
mod poolers;
mod pools;
mod rights;
mod rows;
mod rules;
mod settings;
mod shares;
mod strangers;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod versions;
mod waiting;
