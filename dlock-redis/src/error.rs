//! The meaning of server and connection errors for a lock.
//!
//! | [`Fault`] | the request | as a [`Failure`] |
//! |---|---|---|
//! | `Unsent` | was not carried out | unavailable |
//! | `Cut` | may have been carried out | unknown |
//! | `Refused` | was answered by an error | by the text, see [`refusal`] |

use std::sync::Arc;

use dlock_core::{ErrorKind, Failure};
use redis::RedisError;

/// The reason for which a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request was certainly not sent.
    Unsent(&'static str),
    /// The request may have been carried out: the connection ended before the answer, or the answer was malformed.
    Cut(String),
    /// The server refused the request with this text.
    Refused(String),
}

/// The server that a request is redirected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `true` if the redirection is for this request only, while the slot is being moved.
    pub(crate) ask: bool,
}

/// The codes that are classified. The script errors of old servers have their code somewhere in the text.
const CODES: &[&str] = &[
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "WRONGTYPE",
    "OOM",
    "LOADING",
    "BUSY",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "MISCONF",
    "CROSSSLOT",
    "MOVED",
    "ASK",
    "NOSCRIPT",
    "NOPROTO",
    "FENCES",
];

/// The words of servers about a command, a key or a channel that is denied to a script. No name of a user contains
/// them.
const WITHIN_A_SCRIPT: [&str; 2] = ["ACL failure in script", "The user executing the script can't"];

/// The words of the scripts about an error that is not the lock's.
const COUNTER: &str = "the counter of fences";

/// The words of the scripts about a lock that the token holds already, and that could only be adopted with its fence.
const NO_FENCE: &str = "somebody removed the fence from the lock";

impl Fault {
    /// Returns the fault of a reply that cannot be read. Its request may have been carried out.
    pub(crate) fn senseless() -> Self {
        Self::Cut("malformed reply".into())
    }

    /// Returns the fault of a request for which the client library reports this error.
    pub(crate) fn of(error: RedisError) -> Self {
        match server_text(&error) {
            Some(text) => Self::Refused(text),
            None => Self::Cut(error.to_string()),
        }
    }

    /// Returns the code of a refusal, if it is a known one.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Self::Refused(text) => code_in(text),
            _ => None,
        }
    }

    /// Returns `true` if the key of the request holds something that the request is not about. The counter of fences is
    /// another key.
    pub(crate) fn is_no_lock(&self) -> bool {
        matches!(self, Self::Refused(text) if code_in(text) == Some("WRONGTYPE") && !text.contains(COUNTER))
    }

    /// Reads the redirection in a refusal.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        let Self::Refused(text) = self else { return None };
        let mut words = text.split_ascii_whitespace();
        let ask = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Redirect { slot, host, port: port.parse().ok()?, ask })
    }

    /// Returns the failure to report for a request that may change something.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Unsent(why) => Failure::unavailable(why),
            Self::Cut(why) => {
                Failure::unknown(format!("the connection ended before the answer came ({why})"))
            }
            Self::Refused(text) => refusal(&text),
        }
    }
}

/// Returns the text of an error that the server itself sent.
fn server_text(error: &RedisError) -> Option<String> {
    let code = match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => error.code()?,
        redis::ErrorKind::AuthenticationFailed => {
            return Some(format!("WRONGPASS {}", error.detail().unwrap_or("")));
        }
        _ => return None,
    };
    Some(match error.detail() {
        Some(detail) => format!("{code} {}", without_arguments(detail)),
        None => code.to_owned(),
    })
}

/// Returns the text of a server without the arguments of the request that it repeats, which may be a password, or
/// contain words that look like a code.
fn without_arguments(detail: &str) -> &str {
    detail.split_once(", with args beginning with").map_or(detail, |(what, _)| what)
}

/// Returns the code in the text of an error.
fn code_in(text: &str) -> Option<&'static str> {
    text.split(|c: char| !c.is_ascii_uppercase())
        .find_map(|word| CODES.iter().find(|code| **code == word).copied())
        .or_else(|| WITHIN_A_SCRIPT.iter().any(|words| text.contains(words)).then_some("NOPERM"))
}

