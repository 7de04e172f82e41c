//! The holder of a lock, as stored with it.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fence::Fence;
use crate::key::start_of;
use crate::mode::Mode;

/// The most bytes that are kept of a name from a store.
const LONGEST_NAME: usize = 256;
/// The most bytes that are read of a stored line.
const LONGEST_LINE: usize = 4096;
/// The last second of the year 9999, in seconds since 1970: RFC 3339 has no later one.
const LAST_SECOND: u64 = 253_402_300_799;

/// The holder of a lock, as far as the backend knows it. Any field may be missing: a holder of another library stores
/// less.
///
/// Values from a store are bounded: of a host, a label, a trace and a candidate at most 256 bytes are kept, with an
/// ellipsis behind them, and a time that no calendar has is left out. The characters are those of the store: escape
/// them where a terminal would obey them, as [`Display`](fmt::Display) does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The host name of the holder.
    pub host: Option<String>,
    /// The process id on that host.
    pub pid: Option<u32>,
    /// The label that the holder's `Locks` were given.
    pub label: Option<String>,
    /// The time of the grant, by the holder's clock.
    pub since: Option<SystemTime>,
    /// The fence of this grant.
    pub fence: Option<Fence>,
    /// The time that the lease still runs if it is not renewed, as of the answer.
    pub expires_in: Option<Duration>,
    /// Is `true` if no process holds the lock any more: it was released, and stays taken for the time that is left. The
    /// other fields are those of its last holder.
    pub left_behind: bool,
    /// Is `true` if no process holds the lock, and this is the waiter whose turn it is: it keeps others out for the
    /// time that is left, unless it asks again. Only waiters of other libraries are shown so, since it is not known
    /// whether they live.
    pub first_in_line: bool,
    /// The mode of the hold, with the number of permits that this holder has of a semaphore.
    pub mode: Mode,
    /// The W3C trace context of the holder.
    pub trace: Option<String>,
    /// The id of the process among the candidates of an [election](crate::Election), if it leads. It is drawn at
    /// random, so that two processes of one host name and one process id, as in containers, are two candidates.
    pub candidate: Option<String>,
    /// The id of the [session](crate::LocksBuilder::with_session) that keeps the lock, if one does: its lease bounds
    /// only what is left of a process that is gone.
    pub session: Option<String>,
    /// The holder as each node of a quorum knows it.
    pub(crate) of_nodes: OfNodes,
}

/// A holder as the nodes of a quorum know it, each with the index of its node. It distinguishes one grant from the
/// next, and is no part of the holder's identity.
#[derive(Clone, Default)]
pub(crate) struct OfNodes(Arc<[(usize, Holder)]>);

impl PartialEq for OfNodes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OfNodes {}

impl fmt::Debug for OfNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(place, _)| place)).finish()
    }
}

impl Holder {
    /// Returns whether `other` was read of the same grant of the same key, and not of a later grant, perhaps to the
    /// same process. A lock that was released and stays taken is another hold than before its release, and so is one
    /// whose mode has changed. Sections to which a process passes its lock on by itself are one hold.
    ///
    /// Both have to name one process, and one [fence](Self::fence), which distinguishes its grants. On a
    /// quorum the fences of its nodes do so, which are not shown: two holders are the same if most of the nodes that
    /// named both agree. A holder without a fence, such as that of another library, is the same if all that is stored
    /// is equal: for two holds of one thread, Redisson stores nothing in which they differ.
    #[must_use]
    pub fn is_same_hold(&self, other: &Self) -> bool {
        let (one, other) = (self.stored(), other.stored());
        if one.fence.is_some() || !one.of_nodes.0.is_empty() || !other.of_nodes.0.is_empty() {
            return one.fence == other.fence
                && one.is_of_same_holder(&other)
                && one.is_named_by_same_nodes(&other);
        }
        one == other
    }

    /// Returns the holder as a store has it. A backend's own answer may still be longer than what was shown.
    fn stored(&self) -> Self {
        let mut stored = Self { expires_in: None, ..self.clone() };
        stored.bound();
        stored
    }

    /// Adds the holder as each node of a quorum knows it, with the index of the node.
    #[must_use]
    pub fn with_nodes(mut self, of_nodes: impl Into<Arc<[(usize, Self)]>>) -> Self {
        self.of_nodes = OfNodes(of_nodes.into());
        self
    }

    /// Returns what [`with_nodes`](Self::with_nodes) added; empty for everything else.
    #[must_use]
    pub fn of_nodes(&self) -> &[(usize, Self)] {
        &self.of_nodes.0
    }

