//! What a test does behind the back of the locks.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::session::{AdminSession, NO_NODE, ReplyBody, ZooKeeperAnswer, ZooKeeperRequest};

/// The user to whom access lists do not apply.
const SUPERUSER: (&str, &str) = ("super", "admin");

/// What makes a server accept [`SUPERUSER`]: the user's name, and SHA-1 of `super:admin`.
pub(super) const SUPERUSER_DIGEST: &str = "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=";

/// How long the answer to a word may take.
const WORD: Duration = Duration::from_secs(10);

/// A node, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What is in it.
    pub data: Vec<u8>,
    /// The transaction that created it.
    pub czxid: i64,
    /// The session with which it ends, if it is ephemeral.
    pub session: Option<i64>,
}

/// How a node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// It stays until it is deleted.
    Persistent,
    /// It stays, and the server appends a number to its name.
    PersistentSequential,
    /// It goes when its last child has gone.
    Container,
}

/// The administrator of one server. Access lists do not apply to it.
///
/// Every call uses a session of its own, which is closed afterwards, and sees what happened before it on any server.
#[derive(Clone, Copy, Debug)]
pub struct Administrator {
    server: SocketAddr,
}

impl Administrator {
    /// The administrator of the server at this address.
    #[must_use]
    pub fn of(server: SocketAddr) -> Self {
        Self { server }
    }

    #[track_caller]
    fn must<T>(&self, what: &str, result: io::Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{what} at ZooKeeper {}: {error}", self.server))
    }

    fn ask(&self, request: ZooKeeperRequest, path: &str, body: &ReplyBody) -> io::Result<ZooKeeperAnswer> {
        let mut session = AdminSession::open(self.server)?;
        session.authenticate(SUPERUSER.0, SUPERUSER.1)?;
        // A follower may be behind.
        drop(session.ask(ZooKeeperRequest::Sync, &ReplyBody::default().text(path))?);
        let answer = session.ask(request, body)?;
        session.close()?;
        Ok(answer)
    }

