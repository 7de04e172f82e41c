//! Answers of a server about a lock with any contents, which other programs may have stored: for a property test and
//! for a fuzzer.

use dlock_core::Holder;
use dlock_core::backend::Mode;
use redis::Value;

use super::{plain, redisson, redisson_shares, shares};
use crate::request::{Answer, Step};

const PERMITS: Mode = Mode::Permits { of: 4, take: 2 };
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Reads a text in all ways in which an answer with a holder is read, and returns the holders. A `|` stands between the
/// parts of an answer. The text is also read as the rest of a value behind the part that makes it a lock.
#[must_use]
#[cfg_attr(test, expect(unreachable_pub, reason = "a fuzzer reaches it"))]
pub fn holders_in(text: &str) -> Vec<Holder> {
    let whole = Value::Array(text.split('|').map(value).collect());
    let behind = |start: &str| Value::BulkString(format!("{start}{text}").into());
    let busy = |value| Value::Array(vec![Value::Int(30), value]);
    let owned = Value::Array(vec![Value::Int(30), behind(""), behind("7 ")]);
    let plain = [whole.clone(), busy(behind(TOKEN)), busy(behind(&format!("{TOKEN} 7+1 ")))];
    let shared = [whole.clone(), busy(behind("")), busy(behind("17 1 9 "))];
    let shared = shared.into_iter().flat_map(|reply| {
        let of_readers = shares::taken(reply.clone(), Mode::Shared);
        [of_readers, shares::taken(reply, PERMITS)]
    });
    let three = |line: &str| Value::Array(vec![Value::Int(30), behind(""), behind(line)]);
    let of_redisson = [whole.clone(), three("7 "), three("1 7 "), behind("")].into_iter().flat_map(|reply| {
        let of_readers = redisson_shares::taken(reply.clone(), Mode::Shared);
        [of_readers, redisson_shares::taken(reply, PERMITS)]
    });
    let answers = plain
        .into_iter()
        .map(plain::answer)
        .chain([redisson::answer(whole.clone()), redisson::answer(owned)])
        .chain(shared)
        .chain(of_redisson)
        .chain([shares::read(whole.clone(), &Step::Withdraw { passes_on: true }, Mode::Shared)])
        .chain([redisson_shares::read(whole.clone(), &Step::Withdraw { passes_on: true }, Mode::Shared)]);
    let busy = answers.flatten().filter_map(|answer| match answer {
        Answer::Busy { holder, .. } => Some(*holder),
        _ => None,
    });
    let occupied = [
        shares::seen(whole.clone()),
        redisson_shares::seen(true, whole.clone()),
        redisson_shares::seen(false, whole),
    ];
    busy.chain(occupied.into_iter().flatten().flat_map(|occupancy| occupancy.holders)).collect()
}

fn value(text: &str) -> Value {
    match text.parse() {
        Ok(number) => Value::Int(number),
        Err(_) if text.is_empty() => Value::Nil,
        Err(_) => Value::BulkString(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use dlock_testkit::hostile;

    #[test]
    fn whatever_a_server_answers_is_read_without_a_panic_and_shown_in_one_harmless_line() {
        let mut holders = 0;
        hostile::for_each_text(|text| {
            for holder in super::holders_in(text) {
                hostile::assert_harmless(&holder);
                holders += 1;
            }
        });
        assert!(holders > 8_000, "only {holders} were read as holders");
    }
}