    /// Is `true` if both are of one process, with one label, in one state. Not compared are the number of permits of a
    /// semaphore and the mode of a lock, which may have changed since, and the time of the grant, which differs from
    /// node to node.
    #[must_use]
    pub fn is_of_same_holder(&self, other: &Self) -> bool {
        let who = |of: &Self| {
            let Self { host, pid, label, candidate, left_behind, first_in_line, .. } = of.clone();
            let mode = (matches!(of.mode, Mode::Permits { .. }), of.mode.taken());
            (host, pid, label, candidate, left_behind, first_in_line, mode)
        };
        who(self) == who(other)
    }

    /// Is `true` if most of the nodes of a quorum that named both named the same hold.
    fn is_named_by_same_nodes(&self, other: &Self) -> bool {
        let (mut alike, mut unlike) = (BTreeSet::new(), BTreeSet::new());
        for (place, one) in self.of_nodes.0.iter() {
            for (_, other) in other.of_nodes.0.iter().filter(|(at, _)| at == place) {
                if one.is_same_hold(other) { &mut alike } else { &mut unlike }.insert(*place);
            }
        }
        let is_of_nodes = !self.of_nodes.0.is_empty() || !other.of_nodes.0.is_empty();
        !is_of_nodes || alike.len() > unlike.difference(&alike).count()
    }

    /// Parses a line of [`Identity::describe`]. Unknown fields are skipped; the text of another library gives a holder
    /// without any.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut holder = Self::default();
        for (name, value) in start_of(text, LONGEST_LINE).split(' ').filter_map(|field| field.split_once('='))
        {
            match name {
                "host" => holder.host = Some(unescape(value)),
                "pid" => holder.pid = value.parse().ok(),
                "label" => holder.label = Some(unescape(value)),
                "trace" => holder.trace = Some(unescape(value)),
                "leads" => holder.candidate = Some(unescape(value)),
                "session" => holder.session = Some(unescape(value)),
                "left" => holder.left_behind = value == "1",
                "since" => {
                    holder.since = value
                        .parse()
                        .ok()
                        .and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
                }
                _ => {}
            }
        }
        holder.bound();
        holder
    }

    /// Cuts values of a store that are longer, or later, than anything that dlock writes.
    pub(crate) fn bound(&mut self) {
        for name in [&mut self.host, &mut self.label, &mut self.trace, &mut self.candidate, &mut self.session]
            .into_iter()
            .flatten()
        {
            if name.len() > LONGEST_NAME {
                name.truncate(start_of(name, LONGEST_NAME).len());
                name.push('…');
            }
        }
        self.since = self.since.filter(|since| {
            since.duration_since(UNIX_EPOCH).is_ok_and(|since| since.as_secs() <= LAST_SECOND)
        });
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first_in_line {
            f.write_str("a waiter of another library")?;
            if let Some(label) = &self.label {
                write!(f, " ({})", label.escape_debug())?;
            }
            f.write_str(", first of those who wait,")?;
            return self.expires_in.map_or(Ok(()), |left| write!(f, " for {left:.1?} unless it asks again"));
        }
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => write!(f, "process {pid} on {}", host.escape_debug())?,
            (Some(host), None) => write!(f, "{}", host.escape_debug())?,
            (None, Some(pid)) => write!(f, "process {pid}")?,
            (None, None) => f.write_str("an unnamed holder")?,
        }
        if let Some(label) = &self.label {
            write!(f, " ({})", label.escape_debug())?;
        }
        if self.mode != Mode::Exclusive {
            write!(f, ", {}", self.mode)?;
        }
        if let Some(fence) = self.fence {
            write!(f, ", fence {fence}")?;
        }
        if let Some(since) = self.since.and_then(|since| since.elapsed().ok()) {
            write!(f, ", since {since:.1?}")?;
        }
        if self.left_behind {
            f.write_str(", released, and kept taken")?;
            return self.expires_in.map_or(Ok(()), |left| write!(f, " for {left:.1?}"));
        }
        if self.session.is_some() {
            return f.write_str(", kept by its session");
        }
        if let Some(left) = self.expires_in {
            write!(f, ", lease ends in {left:.1?} unless renewed")?;
        }
        Ok(())
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "unknown".into())
}

/// Returns a name of this process, which no other process on any host has. A child made by `fork` has another one.
fn process_id() -> String {
    static DRAWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    format!("{:016x}", *DRAWN ^ u64::from(std::process::id()))
}

/// The text that a backend puts before the line of a lock that it [leaves](crate::backend::Claim::leave) taken, for
/// [`Holder::parse`] to read.
pub const LEFT_BEHIND: &str = "left=1 ";

/// The identity of this process, as backends get it: host, process id, and the label of its `Locks`.
#[derive(Debug)]
pub struct Identity {
    host: String,
    pid: u32,
    label: Option<String>,
    /// The id of this process among the candidates of an election.
    candidate: Option<String>,
    /// The id of the session that keeps the lock.
    session: Option<Arc<str>>,
    /// Host, process and label, escaped once for all acquires.
    line: Arc<str>,
}

