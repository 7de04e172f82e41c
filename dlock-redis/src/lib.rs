//! Redis as a backend of dlock.
//!
//! [`Redis`] keeps each lock as one key with a time to live: in a form of its own, or in those of Redisson, so that
//! services in Java and in Rust exclude and wake each other. See `docs/backends/redis.md` for its guarantees and their
//! limits.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod administration;
mod backend;
mod claim;
mod client;
mod client_scripts;
mod command;
mod config;
mod diagnosis;
mod error;
mod existing;
mod fenced;
mod format;
mod keys;
mod listening;
mod newer;
mod request;
mod servers;
mod tracking;
mod url;

pub use backend::Redis;
pub use claim::RedisClaim;
pub use client_scripts::{ClientScripts, client_scripts};
pub use config::RedisBuilder;
pub use fenced::{fence_key, fenced_script};
pub use format::Recipe;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use format::hostile::holders_in;
pub use newer::newer_script;
