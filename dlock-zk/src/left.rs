//! A key that stays taken after its release: a persistent node in the place of its last holder, which nobody owns.
//!
//! | what | where |
//! |---|---|
//! | its duration | in the name of the node, see `recipe.rs` |
//! | its beginning | the time at which the servers made the node, by the clock of their leader |
//! | its last holder | the data of the node: `left=1 fence=<fence> <line of the holder>` |
//!
//! So a client that may list and see nodes knows the end, even if it may not read the data, and no client's clock
//! matters. The servers do not remove such a node by themselves: a client that finds it after its end does.

use std::time::Duration;

use dlock_core::Fence;
use dlock_core::backend::LEFT_BEHIND;
use zookeeper::Stat;

const FENCE: &str = "fence=";

/// Returns the data of the node that takes the place of a holder with this fence.
pub(crate) fn content(fence: Fence, line: &str) -> String {
    format!("{LEFT_BEHIND}{FENCE}{} {line}", fence.get())
}

/// Returns the fence of the last holder.
pub(crate) fn fence(text: &str) -> Option<Fence> {
    let number = text.strip_prefix(LEFT_BEHIND)?.strip_prefix(FENCE)?.split(' ').next()?;
    number.parse().ok().map(Fence::new)
}

/// Returns for how long a node keeps its key taken from `now` on that does so for `millis` milliseconds; `None` if its
/// time is over.
pub(crate) fn remaining(millis: u64, stat: &Stat, now: i64) -> Option<Duration> {
    let left = u64::try_from(ends(millis, stat).saturating_sub(now)).ok()?;
    (left > 0).then(|| Duration::from_millis(left))
}

/// Returns the end of a node that keeps its key taken for so many milliseconds, by the servers' clock.
fn ends(millis: u64, stat: &Stat) -> i64 {
    stat.ctime.saturating_add_unsigned(millis)
}

#[cfg(test)]
mod tests {
    use dlock_core::Holder;

    use super::*;

    #[test]
    fn the_last_holder_and_its_fence_are_read_as_they_were_written_and_nothing_else_is_a_fence() {
        let text = content(Fence::new(4_294_967_300), "host=a pid=7 label=fence%3d1 since=5");
        assert_eq!(fence(&text), Some(Fence::new(4_294_967_300)));
        let holder = Holder::parse(&text);
        assert!(holder.left_behind && holder.pid == Some(7), "{holder}");
        for strange in
            ["", "left=1 ", "fence=7 ", "left=1 fence= x", "left=1 fence=-1 x", "host=a left=1 fence=7"]
        {
            assert_eq!(fence(strange), None, "{strange:?}");
        }
    }
}
