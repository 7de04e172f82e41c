//! Taking a lock away.

use std::io::{Write, stderr, stdin, stdout};

use dlock::{Fence, Holder, Locks};
use serde_json::json;

use crate::Release;
use crate::show::{self, Person, printable};
use crate::trouble::{BUSY, DENIED, Trouble};

/// Shows who holds the lock, asks, looks again, and takes it away.
pub(crate) async fn release(locks: &Locks, release: &Release, json: bool) -> Result<u8, Trouble> {
    let key = &release.key;
    let shown = printable(key);
    let nobody = format!("nobody holds {shown}");
    let holders = locks.occupancy(key).await?.holders;
    if holders.is_empty() {
        return report(json, key, false, &[], &nobody);
    }
    let held = said(&holders);
    if let Some(fence) = release.fence
        && let Some(other) = holders.iter().find(|holder| holder.fence.map(Fence::get) != Some(fence))
    {
        let what = format!("{shown} is not of fence {fence}, but {}; nothing was released", said([other]));
        return Err(Trouble::new(BUSY, what));
    }
    if !release.yes {
        let question = "The holder is not stopped by this. Take the lock away? [y/N] ";
        stderr().write_all(format!("{shown} is {held}\n{question}").as_bytes())?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Trouble::new(DENIED, "nothing was released (say y, or give --yes)"));
        }
    }
    // Whoever came since was not shown to anybody, and is not meant.
    let now = locks.occupancy(key).await?.holders;
    if let Some(other) = now.iter().find(|now| !holders.iter().any(|shown| is_same(now, shown))) {
        let what =
            format!("{shown} has changed hands meanwhile, and is {}; nothing was released", said([other]));
        return Err(Trouble::new(BUSY, what));
    }
    let forced = !now.is_empty() && locks.force_release(key).await?;
    let text = if forced { format!("released {shown}, {held}") } else { nobody };
    report(json, key, forced, &holders, &text)
}

/// By whom it is held, or was last.
fn said<'a>(holders: impl IntoIterator<Item = &'a Holder>) -> String {
    let by = |holder: &Holder| match holder.left_behind {
        true => format!("last held by {holder}"),
        false => format!("held by {holder}"),
    };
    holders.into_iter().map(by).collect::<Vec<_>>().join(", and ")
}

/// Whether it is the grant that was shown. Where there are no fences, on a quorum, the process tells it, and its next
/// grant passes for the one that was shown: its nodes do not agree on when it was taken.
fn is_same(now: &Holder, shown: &Holder) -> bool {
    let who = |of: &Holder| (of.fence, of.host.clone(), of.pid, of.label.clone(), of.mode, of.left_behind);
    who(now) == who(shown)
}

fn report(json: bool, key: &str, released: bool, holders: &[Holder], text: &str) -> Result<u8, Trouble> {
    let mut out = stdout().lock();
    if json {
        let all: Vec<_> = holders.iter().map(Person::of).collect();
        let document = json!({ "key": key, "released": released, "holder": all.first(), "holders": all });
        writeln!(out, "{}", show::json(&document)?)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use dlock::backend::{Backend, Capabilities, ClaimRequest, LockId, Occupancy};
    use dlock::{Failure, Guard, Key, Memory};

    use super::*;

    /// Passes the lock on when it was looked at.
    #[derive(Debug)]
    struct PassesOn(Memory, Mutex<Vec<Guard>>);

    impl Backend for PassesOn {
        type Claim = <Memory as Backend>::Claim;

        fn name(&self) -> &'static str {
            "passes-on"
        }

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        fn lock_id(&self, key: &Key) -> LockId {
            self.0.lock_id(key)
        }

        fn claim(&self, request: ClaimRequest) -> Self::Claim {
            self.0.claim(request)
        }

        async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
            self.0.inspect(key).await
        }

        async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
            let occupancy = self.0.occupancy(key).await;
            let before = self.1.lock().unwrap().pop();
            if let Some(guard) = before {
                guard.release().await.unwrap();
                let next = Locks::new(self.0.clone()).lock(key).acquire().await.unwrap();
                std::mem::forget(next);
            }
            occupancy
        }

        async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
            self.0.force_release(key).await
        }
    }

    #[tokio::test]
    async fn a_lock_that_is_passed_on_after_it_was_looked_at_is_not_taken_from_its_next_holder() {
        let memory = Memory::new();
        let guard = Locks::new(memory.clone()).lock("k").acquire().await.unwrap();
        let locks = Locks::new(PassesOn(memory.clone(), Mutex::new(vec![guard])));
        let task = Release { force: true, yes: true, fence: None, key: "k".to_owned() };
        let refused = release(&locks, &task, false).await.unwrap_err();
        assert!(refused.to_string().contains("changed hands"), "{refused}");
        assert_eq!(memory.held(), 1);
        assert_eq!(release(&locks, &task, false).await.unwrap(), 0);
        assert_eq!(memory.held(), 0);
    }
}
