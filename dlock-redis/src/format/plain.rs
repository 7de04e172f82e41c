//! dlock's own format of exclusive locks: a string that expires.
//!
//! `<token> <first fence of the call>+<number in it> <line about the holder>`, with ` !` at its end if a client listens
//! for the release. So a release is published only if a client waits, and the fence needs no arithmetic on the server.

use std::time::Duration;

use dlock_core::{Fence, Holder, Token};
use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};

use super::{Found, LONGEST_VALUE, Script, hash_of, no_lock, since, text};
use crate::request::{Answer, Answers, By, CallNumber, Request, Step, Who};

pub(crate) const TEXT: &str = include_str!("plain.lua");
const ALL_TEXT: &str = include_str!("plain_batch.lua");
pub(super) const RIGHTS: &str = include_str!("plain_rights.lua");
pub(super) const SPLIT_SLOT: &str = include_str!("plain_alone.lua");
pub(super) const FORCE: &str = include_str!("plain_force.lua");
pub(crate) const LEAVE: &str = include_str!("plain_leave.lua");
pub(crate) const TAKE_OVER: &str = concat!(include_str!("head.lua"), include_str!("plain_take_over.lua"));
pub(super) const LOOK: &str = include_str!("plain_look.lua");
pub(super) static SCRIPT: Script = Script::new(TEXT, || hash_of(TEXT));
static ALL: Script = Script::new(ALL_TEXT, || hash_of(ALL_TEXT));

/// Makes the call of the script with these requests. See the script for the forms of its arguments.
pub(super) fn call(requests: &[Request], by: By, number: CallNumber) -> Cmd {
    let places = Places::of(requests);
    let in_order = || places.order.iter().map(|index| &requests[usize::from(*index)]);
    let acquires = || in_order().skip(places.own());
    let counter = acquires().next();
    let keys = requests.len() + usize::from(counter.is_some());
    let mut cmd = SCRIPT.call(by, keys, 11 + 4 * requests.len());
    for request in in_order() {
        cmd.arg(&*request.names.lock);
    }
    if let Some(request) = counter {
        cmd.arg(&*request.names.counter);
    }
    cmd.arg(number.0);
    let leases = || in_order().filter_map(|request| request.step.lease());
    let uniform = same(leases());
    let listens = |request: &Request| matches!(request.step, Step::Acquire { listens: true, .. });
    let listening = acquires().any(listens);
    let fences: u32 = acquires().map(|request| request.step.fences()).sum();
    // The most frequent call has the shortest form: each argument costs the server time.
    if requests.len() == 1 && fences == 1 && !listening {
        lease(uniform, &mut cmd);
    } else if places.back < requests.len() {
        cmd.arg(places.back).arg(places.renewed).arg(places.tracked).arg(places.taken);
        lease(uniform, &mut cmd);
        let mark = |request| if listens(request) { '1' } else { '0' };
        cmd.arg(if listening { acquires().map(mark).collect() } else { String::new() }).arg(fences);
    }
    for request in in_order() {
        cmd.arg(&hex(&request.token));
    }
    let mut scratch = Vec::new();
    let mut number = 0;
    for request in acquires() {
        if let Step::Acquire { who, fences, .. } = &request.step {
            cmd.arg(added(number, who, &mut scratch));
            number += *fences;
        }
    }
    if places.back < requests.len() && uniform.is_none() {
        cmd.arg(leases().collect::<Vec<_>>());
    }
    cmd
}

/// Adds the common lease, or an empty argument if there is none.
fn lease(of_all: Option<u64>, cmd: &mut Cmd) {
    match of_all {
        Some(lease) => cmd.arg(lease),
        None => cmd.arg(""),
    };
}

/// Returns the number that all numbers are equal to, if there is one.
fn same(mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let first = numbers.next()?;
    numbers.all(|other| other == first).then_some(first)
}

/// The order of requests in a call: first releases, then renewals, the tracked ones last, then acquires.
struct Places {
    order: SmallVec<[u8; 32]>,
    back: usize,
    renewed: usize,
    /// The number of tracked ones among the renewals, which come last.
    tracked: usize,
    taken: usize,
}

