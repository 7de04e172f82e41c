//! The levels of dlock-core: a folder uses only what is below it.

use std::collections::BTreeSet;

use super::arrows::{Arrows, Path};
use super::name_of;

/// The folders, from the ground up. On the ground are the files beside `lib.rs`, which itself is above all.
const LEVELS: [&str; 7] = [GROUND, "runtime", "telemetry", "backend", "engine", "backends", "handles"];

const GROUND: &str = "the files beside lib.rs";

/// What still leads upwards: the module that uses, and the one that is used. The list only gets shorter.
const KNOWN: &[(&str, &str)] = &[];

/// Returns which modules use others above them, but for the known ones; and which known ones no longer do so.
pub(super) fn wrong_in(arrows: &Arrows) -> Vec<String> {
    wrong_but_for(arrows, KNOWN)
}

fn wrong_but_for(arrows: &Arrows, known: &[(&str, &str)]) -> Vec<String> {
    let inner = arrows.0.iter().filter(|(module, _)| !module.is_empty());
    let pairs = inner.flat_map(|(module, targets)| targets.keys().map(move |target| (module, target)));
    let upwards = pairs.filter(|(module, target)| level_of(module) < level_of(target));
    let found: BTreeSet<_> = upwards.map(|(module, target)| (name_of(module), name_of(target))).collect();
    let known = known.iter().map(|(module, target)| ((*module).to_owned(), (*target).to_owned())).collect();
    let wrong =
        found.difference(&known).map(|(module, target)| format!("{module} uses {target}, which is above it"));
    let gone = known.difference(&found);
    let gone = gone.map(|(module, target)| format!("{module} does not use {target}, above it, any more"));
    wrong.chain(gone).collect()
}

/// Returns the place in [`LEVELS`], which is behind all others for the crate's root.
fn level_of(module: &Path) -> usize {
    let folder = module.first().map(|first| LEVELS.iter().position(|level| level == first).unwrap_or(0));
    folder.unwrap_or(LEVELS.len())
}

#[cfg(test)]
mod tests {
    use super::super::read::Modules;
    use super::*;

    #[test]
    fn a_folder_uses_only_those_below_it() {
        let mut modules = Modules::default();
        for (file, text) in [
            ("lib.rs", "pub use engine::Engine;"),
            ("key.rs", "use crate::error::Error;"),
            ("error.rs", "use crate::backend::Mode;"),
            ("backend/mod.rs", "use crate::key::Key;"),
            ("backends/memory.rs", "use crate::engine::Engine;"),
            ("engine/mod.rs", "use crate::backend::Backend;"),
        ] {
            modules.read(file, text);
        }
        let found = wrong_but_for(&modules.arrows(), &[("key", "engine")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("error uses backend,"), "{found:?}");
        assert_eq!(found[1], "key does not use engine, above it, any more");
    }
}
