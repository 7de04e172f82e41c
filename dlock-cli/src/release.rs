//! Taking a lock away from its holder.

use dlock::{Fence, Forced, Holder, Locks};
use serde_json::json;

use crate::Release;
use crate::report::{changed, confirm};
use crate::show::{Person, printable};
use crate::trouble::{BUSY, Trouble};

/// Shows the holders, asks the user, and takes the lock away from the holders that were shown.
pub(crate) async fn release(locks: &Locks, key: &str, release: &Release, json: bool) -> Result<u8, Trouble> {
    let shown = printable(key);
    let nobody = format!("nobody holds {shown}");
    let holders = locks.occupancy(key).await?.holders;
    if holders.is_empty() {
        return Ok(report(json, key, false, &[], &nobody));
    }
    let held = said(&holders);
    if let Some(fence) = release.fence
        && let Some(other) = holders.iter().find(|holder| holder.fence.map(Fence::get) != Some(fence))
    {
        let what = format!("{shown} is not of fence {fence}, but {}; nothing was released", said([other]));
        return Err(Trouble::new(BUSY, what));
    }
    if !release.yes {
        let question = if holders.iter().all(|holder| holder.left_behind) {
            "No process holds it any more; a baton of it becomes worthless. Free the key? [y/N] "
        } else {
            "The holder is not stopped by this. Take the lock away? [y/N] "
        };
        confirm(&format!("{shown} is {held}\n{question}"), "nothing was released (say y, or give --yes)")?;
    }
    match locks.force_release_of(key, &holders).await? {
        Forced::Released => Ok(report(json, key, true, &holders, &format!("released {shown}, {held}"))),
        Forced::Free => Ok(report(json, key, false, &holders, &nobody)),
        // A holder that came since was not shown to the user, and is not meant.
        _ => {
            let mut now = locks.occupancy(key).await?.holders;
            now.retain(|now| !holders.iter().any(|shown| shown.is_same_hold(now)));
            let by = if now.is_empty() { String::new() } else { format!(", and is {}", said(&now)) };
            let what = format!("{shown} has changed hands meanwhile{by}; nothing was released");
            Err(Trouble::new(BUSY, what))
        }
    }
}

/// Returns the text that names the holders, or the last one.
fn said<'a>(holders: impl IntoIterator<Item = &'a Holder>) -> String {
    let by = |holder: &Holder| match (holder.left_behind, holder.first_in_line) {
        (true, _) => {
            let mut last = holder.clone();
            // The time for which the key is kept is no news of its last holder.
            (last.left_behind, last.expires_in, last.since) = (false, None, None);
            format!("kept, last held by {last}")
        }
        (_, true) => format!("kept by {holder}"),
        _ => format!("held by {holder}"),
    };
    holders.into_iter().map(by).collect::<Vec<_>>().join(", and ")
}

fn report(json: bool, key: &str, released: bool, holders: &[Holder], text: &str) -> u8 {
    let all: Vec<_> = holders.iter().map(Person::of).collect();
    let document = json!({ "key": key, "released": released, "holder": all.first(), "holders": all });
    changed(json, &document, text)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt;
    use std::sync::Mutex;

    use dlock::backend::{
        Administration, Backend, BoxedFuture, Capabilities, ClaimRequest, LockId, Occupancy, boxed,
    };
    use dlock::{Failure, Guard, Key, Memory, Quorum};

    use super::*;
    use crate::usage::KeyOf;

    /// Passes the lock on when it is about to be taken away.
    pub(crate) struct PassesOn<B: Backend + Clone>(pub(crate) B, pub(crate) Mutex<Vec<Passed>>);

    /// A step that passes the lock on to another holder.
    pub(crate) type Passed = Box<dyn FnOnce() -> BoxedFuture<'static, ()> + Send>;

    impl<B: Backend + Clone> Backend for PassesOn<B> {
        type Claim = B::Claim;

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
            self.0.occupancy(key).await
        }

        fn administration(&self) -> Option<&dyn Administration> {
            Some(self)
        }
    }

    impl<B: Backend + Clone> Administration for PassesOn<B> {
        fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
            self.inner().holders()
        }

        fn force_release(
            &self,
            key: Key,
            seen: Option<Vec<Holder>>,
        ) -> BoxedFuture<'_, Result<Forced, Failure>> {
            boxed(async move {
                self.pass_on().await;
                self.inner().force_release(key, seen).await
            })
        }
    }

    impl<B: Backend + Clone> fmt::Debug for PassesOn<B> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("PassesOn")
        }
    }

    impl<B: Backend + Clone> PassesOn<B> {
        fn inner(&self) -> &dyn Administration {
            self.0.administration().unwrap()
        }

        async fn pass_on(&self) {
            let passed = self.1.lock().unwrap().pop();
            if let Some(passed) = passed {
                passed().await;
            }
        }
    }

    /// Releases it, and takes it again with the same process.
    pub(crate) fn passed(locks: Locks, guard: Guard) -> Passed {
        Box::new(move || {
            Box::pin(async move {
                guard.release().await.unwrap();
                std::mem::forget(locks.lock("k").acquire().await.unwrap());
            })
        })
    }

    #[tokio::test]
    async fn a_lock_that_is_passed_on_after_it_was_looked_at_is_not_taken_from_its_next_holder() {
        let memory = Memory::new();
        let holders = Locks::new(memory.clone());
        let guard = holders.lock("k").acquire().await.unwrap();
        let locks = Locks::new(PassesOn(memory.clone(), Mutex::new(vec![passed(holders, guard)])));
        let task = Release { key: KeyOf::default(), force: true, yes: true, fence: None };
        let refused = release(&locks, "k", &task, false).await.unwrap_err();
        assert!(refused.to_string().contains("changed hands meanwhile, and is held by"), "{refused}");
        assert_eq!(memory.held(), 1);
        assert_eq!(release(&locks, "k", &task, false).await.unwrap(), 0);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn a_quorum_tells_the_next_grant_of_the_same_process_from_the_one_that_was_shown() {
        let nodes = [Memory::new(), Memory::new(), Memory::new()];
        let quorum = Quorum::builder(nodes.clone()).with_durable_nodes().build().unwrap();
        let holders = Locks::new(quorum.clone());
        let guard = holders.lock("k").acquire().await.unwrap();
        let locks = Locks::new(PassesOn(quorum, Mutex::new(vec![passed(holders, guard)])));
        let task = Release { key: KeyOf::default(), force: true, yes: true, fence: None };
        let refused = release(&locks, "k", &task, false).await.unwrap_err();
        assert!(refused.to_string().contains("changed hands"), "{refused}");
        assert_eq!(nodes.each_ref().map(Memory::held), [1, 1, 1]);
        assert_eq!(release(&locks, "k", &task, false).await.unwrap(), 0);
        assert_eq!(nodes.each_ref().map(Memory::held), [0, 0, 0]);
    }
}