/// Returns the failure of a refusal by the server, which changed nothing.
pub(crate) fn refusal(text: &str) -> Failure {
    let (kind, advice) = match code_in(text) {
        Some("NOAUTH") => (ErrorKind::Denied, "the server requires a password; put it into the URL"),
        Some("WRONGPASS") => (ErrorKind::Denied, "the server refused the user or the password"),
        Some("NOPERM") if text.contains("to access") || text.contains("can't access") => (
            ErrorKind::Denied,
            "the user may not use a key or a channel; grant the patterns of the prefix (~dlock:* &dlock:* by default); \
             docs/backends/redis.md lists the rights that are needed",
        ),
        Some("NOPERM") => {
            (ErrorKind::Denied, "the user lacks a right; docs/backends/redis.md lists those needed")
        }
        Some("WRONGTYPE") if text.contains(COUNTER) => (
            ErrorKind::InvalidConfig,
            "the counter of fences is data of others; use another prefix, or delete it",
        ),
        Some("WRONGTYPE") => {
            (ErrorKind::InvalidConfig, "the key holds data and no lock; use another key or prefix")
        }
        Some("OOM") => (ErrorKind::Unavailable, "the server's memory is used up; raise maxmemory"),
        Some("FENCES") => (
            ErrorKind::InvalidConfig,
            "the counter of fences is years ahead of the server's clock; set it to the highest fence that was ever \
             granted, or delete it",
        ),
        _ if text.contains("not an integer") || text.contains("would overflow") => (
            ErrorKind::InvalidConfig,
            "the counter of fences holds no number that can be counted on from; set it to the highest fence that was \
             ever granted, or delete it",
        ),
        _ if text.contains(NO_FENCE) => (
            ErrorKind::InvalidConfig,
            "what the server has under the key is no lock as it was granted; release it by force",
        ),
        _ if text.contains("non deterministic commands") => (
            ErrorKind::InvalidConfig,
            "the server replicates scripts by their text; set lua-replicate-commands to yes, its default",
        ),
        Some("CROSSSLOT") => (
            ErrorKind::InvalidConfig,
            "lock and fence lie in two hash slots; use redis+cluster:// for a cluster",
        ),
        Some("MOVED" | "ASK") => {
            (ErrorKind::InvalidConfig, "the server is part of a cluster; use redis+cluster://")
        }
        Some("NOPROTO") => (ErrorKind::Unsupported, "Redis 6 or later is needed"),
        Some("READONLY") => (ErrorKind::Unavailable, "the server is a replica, which grants nothing"),
        Some("LOADING") => (ErrorKind::Unavailable, "the server is loading its data"),
        Some("BUSY") => (ErrorKind::Unavailable, "the server is busy with the script of another client"),
        Some("NOREPLICAS") => (ErrorKind::Unavailable, "the server has too few replicas to accept writes"),
        Some("MISCONF") => (ErrorKind::Unavailable, "the server cannot save its data and accepts no writes"),
        Some("MASTERDOWN") => (ErrorKind::Unavailable, "the server is a replica without its master"),
        Some("CLUSTERDOWN") => (ErrorKind::Unavailable, "the cluster does not serve this slot at the moment"),
        Some("TRYAGAIN") => (ErrorKind::Unavailable, "the slot is being moved to another server"),
        _ if text.contains("max number of clients") => {
            (ErrorKind::Unavailable, "the server takes no more connections")
        }
        _ if text.contains("unknown command 'SENTINEL'") || text.contains("unknown command `SENTINEL`") => (
            ErrorKind::InvalidConfig,
            "the server is no sentinel; give the addresses of the sentinels, or use redis:// for the server itself",
        ),
        _ if text.contains("cluster support disabled") => {
            (ErrorKind::InvalidConfig, "the server is no part of a cluster; use redis://")
        }
        _ if text.contains("SELECT is not allowed in cluster mode") => (
            ErrorKind::InvalidConfig,
            "a cluster has no numbered databases; use redis+cluster:// without one",
        ),
        _ if text.contains("unknown command") || text.contains("command called from") => (
            ErrorKind::Unsupported,
            "the server lacks a command; Redis 6 or later is needed, with its commands under their names",
        ),
        _ if text.contains("DB index") => (ErrorKind::InvalidConfig, "the server has no such database"),
        _ => (ErrorKind::Unsupported, "the server gave an error that is not known"),
    };
    let failure = Failure::new(kind, format!("{advice} ({})", text.trim()));
    if text.contains(NO_FENCE) { failure.of_worthless_grant() } else { failure }
}

