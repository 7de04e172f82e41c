//! Reads the holder of a lock from its node.

use dlock_core::backend::Mode;
use dlock_core::{Fence, Holder};
use zookeeper::Stat;

use crate::left;
use crate::recipe::Recipe;

/// The number of bytes of a node's data that are shown; another library may store as many as the servers allow.
const DESCRIPTION: usize = 2_048;
const WROTE: &str = "wrote=";

/// Returns the holder whose node has this path and this data: a line of dlock, or the text of another library.
/// `permits` is the number that the semaphore has.
pub(crate) fn holder(recipe: Recipe, permits: Option<u32>, path: &str, data: &[u8], stat: &Stat) -> Holder {
    let text = String::from_utf8_lossy(&data[..data.len().min(DESCRIPTION)]);
    let mut holder = Holder::parse(&text);
    let fence = left::fence(&text);
    let wrote = wrote(&text);
    if holder == Holder::default() && !text.is_empty() {
        holder.label = Some(text.into_owned());
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if recipe.reads(name) {
        holder.mode = Mode::Shared;
    } else if let Some(take) = recipe.takes(name) {
        holder.mode = Mode::Permits { of: permits.unwrap_or(take), take };
    }
    // The holder of such a node leads. Other libraries store the id of the participant.
    if recipe == Recipe::LeaderLatch && holder.candidate.is_none() {
        holder.candidate.clone_from(&holder.label);
    }
    holder.left_behind = recipe.left_for(name).is_some();
    holder.fence = if holder.left_behind {
        // The node has the fence of its last holder.
        fence
    } else {
        let own = Fence::new(stat.czxid.cast_unsigned());
        // A reader that was downgraded has the fence of its first node, by which it wrote.
        wrote.filter(|wrote| recipe.reads(name) && *wrote < own).or(Some(own))
    };
    holder
}

/// Returns the data of the node of a reader that wrote with this fence before.
pub(crate) fn reader(fence: Fence, line: &str) -> String {
    format!("{WROTE}{} {line}", fence.get())
}

/// Returns the fence with which such a reader wrote.
fn wrote(text: &str) -> Option<Fence> {
    let number = text.strip_prefix(WROTE)?.split(' ').next()?;
    number.parse().ok().map(Fence::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_of_a_writer_is_read_as_it_was_written_and_nothing_else_is_one() {
        let text = reader(Fence::new(4_294_967_300), "host=a pid=7 label=wrote%3d1 since=5");
        assert_eq!(wrote(&text), Some(Fence::new(4_294_967_300)));
        assert_eq!(Holder::parse(&text).pid, Some(7));
        for strange in ["", "wrote=", "wrote=-1 x", "wrote=x", "host=a wrote=7", "fence=7 x"] {
            assert_eq!(wrote(strange), None, "{strange:?}");
        }
    }
}
