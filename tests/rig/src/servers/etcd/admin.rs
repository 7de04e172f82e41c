//! What a test does behind the back of the locks.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{EtcdOptions, Program, ServerError};

const ETCDCTL: Program = Program { name: "etcdctl", package: "etcd-client" };

/// The user who may do everything, and the role that this is called by.
const ROOT: &str = "root";

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// A key, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEntry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The revision that created it.
    pub create_revision: i64,
    /// The revision that changed it last.
    pub mod_revision: i64,
    /// The lease with which it ends, if there is one.
    pub lease: Option<i64>,
}

/// The administrator of one server.
///
/// Every call but those about figures is a process of its own (`etcdctl`), and sees what happened before it on any
/// member.
#[derive(Clone, Debug)]
pub struct EtcdAdministrator {
    server: SocketAddr,
    password: Option<String>,
}

impl EtcdAdministrator {
    /// The administrator of the server at this address, who has this password if it asks for one.
    #[must_use]
    pub fn of(server: SocketAddr, password: Option<&str>) -> Self {
        Self { server, password: password.map(str::to_owned) }
    }

    /// Makes the users, and has the server ask for passwords from then on.
    pub(super) fn set_up(&self, options: &EtcdOptions) -> Result<(), ServerError> {
        let Some(password) = &options.password else { return Ok(()) };
        let anybody = Self::of(self.server, None);
        let ctl = |words: &[&str]| anybody.try_ctl(words).map(drop);
        ctl(&["user", "add", &format!("{ROOT}:{password}")])?;
        ctl(&["role", "add", ROOT])?;
        ctl(&["user", "grant-role", ROOT, ROOT])?;
        for user in &options.users {
            ctl(&["user", "add", &format!("{}:{}", user.name, user.password)])?;
            ctl(&["role", "add", &user.name])?;
            ctl(&["user", "grant-role", &user.name, &user.name])?;
            for prefix in &user.prefixes {
                ctl(&["role", "grant-permission", &user.name, "readwrite", prefix, "--prefix"])?;
            }
        }
        ctl(&["auth", "enable"])
    }

    /// Runs `etcdctl` with these words, and returns what it writes.
    ///
    /// # Errors
    ///
    /// When it is missing or fails.
    pub fn try_ctl(&self, words: &[&str]) -> Result<String, ServerError> {
        let mut all = vec![format!("--endpoints={}", self.server), format!("--command-timeout={ANSWER:?}")];
        if let Some(password) = &self.password {
            all.push(format!("--user={ROOT}:{password}"));
        }
        all.extend(words.iter().map(|&word| word.to_owned()));
        ETCDCTL.run(all)
    }

