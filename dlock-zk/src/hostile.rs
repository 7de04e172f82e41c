//! Reads the nodes of a queue, which any client may have made: for a property test and for a fuzzer.

use dlock_core::Holder;
use zookeeper::Stat;

use crate::holder::holder;
use crate::recipe::Recipe;
use crate::semaphore;

/// Reads a text in all ways in which the nodes of a queue are read, and returns their holders. A `|` separates the
/// nodes; each has the text behind a `!` in its name as its data.
#[must_use]
#[cfg_attr(test, expect(unreachable_pub, reason = "a fuzzer reaches it"))]
pub fn holders_in(text: &str) -> Vec<Holder> {
    let nodes: Vec<(String, &str)> = text
        .split('|')
        .take(MOST)
        .map(|node| node.split_once('!').unwrap_or((node, node)))
        .map(|(name, data)| (name.to_owned(), data))
        .collect();
    let names: Vec<String> = nodes.iter().map(|(name, _)| name.clone()).collect();
    let permits = semaphore::permits(text.as_bytes());
    let mut holders = Vec::new();
    for recipe in [Recipe::Mutex, Recipe::ReadWriteLock, Recipe::LeaderLatch] {
        let in_order = recipe.in_order(&names);
        assert!(recipe.holding(&in_order) <= in_order.len());
        assert!(semaphore::holding(recipe, &in_order, permits.unwrap_or(3)) <= in_order.len());
        for (name, data) in &nodes {
            let _ = recipe.position(&names, name);
            let _ = semaphore::PermitPosition::of(recipe, &names, name, permits.unwrap_or(3));
            let czxid = recipe.sequence(name).unwrap_or(-1);
            let stat = Stat { czxid, ..NO_STAT };
            holders.push(holder(recipe, permits, &format!("/locks/key/{name}"), data.as_bytes(), &stat));
        }
    }
    holders
}

/// The number of nodes that are read; more show nothing more.
const MOST: usize = 8;

const NO_STAT: Stat = Stat {
    czxid: 0,
    mzxid: 0,
    pzxid: 0,
    ctime: 0,
    mtime: 0,
    version: 0,
    cversion: 0,
    aversion: 0,
    ephemeral_owner: 0,
    data_length: 0,
    num_children: 0,
};

#[cfg(test)]
mod tests {
    use dlock_testkit::hostile;

    #[test]
    fn whatever_stands_in_a_queue_is_read_without_a_panic_and_shown_in_one_harmless_line() {
        hostile::for_each_text(|text| super::holders_in(text).iter().for_each(hostile::assert_harmless));
    }
}
