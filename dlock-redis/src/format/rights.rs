//! The commands that uses of locks need beside those of a lock alone.

use redis::Cmd;

use crate::request::CallNumber;

const TEXT: &str = include_str!("rights.lua");

/// How many uses a format has at the most.
pub(crate) const USES: usize = 3;

/// Of readers, semaphores, and those in line of our own form.
pub(super) const SHARES: &[&str] =
    &["TYPE", "HMGET a", "HGET a", "HSET a b c", "HDEL a", "HGETALL", "HLEN", "+INCR", "+DECR"];

/// Of Redisson's readers and writers.
pub(super) const READERS: &[&str] = &["TYPE", "HMGET a", "HKEYS", "GET", "GETRANGE 0 0", "DEL", "+INCR"];

/// Of Redisson's semaphores.
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

/// Of those in line as Redisson has them.
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

/// Of batches, and of taking over what was left.
pub(crate) const FURTHER: &[&str] = &["EXISTS", "+INCR"];

/// Makes the call that tries these on a name that no lock has, and publishes on a channel without listeners. Its reply
/// lists the commands that are missing.
pub(crate) fn call(tries: &[&str], lock: &str, (name, channel): (&str, &str), number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(TEXT).arg(1).arg(lock).arg(number.0).arg(name).arg(channel).arg(tries);
    call
}
