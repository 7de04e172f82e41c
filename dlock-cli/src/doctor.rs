//! Checking that the backend answers, and what about it endangers locks.

use std::cmp::Reverse;
use std::io::{Write, stdout};
use std::time::Instant;

use dlock::Locks;
use dlock::backend::{Finding, Severity};
use serde_json::json;

use crate::report::print;
use crate::show::{self, printable};
use crate::trouble::{DANGER, Trouble, seen};

/// Asks the backend once, and prints the time that it took.
pub(crate) async fn ping(locks: &Locks, json: bool) -> Result<u8, Trouble> {
    let asked = Instant::now();
    locks.ping().await?;
    let took = asked.elapsed();
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let text = format!("{} answered in {:.1}ms", locks.backend(), took.as_secs_f64() * 1000.0);
    print(json, &json!({ "backend": locks.backend(), "took_us": micros }), &text)?;
    Ok(0)
}

/// Prints the findings, the worst first.
pub(crate) async fn doctor(locks: &Locks, json: bool) -> Result<u8, Trouble> {
    locks.ping().await?;
    let mut findings = locks.diagnose().await?;
    let abilities = locks.capabilities();
    let fence = match abilities.fencing {
        true => Finding::fine("fence", "every grant has a fence"),
        false => Finding::warning(
            "fence",
            "grants have no fence",
            "a resource cannot refuse a holder that lost its lock; take a backend with fences where that matters",
        ),
    };
    findings.push(fence);
    let order = |finding: &Finding| (Reverse(finding.severity), finding.subject, finding.found.clone());
    findings.sort_by_cached_key(order);
    let worst = findings.iter().map(|finding| finding.severity).max();
    let print = || {
        let mut out = stdout().lock();
        if json {
            let all: Vec<_> = findings
            .iter()
            .map(|Finding { subject, severity, found, advice, .. }| {
                json!({ "subject": subject, "severity": severity.as_str(), "found": found, "advice": advice })
            })
            .collect();
            writeln!(out, "{}", show::json(&json!({ "backend": locks.backend(), "findings": all }))?)?;
        } else {
            let mut all = findings.iter().peekable();
            while let Some(Finding { subject, severity, found, advice, .. }) = all.next() {
                writeln!(out, "{:<8} {subject}: {}", severity.as_str(), printable(found))?;
                // Several nodes of a quorum need the same advice only once.
                let is_said_next = all.peek().is_some_and(|next| next.advice == *advice);
                if !advice.is_empty() && !is_said_next {
                    writeln!(out, "         {advice}")?;
                }
            }
        }
        Ok(())
    };
    seen(print())?;
    Ok(if worst == Some(Severity::Danger) { DANGER } else { 0 })
}