/// Returns the failure of a reply that cannot be read, as [`Fault::senseless`].
pub(crate) fn senseless() -> Failure {
    Fault::senseless().into_failure()
}

/// Returns the failure of a lock that the token holds, and whose fence was removed from the server.
pub(crate) fn without_fence() -> Failure {
    refusal("ERR somebody removed the fence from the lock; do not edit locks")
}

/// Returns `true` if the server refused a command within a step, of which it may have carried out a part.
pub(crate) fn is_cut_short(failure: &Failure) -> bool {
    let is_within = |words: &&str| failure.message().contains(*words);
    failure.kind() == ErrorKind::Denied && WITHIN_A_SCRIPT.iter().any(is_within)
}

/// Returns `true` if the server refused a command within a step, and did not name it.
pub(crate) fn is_unnamed(failure: &Failure) -> bool {
    failure.kind() == ErrorKind::Denied && failure.message().contains("can't run this command")
}

/// Returns `true` if the key holds something that the request is not about, as [`Fault::is_no_lock`].
pub(crate) fn is_no_lock(failure: &Failure) -> bool {
    code_in(failure.message()) == Some("WRONGTYPE") && !failure.message().contains(COUNTER)
}

/// Returns the failure of a connection that could not be opened. Nothing was sent.
pub(crate) fn not_opened(error: &RedisError, address: &str) -> Failure {
    if let Some(text) = server_text(error) {
        let refused = refusal(&text);
        return Failure::new(refused.kind(), format!("{address}: {}", refused.message()));
    }
    let kind = match error.kind() {
        redis::ErrorKind::RESP3NotSupported => {
            return Failure::new(ErrorKind::Unsupported, format!("{address}: Redis 6 or later is needed"));
        }
        redis::ErrorKind::InvalidClientConfig => ErrorKind::InvalidConfig,
        redis::ErrorKind::Io if is_tls_error(error) => {
            return Failure::invalid_config(format!(
                "{address}: no trusted TLS connection ({error}); check the certificate, the host name and the port"
            ));
        }
        _ => ErrorKind::Unavailable,
    };
    Failure::new(kind, format!("{address}: no connection ({error})"))
}

/// Returns `true` if a server that refused a connection may accept one in RESP2: it is old, it is configured without
/// `HELLO`, the user may not use that command, or a proxy before it does not know it.
pub(crate) fn lacks_hello(error: &RedisError) -> bool {
    if error.kind() == redis::ErrorKind::RESP3NotSupported {
        return true;
    }
    let Some(text) = server_text(error) else { return false };
    let known = matches!(code_in(&text), Some(code) if code != "NOPROTO" && code != "NOPERM");
    !known && !text.contains("DB index") && !text.contains("max number of clients")
}

