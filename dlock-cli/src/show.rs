//! Locks as tables and as JSON.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};
use dlock::{Fence, Holder, Key};
use serde::Serialize;
use serde_json::ser::Formatter;

/// A lock that is held, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Held<'a> {
    key: &'a str,
    #[serde(flatten)]
    holder: Person<'a>,
    /// The number of waiters, where the backend knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<usize>,
}

/// A holder or a waiter, as JSON. Unknown fields are left out.
#[derive(Debug, Serialize)]
pub(crate) struct Person<'a> {
    /// `write`, `read` or `permits`.
    mode: &'static str,
    /// Is `true` if no process holds the lock: this one released it, and the key stays taken.
    left_behind: bool,
    /// Is `true` if no process holds the lock: this one waits for it, and is first in line.
    first_in_line: bool,
    /// The permits that it has. `permits_of` is how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits_of: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    /// RFC 3339, by the holder's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a str>,
    /// The id of the candidate, if the holder leads an election.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<&'a str>,
    /// The id of the session that keeps the lock, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

impl<'a> Person<'a> {
    pub(crate) fn of(holder: &'a Holder) -> Self {
        Self {
            mode: holder.mode.as_str(),
            left_behind: holder.left_behind,
            first_in_line: holder.first_in_line,
            permits: holder.mode.permits().map(|_| holder.mode.taken()),
            permits_of: holder.mode.permits(),
            host: holder.host.as_deref(),
            pid: holder.pid,
            label: holder.label.as_deref(),
            since: holder.since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
            fence: holder.fence.map(Fence::get),
            expires_in_ms: holder.expires_in.map(millis),
            trace: holder.trace.as_deref(),
            candidate: holder.candidate.as_deref(),
            session: holder.session.as_deref(),
        }
    }
}

/// One line of the list.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) key: Key,
    pub(crate) holder: Holder,
    pub(crate) waiting: Option<usize>,
}

impl Line {
    pub(crate) fn to_json(&self) -> Held<'_> {
        Held { key: self.key.as_str(), holder: Person::of(&self.holder), waiting: self.waiting }
    }
}