    /// [`try_ctl`](Self::try_ctl) that succeeds.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        self.try_ctl(words)
            .unwrap_or_else(|error| panic!("etcd {}: {}: {error}", self.server, words.join(" ")))
    }

    /// Writes a key that has no lease.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        drop(self.ctl(&["put", "--", key, value]));
    }

    /// Deletes a key, and says whether it was there.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn delete(&self, key: &str) -> bool {
        self.ctl(&["del", "--", key]).trim() != "0"
    }

    /// A key, if it is there.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn entry(&self, key: &str) -> Option<EtcdEntry> {
        entries_in(&self.ctl(&["get", "--write-out=fields", "--", key])).pop()
    }

    /// The keys that begin with `prefix`, in the order in which they were created.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn entries(&self, prefix: &str) -> Vec<EtcdEntry> {
        let mut entries = entries_in(&self.ctl(&["get", "--prefix", "--write-out=fields", "--", prefix]));
        entries.sort_by_key(|entry| entry.create_revision);
        entries
    }

    /// The names of [`entries`](Self::entries).
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.entries(prefix).into_iter().map(|entry| entry.key).collect()
    }

    /// The leases that there are, in no order.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn leases(&self) -> Vec<i64> {
        // In hexadecimal, below a line with their number.
        let lease = |line: &str| u64::from_str_radix(line, 16).ok().map(u64::cast_signed);
        self.ctl(&["lease", "list"]).lines().skip(1).filter_map(lease).collect()
    }

    /// Ends a lease as its expiry would: its keys are deleted.
    ///
    /// # Panics
    ///
    /// When there is no such lease, or the server does not answer.
    #[track_caller]
    pub fn revoke(&self, lease: i64) {
        drop(self.ctl(&["lease", "revoke", &format!("{lease:x}")]));
    }

    /// The revision of the last change.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn revision(&self) -> i64 {
        let status = self.ctl(&["endpoint", "status", "--write-out=fields"]);
        number(&status, "Revision")
            .unwrap_or_else(|| panic!("etcd {} tells no revision: {status}", self.server))
    }

    /// Forgets all that was before the last change, for all members, and returns its revision. A watch that asks for
    /// an earlier one is refused.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn compact(&self) -> i64 {
        let revision = self.revision();
        drop(self.ctl(&["compact", "--physical", &revision.to_string()]));
        revision
    }

    /// Gives space that is not used back to the disk. The server answers nothing meanwhile.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn defragment(&self) {
        drop(self.ctl(&["defrag"]));
    }

    /// The alarms that are raised, such as `memberID:123 alarm:NOSPACE`.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn alarms(&self) -> Vec<String> {
        self.ctl(&["alarm", "list"]).lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Ends all alarms.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn disarm(&self) {
        drop(self.ctl(&["alarm", "disarm"]));
    }

    /// How many watches clients have at this server.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn watches(&self) -> u64 {
        self.figure("etcd_debugging_mvcc_watcher_total")
    }

    /// How many requests of each kind clients have sent to this server, such as `Txn` and `LeaseKeepAlive`, since its
    /// start; those of the administrator count too.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let mut calls = BTreeMap::new();
        for (name, figure) in self.figures() {
            let Some(labels) = name.strip_prefix("grpc_server_msg_received_total{") else { continue };
            let method = labels.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next());
            if let Some(method) = method.filter(|_| figure > 0.0) {
                *calls.entry(method.to_owned()).or_default() += whole(figure);
            }
        }
        calls
    }

    /// A figure, such as `etcd_server_is_leader`.
    ///
    /// # Panics
    ///
    /// When the server does not answer, or has no such figure.
    #[must_use]
    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        let figure = self.figures().get(name).copied();
        whole(figure.unwrap_or_else(|| panic!("etcd {} tells no {name}", self.server)))
    }

    /// All that the server tells of itself, without asking the other members.
    #[track_caller]
    fn figures(&self) -> BTreeMap<String, f64> {
        self.figures_within(ANSWER)
            .unwrap_or_else(|error| panic!("the figures of etcd {}: {error}", self.server))
    }

    fn figures_within(&self, limit: Duration) -> io::Result<BTreeMap<String, f64>> {
        let figure = |line: &str| {
            let (name, figure) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
            Some((name.to_owned(), figure.parse().ok()?))
        };
        Ok(self.get("/metrics", limit)?.lines().filter_map(figure).collect())
    }

    /// Whether this server takes itself for the leader; false where it does not say so within `limit`.
    pub(super) fn leads(&self, limit: Duration) -> bool {
        self.figures_within(limit)
            .is_ok_and(|figures| figures.get("etcd_server_is_leader").is_some_and(|&leads| leads > 0.0))
    }

    /// Says why it does not serve, if it does not: a majority of its cluster has to be there. That there is no space
    /// left is no reason.
    pub(super) fn health(&self, limit: Duration) -> Result<(), String> {
        let said = self.get("/health?exclude=NOSPACE", limit).map_err(|error| error.to_string())?;
        if said.contains("\"health\":\"true\"") { Ok(()) } else { Err(said) }
    }

    fn get(&self, path: &str, limit: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.server, limit)?;
        stream.set_read_timeout(Some(limit))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures are counts")]
fn whole(figure: f64) -> u64 {
    figure as u64
}

/// The number in a line such as `"Revision" : 5`.
fn number(fields: &str, name: &str) -> Option<i64> {
    fields.lines().find_map(|line| field(line, name)?.parse().ok())
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_prefix('"')?.strip_prefix(name)?.strip_prefix("\" : ")
}

/// The keys in what `etcdctl get --write-out=fields` writes: six lines for each of them.
fn entries_in(fields: &str) -> Vec<EtcdEntry> {
    let lines: Vec<&str> = fields.lines().collect();
    let entry = |at: usize| {
        let of = &lines[at..];
        let text = |line: usize, name| of.get(line).and_then(|line| field(line, name)).map(unquoted);
        let number = |line: usize, name| of.get(line).and_then(|line| field(line, name)?.parse::<i64>().ok());
        Some(EtcdEntry {
            key: text(0, "Key")?,
            create_revision: number(1, "CreateRevision")?,
            mod_revision: number(2, "ModRevision")?,
            value: text(4, "Value")?,
            lease: number(5, "Lease").filter(|&lease| lease != 0),
        })
    };
    (0..lines.len()).filter_map(entry).collect()
}

/// The text that Go has written in quotes. What is not printable stays escaped.
fn unquoted(text: &str) -> String {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    text.replace("\\\"", "\"").replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\")
}