/// Returns `true` if a TLS handshake failed, which is reported as an I/O error of invalid data. The client library
/// returns it inside an `Arc`, which hides it from a plain look at the source.
fn is_tls_error(error: &RedisError) -> bool {
    let source = std::error::Error::source(error);
    let shared = source.and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>());
    let io = shared.and_then(|shared| shared.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NO_LOCK;

    fn kind(text: &str) -> ErrorKind {
        refusal(text).kind()
    }

    #[test]
    fn missing_rights_and_wrong_passwords_are_final() {
        for text in [
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM User shop has no permissions to run the 'incr' command",
            "ERR ACL failure in script: User shop has no permissions to run the 'incr' command",
            "ERR The user executing the script can't run this command or subcommand script: f00, on @user_script:12.",
        ] {
            assert_eq!(kind(text), ErrorKind::Denied, "{text}");
        }
    }

    #[test]
    fn a_step_is_cut_short_by_what_is_denied_to_its_script_and_not_by_the_name_of_a_user() {
        for (text, expected) in [
            ("ERR ACL failure in script: User shop has no permissions to run the 'incr' command", true),
            ("NOPERM ACL failure in script: User shop has no permissions to run the 'incr' command", true),
            ("ERR The user executing the script can't run this command or subcommand script: f00", true),
            ("ERR The user executing the script can't access at least one of the keys script: f00", true),
            ("NOPERM User scripts has no permissions to run the 'evalsha' command", false),
            ("NOPERM this user has no permissions to run the 'script|flush' command", false),
        ] {
            let failure = refusal(text);
            assert_eq!((failure.kind(), is_cut_short(&failure)), (ErrorKind::Denied, expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_lock_is_told_by_the_code_and_not_by_a_name() {
        for (text, expected) in [
            (NO_LOCK, true),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", true),
            ("ERR Error running script (call to f_1): @user_script:12: WRONGTYPE Operation", true),
            ("WRONGTYPE Operation against a key in the counter of fences", false),
            ("FENCES dlock:fence:WRONGTYPE", false),
            ("NOPERM User WRONGTYPE has no permissions to run the 'get' command", false),
            ("ERR DB index is out of range", false),
        ] {
            assert_eq!(is_no_lock(&refusal(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_full_server_has_room_again_some_time() {
        assert_eq!(kind("OOM command not allowed when used memory > 'maxmemory'."), ErrorKind::Unavailable);
    }

    #[test]
    fn a_foreign_value_and_a_wrong_slot_are_final() {
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "MOVED 12182 127.0.0.1:7002",
            "ASK 12182 127.0.0.1:7002",
            "ERR DB index is out of range",
            "FENCES dlock:fence:{0}",
            "ERR value is not an integer or out of range",
            "ERR somebody removed the fence from the lock; do not edit locks",
            "ERR increment or decrement would overflow",
            "ERR Error running script (call to f_1): @user_script:52: @user_script: 52: Write commands not allowed after \
             non deterministic commands. Call redis.replicate_commands() at the start of your script in order to switch \
             to single commands replication mode.",
        ] {
            assert_eq!(kind(text), ErrorKind::InvalidConfig, "{text}");
        }
    }

    #[test]
    fn what_passes_by_itself_is_worth_another_try() {
        for text in [
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots",
            "ERR max number of clients reached",
            "ERR Error running script (call to f_1): @user_script:12: -READONLY You can't write",
        ] {
            assert_eq!(kind(text), ErrorKind::Unavailable, "{text}");
            assert!(refusal(text).is_transient());
        }
    }

    #[test]
    fn what_the_server_cannot_do_is_unsupported() {
        for text in ["ERR unknown command 'EVALSHA'", "NOPROTO unsupported protocol version", "ERR whatever"]
        {
            assert_eq!(kind(text), ErrorKind::Unsupported, "{text}");
        }
    }

    #[test]
    fn a_connection_that_ended_leaves_the_outcome_unknown_and_one_that_was_never_used_does_not() {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let fault = Fault::of(broken.into());
        assert!(matches!(fault, Fault::Cut(_)), "{fault:?}");
        assert_eq!(fault.into_failure().kind(), ErrorKind::Unknown);
        assert_eq!(Fault::Unsent("closed").into_failure().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn redirections_are_read() {
        let redirect = |text: &str| Fault::Refused(text.into()).redirect();
        let moved = redirect("MOVED 3999 127.0.0.1:6381").unwrap();
        assert_eq!((moved.slot, &*moved.host, moved.port, moved.ask), (3999, "127.0.0.1", 6381, false));
        let asked = redirect("ASK 3999 [::1]:6381").unwrap();
        assert_eq!((&*asked.host, asked.port, asked.ask), ("::1", 6381, true));
        assert_eq!(redirect("MOVED 3999 :6381").unwrap().host, "", "the host is the one that was asked");
        for text in ["MOVED", "MOVED x y", "OOM 1 a:1", "MOVED 1 a"] {
            assert_eq!(redirect(text), None, "{text}");
        }
    }

    #[test]
    fn a_refused_connection_is_unavailable_and_a_bad_certificate_is_not() {
        let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let failure = not_opened(&refused, "h:1");
        assert_eq!(failure.kind(), ErrorKind::Unavailable);
        assert!(failure.message().contains("h:1"), "{failure}");
        let untrusted = std::io::Error::new(std::io::ErrorKind::InvalidData, "invalid peer certificate");
        assert_eq!(not_opened(&untrusted.into(), "h:1").kind(), ErrorKind::InvalidConfig);
        let password =
            RedisError::from((redis::ErrorKind::AuthenticationFailed, "Password authentication failed"));
        assert_eq!(not_opened(&password, "h:1").kind(), ErrorKind::Denied);
    }
}