    /// The names of a node's children, in order; none if there is no such node.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn try_children(&self, path: &str) -> io::Result<Vec<String>> {
        match self.ask(ZooKeeperRequest::GetChildren, path, &ReplyBody::default().text(path).bool(false))? {
            Ok(mut reply) => {
                let mut names: Vec<_> = (0..reply.take_int()).map(|_| reply.take_text()).collect();
                names.sort();
                Ok(names)
            }
            Err(NO_NODE) => Ok(Vec::new()),
            Err(code) => Err(refused(code)),
        }
    }

    /// [`try_children`](Self::try_children) that succeeds.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn children(&self, path: &str) -> Vec<String> {
        self.must(path, self.try_children(path))
    }

    /// A node, if it is there.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn node(&self, path: &str) -> Option<Node> {
        let answer = self.must(
            path,
            self.ask(ZooKeeperRequest::GetData, path, &ReplyBody::default().text(path).bool(false)),
        );
        match answer {
            Ok(mut reply) => {
                let data = reply.take_bytes();
                let czxid = reply.take_long();
                // When it was changed, by whom, and how often.
                let _ = (reply.take_long(), reply.take_long(), reply.take_long());
                let _ = (reply.take_int(), reply.take_int(), reply.take_int());
                let session = reply.take_long();
                Some(Node { data, czxid, session: (session != 0).then_some(session) })
            }
            Err(NO_NODE) => None,
            Err(code) => panic!("{path} at ZooKeeper {}: {}", self.server, refused(code)),
        }
    }

    /// Who may do what with a node: pairs of the rights, as a set of bits, and of whom, such as `world:anyone`.
    ///
    /// # Panics
    ///
    /// When there is no such node, or the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn access(&self, path: &str) -> Vec<(i32, String)> {
        let mut reply = self.done(path, ZooKeeperRequest::GetAcl, &ReplyBody::default().text(path));
        let entry = |reply: &mut ReplyBody| {
            (reply.take_int(), format!("{}:{}", reply.take_text(), reply.take_text()))
        };
        (0..reply.take_int()).map(|_| entry(&mut reply)).collect()
    }

    /// Creates a node that everybody may use, and returns its path.
    ///
    /// # Panics
    ///
    /// When it exists, its parent does not, or the server does not answer.
    #[track_caller]
    pub fn create(&self, path: &str, data: &[u8], kind: NodeKind) -> String {
        const ALL_RIGHTS: i32 = 31;
        let flags = match kind {
            NodeKind::Persistent => 0,
            NodeKind::PersistentSequential => 2,
            NodeKind::Container => 4,
        };
        let body = ReplyBody::default().text(path).bytes(data);
        let body = body.int(1).int(ALL_RIGHTS).text("world").text("anyone").int(flags);
        // Containers have a request of their own, with the same content.
        let request = if kind == NodeKind::Container {
            ZooKeeperRequest::CreateContainer
        } else {
            ZooKeeperRequest::Create
        };
        self.done(path, request, &body).take_text()
    }

    /// Replaces what is in a node.
    ///
    /// # Panics
    ///
    /// When there is no such node, or the server does not answer.
    #[track_caller]
    pub fn set_data(&self, path: &str, data: &[u8]) {
        drop(self.done(
            path,
            ZooKeeperRequest::SetData,
            &ReplyBody::default().text(path).bytes(data).int(-1),
        ));
    }

    /// Deletes a node.
    ///
    /// # Panics
    ///
    /// When there is no such node, it has children, or the server does not answer.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        drop(self.done(path, ZooKeeperRequest::Delete, &ReplyBody::default().text(path).int(-1)));
    }

    /// Changes who is a member of the ensemble: `joining` as in `server.4=127.0.0.1:2888:3888:observer;2181`, `leaving`
    /// by number; several are separated by commas. The servers have to be started with `reconfigEnabled`.
    ///
    /// # Errors
    ///
    /// When the servers refuse it, or do not answer.
    pub fn reconfigure(&self, joining: &str, leaving: &str) -> io::Result<()> {
        const ANY_VERSION: i64 = -1;
        const NONE: i32 = -1;
        let body =
            [joining, leaving, ""].into_iter().fold(ReplyBody::default(), |body, servers| match servers {
                "" => body.int(NONE),
                servers => body.text(servers),
            });
        let body = body.long(ANY_VERSION);
        let answer = self.ask(ZooKeeperRequest::Reconfigure, "/zookeeper/config", &body)?;
        answer.map(drop).map_err(refused)
    }

    #[track_caller]
    fn done(&self, path: &str, request: ZooKeeperRequest, body: &ReplyBody) -> ReplyBody {
        let answer = self.must(path, self.ask(request, path, body));
        answer.unwrap_or_else(|code| {
            panic!("{request:?} {path} at ZooKeeper {}: {}", self.server, refused(code))
        })
    }

    /// The sessions of the clients that are connected to this server, in no order.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn sessions(&self) -> Vec<i64> {
        let session = |line: &str| {
            let digits = line.split_once("sid=0x")?.1.split(',').next()?;
            u64::from_str_radix(digits, 16).ok().map(u64::cast_signed).filter(|&id| id != 0)
        };
        self.word("cons").lines().filter_map(session).collect()
    }

    /// Ends a session as its expiry would: its nodes are deleted, and its client learns of that when it is connected
    /// again.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn expire(&self, session: i64) {
        // Its client takes the session back as soon as it can, which may be in between.
        const TRIES: u32 = 1_000;
        let mut ended = Ok(());
        for _ in 0..TRIES {
            ended = match AdminSession::take_over(self.server, session) {
                Ok(Some(theirs)) => theirs.close(),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if ended.is_ok() {
                return;
            }
        }
        self.must(&format!("session {session:#x}"), ended);
    }

    /// Ends the sessions of all clients that are connected to this server.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn expire_all(&self) {
        for session in self.sessions() {
            self.expire(session);
        }
    }

    /// How many watches clients have set at this server.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn watches(&self) -> u64 {
        self.figure("zk_watch_count")
    }

    /// A figure of `mntr`, such as `zk_ephemerals_count`.
    ///
    /// # Panics
    ///
    /// When the server does not answer or has no such figure.
    #[must_use]
    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        let all = self.figures();
        let value = all.get(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("ZooKeeper at {} tells no number for {name}: {all:?}", self.server))
    }

    /// Everything that `mntr` tells.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn figures(&self) -> BTreeMap<String, String> {
        let pair =
            |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.word("mntr").lines().filter_map(pair).collect()
    }

    /// What the server answers to one of its four-letter words.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn word(&self, word: &str) -> String {
        self.must(word, self.try_word(word))
    }

    /// What the server answers to one of its four-letter words.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn try_word(&self, word: &str) -> io::Result<String> {
        self.word_within(WORD, word)
    }

    pub(super) fn word_within(&self, limit: Duration, word: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.server, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn refused(code: i32) -> io::Error {
    io::Error::other(format!("refused with {code}"))
}