impl Places {
    fn of(requests: &[Request]) -> Self {
        // Releases first: a lock that is released and acquired in one call is free by then. Tracked renewals last: the
        // server tracks keys by what the call reads after all changes.
        let kind = |request: &Request| match request.step {
            Step::Withdraw { .. } => 0,
            Step::Renew { tracked: false, .. } | Step::Downgrade { .. } => 1,
            Step::Renew { tracked: true, .. } => 2,
            Step::Acquire { .. } => 3,
        };
        let mut counts = [0; 4];
        requests.iter().for_each(|request| counts[kind(request)] += 1);
        let mut order: SmallVec<[u8; 32]> = smallvec![0; requests.len()];
        let renewed = counts[1] + counts[2];
        let mut next = [0, counts[0], counts[0] + counts[1], counts[0] + renewed];
        for (index, request) in (0..).zip(requests) {
            order[next[kind(request)]] = index;
            next[kind(request)] += 1;
        }
        Self { order, back: counts[0], renewed, tracked: counts[2], taken: counts[3] }
    }

    /// Returns the number of requests about locks that are held.
    const fn own(&self) -> usize {
        self.back + self.renewed
    }
}

/// Returns what follows the first fence of the call in the value.
fn added<'a>(number: u32, who: &Who, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    if number >= 10 {
        scratch.extend_from_slice(number.to_string().as_bytes());
    } else {
        scratch.push(b'0' + u8::try_from(number).unwrap_or(0));
    }
    scratch.push(b' ');
    who.write(scratch);
    scratch
}

/// Returns a token as the scripts and the server have it.
pub(super) fn hex(token: &Token) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (at, byte) in token.as_bytes().iter().enumerate() {
        text[2 * at] = DIGITS[usize::from(byte >> 4)];
        text[2 * at + 1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// Reads the result of [`call`], whose answers are all good but for those that are listed.
pub(super) fn read(reply: Value, requests: &[Request]) -> Option<Answers> {
    let (base, odd) = match reply {
        Value::Int(base) => (base, Vec::new()),
        Value::Array(mut parts) if parts.len() % 2 == 1 => match parts.remove(0) {
            Value::Int(base) => (base, parts),
            _ => return None,
        },
        _ => return None,
    };
    let base = u64::try_from(base).ok()?;
    let places = Places::of(requests);
    let mut answers: Answers = smallvec![Answer::Done(true); requests.len()];
    let mut fence = base;
    for index in places.order[places.own()..].iter().map(|index| usize::from(*index)) {
        answers[index] = Answer::Granted(fence);
        fence += u64::from(requests[index].step.fences());
    }
    let mut odd = odd.into_iter();
    while let (Some(place), Some(reply)) = (odd.next(), odd.next()) {
        let Value::Int(place) = place else { return None };
        let place = usize::try_from(place).ok()?.checked_sub(1)?;
        answers[usize::from(*places.order.get(place)?)] = answer(reply)?;
    }
    // Without a first fence no lock can have been granted.
    let granted = |answer: &Answer| matches!(answer, Answer::Granted(_));
    (base > 0 || !answers.iter().any(granted)).then_some(answers)
}

/// The number that a release adds to its reply if a reader has left its mark. To other clients that is "2 or more" too.
const A_READER_WAITS: i64 = 1 << 30;

/// Reads the answer to one request; `None` if it is malformed.
pub(super) fn answer(reply: Value) -> Option<Answer> {
    Some(match reply {
        Value::Int(0) => Answer::Done(false),
        Value::Int(more @ 2..) => {
            let listening = u32::try_from(more % A_READER_WAITS - 1).ok().filter(|count| *count > 0)?;
            Answer::Awaited { listening, reader: more >= A_READER_WAITS }
        }
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            match (parts.next()?, parts.next()) {
                (value, None) => Answer::Adopted(Stored::parse(&text(value)?).map(|stored| stored.fence)),
                (Value::Int(left), Some(value)) => busy(left, &text(value)?),
                _ => return None,
            }
        }
        refused => Answer::Refused(text(refused)?),
    })
}

/// Returns the answer that another client holds the lock, by what is stored.
fn busy(left: i64, value: &str) -> Answer {
    match Stored::parse(value) {
        Some(stored) => {
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            Answer::Busy { left, holder: Box::new(stored.holder(left)) }
        }
        None => no_lock(),
    }
}

/// The stored value of one lock.
struct Stored<'a> {
    fence: u64,
    who: &'a str,
}

