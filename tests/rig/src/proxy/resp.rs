//! Redis' protocol, versions 2 and 3.

use super::{Message, Protocol};

/// Redis. Notifications, and what answers (un)subscribing, are not replies.
///
/// Connections of replicas and `MONITOR` are passed through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resp;

/// What (un)subscribes, and what a server sends to a subscriber under version 2.
const SUBSCRIPTIONS: [&str; 9] = [
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "PSUBSCRIBE",
    "PUNSUBSCRIBE",
    "SSUBSCRIBE",
    "SUNSUBSCRIBE",
    "MESSAGE",
    "PMESSAGE",
    "SMESSAGE",
];

/// What makes a connection something else than requests and replies.
const OPAQUE: [&str; 3] = ["PSYNC", "SYNC", "MONITOR"];

impl Protocol for Resp {
    fn request(&mut self, bytes: &[u8]) -> Message {
        let Some(end) = (if bytes[0] == b'*' { value_end(bytes) } else { line_end(bytes) }) else {
            return Message::Incomplete;
        };
        let Ok(length) = end else { return Message::Opaque };
        let name = first_word(&bytes[..length]);
        if OPAQUE.contains(&name.as_str()) {
            Message::Opaque
        } else if name.is_empty() || SUBSCRIPTIONS.contains(&name.as_str()) {
            Message::Aside { length, name }
        } else {
            Message::Whole { length, name }
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Message {
        match value_end(bytes) {
            None => Message::Incomplete,
            Some(Err(Malformed)) => Message::Opaque,
            Some(Ok(length)) => {
                let to_subscriber = bytes[0] == b'>'
                    || (bytes[0] == b'*' && SUBSCRIPTIONS.contains(&first_word(&bytes[..length]).as_str()));
                let name = String::new();
                if to_subscriber { Message::Aside { length, name } } else { Message::Whole { length, name } }
            }
        }
    }
}

struct Malformed;

/// Where something ends: nowhere yet, or after this many bytes.
type ReplyEnd = Option<Result<usize, Malformed>>;

/// The end of the first line.
fn line_end(bytes: &[u8]) -> ReplyEnd {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some(Ok(end + 2))
}

/// The end of the value that these bytes start with.
fn value_end(bytes: &[u8]) -> ReplyEnd {
    let mut at = 0;
    let mut values: usize = 1;
    while values > 0 {
        values -= 1;
        let line = match line_end(bytes.get(at..)?)? {
            Ok(length) => &bytes[at..at + length],
            Err(malformed) => return Some(Err(malformed)),
        };
        at += line.len();
        let count = || -> Result<usize, Malformed> {
            let digits = std::str::from_utf8(&line[1..line.len() - 2]).map_err(|_| Malformed)?;
            match digits.parse::<i64>() {
                // Nothing at all, in version 2.
                Ok(-1) => Ok(0),
                Ok(count) => usize::try_from(count).map_err(|_| Malformed),
                Err(_) => Err(Malformed),
            }
        };
        match line[0] {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' if line == b"$-1\r\n" => {}
            b'$' | b'=' | b'!' => match count() {
                Ok(length) => at += length + 2,
                Err(malformed) => return Some(Err(malformed)),
            },
            kind @ (b'*' | b'~' | b'>' | b'%' | b'|') => match count() {
                Ok(count) => {
                    values += if matches!(kind, b'%' | b'|') { 2 * count } else { count };
                    // Attributes come before the value that they belong to.
                    values += usize::from(kind == b'|');
                }
                Err(malformed) => return Some(Err(malformed)),
            },
            _ => return Some(Err(Malformed)),
        }
    }
    (at <= bytes.len()).then_some(Ok(at))
}

/// The first text in a message, in upper case: the name of a command.
fn first_word(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let mut words = text.split(['\r', '\n', ' ']).filter(|word| !word.is_empty());
    let is_length = |word: &&str| word.starts_with(['*', '$']);
    words.find(|word| !is_length(word)).unwrap_or_default().to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(length: usize, name: &str) -> Message {
        Message::Whole { length, name: name.to_owned() }
    }

    #[test]
    fn requests_are_told_apart_by_length_and_name() {
        let get = b"*2\r\n$3\r\nget\r\n$4\r\na\r\nb\r\n";
        assert_eq!(Resp.request(&[get, &b"*1\r\n"[..]].concat()), whole(get.len(), "GET"));
        assert_eq!(Resp.request(b"PING\r\nPING\r\n"), whole(6, "PING"));
        for cut in 1..get.len() {
            assert_eq!(Resp.request(&get[..cut]), Message::Incomplete, "after {cut} bytes");
        }
        let subscribe = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n";
        assert_eq!(
            Resp.request(subscribe),
            Message::Aside { length: subscribe.len(), name: "SUBSCRIBE".to_owned() }
        );
        assert_eq!(Resp.request(b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"), Message::Opaque);
    }

    #[test]
    fn every_kind_of_reply_has_an_end() {
        let replies: [&[u8]; 12] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-1\r\n",
            b"$3\r\na\r\n\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"_\r\n",
            b"*3\r\n:1\r\n*1\r\n$1\r\nx\r\n,1.5\r\n",
            b"%1\r\n+server\r\n$5\r\nredis\r\n",
            b"|1\r\n+ttl\r\n:1\r\n+OK\r\n",
            b"=5\r\ntxt:x\r\n",
            b"#t\r\n",
        ];
        for reply in replies {
            let two = [reply, reply].concat();
            assert_eq!(Resp.reply(&two), whole(reply.len(), ""), "{}", reply.escape_ascii());
            for cut in 1..reply.len() {
                assert_eq!(Resp.reply(&reply[..cut]), Message::Incomplete, "{}", reply[..cut].escape_ascii());
            }
        }
        assert_eq!(Resp.reply(b"HTTP/1.1 400\r\n"), Message::Opaque);
    }

    #[test]
    fn what_subscribers_are_told_is_no_reply() {
        for told in [
            &b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"[..],
            b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n",
            b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ] {
            assert_eq!(Resp.reply(told), Message::Aside { length: told.len(), name: String::new() });
        }
    }
}
