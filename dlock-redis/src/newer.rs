//! Writes that refuse data that is not newer.

use dlock_core::{DataVersion, ErrorKind, Failure, Fence, VersionCheck};
use redis::Value;

use crate::fenced::{MIXED_ERROR, fence_key};
use crate::request::{CallNumber, text};

const SCRIPT: &str = include_str!("newer.lua");

/// The Lua expressions that the script returns in each case.
struct Answers {
    malformed: &'static str,
    mixed: &'static str,
    stale: &'static str,
    same: &'static str,
    older: &'static str,
}

const ERRORS: Answers = Answers {
    malformed: "redis.error_reply('ERR the last two arguments are the version, a whole number of 64 bits with a sign, \
                and the fence, which is empty where there is none')",
    mixed: MIXED_ERROR,
    stale: "redis.error_reply('STALE the fence ' .. fence .. ' is lower than ' .. last)",
    same: "redis.error_reply('SAME the version ' .. version .. ' is there already')",
    older: "redis.error_reply('OLDER the version ' .. version .. ' is older than ' .. seen)",
};

/// The replies to a call of this crate, each with the number of the call, which is the second argument.
const REPLIES: Answers = Answers {
    malformed: "{ 'malformed', ARGV[2] }",
    mixed: "{ 'mixed', ARGV[2] }",
    stale: "{ 'stale', ARGV[2] }",
    same: "{ 'same', ARGV[2] }",
    older: "{ 'older ' .. seen, ARGV[2] }",
};

/// Returns the script with this body and these replies.
fn guarded(body: &str, answers: &Answers) -> String {
    let script = SCRIPT.replace("{malformed}", answers.malformed).replace("{mixed}", answers.mixed);
    let script = script.replace("{stale}", answers.stale).replace("{same}", answers.same);
    // The body comes last, as it may contain the other placeholders.
    script.replace("{older}", answers.older).replacen("{body}", body, 1)
}

/// Returns a script that runs `body` only with data that is newer than all before, in one atomic step: as
/// [`Redis::write_if_newer`](crate::Redis::write_if_newer), for any Redis client.
///
/// The last of `KEYS` is the key that keeps the version, which [`fence_key`] names. The last two of `ARGV` are the
/// version in decimal, from -9223372036854775808 to 9223372036854775807, and the fence in decimal, or an empty text for
/// a key that is written without fences. The body sees them all, after its own keys and arguments, and returns the
/// reply. It runs as a function: a `return` in it ends the body only. If the body fails, or returns an error reply, the
/// version does not count; what it has written by then stays written, as in every script.
///
/// Data that is not newer gets an error reply: it begins with `OLDER`; with `SAME` if this very version was accepted
/// before (a repetition has nothing more to do); with `STALE` if the fence is stale; with `MIXED` if the key is written
/// with fences alone, or with versions in the other way.
///
/// ```
/// let script = dlock_redis::newer_script("return redis.call('HSET', KEYS[1], 'price', ARGV[1])");
/// // EVAL script 2 article:42 {article:42}:fence 17 <version> ''
/// assert_eq!(dlock_redis::fence_key("article:42"), "{article:42}:fence");
/// # assert!(script.contains("'price'"));
/// ```
#[must_use]
pub fn newer_script(body: &str) -> String {
    guarded(body, &ERRORS)
}

/// Makes the call of [`Redis::write_if_newer`](crate::Redis::write_if_newer).
pub(crate) fn set(
    key: &str,
    value: &[u8],
    (version, fence): (DataVersion, Option<Fence>),
    number: CallNumber,
) -> redis::Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(guarded("redis.call('SET', KEYS[1], ARGV[1])\nreturn { 'written', ARGV[2] }", &REPLIES));
    call.arg(2).arg(key).arg(fence_key(key)).arg(value).arg(number.0).arg(version.get());
    call.arg(fence.map_or_else(String::new, |fence| fence.to_string()));
    call
}

/// Reads the answer to [`set`].
pub(crate) fn answer(key: &str, fence: Option<Fence>, reply: &Value) -> Result<VersionCheck, Failure> {
    match text(reply).map(|reply| reply.split_once(' ').unwrap_or((reply, ""))) {
        Some(("written", _)) => Ok(VersionCheck::Accepted),
        Some(("same", _)) => Ok(VersionCheck::AlreadyThere),
        Some(("older", stored)) => match stored.parse() {
            Ok(stored) => Ok(VersionCheck::Older { stored: DataVersion::new(stored) }),
            Err(_) => Err(Failure::invalid_config(format!(
                "{} holds no version but {stored:?}; set its field `version` to the version of the value, or delete it",
                fence_key(key)
            ))),
        },
        Some(("stale", _)) => Err(Failure::new(
            ErrorKind::Lost,
            match fence {
                Some(fence) => {
                    format!("the fence {fence} is stale: a later holder has written; nothing was written")
                }
                None => "a later holder has written; nothing was written".to_owned(),
            },
        )),
        Some(("mixed", _)) => Err(mixed(key)),
        _ => Err(Failure::unknown("the answer is none to this request")),
    }
}

/// Returns the failure of a write to a key that is written in another way. Nothing was written.
pub(crate) fn mixed(key: &str) -> Failure {
    Failure::new(
        ErrorKind::Conflict,
        format!(
            "{key:?} is written with fences alone, with versions alone, or with both; write it in that way, or delete \
             {:?} when nobody writes it, to begin anew",
            fence_key(key)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_contain_what_the_script_has_places_for() {
        let script = newer_script("return '{older}{body}'");
        assert!(script.contains("return '{older}{body}'"));
        assert!(!newer_script("return 1").contains('{'), "each place is filled");
    }
}
