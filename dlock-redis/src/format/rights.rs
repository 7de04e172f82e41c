//! The commands that uses of locks need besides those of exclusive locks.

use redis::Cmd;

use crate::request::CallNumber;

const TEXT: &str = include_str!("rights.lua");

/// The most uses of a format.
pub(crate) const USES: usize = 3;

/// The commands of readers, semaphores and fair locks of dlock's own format.
pub(super) const SHARES: &[&str] =
    &["TYPE", "HMGET a", "HGET a", "HSET a b c", "HDEL a", "HGETALL", "HLEN", "+INCR", "+DECR"];

/// The commands of Redisson's readers and writers.
pub(super) const READERS: &[&str] = &["TYPE", "HMGET a", "HKEYS", "GET", "GETRANGE 0 0", "DEL", "+INCR"];

/// The commands of Redisson's semaphores.
pub(super) const PERMITS: &[&str] = &[
    "TYPE",
    "GETRANGE 0 0",
    "DECRBY x",
    "ZADD x a",
    "ZREM a",
    "ZCARD",
    "ZSCORE a",
    "ZRANGE 0 0",
    "ZRANGEBYSCORE 0 0",
    "+INCR",
];

/// The commands of Redisson's fair locks.
pub(super) const FAIR: &[&str] = &[
    "TYPE",
    "LINDEX 0",
    "LPOP",
    "LRANGE 0 0",
    "LREM 0 a",
    "ZADD x a",
    "ZREM a",
    "ZSCORE a",
    "ZINCRBY x a",
    "+INCR",
    "+RPUSH a",
];

/// The commands of batches, and of take-overs.
pub(crate) const FURTHER: &[&str] = &["EXISTS", "+INCR"];

/// Makes the call that tries these commands on a name that no lock has, and publishes on a channel without subscribers.
/// Its reply lists the missing commands.
pub(crate) fn call(tries: &[&str], lock: &str, (name, channel): (&str, &str), number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(TEXT).arg(1).arg(lock).arg(number.0).arg(name).arg(channel).arg(tries);
    call
}
