//! A connection of the administrator: ZooKeeper's protocol, as far as tests need it.
//!
//! Blocking, so that tests can look at the server between two polls of what they test; and not a client library, since
//! it has to take over the sessions of others.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the answer to one request may take.
const ANSWER: Duration = Duration::from_secs(10);

const CLOSE_SESSION: i32 = -11;
const AUTHENTICATE: i32 = 100;

/// What `create` etc. are called on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum ZooKeeperRequest {
    Create = 1,
    Delete = 2,
    GetData = 4,
    SetData = 5,
    GetAcl = 6,
    GetChildren = 8,
    Sync = 9,
    Reconfigure = 16,
    CreateContainer = 19,
}

/// The number with which ZooKeeper says that there is no such node.
pub(super) const NO_NODE: i32 = -101;

/// What a server answers to a request: a result, or the number of an error.
pub(super) type ZooKeeperAnswer = Result<ReplyBody, i32>;

/// One session, which is closed when it is dropped.
pub(super) struct AdminSession {
    stream: TcpStream,
    requests: i32,
}

impl AdminSession {
    /// A new session.
    pub(super) fn open(server: SocketAddr) -> io::Result<Self> {
        Self::connect(server, 0, [0; 16])?.ok_or_else(|| io::Error::other("no session was opened"))
    }

    /// A session that somebody else has opened, if it is not over. The server closes their connection, and ours when
    /// they connect again.
    pub(super) fn take_over(server: SocketAddr, id: i64) -> io::Result<Option<Self>> {
        Self::connect(server, id, password(id))
    }

    fn connect(server: SocketAddr, id: i64, password: [u8; 16]) -> io::Result<Option<Self>> {
        let stream = TcpStream::connect_timeout(&server, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, requests: 0 };
        let (protocol, last_seen, timeout_ms) = (0, 0, 10_000);
        let hello = ReplyBody::default()
            .int(protocol)
            .long(last_seen)
            .int(timeout_ms)
            .long(id)
            .bytes(&password)
            .bool(false);
        session.send(&hello)?;
        let mut granted = session.receive()?;
        let (_protocol, _timeout_ms, given) = (granted.take_int(), granted.take_int(), granted.take_long());
        Ok((given != 0).then_some(session))
    }

    /// From now on the session acts as this user too.
    pub(super) fn authenticate(&mut self, user: &str, password: &str) -> io::Result<()> {
        const XID: i32 = -4;
        let credentials = format!("{user}:{password}");
        let body = ReplyBody::default()
            .int(XID)
            .int(AUTHENTICATE)
            .int(0)
            .text("digest")
            .bytes(credentials.as_bytes());
        self.send(&body)?;
        self.answer_to(XID)?.map(drop).map_err(|code| io::Error::other(format!("refused with {code}")))
    }

    pub(super) fn ask(&mut self, request: ZooKeeperRequest, body: &ReplyBody) -> io::Result<ZooKeeperAnswer> {
        self.requests += 1;
        let xid = self.requests;
        let mut whole = ReplyBody::default().int(xid).int(request as i32);
        whole.0.extend_from_slice(&body.0);
        self.send(&whole)?;
        self.answer_to(xid)
    }

    /// Ends the session: the server deletes its nodes before it answers, and takes the connection off its list before
    /// it closes it.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.requests += 1;
        let xid = self.requests;
        self.send(&ReplyBody::default().int(xid).int(CLOSE_SESSION))?;
        self.answer_to(xid).map(drop)?;
        // Up to its end, of whatever kind.
        let _ = self.stream.read_to_end(&mut Vec::new());
        Ok(())
    }

    fn answer_to(&mut self, xid: i32) -> io::Result<ZooKeeperAnswer> {
        loop {
            let mut reply = self.receive()?;
            let (to, _zxid, code) = (reply.take_int(), reply.take_long(), reply.take_int());
            // Notifications of watchers come in between.
            if to == xid {
                return Ok(if code == 0 { Ok(reply) } else { Err(code) });
            }
        }
    }

    fn send(&mut self, body: &ReplyBody) -> io::Result<()> {
        let mut frame = u32::try_from(body.0.len()).expect("a short request").to_be_bytes().to_vec();
        frame.extend_from_slice(&body.0);
        self.stream.write_all(&frame)
    }

    fn receive(&mut self) -> io::Result<ReplyBody> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(ReplyBody(bytes))
    }
}

/// The password that the server gives to a session: `java.util.Random` seeded with its id and a constant.
fn password(id: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((id ^ SECRET).cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for four in password.chunks_mut(4) {
        seed = (seed.wrapping_mul(MULTIPLIER) + 0xB) & MASK;
        four.copy_from_slice(&((seed >> 16) as u32).to_le_bytes());
    }
    password
}

/// A request that is being written, or an answer that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyBody(Vec<u8>);

impl ReplyBody {
    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(value.into());
        self
    }

    pub(super) fn bytes(self, value: &[u8]) -> Self {
        let mut body = self.int(i32::try_from(value.len()).expect("a short value"));
        body.0.extend_from_slice(value);
        body
    }

    pub(super) fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = self.0.split_off(count);
        std::mem::replace(&mut self.0, rest)
    }

    pub(super) fn take_int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    pub(super) fn take_long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let length = self.take_int();
        // Nothing at all has the length -1.
        self.take(usize::try_from(length).unwrap_or_default())
    }

    pub(super) fn take_text(&mut self) -> String {
        String::from_utf8_lossy(&self.take_bytes()).into_owned()
    }
}
