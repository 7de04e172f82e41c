//! A table that follows what is held.

use std::io::{IsTerminal, Write, stdout};
use std::time::SystemTime;

use dlock::Locks;
use rustix::process::Signal;
use rustix::termios::tcgetwinsize;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::Watch;
use crate::list::{Lines, lines};
use crate::show::{self, table};
use crate::signals::{Signals, ends, stop};
use crate::trouble::Trouble;

/// The sequence that shows another screen, without a cursor; [`LEAVE`] goes back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shows the locks until a signal comes, or `times` looks were taken. A backend that is away is shown as such and asked
/// again.
pub(crate) async fn watch(locks: &Locks, watch: &Watch, json: bool) -> Result<u8, Trouble> {
    let mut signals = Signals::catch()?;
    let screen = Screen::enter(!json && stdout().is_terminal())?;
    let mut ticks = tokio::time::interval(watch.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = watch.times.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        let look = async {
            ticks.tick().await;
            lines(locks, watch.prefix.as_deref()).await
        };
        tokio::select! {
            () = screen.leave_at(&mut signals) => return Ok(0),
            held = look => screen.show(locks.backend(), held, json)?,
        }
    }
    Ok(0)
}

/// The terminal, or a plain stream of tables.
struct Screen {
    terminal: bool,
}

impl Screen {
    fn enter(terminal: bool) -> std::io::Result<Self> {
        if terminal {
            stdout().write_all(ENTER.as_bytes())?;
        }
        Ok(Self { terminal })
    }

    /// Resolves when a signal asks to end. While this program is stopped, the terminal is as before.
    async fn leave_at(&self, signals: &mut Signals) {
        loop {
            match signals.next().await {
                Signal::TSTP => {
                    self.set(LEAVE);
                    stop();
                    self.set(ENTER);
                }
                signal if ends(signal) => return,
                _ => {}
            }
        }
    }

    fn set(&self, sequence: &str) {
        if self.terminal {
            let _ = stdout().write_all(sequence.as_bytes());
            let _ = stdout().flush();
        }
    }

    fn show(&self, backend: &str, held: Result<Lines, Trouble>, json: bool) -> std::io::Result<()> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let mut out = stdout().lock();
        if json {
            let document = match held {
                Ok(lines) => {
                    let mut document = lines.to_json(backend);
                    document["at"] = now.to_string().into();
                    document
                }
                Err(trouble) => {
                    json!({ "at": now.to_string(), "backend": backend, "error": trouble.to_string() })
                }
            };
            writeln!(out, "{}", show::json(&document)?)?;
            return out.flush();
        }
        let text = match held {
            Ok(lines) => match lines.none() {
                Some(none) => format!("{now}  {backend}  {none}\n"),
                None => format!("{now}  {backend}  {} held\n\n{}", lines.shown.len(), table(&lines.shown)),
            },
            Err(trouble) => format!("{now}  {trouble}\n"),
        };
        if self.terminal {
            // A terminal that does not know its size reports zero.
            let size = tcgetwinsize(&out).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
            let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
            write!(out, "\x1b[H{}\x1b[J", fit(&text, rows, columns))?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.set(LEAVE);
    }
}

/// Returns as much of the text as the screen has room for; the rest of each line is cleared.
fn fit(text: &str, rows: usize, columns: usize) -> String {
    let all = text.lines().count();
    let room = rows.saturating_sub(1).max(1);
    let shown = if all > room { room - 1 } else { all };
    let cut = |line: &str| line.chars().take(columns).collect::<String>() + "\x1b[K";
    let mut lines: Vec<String> = text.lines().take(shown).map(cut).collect();
    if all > shown {
        lines.push(cut(&format!("and {} more", all - shown)));
    }
    lines.join("\r\n")
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn what_has_no_room_is_counted_and_lines_are_cut() {
        let text = "one\ntwo\nthree\nfour\n";
        let plain = |rows, columns| fit(text, rows, columns).replace("\x1b[K", "");
        assert_eq!(plain(10, 80), "one\r\ntwo\r\nthree\r\nfour");
        assert_eq!(plain(4, 80), "one\r\ntwo\r\nand 2 more");
        assert_eq!(plain(10, 2), "on\r\ntw\r\nth\r\nfo");
        assert_eq!(plain(0, 80), "and 4 more");
    }
}
