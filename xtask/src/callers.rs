//! What a backend must not take from the runtime of its caller, which may have neither timers nor I/O.

use anyhow::{Result, bail};

use crate::sources::SourceFile;

/// The backends whose requests are polled by their callers.
const BACKENDS: [&str; 5] =
    ["dlock-etcd/src/", "dlock-quorum/src/", "dlock-redis/src/", "dlock-sql/src/", "dlock-zk/src/"];

/// What opens a connection.
const OPENS: [&str; 2] = ["TcpStream::connect", "UnixStream::connect"];

/// What may open connections by itself: it runs on dlock's own threads alone, or by way of `keeper::open`.
const MAY_OPEN: [&str; 2] = ["dlock-zk/src/diagnosis.rs", "dlock-zk/src/session/greeting.rs"];

/// No backend takes timers from tokio, or opens connections where it is polled: both panic where the caller's runtime
/// has none. Those of `dlock_core::backend` and `dlock_core::keeper` work anywhere.
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let backends = || sources.iter().filter(|source| BACKENDS.iter().any(|of| source.path.starts_with(of)));
    if backends().next().is_none() {
        bail!("no file of a backend was found");
    }
    if let Some(gone) = MAY_OPEN.iter().find(|path| !backends().any(|source| source.path == **path)) {
        bail!("{gone} is not there any more");
    }
    let found: Vec<String> = backends().flat_map(taken).collect();
    if !found.is_empty() {
        bail!(
            "{}: use the timers of dlock_core::backend, `tokio::time::Instant` by its whole path, and keeper::open",
            found.join(", ")
        );
    }
    Ok(())
}

/// Where a file takes timers from tokio, or opens connections.
fn taken(source: &SourceFile) -> Vec<String> {
    if source.path.ends_with("tests.rs") {
        return Vec::new();
    }
    let shipped = shipped(&source.text);
    let mut places = [times(&shipped), nested_times(&shipped)].concat();
    if !MAY_OPEN.contains(&source.path.as_str()) {
        places.extend(OPENS.iter().flat_map(|opens| shipped.match_indices(opens)).map(|(place, _)| place));
    }
    let mut lines: Vec<_> = places.into_iter().map(|place| shipped[..place].lines().count().max(1)).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.into_iter().map(|line| format!("{}:{line}", source.path)).collect()
}

/// The text, line by line, without comments and without modules that are for tests alone.
fn shipped(text: &str) -> String {
    let (mut shipped, mut lines) = (String::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let is_module = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(is_module) {
            shipped.push('\n');
            // What is in a module is indented.
            while lines.next_if(|line| *line != "}").is_some() {
                shipped.push('\n');
            }
            continue;
        }
        if !line.trim_start().starts_with("//") {
            shipped.push_str(line);
        }
        shipped.push('\n');
    }
    shipped
}

const fn is_part_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Where `tokio::time` stands and `::Instant` does not follow.
fn times(text: &str) -> Vec<usize> {
    let is_taken = |rest: &str| match rest.strip_prefix("::Instant") {
        Some(rest) => rest.starts_with(is_part_of_a_name),
        None => !rest.starts_with(is_part_of_a_name),
    };
    let found = text.match_indices("tokio::time");
    found.filter(|(place, time)| is_taken(&text[place + time.len()..])).map(|(place, _)| place).collect()
}

/// Where `time` stands in the braces of a `tokio::{`.
fn nested_times(text: &str) -> Vec<usize> {
    let nested = text.match_indices("tokio::{").filter_map(|(place, tokio)| {
        let rest = &text[place + tokio.len()..];
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let mut names = rest[..end.unwrap_or(rest.len())].split(|c| !is_part_of_a_name(c));
        names.any(|name| name == "time").then_some(place)
    });
    nested.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<String> {
        taken(&SourceFile { path: path.into(), text: text.into() })
    }

    #[test]
    fn a_timer_of_tokio_in_a_backend_is_found_however_it_is_named() {
        for (text, line) in [
            ("use tokio::time::{Instant, timeout_at};", 1),
            ("fn f() {\n    tokio::time::sleep(LONG).await;\n}", 2),
            ("use a::b;\nuse tokio::time;\nfn f() { time::sleep(LONG) }", 2),
            ("use tokio::time as clock;", 1),
            ("use tokio::time::{self};", 1),
            ("use tokio::{sync::mpsc, time};", 1),
            ("\nuse tokio::{\n    io::{AsyncRead, AsyncWrite},\n    time::{sleep},\n};", 2),
            ("use tokio::time::InstantOf;", 1),
            ("#[cfg(test)]\nuse a::b;\n\nfn f() { tokio::time::sleep(LONG) }", 4),
            ("#[cfg(test)]\nmod tests;\nuse tokio::time::sleep;", 3),
            ("#[cfg(test)]\nmod tests {\n    use a::b;\n}\n\nuse tokio::time::sleep;", 6),
        ] {
            assert_eq!(lines("a.rs", text), [format!("a.rs:{line}")], "{text}");
        }
    }

    #[test]
    fn an_instant_a_comment_and_the_timers_of_tests_are_no_timers_of_a_backend() {
        for text in [
            "use tokio::time::Instant;\nfn f(at: tokio::time::Instant) {}",
            "use tokio::{io::{AsyncRead}, sync::mpsc};\nuse std::time;",
            "use tokio::{sync::mpsc};\nfn f() { let time = 1; }",
            "/// As tokio::time::sleep.\nfn f() {}",
            "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use tokio::time::sleep;\n}\n",
        ] {
            assert!(lines("a.rs", text).is_empty(), "{text}");
        }
        assert!(lines("a/tests.rs", "use tokio::time::sleep;").is_empty());
    }

    #[test]
    fn a_connection_that_is_opened_where_the_caller_is_is_found() {
        for connect in OPENS {
            let text = format!("async fn f() {{\n    let s = tokio::net::{connect}(at).await;\n}}");
            assert_eq!(lines("a.rs", &text), ["a.rs:2"]);
            assert!(lines(MAY_OPEN[0], &text).is_empty());
        }
    }
}
