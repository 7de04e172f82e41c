//! Taking a lock away.

use std::io::{Write, stderr, stdin, stdout};

use dlock::{Holder, Locks};
use serde_json::json;

use crate::Release;
use crate::show::{self, Person, printable};
use crate::trouble::{BUSY, DENIED, Trouble};

/// Shows who holds the lock, asks, and takes it away.
pub(crate) async fn release(locks: &Locks, release: &Release, json: bool) -> Result<u8, Trouble> {
    let key = &release.key;
    let shown = printable(key);
    let Some(holder) = locks.inspect(key).await? else {
        return report(json, key, false, None, &format!("nobody holds {shown}"));
    };
    if !release.yes {
        let question = "The holder is not stopped by this. Take the lock away? [y/N] ";
        stderr().write_all(format!("{shown} is held by {holder}\n{question}").as_bytes())?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Trouble::new(DENIED, "nothing was released (say y, or give --yes)"));
        }
        let now = locks.inspect(key).await?;
        if !now.is_some_and(|now| is_same(&now, &holder)) {
            return Err(Trouble::new(
                BUSY,
                format!("{shown} has changed hands meanwhile; nothing was released"),
            ));
        }
    }
    let forced = locks.force_release(key).await?;
    let text =
        if forced { format!("released {shown}, held by {holder}") } else { format!("nobody holds {shown}") };
    report(json, key, forced, Some(Person::of(&holder)), &text)
}

/// Whether it is the grant that was shown. Where there are no fences the process tells it.
fn is_same(now: &Holder, shown: &Holder) -> bool {
    let who = |of: &Holder| (of.fence, of.host.clone(), of.pid, of.label.clone(), of.mode);
    who(now) == who(shown)
}

fn report(
    json: bool,
    key: &str,
    released: bool,
    holder: Option<Person<'_>>,
    text: &str,
) -> Result<u8, Trouble> {
    let mut out = stdout().lock();
    if json {
        let document = json!({ "key": key, "released": released, "holder": holder });
        writeln!(out, "{}", show::json(&document)?)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(0)
}