impl Identity {
    pub(crate) fn of_this_process(label: Option<String>) -> Arc<Self> {
        Arc::new(Self::new(host_name(), std::process::id(), label))
    }

    fn new(host: String, pid: u32, label: Option<String>) -> Self {
        let mut line = format!("host={} pid={pid}", Escaped(&host));
        if let Some(label) = &label {
            line = format!("{line} label={}", Escaped(label));
        }
        Self { host, pid, label, candidate: None, session: None, line: line.into() }
    }

    /// Returns the identity of this process as a leader.
    pub(crate) fn to_candidate(&self) -> Arc<Self> {
        let candidate = process_id();
        let line = format!("{} leads={candidate}", self.line).into();
        Arc::new(Self {
            host: self.host.clone(),
            label: self.label.clone(),
            candidate: Some(candidate),
            session: self.session.clone(),
            line,
            ..*self
        })
    }

    /// Returns the identity of this process as the holder of a lock that its session keeps. The session comes first: a
    /// line that is cut has it still.
    pub(crate) fn of_session(&self, id: &Arc<str>) -> Arc<Self> {
        let line = format!("session={id} {}", self.line).into();
        Arc::new(Self {
            host: self.host.clone(),
            label: self.label.clone(),
            candidate: self.candidate.clone(),
            session: Some(Arc::clone(id)),
            line,
            ..*self
        })
    }

    pub(crate) fn candidate(&self) -> Option<&str> {
        self.candidate.as_deref()
    }

    /// Returns one line of `name=value` fields for the backend to store with the lock: `host`, `pid`, `label` if there
    /// is one, and `since` in milliseconds of the wall clock. Values are percent-escaped, so that no label can put
    /// spaces or control characters into the line. [`Holder::parse`] reads it.
    #[must_use]
    pub fn describe(&self, since: SystemTime) -> String {
        dated(&self.line, since)
    }

    /// Returns the line of [`describe`](Self::describe) for a lock that a backend takes without a
    /// [claim](crate::backend::Claim): of the process there is only its id.
    #[must_use]
    pub fn describe_process(since: SystemTime) -> String {
        dated(&format!("pid={}", std::process::id()), since)
    }

    /// Returns the line of [`describe`](Self::describe) without `since`, which is made once, for backends that know the
    /// time of a grant by themselves.
    #[must_use]
    pub const fn line(&self) -> &Arc<str> {
        &self.line
    }

    /// Converts the identity into a [`Holder`], for backends in this process.
    #[must_use]
    pub fn to_holder(&self, since: SystemTime) -> Holder {
        Holder {
            host: Some(self.host.clone()),
            pid: Some(self.pid),
            label: self.label.clone(),
            since: Some(since),
            candidate: self.candidate.clone(),
            session: self.session.as_deref().map(str::to_owned),
            ..Holder::default()
        }
    }
}

/// Adds the time of the grant to a line.
fn dated(line: &str, since: SystemTime) -> String {
    let millis = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("{line} since={millis}")
}

