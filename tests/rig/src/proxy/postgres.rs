//! PostgreSQL's protocol.

use super::{Message, Protocol};

/// PostgreSQL. A request is all that the client sends until it asks for the end of the transaction (`Sync`), and its
/// reply all that comes until the server is ready again, which it is when it has committed.
///
/// The requests are called `STARTUP`, `QUERY` (the simple protocol), `PARSE` (a statement is prepared) and `EXECUTE`.
/// Connections that use TLS are passed through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pgwire {
    /// The first message of a client has no kind; what the server says until it is ready takes turns with the client.
    started: bool,
}

/// Instead of the version, in the first message: a wish for TLS, a cancellation, a wish for GSS encryption.
const NO_VERSION: u32 = 1234 << 16;

impl Protocol for Pgwire {
    fn request(&mut self, bytes: &[u8]) -> Message {
        if !self.started {
            let (Some(length), Some(version)) = (long(bytes, 0), long(bytes, 4)) else {
                return Message::Incomplete;
            };
            if version & NO_VERSION == NO_VERSION {
                return Message::Opaque;
            }
            if bytes.len() < length as usize {
                return Message::Incomplete;
            }
            self.started = true;
            return Message::Whole { length: length as usize, name: "STARTUP".to_owned() };
        }
        let mut name = "SYNC";
        for FramedMessage { kind, end, first } in parts(bytes) {
            match kind {
                b'S' => return Message::Whole { length: end, name: name.to_owned() },
                b'Q' if first => return Message::Whole { length: end, name: "QUERY".to_owned() },
                // A password, the end of the connection, and what else gets no reply of its own.
                b'p' | b'X' if first => return Message::Aside { length: end, name: String::new() },
                b'E' => name = "EXECUTE",
                b'P' if name == "SYNC" => name = "PARSE",
                b'B' | b'C' | b'D' | b'P' => {}
                _ => return Message::Opaque,
            }
        }
        Message::Incomplete
    }

    fn reply(&mut self, bytes: &[u8]) -> Message {
        let name = String::new();
        for FramedMessage { kind, end, first } in parts(bytes) {
            match kind {
                b'Z' => {
                    self.started = true;
                    return Message::Whole { length: end, name };
                }
                _ if !self.started => return Message::Aside { length: end, name },
                // What the server says by itself: a notification, a warning, a setting.
                b'A' | b'N' | b'S' if first => return Message::Aside { length: end, name },
                _ => {}
            }
        }
        Message::Incomplete
    }
}

/// One message: its kind, where it ends, and whether it is the first of these bytes.
struct FramedMessage {
    kind: u8,
    end: usize,
    first: bool,
}

/// The messages that are there as a whole.
fn parts(bytes: &[u8]) -> impl Iterator<Item = FramedMessage> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (kind, length) = (*bytes.get(at)?, long(bytes, at + 1)?);
        let end = at + 1 + length as usize;
        let part = FramedMessage { kind, end, first: at == 0 };
        at = end;
        (end <= bytes.len()).then_some(part)
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    fn whole(length: usize, name: &str) -> Message {
        Message::Whole { length, name: name.to_owned() }
    }

    fn started() -> (Pgwire, Pgwire) {
        let (mut client, mut server) = (Pgwire::default(), Pgwire::default());
        let startup = [&12_u32.to_be_bytes()[..], &(3_u32 << 16).to_be_bytes(), b"abc\0"].concat();
        assert_eq!(client.request(&startup[..11]), Message::Incomplete);
        assert_eq!(client.request(&startup), whole(12, "STARTUP"));
        let asks = message(b'R', &[0, 0, 0, 10]);
        assert_eq!(server.reply(&asks), Message::Aside { length: asks.len(), name: String::new() });
        assert_eq!(server.reply(&message(b'Z', b"I")), whole(6, ""));
        (client, server)
    }

    #[test]
    fn a_request_goes_as_far_as_its_sync_and_its_reply_as_far_as_the_server_is_ready() {
        let (mut client, mut server) = started();
        let password = message(b'p', b"x\0");
        assert_eq!(client.request(&password), Message::Aside { length: password.len(), name: String::new() });
        let prepare = [message(b'P', b"a\0b\0"), message(b'D', b"Sa\0"), message(b'S', b"")].concat();
        let execute = [message(b'B', b"a"), message(b'E', b"b"), message(b'S', b"")].concat();
        let both = [prepare.clone(), execute.clone()].concat();
        assert_eq!(client.request(&both), whole(prepare.len(), "PARSE"));
        assert_eq!(client.request(&execute), whole(execute.len(), "EXECUTE"));
        for cut in 1..execute.len() {
            assert_eq!(client.request(&execute[..cut]), Message::Incomplete, "after {cut} bytes");
        }
        let query = message(b'Q', b"SELECT 1\0");
        assert_eq!(client.request(&query), whole(query.len(), "QUERY"));
        let reply =
            [message(b'2', b""), message(b'D', b"row"), message(b'C', b"1\0"), message(b'Z', b"I")].concat();
        assert_eq!(server.reply(&[reply.clone(), reply.clone()].concat()), whole(reply.len(), ""));
        for cut in 1..reply.len() {
            assert_eq!(server.reply(&reply[..cut]), Message::Incomplete, "after {cut} bytes");
        }
    }

    #[test]
    fn notifications_are_no_replies_and_tls_is_passed_through() {
        let (_, mut server) = started();
        let told = message(b'A', b"abcdchannel\0\0");
        assert_eq!(server.reply(&told), Message::Aside { length: told.len(), name: String::new() });
        let tls = [&8_u32.to_be_bytes()[..], &80_877_103_u32.to_be_bytes()].concat();
        assert_eq!(Pgwire::default().request(&tls), Message::Opaque);
    }
}