impl<'a> Stored<'a> {
    fn parse(value: &'a str) -> Option<Self> {
        let value = value.strip_suffix(" ?!").unwrap_or(value);
        let value = value.strip_suffix(" !").unwrap_or(value);
        let (token, rest) = value.split_once(' ')?;
        let (fence, who) = rest.split_once(' ').unwrap_or((rest, ""));
        let (first, number) = fence.split_once('+')?;
        let fence = first.parse::<u64>().ok()?.checked_add(number.parse().ok()?)?;
        let is_token = token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_token.then_some(Self { fence, who })
    }

    fn holder(&self, left: Option<Duration>) -> Holder {
        let mut holder = Holder::parse(self.who);
        holder.fence = (self.fence > 0).then(|| Fence::new(self.fence));
        holder.expires_in = left;
        holder.since = since(self.fence);
        holder
    }
}

/// Makes the call that takes all these locks or none.
pub(super) fn call_all(requests: &[Request], by: By, number: CallNumber) -> Cmd {
    let listens = |request: &Request| matches!(request.step, Step::Acquire { listens: true, .. });
    let mut cmd = ALL.call(by, requests.len() + 1, 7 + 4 * requests.len());
    for request in requests {
        cmd.arg(&*request.names.lock);
    }
    if let Some(request) = requests.first() {
        cmd.arg(&*request.names.counter);
    }
    cmd.arg(number.0).arg(i32::from(requests.iter().any(listens)));
    let leases = || requests.iter().filter_map(|request| request.step.lease());
    let uniform = same(leases());
    lease(uniform, &mut cmd);
    let mut scratch = Vec::new();
    for (number, request) in (0..).zip(requests) {
        if let Step::Acquire { who, .. } = &request.step {
            cmd.arg(&hex(&request.token)).arg(added(number, who, &mut scratch));
        }
    }
    if uniform.is_none() {
        cmd.arg(leases().collect::<Vec<_>>());
    }
    cmd
}

/// Reads the result of [`call_all`]; `None` if it is malformed.
pub(super) fn read_all(reply: Value, count: usize) -> Option<Answer> {
    let granted = |base: u64, number: usize| Answer::Granted(base + number as u64);
    let mut parts = match reply {
        Value::Int(base) => {
            let base = u64::try_from(base).ok().filter(|base| *base > 0)?;
            return Some(Answer::All((0..count).map(|number| granted(base, number)).collect()));
        }
        Value::Array(parts) => parts.into_iter(),
        _ => return None,
    };
    match (parts.next()?, parts.next()?) {
        (Value::Int(0), Value::Int(base)) if parts.len() == count => {
            let base = u64::try_from(base).ok()?;
            let taken = parts.enumerate().map(|(number, reply)| match reply {
                Value::Int(1) if base > 0 => Some(granted(base, number)),
                Value::Int(_) => None,
                adopted => answer(adopted),
            });
            taken.collect::<Option<_>>().map(Answer::All)
        }
        (Value::Int(place), Value::Int(left)) => {
            let place = usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < count)?;
            Some(Answer::BusyAt(place, Box::new(busy(left, &text(parts.next()?)?))))
        }
        _ => None,
    }
}

/// Returns what distinguishes a lock that a look found from the next one: its token and its fence, or the whole value
/// of a key that is no lock.
pub(super) fn identity(looked: &Value) -> Vec<u8> {
    let Value::Array(parts) = looked else { return Vec::new() };
    let Some(Value::BulkString(value)) = parts.get(1) else { return Vec::new() };
    let is_lock = std::str::from_utf8(value).is_ok_and(|value| Stored::parse(value).is_some());
    let mut words = value.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
    match words.nth(1).filter(|_| is_lock) {
        Some(end) => value[..end].to_vec(),
        None => value.clone(),
    }
}

