//! gRPC, as etcd speaks it.

use std::collections::HashMap;
use std::fmt;

use fluke_hpack::Decoder;

use super::{Message, Protocol};

/// gRPC, over HTTP/2 without TLS. Requests are called by their method, such as `TXN`, `RANGE`, `LEASEGRANT`,
/// `LEASEKEEPALIVE`; each message of a stream is one. What is sent to `WATCH`, and what it notifies of, stands for
/// itself.
///
/// Requests are answered out of turn, each on its own stream. Other connections, and those with header fields too
/// many for one frame, are passed through.
#[derive(Default)]
pub struct Grpc {
    /// The client has said that it speaks HTTP/2.
    begun: bool,
    fields: Decoder<'static>,
    /// What was called, on streams that the client has not ended.
    methods: HashMap<u32, String>,
    /// That of the last frame.
    stream: u32,
}

/// What a client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's head.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The streams of it are notified of whatever happens.
const WATCH: &str = "WATCH";

struct Frame<'a> {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first one in these bytes, if it is whole.
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let payload = rest.get(..u32::from_be_bytes([0, a, b, c]) as usize)?;
        // The first bit is reserved.
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        Some(Self { length: HEAD + payload.len(), kind, flags, stream, payload })
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The header fields in it.
    fn block(&self) -> Option<&'a [u8]> {
        let mut block = self.payload;
        if self.has(PADDED) {
            let (padding, rest) = block.split_first()?;
            block = rest.get(..rest.len().checked_sub(usize::from(*padding))?)?;
        }
        if self.has(PRIORITY) { block.get(5..) } else { Some(block) }
    }
}

impl Protocol for Grpc {
    fn request(&mut self, bytes: &[u8]) -> Message {
        let aside = |length| Message::Aside { length, name: String::new() };
        if !self.begun {
            if bytes.starts_with(PREFACE) {
                self.begun = true;
                return aside(PREFACE.len());
            }
            return if PREFACE.starts_with(bytes) { Message::Incomplete } else { Message::Opaque };
        }
        let Some(frame) = Frame::first(bytes) else { return Message::Incomplete };
        self.stream = frame.stream;
        match frame.kind {
            HEADERS => match self.method(&frame) {
                Some(method) => {
                    self.methods.insert(frame.stream, method);
                    aside(frame.length)
                }
                None => Message::Opaque,
            },
            DATA => {
                let name = if frame.has(END_STREAM) {
                    self.methods.remove(&frame.stream)
                } else {
                    self.methods.get(&frame.stream).cloned()
                };
                match (name, frame.length) {
                    // The end of a stream can be a frame of its own.
                    (None, length) | (Some(_), length @ HEAD) => aside(length),
                    (Some(name), length) if name == WATCH => Message::Aside { length, name },
                    (Some(name), length) => Message::Whole { length, name },
                }
            }
            _ => aside(frame.length),
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Message {
        let Some(frame) = Frame::first(bytes) else { return Message::Incomplete };
        let (length, name) = (frame.length, String::new());
        self.stream = frame.stream;
        // An error has no data. Other fields at the end of a stream belong to no request any more.
        let is_reply = match frame.kind {
            DATA => length > HEAD,
            HEADERS => frame.has(END_STREAM),
            _ => false,
        };
        if is_reply { Message::Whole { length, name } } else { Message::Aside { length, name } }
    }

    fn stream(&self) -> u32 {
        self.stream
    }
}

impl Grpc {
    /// The method that a frame calls; none where it does not say all of it.
    fn method(&mut self, frame: &Frame<'_>) -> Option<String> {
        let block = frame.block().filter(|_| frame.has(END_HEADERS))?;
        // All of them, since later ones refer to earlier ones.
        let fields = self.fields.decode(block).ok()?;
        let (_, path) = fields.into_iter().find(|(name, _)| name == b":path")?;
        let path = String::from_utf8_lossy(&path).to_uppercase();
        Some(path.rsplit('/').next().unwrap_or_default().to_owned())
    }
}

// One value for each connection: nothing was said on the new one.
impl Clone for Grpc {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grpc").field("methods", &self.methods).finish_non_exhaustive()
    }
}
