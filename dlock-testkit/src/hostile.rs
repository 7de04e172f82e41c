//! What somebody hostile, or broken, may have stored where a holder is expected.
//!
//! For property tests that are fuzz targets too: a fuzzer makes the bytes, which become [text] or whatever else a
//! backend reads. What a backend makes of it goes through [`assert_harmless`].
//!
//! ```
//! use dlock_core::Holder;
//! use dlock_testkit::hostile::{assert_harmless, text};
//!
//! assert_harmless(&Holder::parse(&text(&[2, 11, 200, 31])));
//! ```

use dlock_core::Holder;

/// What the first bytes stand for: the fields of a holder and of formats, numbers at the ends of their ranges, and what
/// a terminal would obey or not show.
const PARTS: [&str; 52] = [
    "host=",
    "pid=",
    "label=",
    "trace=",
    "leads=",
    "left=",
    "since=",
    "reserved=",
    "=",
    " ",
    "%",
    "%1b[2J",
    "%0a",
    "%9b",
    "%e2%80%ae",
    "%ff",
    "-1",
    "0",
    "9",
    "+",
    ":",
    "/",
    "-",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "253402300800000",
    "4294967296",
    "\u{202e}",
    "\u{2066}",
    "\u{9b}",
    "\u{200b}",
    "\u{feff}",
    "\n",
    "\r",
    "\u{1b}]0;x\u{7}",
    "\0",
    "ä",
    "🔒",
    "1",
    "x",
    "0123456789abcdef0123456789abcdef",
    " !",
    " ?!",
    "_c_00000000-0000-0000-0000-00000000000a-lock-0000000007",
    "__READ__",
    "-permits-",
    "-left-",
    "-lock-",
    "|",
    "!",
];

/// How often the byte that follows [`REPEAT`] is taken.
const REPEATED: usize = 3_000;
/// The byte after which a part is repeated, until it is longer than what anybody keeps.
const REPEAT: u8 = 0xfe;

/// Makes text of the bytes of a fuzzer: some stand for parts of what is stored, others for themselves.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let mut made = Vec::new();
    // A text of a few megabytes says no more than one of a few kilobytes.
    let (mut times, mut repeated) = (1, false);
    for byte in bytes {
        match PARTS.get(usize::from(*byte)) {
            Some(part) => made.extend(part.repeat(times).into_bytes()),
            None if *byte == REPEAT && !repeated => {
                (times, repeated) = (REPEATED, true);
                continue;
            }
            None => made.extend(vec![*byte; times]),
        }
        times = 1;
    }
    String::from_utf8_lossy(&made).into_owned()
}

/// Gives 2,000 texts to a check, the same ones each time. A fuzzer makes more of them from the same parts.
pub fn for_each_text(mut check: impl FnMut(&str)) {
    let mut random = fastrand::Rng::with_seed(22);
    for _ in 0..2_000 {
        let byte = |random: &mut fastrand::Rng| match random.u8(..50) {
            0 => REPEAT,
            // Most of them parts.
            1..10 => random.u8(..),
            _ => random.u8(..u8::try_from(PARTS.len()).unwrap_or(u8::MAX)),
        };
        let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| byte(&mut random)).collect();
        check(&text(&bytes));
    }
}

/// Asserts that a holder is shown in one line, without a character that a terminal obeys or does not show.
///
/// # Panics
///
/// When it is not.
pub fn assert_harmless(holder: &Holder) {
    let shown = holder.to_string();
    let is_harmful = |c: char| {
        c.is_control()
            || matches!(
                c,
                '\u{ad}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}'..='\u{200f}' | '\u{feff}'
            )
    };
    assert!(!shown.contains(is_harmful), "{shown:?} of {holder:?}");
}
