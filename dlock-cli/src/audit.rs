//! Checking that no two holders overlapped, from the files that processes have written.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use dlock_audit::{Audit, Doubt, Held, Outcome, ReadError, Report, Trail, Violation, ViolationKind, Wrong};
use serde_json::{Value, json};

use crate::report;
use crate::show::{printable, short};
use crate::trouble::{DANGER, OTHER, Trouble, UNAVAILABLE};
use crate::usage::{clock_error, duration};

#[derive(Debug, Args)]
pub(crate) struct AuditTask {
    /// Leave out what was over so long ago [default: look at all that is in the files]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    since: Option<Duration>,
    /// Look at this key alone, also where only its hash is recorded
    #[arg(short, long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// By how much the wall clock of a host may be wrong: up to 1h
    ///
    /// Times of one host compare exactly, whatever this is.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = clock_error)]
    clock_error: Duration,
    /// The files of all processes, or directories with them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The most pairs that are printed as text.
const PRINTED: usize = 20;

/// Prints whether no two holders overlapped. The exit code is [`DANGER`] if they did, and [`UNAVAILABLE`] if that is
/// not known.
pub(crate) fn audit(task: &AuditTask, json: bool) -> Result<u8, Trouble> {
    let trail = Trail::read(&task.files).map_err(unread)?;
    let mut audit = Audit::new().with_clock_error(task.clock_error);
    if let Some(since) = task.since.and_then(|since| SystemTime::now().checked_sub(since)) {
        audit = audit.with_since(since);
    }
    if let Some(key) = &task.key {
        audit = audit.with_key(key);
    }
    let found = audit.check(&trail);
    let code = match found.outcome() {
        Outcome::Held => 0,
        Outcome::Overlapped => DANGER,
        Outcome::Unknown => UNAVAILABLE,
    };
    // The exit code is what scripts read, and does not depend on a reader of the text.
    crate::trouble::seen(report::print(json, &document(&found), text(&found).trim_end()))?;
    Ok(code)
}

fn unread(error: ReadError) -> Trouble {
    let code = match error.wrong {
        Wrong::Io(_) => OTHER,
        _ => return Trouble::usage(printable(&error.to_string())),
    };
    Trouble::new(code, printable(&error.to_string()))
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// Returns a time in the unit that it is read in.
fn long(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{time:.1?}") } else { short(time) }
}

fn text(found: &Report) -> String {
    let mut text = String::new();
    let (violations, doubts) = (&found.violations, &found.doubts);
    let what = match found.outcome() {
        Outcome::Held => "held        no two holders overlapped".to_owned(),
        Outcome::Overlapped => format!("overlapped  {} pairs of holds do not go together", violations.len()),
        Outcome::Unknown => "unknown     nothing overlaps among the records that are there".to_owned(),
    };
    let _ = writeln!(text, "{what}");
    let summary = &found.summary;
    let _ = writeln!(
        text,
        "looked at   {} holds, {} keys, {} stores, {} processes, {} hosts",
        summary.holds, summary.keys, summary.stores, summary.processes, summary.hosts
    );
    if let Some((from, until)) = summary.span {
        let _ = writeln!(text, "time        {} to {}", at(from), at(until));
    }
    if summary.left_out > 0 {
        let _ = writeln!(text, "left out    {} processes that ended before that", summary.left_out);
    }
    if !summary.resolution.is_zero() {
        let most = long(summary.resolution);
        let _ = writeln!(text, "clocks      an overlap of up to {most} between hosts would be hidden");
    }
    for violation in violations.iter().take(PRINTED) {
        write_violation(&mut text, violation);
    }
    if let Some(more) = violations.len().checked_sub(PRINTED).filter(|more| *more > 0) {
        let _ = writeln!(text, "\n{more} more; --json has all of them");
    }
    if !doubts.is_empty() {
        let _ = writeln!(text, "\nnot known:");
    }
    for doubt in doubts {
        let _ = writeln!(text, "  {}", sentence(doubt));
    }
    text
}

fn write_violation(text: &mut String, violation: &Violation) {
    let (key, by, error) = (printable(&violation.key), long(violation.by), long(violation.error));
    let within = if violation.error.is_zero() { String::new() } else { format!(", give or take {error}") };
    let what = match violation.kind {
        ViolationKind::Overlap => format!("was held by both for {by}{within}"),
        ViolationKind::TooManyPermits => format!("had more holders than permits for {by}{within}"),
        ViolationKind::SameFence => "was granted twice with one fence".to_owned(),
        ViolationKind::FenceWentBack => "was granted with a lower fence than before".to_owned(),
        _ => violation.kind.as_str().to_owned(),
    };
    let _ = writeln!(text, "\n{key} on {} {what}", violation.backend);
    for hold in &violation.holds {
        let fence = hold.fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string());
        let place = format!("{}@{}", hold.process.pid, printable(&hold.process.host));
        let (from, until) = (at(hold.from), at(hold.until));
        let _ = writeln!(text, "  {place}  {}  fence {fence}  {from} to {until}  {}", hold.mode, hold.end);
    }
    let _ = writeln!(text, "  probably {}", violation.cause);
}

fn sentence(doubt: &Doubt) -> String {
    let who = doubt.process.as_ref().map(|of| format!("{}@{}, ", of.pid, printable(&of.host)));
    let when = match (doubt.from, doubt.until) {
        (Some(from), Some(until)) => format!("{} to {}: ", at(from), at(until)),
        (Some(from), None) => format!("from {} on: ", at(from)),
        (None, Some(until)) => format!("until {}: ", at(until)),
        (None, None) => String::new(),
    };
    format!("{}{when}{}", who.unwrap_or_default(), printable(&doubt.what))
}

fn document(found: &Report) -> Value {
    let summary = &found.summary;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let holds = |held: &Held| {
        json!({
            "host": held.process.host,
            "pid": held.process.pid,
            "record": held.number,
            "mode": held.mode,
            "fence": held.fence,
            "from": at(held.from),
            "until": at(held.until),
            "end": held.end,
        })
    };
    let violations: Vec<_> = found
        .violations
        .iter()
        .map(|violation| {
            json!({
                "kind": violation.kind.as_str(),
                "backend": violation.backend,
                "key": violation.key,
                "holds": violation.holds.iter().map(holds).collect::<Vec<_>>(),
                "by_ns": nanos(violation.by),
                "error_ns": nanos(violation.error),
                "cause": violation.cause,
            })
        })
        .collect();
    let doubts: Vec<_> = found
        .doubts
        .iter()
        .map(|doubt| {
            json!({
                "kind": doubt.kind.as_str(),
                "host": doubt.process.as_ref().map(|of| &of.host),
                "pid": doubt.process.as_ref().map(|of| of.pid),
                "from": doubt.from.map(at),
                "until": doubt.until.map(at),
                "what": doubt.what,
            })
        })
        .collect();
    json!({
        "outcome": found.outcome().as_str(),
        "holds": summary.holds,
        "keys": summary.keys,
        "stores": summary.stores,
        "processes": summary.processes,
        "hosts": summary.hosts,
        "left_out": summary.left_out,
        "from": summary.span.map(|(from, _)| at(from)),
        "until": summary.span.map(|(_, until)| at(until)),
        "resolution_ns": nanos(summary.resolution),
        "violations": violations,
        "doubts": doubts,
    })
}
