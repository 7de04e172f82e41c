//! The role of a server: a master, or a replica, which may accept writes as well.

use std::time::Duration;

use dlock_core::{ErrorKind, Failure};
use redis::{Cmd, Value};

use super::open::Opened;
use super::sentinel::answer;
use crate::request::text;
use crate::url::Endpoint;

/// The role that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica,
    /// The server does not report its role, or not to this user.
    Unknown,
}

impl Role {
    /// Refuses a server that the sentinels name and that is not the master. A former master may not know yet that it
    /// was replaced. A future master may not know yet that it is to be one, which this check finds.
    pub(super) fn confirm_master(self, endpoint: &Endpoint) -> Result<(), Failure> {
        match self {
            Self::Master => Ok(()),
            Self::Replica => Err(Failure::unavailable(format!(
                "{endpoint} is not the master yet that the sentinels say it is"
            ))),
            Self::Unknown => {
                let message = format!(
                    "{endpoint} does not say whether it is the master; grant +role, needed where HELLO is refused"
                );
                Err(Failure::new(ErrorKind::Denied, message))
            }
        }
    }
}

/// Asks a server for its role: by `HELLO`, which every user may use. A server that is spoken to in RESP2 is asked by
/// `ROLE`, and then by `INFO`.
pub(super) async fn of(opened: &Opened, endpoint: &Endpoint, limit: Duration) -> Result<Role, Failure> {
    let words: &[&[&str]] = match opened.resp3 {
        true => &[&["HELLO", "3"]],
        false => &[&["ROLE"], &["INFO", "replication"]],
    };
    for words in words {
        let mut question = Cmd::new();
        question.arg(*words);
        match answer(&opened.connection, &question, limit, endpoint).await {
            Ok(reply) => return Ok(role_in(&reply)),
            // The connection itself is in doubt: the caller opens another one, rather than to take the role for
            // unknown.
            Err(failure) if failure.is_transient() => return Err(failure),
            // For example the user may not use this command: the next one is tried.
            Err(_) => {}
        }
    }
    Ok(Role::Unknown)
}

/// Reads the role in the reply to any of these commands.
fn role_in(reply: &Value) -> Role {
    let role = match reply {
        Value::Map(fields) => {
            fields.iter().find(|(name, _)| text(name) == Some("role")).and_then(|(_, role)| text(role))
        }
        Value::Array(parts) => parts.first().and_then(text),
        reply => text(reply).and_then(|info| info.lines().find_map(|line| line.trim().strip_prefix("role:"))),
    };
    match role {
        Some("master") => Role::Master,
        Some("replica" | "slave") => Role::Replica,
        _ => Role::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn the_role_is_found_in_each_of_the_replies() {
        let hello = |role| Value::Map(vec![(bulk("proto"), Value::Int(3)), (bulk("role"), bulk(role))]);
        let role = |role| Value::Array(vec![bulk(role), Value::Int(7)]);
        let info = |role: &str| bulk(&format!("# Replication\r\nrole:{role}\r\nconnected_slaves:0\r\n"));
        for reply in [hello("master"), role("master"), info("master")] {
            assert_eq!(role_in(&reply), Role::Master, "{reply:?}");
        }
        for reply in [hello("replica"), role("slave"), info("slave")] {
            assert_eq!(role_in(&reply), Role::Replica, "{reply:?}");
        }
        for reply in [hello("proxy"), Value::Map(vec![]), Value::Array(vec![]), Value::Nil, bulk("")] {
            assert_eq!(role_in(&reply), Role::Unknown, "{reply:?}");
        }
    }
}