/// Returns the parts of the line to store with a lock: a [line](Identity::line), and the W3C trace context of the span
/// that acquires, if there is one. A line of more than `room` bytes is cut behind a whole field.
#[must_use]
pub fn holder_line<'a>(line: &'a str, trace: Option<&'a str>, room: usize) -> [&'a str; 3] {
    let line =
        if line.len() <= room { line } else { start_of(line, room).rsplit_once(' ').unwrap_or_default().0 };
    // The trace comes last and is left out first: without it the holder is still known.
    match trace.filter(|trace| line.len() + trace.len() < room) {
        Some(trace) => [line, " trace=", trace],
        None => [line, "", ""],
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if byte.is_ascii_graphic() && byte != b'%' && byte != b'=' {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'%')
            .then(|| tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_described_is_read_back() {
        let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        for label in ["orders", "a b=c%d\n", "Zürich 🔒", ""] {
            let identity = Identity::new("web 1".into(), 7, Some(label.into()));
            let text = identity.describe(since);
            assert!(text.is_ascii() && !text.contains('\n'), "{text:?}");
            assert_eq!(Holder::parse(&text), identity.to_holder(since));
        }
    }

    #[test]
    fn the_bytes_of_a_line_are_those_of_earlier_versions() {
        let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let line = Identity::new("web 1".into(), 7, Some("orders".into())).describe(since);
        assert_eq!(line, "host=web%201 pid=7 label=orders since=1700000000123");
        assert_eq!(
            holder_line(&line, Some("00-1-2-01"), usize::MAX).concat(),
            format!("{line} trace=00-1-2-01")
        );
        let process = format!("pid={} since=1700000000123", std::process::id());
        assert_eq!(Identity::describe_process(since), process);
        let rooms = [(22, "host=a pid=5 trace=00-1-2-01"), (21, "host=a pid=5"), (12, "host=a pid=5")];
        for (room, stored) in rooms.into_iter().chain([(11, "host=a"), (6, ""), (0, "")]) {
            assert_eq!(holder_line("host=a pid=5", Some("00-1-2-01"), room).concat(), stored, "{room}");
        }
    }

    #[test]
    fn whoever_leads_is_named_by_its_process() {
        let identity = Identity::new("web 1".into(), 7, Some("orders".into()));
        let candidate = identity.to_candidate();
        let holder = Holder::parse(&candidate.describe(UNIX_EPOCH));
        assert_eq!(holder, candidate.to_holder(UNIX_EPOCH));
        assert_eq!(holder.candidate.as_deref(), candidate.candidate());
        assert!(holder.candidate.is_some_and(|candidate| candidate.len() == 16));
        assert_eq!(Holder::parse(&identity.describe(UNIX_EPOCH)).candidate, None);
    }

    #[test]
    fn what_is_longer_or_later_than_anything_that_dlock_writes_is_cut() {
        let long = "ä".repeat(10_000);
        let holder = Holder::parse(&format!("since=253402300800000 label={long} host=a"));
        let label = holder.label.unwrap();
        assert!(label.ends_with("ä…") && label.len() <= LONGEST_NAME + '…'.len_utf8(), "{}", label.len());
        assert_eq!((holder.since, holder.host), (None, None), "what comes after the bound is not read");
        assert!(Holder::parse("since=253402300799999").since.is_some());
        let before = UNIX_EPOCH.checked_sub(Duration::from_secs(1));
        let mut holder = Holder { since: before, ..Holder::default() };
        holder.bound();
        assert_eq!((before.is_some(), holder.since), (true, None));
    }

    #[test]
    fn text_of_another_library_gives_an_unnamed_holder() {
        for text in ["", "locked", "pid=x %%% =", "%", "label"] {
            let holder = Holder::parse(text);
            assert_eq!((holder.host, holder.pid), (None, None), "{text:?}");
        }
    }

    fn of(fence: u64) -> Holder {
        let identity = Identity::new("web 1".into(), 7, Some("orders".into()));
        Holder { fence: Some(Fence::new(fence)), ..identity.to_holder(UNIX_EPOCH) }
    }

    #[test]
    fn holds_of_one_fence_are_different_where_another_process_or_another_use_is_stored() {
        let shown = of(7);
        let later = Holder { expires_in: Some(Duration::from_secs(1)), ..of(7) };
        assert!(shown.is_same_hold(&later));
        let other = || Some("other".to_owned());
        let others = [
            of(8),
            Holder { fence: None, ..of(7) },
            Holder { host: other(), ..of(7) },
            Holder { pid: Some(8), ..of(7) },
            Holder { label: other(), ..of(7) },
            Holder { candidate: other(), ..of(7) },
            Holder { mode: Mode::Permits { of: 3, take: 1 }, ..of(7) },
            Holder { left_behind: true, ..of(7) },
            Holder { first_in_line: true, ..of(7) },
        ];
        for other in others {
            assert!(!shown.is_same_hold(&other) && !other.is_same_hold(&shown), "{other:?}");
        }
        let permits = |of_all, take| Holder { mode: Mode::Permits { of: of_all, take }, ..of(7) };
        assert!(permits(3, 1).is_same_hold(&permits(5, 1)), "the semaphore was resized");
        assert!(shown.is_same_hold(&Holder { mode: Mode::Shared, ..of(7) }), "it was downgraded");
        assert!(!permits(3, 1).is_same_hold(&permits(3, 2)));
    }

    #[test]
    fn a_hold_of_a_quorum_is_what_most_of_the_nodes_say_that_were_asked_both_times() {
        let quorum = |fences: &[(usize, u64)]| Holder {
            of_nodes: OfNodes(fences.iter().map(|(place, fence)| (*place, of(*fence))).collect()),
            fence: None,
            ..of(0)
        };
        let shown = quorum(&[(0, 1), (1, 1), (2, 1)]);
        assert!(shown.is_same_hold(&quorum(&[(1, 1), (2, 1)])));
        assert!(
            shown.is_same_hold(&quorum(&[(0, 2), (1, 1), (2, 1)])),
            "one node lost its vote, and has it again"
        );
        assert!(quorum(&[(0, 1), (1, 1)]).is_same_hold(&quorum(&[(1, 1), (2, 1)])));
        assert!(!shown.is_same_hold(&quorum(&[(0, 2), (1, 2), (2, 1)])), "one node has an old vote");
        assert!(!quorum(&[(0, 1)]).is_same_hold(&quorum(&[(2, 1)])));
        let another = Holder { candidate: Some("other".to_owned()), ..shown.clone() };
        assert!(!shown.is_same_hold(&another));
    }
}
