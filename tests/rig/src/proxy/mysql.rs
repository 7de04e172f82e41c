//! The protocol of MariaDB and MySQL.

use super::{Message, Protocol};

/// MariaDB and MySQL, for clients that do without `EOF` packets, as sqlx does, and no more than one result a request.
///
/// The requests are called `QUERY`, `PREPARE`, `EXECUTE` and `PING`. What opens a connection is no request. Connections
/// that use TLS are passed through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mysql;

const HEADER: usize = 4;
/// Longer packets go on in the next one.
const LONGEST: usize = 0xff_ff_ff;

impl Protocol for Mysql {
    fn request(&mut self, bytes: &[u8]) -> Message {
        let Some(packet) = packets(bytes).next() else {
            return Message::Incomplete;
        };
        let whole = |name: &str| Message::Whole { length: packet.end, name: name.to_owned() };
        match (packet.number, packet.body.first()) {
            // A wish for TLS: the beginning of an answer to the greeting, and nothing more.
            (1, _) if packet.body.len() == 32 => Message::Opaque,
            (0, Some(0x03)) => whole("QUERY"),
            (0, Some(0x0e)) => whole("PING"),
            (0, Some(0x16)) => whole("PREPARE"),
            (0, Some(0x17)) => whole("EXECUTE"),
            // The end of the connection and of a statement, and answers to the greeting.
            (0, Some(0x01 | 0x19)) | (1.., _) => Message::Aside { length: packet.end, name: String::new() },
            _ => Message::Opaque,
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Message {
        let name = String::new();
        let mut packets = packets(bytes);
        let Some(first) = packets.next() else {
            return Message::Incomplete;
        };
        // The greeting, and what follows it until the connection is open.
        if first.number != 1 {
            return Message::Aside { length: first.end, name };
        }
        let last = match first.body {
            // A prepared statement: so many columns, so many parameters.
            [0x00, _, _, _, _, columns, more_columns, parameters, more_parameters, _, _, _] => {
                let columns = u16::from_le_bytes([*columns, *more_columns]);
                let parameters = u16::from_le_bytes([*parameters, *more_parameters]);
                match usize::from(columns) + usize::from(parameters) {
                    0 => Some(first),
                    definitions => packets.nth(definitions - 1),
                }
            }
            [0x00 | 0xff, ..] => Some(first),
            // So many columns, and rows until one that is none.
            [columns, ..] if *columns < 0xfb => packets
                .skip(usize::from(*columns))
                .find(|packet| matches!(packet.body.first(), Some(0xfe | 0xff))),
            _ => return Message::Opaque,
        };
        match last {
            Some(last) => Message::Whole { length: last.end, name },
            None => Message::Incomplete,
        }
    }
}

/// One packet: its number within request and reply, what is in it, and where it ends.
#[derive(Clone, Copy)]
struct Packet<'a> {
    number: u8,
    body: &'a [u8],
    end: usize,
}

/// The packets that are there as a whole.
fn packets(bytes: &[u8]) -> impl Iterator<Item = Packet<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let [a, b, c, number] = *bytes.get(at..at + HEADER)?.first_chunk::<HEADER>()?;
        let length = u32::from_le_bytes([a, b, c, 0]) as usize;
        let (start, end) = (at + HEADER, at + HEADER + length.min(LONGEST));
        let body = bytes.get(start..end)?;
        at = end;
        Some(Packet { number, body, end })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8, body: &[u8]) -> Vec<u8> {
        let [a, b, c, _] = u32::try_from(body.len()).unwrap().to_le_bytes();
        [&[a, b, c, number][..], body].concat()
    }

    fn whole(length: usize, name: &str) -> Message {
        Message::Whole { length, name: name.to_owned() }
    }

    #[test]
    fn requests_are_told_apart_by_their_first_byte() {
        for (code, name) in [(0x03, "QUERY"), (0x0e, "PING"), (0x16, "PREPARE"), (0x17, "EXECUTE")] {
            let request = packet(0, &[code, 1, 2]);
            assert_eq!(
                Mysql.request(&[request.clone(), request.clone()].concat()),
                whole(request.len(), name)
            );
            for cut in 1..request.len() {
                assert_eq!(Mysql.request(&request[..cut]), Message::Incomplete);
            }
        }
        for aside in [packet(0, &[0x19, 1, 0, 0, 0]), packet(0, &[0x01]), packet(1, &[7; 60])] {
            assert_eq!(Mysql.request(&aside), Message::Aside { length: aside.len(), name: String::new() });
        }
        assert_eq!(Mysql.request(&packet(1, &[7; 32])), Message::Opaque);
    }

    #[test]
    fn every_kind_of_reply_has_an_end() {
        let done = [0x00, 1, 0xfe, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0];
        let prepared = [0x00, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0];
        let replies = [
            packet(1, &done),
            packet(1, &[0xff, 1, 2]),
            [packet(1, &prepared), packet(2, b"p"), packet(3, b"p"), packet(4, b"c")].concat(),
            packet(1, &[0x00, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            [
                packet(1, &[2]),
                packet(2, b"c"),
                packet(3, b"c"),
                packet(4, &[0, 1]),
                packet(5, &[0xfe, 0, 0, 2, 0, 0, 0]),
            ]
            .concat(),
            [packet(1, &[1]), packet(2, b"c"), packet(3, &[0xff, 1])].concat(),
        ];
        for reply in replies {
            let two = [reply.clone(), reply.clone()].concat();
            assert_eq!(Mysql.reply(&two), whole(reply.len(), ""), "{reply:?}");
            for cut in 1..reply.len() {
                assert_eq!(Mysql.reply(&reply[..cut]), Message::Incomplete, "{:?}", &reply[..cut]);
            }
        }
        let greeting = packet(0, &[10, 53]);
        assert_eq!(Mysql.reply(&greeting), Message::Aside { length: greeting.len(), name: String::new() });
    }
}