/// The list as a table, a line of text for each.
pub(crate) fn table(lines: &[Line]) -> String {
    let waiters = lines.iter().any(|line| line.waiting.is_some());
    let mut table = Table::new();
    let mut header = vec!["KEY", "HOLDER", "MODE", "LABEL", "HELD FOR", "LEASE LEFT", "FENCE"];
    header.extend(waiters.then_some("WAITING"));
    table.load_style(presets::NOTHING).set_header(header);
    for line in lines {
        let holder = &line.holder;
        let mut row = vec![
            printable(line.key.as_str()),
            place(holder),
            mode(holder),
            printable(holder.label.as_deref().unwrap_or("-")),
            held_for(holder).map_or_else(dash, short),
            lease_left(holder),
            holder.fence.map_or_else(dash, |fence| fence.to_string()),
        ];
        if waiters {
            row.push(line.waiting.map_or_else(dash, |count| count.to_string()));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns for how long others wait if the holder gives no sign of life.
fn lease_left(holder: &Holder) -> String {
    match (&holder.session, holder.left_behind) {
        // Its lease bounds only what is left of a process that is gone.
        (Some(_), false) => "session".to_owned(),
        _ => holder.expires_in.map_or_else(dash, short),
    }
}

/// Returns where the holder runs: `pid@host`.
pub(crate) fn place(holder: &Holder) -> String {
    match (&holder.host, holder.pid) {
        (Some(host), Some(pid)) => format!("{pid}@{}", printable(host)),
        (Some(host), None) => printable(host),
        (None, Some(pid)) => pid.to_string(),
        (None, None) => dash(),
    }
}

/// Returns the mode in which the lock is held, or why the key is taken although it is not.
pub(crate) fn mode(holder: &Holder) -> String {
    match (holder.left_behind, holder.first_in_line) {
        (true, _) => until(holder).map_or_else(|| "kept".to_owned(), |until| format!("kept until {until}")),
        (_, true) => "a waiter in Java is first in line".to_owned(),
        _ => holder.mode.to_string(),
    }
}

/// Returns until when a key that no process holds stays taken, by the local clock: to the second, and only if the
/// stored time is possible.
pub(crate) fn until(holder: &Holder) -> Option<String> {
    let left = holder.expires_in.filter(|left| {
        (holder.left_behind || holder.first_in_line) && *left < Duration::from_secs(100 * 365 * 86_400)
    })?;
    Some(humantime::format_rfc3339_seconds(SystemTime::now() + left).to_string())
}

/// Returns the time since the grant, by the local clock, which may differ from the holder's.
pub(crate) fn held_for(holder: &Holder) -> Option<Duration> {
    let since = holder.since.filter(|_| !holder.left_behind)?;
    SystemTime::now().duration_since(since).ok()
}

/// Formats a length of time with one or two units.
pub(crate) fn short(length: Duration) -> String {
    let rounded = match length.as_secs() {
        0 => Duration::from_millis(millis(length)),
        1..60 => return format!("{:.1}s", length.as_secs_f64()),
        60..86_400 => Duration::from_secs(length.as_secs()),
        _ => Duration::from_secs(length.as_secs() / 60 * 60),
    };
    if rounded.is_zero() { "0s".to_owned() } else { humantime::format_duration(rounded).to_string() }
}

/// Escapes in a text that others wrote what a terminal would obey, or would not show: control characters, characters
/// that turn the direction of writing, and those without a width.
pub(crate) fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if is_printable(c) { vec![c] } else { c.escape_default().collect() }).collect()
}

/// Is `true` if a terminal shows the character as it is.
pub(crate) fn is_printable(c: char) -> bool {
    // Tested behind another character, so that accents which combine with it are not escaped.
    matches!(c, '\'' | '"' | '\\') || format!("a{c}").escape_debug().count() == 2
}

/// Returns one line of JSON. Characters that a terminal would obey, or would not show, are escaped: to a JSON parser
/// the text is the same.
pub(crate) fn json(document: &impl Serialize) -> io::Result<String> {
    let mut line = Vec::new();
    document.serialize(&mut serde_json::Serializer::with_formatter(&mut line, Escaping))?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for c in fragment.chars() {
            if is_printable(c) {
                write!(writer, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use dlock::backend::Mode;

    use super::*;

    #[test]
    fn what_others_wrote_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("Zürich 🔒 it's \"a\\b\" e\u{301}"), "Zürich 🔒 it's \"a\\b\" e\u{301}");
    }

    #[test]
    fn no_character_that_is_obeyed_or_not_seen_leaves_as_it_is_and_json_keeps_what_it_was() {
        let obeyed =
            (0..0x20).chain(0x7f..0xa0).chain([0xad, 0x200b, 0x200d, 0x202e, 0x2066, 0xfeff, 0xe0001]);
        for c in obeyed.map(|code| char::from_u32(code).unwrap()) {
            let text = format!("x{c}y");
            assert!(!printable(&text).contains(c), "{:x}", u32::from(c));
            let line = json(&text).unwrap();
            assert!(!line.contains(c), "{:x}: {line}", u32::from(c));
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
        assert_eq!(json(&"\"Zürich\" 🔒\n").unwrap(), "\"\\\"Zürich\\\" 🔒\\n\"");
    }

    #[test]
    fn lengths_are_short_and_have_units() {
        let text = |millis| short(Duration::from_millis(millis));
        assert_eq!(text(0), "0s");
        assert_eq!(text(250), "250ms");
        assert_eq!(text(29_940), "29.9s");
        assert_eq!(text(61_900), "1m 1s");
        assert_eq!(text(90_061_000), "1day 1h 1m");
    }

    #[test]
    fn a_table_has_a_line_for_each_lock_and_columns_for_what_is_known() {
        let mut holder = Holder::parse("host=web-1 pid=7 label=orders since=0");
        holder.fence = Some(Fence::new(42));
        let line = |waiting| Line { key: Key::new("room_7").unwrap(), holder: holder.clone(), waiting };
        let text = table(&[line(None), line(None)]);
        assert_eq!(text.lines().count(), 3, "{text}");
        for word in ["KEY", "room_7", "7@web-1", "orders", "42"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("WAITING"));
        assert!(table(&[line(Some(3))]).contains("WAITING"));
        let document = json(&line(Some(3)).to_json()).unwrap();
        assert_eq!(
            document,
            r#"{"key":"room_7","mode":"write","left_behind":false,"first_in_line":false,"host":"web-1","pid":7,"label":"orders","since":"1970-01-01T00:00:00.000Z","fence":42,"waiting":3}"#
        );
        let shown = |mode, left_behind| {
            let mut holder = holder.clone();
            (holder.mode, holder.left_behind) = (mode, left_behind);
            let line = Line { key: Key::new("k").unwrap(), holder, waiting: None };
            (table(std::slice::from_ref(&line)), serde_json::to_value(line.to_json()).unwrap())
        };
        let (text, document) = shown(Mode::Permits { of: 4, take: 3 }, false);
        assert!(text.contains("3 of 4 permits"), "{text}");
        assert_eq!((&document["permits"], &document["permits_of"]), (&3.into(), &4.into()), "{document}");
        let (text, document) = shown(Mode::Shared, false);
        assert!(text.contains(" read "), "{text}");
        assert_eq!((&document["mode"], &document["left_behind"]), (&"read".into(), &false.into()));
        let (text, document) = shown(Mode::Exclusive, true);
        assert!(text.contains(" kept ") && !text.contains("until"), "{text}");
        assert_eq!(document["left_behind"], true);
        (holder.expires_in, holder.left_behind) = (Some(Duration::from_secs(3_600)), true);
        let shown = mode(&holder);
        assert!(shown.starts_with("kept until 2"), "{shown}");
        let kept = Holder::parse("session=4500-00 host=web-1 pid=7");
        let line = Line { key: Key::new("k").unwrap(), holder: kept, waiting: None };
        assert!(table(std::slice::from_ref(&line)).contains(" session "));
        assert_eq!(serde_json::to_value(line.to_json()).unwrap()["session"], "4500-00");
        // A store may hold anything.
        holder.expires_in = Some(Duration::MAX);
        assert_eq!(mode(&holder), "kept");
        (holder.first_in_line, holder.left_behind) = (true, false);
        assert_eq!(until(&holder), None);
    }
}