/// Reads the result of a look.
pub(super) fn seen(left: Option<Duration>, mut parts: impl Iterator<Item = Value>) -> Found {
    match parts.next() {
        Some(Value::BulkString(bytes)) if bytes.len() >= LONGEST_VALUE => Found::Foreign,
        value => {
            let value = value.and_then(text).unwrap_or_default();
            Stored::parse(&value).map_or(Found::Foreign, |stored| Found::Held(stored.holder(left)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dlock_core::backend::Mode;

    use super::*;
    use crate::keys::{Counters, Namer};
    use crate::request::ScriptKind;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn requests(steps: Vec<Step>) -> Vec<Request> {
        let namer = Namer::new("dlock:", Counters::Server, false, false).unwrap();
        let make = |(number, step)| Request {
            names: namer.names(&dlock_core::Key::new(format!("room_{number}")).unwrap()),
            token: Token::random().unwrap(),
            mode: Mode::Exclusive,
            kind: ScriptKind::Exclusive,
            step,
            clock: None,
        };
        steps.into_iter().enumerate().map(make).collect()
    }

    const WITHDRAW: Step = Step::Withdraw { passes_on: false };

    fn reserving(listens: bool, fences: u32) -> Step {
        let who = Who::text("host=a pid=5");
        Step::Acquire { lease: 5_000, listens, who, fences, prefers: false, mark: None }
    }

    fn acquire(listens: bool) -> Step {
        reserving(listens, 1)
    }

    #[test]
    fn one_number_says_that_all_went_well() {
        let requests = requests(vec![acquire(false), WITHDRAW, acquire(true)]);
        let fence = 1_700_000_000_000_000;
        let answers = read(Value::Int(1_700_000_000_000_000), &requests).unwrap();
        assert_eq!(answers[..], [Answer::Granted(fence), Answer::Done(true), Answer::Granted(fence + 1)]);
        assert_eq!(read(Value::Int(0), &requests), None, "a grant has a fence");
    }

    fn words(requests: &[Request]) -> Vec<String> {
        let call = call(requests, By::Hash, CallNumber(9));
        let words = call.args_iter().skip(2).map(|word| match word {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => String::new(),
        });
        words.collect()
    }

    #[test]
    fn releases_come_first_and_equal_leases_are_sent_once() {
        let lone = requests(vec![WITHDRAW]);
        assert_eq!(words(&lone), ["1", "dlock:room_0", "9", &lone[0].token.to_hex()]);
        let lone = requests(vec![acquire(false)]);
        let token = lone[0].token.to_hex();
        let expected = ["2", "dlock:room_0", "dlock:fence:{0}", "9", "5000", &token, "0 host=a pid=5"];
        assert_eq!(words(&lone), expected);
        let mixed = requests(vec![
            acquire(true),
            Step::Renew { lease: 5_000, tracked: true },
            WITHDRAW,
            acquire(false),
        ]);
        let token = |index: usize| mixed[index].token.to_hex();
        let (counter, first, second) = ("dlock:fence:{0}", "0 host=a pid=5", "1 host=a pid=5");
        let locks = ["5", "dlock:room_2", "dlock:room_1", "dlock:room_0", "dlock:room_3", counter];
        let header = ["9", "1", "1", "1", "2", "5000", "10", "2"];
        let tokens = [&*token(2), &token(1), &token(0), &token(3)];
        assert_eq!(words(&mixed), [&locks[..], &header, &tokens, &[first, second]].concat());
        let uneven = requests(vec![acquire(false), Step::Renew { lease: 7_000, tracked: false }]);
        let words = words(&uneven);
        assert_eq!(words[5..12], ["0", "1", "0", "1", "", "", "1"]);
        assert_eq!(words[14..], ["0 host=a pid=5", "7000", "5000"]);
    }

    #[test]
    fn who_reserves_fences_has_all_of_them_before_the_next() {
        let many = reserving(false, 64);
        let requests = requests(vec![acquire(false), many, acquire(false), WITHDRAW]);
        let words = words(&requests);
        assert_eq!(words[7..14], ["1", "0", "0", "3", "5000", "", "66"]);
        assert_eq!(words[18..], ["0 host=a pid=5", "1 host=a pid=5", "65 host=a pid=5"]);
        let fence = 1_700_000_000_000_000;
        let awaited = Value::Array([fence, 1, 2].map(Value::Int).into());
        let answers = read(awaited, &requests).unwrap();
        let granted = [0, 1, 65].map(|number| Answer::Granted(fence.unsigned_abs() + number));
        assert_eq!(answers[..3], granted);
        assert_eq!(answers[3], Answer::Awaited { listening: 1, reader: false });
        let reply = Value::Int(A_READER_WAITS + 3);
        assert_eq!(answer(reply), Some(Answer::Awaited { listening: 2, reader: true }));
        for malformed in [-1, A_READER_WAITS, A_READER_WAITS + 1] {
            assert_eq!(answer(Value::Int(malformed)), None, "{malformed}");
        }
    }

    #[test]
    fn replies_of_those_who_failed_find_their_operations() {
        let requests =
            requests(vec![acquire(false), WITHDRAW, acquire(false), acquire(false), acquire(false)]);
        let value = format!("{TOKEN} 1700000000000000+12 host=a pid=5 !");
        let reply = Value::Array(vec![
            Value::Int(1_700_000_000_000_020),
            Value::Int(1),
            Value::Int(0),
            Value::Int(2),
            Value::Array(vec![Value::Int(250), bulk(&value)]),
            Value::Int(3),
            Value::Array(vec![bulk(&value)]),
            Value::Int(4),
            bulk("OOM command not allowed"),
        ]);
        let answers = read(reply, &requests).unwrap();
        let Answer::Busy { left, holder } = &answers[0] else { panic!("{answers:?}") };
        assert_eq!(*left, Some(Duration::from_millis(250)));
        assert_eq!((holder.host.as_deref(), holder.pid), (Some("a"), Some(5)));
        assert_eq!(holder.fence, Some(Fence::new(1_700_000_000_000_012)));
        assert_eq!(holder.since, Some(UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_012)));
        assert_eq!(answers[1], Answer::Done(false));
        assert_eq!(answers[2], Answer::Adopted(Some(1_700_000_000_000_012)));
        assert_eq!(answers[3], Answer::Refused("OOM command not allowed".into()));
        assert_eq!(answers[4], Answer::Granted(1_700_000_000_000_023), "each acquire has its number");
    }

    #[test]
    fn what_is_no_lock_is_refused_and_nonsense_is_no_answer() {
        for value in ["", "locked", "x 1+2 host=a", &format!("{TOKEN} x host=a"), &format!("{TOKEN} 1")] {
            assert_eq!(busy(5, value), no_lock(), "{value}");
        }
        let one = requests(vec![WITHDRAW]);
        for reply in [
            Value::Nil,
            Value::Int(-1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(0), Value::Int(1)]),
            Value::Array(vec![Value::Int(0), Value::Int(2), Value::Int(0)]),
            Value::Array(vec![Value::Int(0), Value::Int(1), Value::Nil]),
        ] {
            assert_eq!(read(reply.clone(), &one), None, "{reply:?}");
        }
    }

    #[test]
    fn batches_are_taken_adopted_or_busy() {
        let taken = read_all(Value::Int(7), 2).unwrap();
        assert_eq!(taken, Answer::All(vec![Answer::Granted(7), Answer::Granted(8)]));
        let value = format!("{TOKEN} 3+1 host=a");
        let mixed =
            Value::Array(vec![Value::Int(0), Value::Int(7), Value::Array(vec![bulk(&value)]), Value::Int(1)]);
        let taken = read_all(mixed, 2).unwrap();
        assert_eq!(taken, Answer::All(vec![Answer::Adopted(Some(4)), Answer::Granted(8)]));
        let busy = Value::Array(vec![Value::Int(2), Value::Int(250), bulk(&value)]);
        assert!(
            matches!(read_all(busy.clone(), 2), Some(Answer::BusyAt(1, busy)) if matches!(*busy, Answer::Busy { .. }))
        );
        assert_eq!(read_all(busy, 1), None, "there is no second lock");
        assert_eq!(read_all(Value::Int(0), 1), None);
    }

    #[test]
    fn a_long_label_is_left_out_rather_than_cut() {
        let who = Who::text(&format!("host=a pid=5 label={}", "x".repeat(600)));
        let mut line = Vec::new();
        who.write(&mut line);
        assert_eq!(line, b"host=a pid=5");
    }
}
