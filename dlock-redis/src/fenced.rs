//! Writes that refuse a stale fence.

use dlock_core::Fence;

use crate::keys::suffixed_with;
use crate::request::CallNumber;

/// The error reply to other clients for a key that is written in another way.
pub(crate) const MIXED_ERROR: &str = "redis.error_reply('MIXED the key is written with fences alone, or with versions alone, or with both: go on in that \
     way, or delete ' .. KEYS[#KEYS] .. ' when nobody writes')";

/// Returns the script that checks the fence and runs the body. It compares the decimal numbers as text, since a number
/// in Lua has only 53 bits.
fn guarded(body: &str, when_stale: &str, when_mixed: &str) -> String {
    format!(
        "local fence, seen = ARGV[#ARGV], redis.pcall('GET', KEYS[#KEYS])
if type(seen) == 'table' and seen.err then
  -- With versions it is a hash, which the scripts from before refuse with this error, too.
  return string.find(seen.err, 'WRONGTYPE', 1, true) and {when_mixed} or seen
end
if seen and (#seen > #fence or (#seen == #fence and seen > fence)) then
  return {when_stale}
end
redis.call('SET', KEYS[#KEYS], fence)
{body}"
    )
}

/// Returns a script that runs `body` unless its fence is stale, in one atomic step.
///
/// The last of `KEYS` is the key that keeps the highest fence, such as [`fence_key`] returns; the last of `ARGV` is the
/// fence in decimal. The body sees both, after its own keys and arguments. A stale fence gets an error reply that
/// begins with `STALE`, and a key that is written with versions ([`newer_script`](crate::newer_script)) an error reply
/// that begins with `MIXED`. Use it with any Redis client.
///
/// ```
/// let script = dlock_redis::fenced_script("return redis.call('HINCRBY', KEYS[1], 'sold', ARGV[1])");
/// // EVAL script 2 stock:42 {stock:42}:fence 1 <fence>
/// assert_eq!(dlock_redis::fence_key("stock:42"), "{stock:42}:fence");
/// # assert!(script.contains("HINCRBY"));
/// ```
#[must_use]
pub fn fenced_script(body: &str) -> String {
    guarded(body, "redis.error_reply('STALE the fence ' .. fence .. ' is lower than ' .. seen)", MIXED_ERROR)
}

/// Returns the key that keeps the highest fence that wrote to `key`, or the newest version, in the same hash slot.
#[must_use]
pub fn fence_key(key: &str) -> String {
    suffixed_with(key, "fence")
}

/// Makes the call of [`Redis::fenced_set`](crate::Redis::fenced_set), whose result is 1, 0 for a stale fence, or -1 for
/// a key that is written with versions.
pub(crate) fn set(key: &str, value: &[u8], fence: Fence, number: CallNumber) -> redis::Cmd {
    let mut call = redis::cmd("EVAL");
    let body = "redis.call('SET', KEYS[1], ARGV[1])\nreturn { 1, ARGV[2] }";
    call.arg(guarded(body, "{ 0, ARGV[2] }", "{ -1, ARGV[2] }"));
    call.arg(2).arg(key).arg(fence_key(key)).arg(value).arg(number.0).arg(fence.get());
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::slot_of;

    #[test]
    fn a_key_and_its_fence_lie_in_one_slot() {
        for key in ["stock", "{shop}:stock", "a:{b}:c"] {
            assert_eq!(slot_of(key), slot_of(&fence_key(key)), "{key}");
        }
    }
}
