//! ZooKeeper's protocol.

use super::{Message, Protocol};

/// ZooKeeper. A notification of a watcher is not a reply, and neither are the answers to pings and to authentication,
/// which do not keep to the order of the requests.
///
/// The requests are called `CONNECT`, `CREATE`, `CREATECONTAINER`, `DELETE`, `EXISTS`, `GETDATA`, `SETDATA`,
/// `GETCHILDREN`, `SYNC`, `MULTI`, `PING`, `CLOSE` and so on; without a hyphen or the number of the version.
/// Connections that use TLS, and four-letter words, are passed through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jute {
    /// The first message of either side has no header.
    connected: bool,
}

/// Servers take no longer requests, and none of theirs is, unless they are configured to.
const LONGEST: usize = 4 << 20;

/// The numbers that a client gives to requests which may be answered out of turn.
const ASIDE: [i32; 3] = [EVENT, PING, AUTHENTICATION];
const EVENT: i32 = -1;
const PING: i32 = -2;
const AUTHENTICATION: i32 = -4;

impl Protocol for Jute {
    fn request(&mut self, bytes: &[u8]) -> Message {
        self.message(bytes, |body| name(int(body, 4).unwrap_or_default()))
    }

    fn reply(&mut self, bytes: &[u8]) -> Message {
        match self.message(bytes, |_| String::new()) {
            Message::Whole { length, .. } => Message::Whole { length, name: String::new() },
            other => other,
        }
    }
}

impl Jute {
    fn message(&mut self, bytes: &[u8], name: impl FnOnce(&[u8]) -> String) -> Message {
        let Some(length) = int(bytes, 0) else { return Message::Incomplete };
        let length = match usize::try_from(length) {
            Ok(length) if length <= LONGEST => length + 4,
            _ => return Message::Opaque,
        };
        let Some(body) = bytes.get(4..length) else { return Message::Incomplete };
        if !std::mem::replace(&mut self.connected, true) {
            return Message::Whole { length, name: "CONNECT".to_owned() };
        }
        match int(body, 0) {
            None => Message::Opaque,
            Some(xid) if ASIDE.contains(&xid) => Message::Aside { length, name: name(body) },
            Some(_) => Message::Whole { length, name: name(body) },
        }
    }
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn name(operation: i32) -> String {
    let name = match operation {
        1 | 15 | 21 => "CREATE",
        2 => "DELETE",
        3 => "EXISTS",
        4 => "GETDATA",
        5 => "SETDATA",
        6 => "GETACL",
        7 => "SETACL",
        8 | 12 => "GETCHILDREN",
        9 => "SYNC",
        11 => "PING",
        14 => "MULTI",
        18 => "REMOVEWATCHES",
        19 => "CREATECONTAINER",
        100 => "AUTH",
        101 | 105 => "SETWATCHES",
        106 => "ADDWATCH",
        -11 => "CLOSE",
        other => return format!("OPERATION{other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ints: &[i32]) -> Vec<u8> {
        let body: Vec<u8> = ints.iter().flat_map(|int| int.to_be_bytes()).collect();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    }

    fn whole(length: usize, name: &str) -> Message {
        Message::Whole { length, name: name.to_owned() }
    }

    fn aside(length: usize, name: &str) -> Message {
        Message::Aside { length, name: name.to_owned() }
    }

    #[test]
    fn requests_are_told_apart_by_length_and_name() {
        let mut jute = Jute::default();
        let connect = frame(&[0; 11]);
        for cut in 0..connect.len() {
            assert_eq!(jute.request(&connect[..cut]), Message::Incomplete, "after {cut} bytes");
        }
        assert_eq!(jute.request(&connect), whole(48, "CONNECT"));
        let create = frame(&[1, 15, 7, 7]);
        assert_eq!(jute.request(&[&create[..], &frame(&[2, 12])].concat()), whole(20, "CREATE"));
        assert_eq!(jute.request(&frame(&[2, 12])), whole(12, "GETCHILDREN"));
        assert_eq!(jute.request(&frame(&[-2, 11])), aside(12, "PING"));
        assert_eq!(jute.request(&frame(&[-4, 100, 0])), aside(16, "AUTH"));
        assert_eq!(jute.request(&frame(&[-8, 105])), whole(12, "SETWATCHES"));
        assert_eq!(jute.request(&frame(&[3, 77])), whole(12, "OPERATION77"));
    }

    #[test]
    fn what_watchers_are_told_is_no_reply() {
        let mut jute = Jute::default();
        assert_eq!(jute.reply(&frame(&[0; 10])), whole(44, ""), "the answer to CONNECT");
        assert_eq!(jute.reply(&frame(&[1, 0, 9, 0])), whole(20, ""));
        assert_eq!(jute.reply(&frame(&[-1, 0, 9, 0])), aside(20, ""));
        assert_eq!(jute.reply(&frame(&[-2, 0, 9, 0])), aside(20, ""));
    }

    #[test]
    fn other_protocols_pass() {
        assert_eq!(Jute::default().request(b"ruok"), Message::Opaque);
        assert_eq!(Jute::default().request(&[0x16, 3, 1, 2, 0, 1]), Message::Opaque, "TLS");
        assert_eq!(Jute::default().reply(b"imok"), Message::Opaque);
    }
}
