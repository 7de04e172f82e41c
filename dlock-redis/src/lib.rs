//! Redis as a backend of dlock.
//!
//! [`Redis`] keeps each lock as a hash with a time to live, in the form of Redisson's `RLock`, so that services in Java
//! and in Rust can exclude and wake each other. See `docs/backends/redis.md` for what it guarantees, and when not.

#![forbid(unsafe_code)]

mod administration;
mod backend;
mod claim;
mod config;
mod connection;
mod error;
mod fenced;
mod keys;
mod scripts;
mod subscription;
mod url;

pub use backend::Redis;
pub use claim::RedisClaim;
pub use config::RedisBuilder;
pub use fenced::{fence_key, fenced_script};
