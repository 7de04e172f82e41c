//! Which modules of a crate use which, and the circles that they form.

use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the root of its crate, which has no words.
pub(super) type Path = Vec<String>;

/// The modules that each module uses, with the names that it takes from them.
#[derive(Clone, Default)]
pub(super) struct Arrows(pub(super) BTreeMap<Path, BTreeMap<Path, BTreeSet<String>>>);

impl Arrows {
    /// Returns the sets of modules that all reach each other.
    pub(super) fn circles(&self) -> BTreeSet<BTreeSet<Path>> {
        let reached: BTreeMap<_, _> =
            self.0.keys().map(|module| (module, self.reached(module, None))).collect();
        let circle = |module: &Path| -> BTreeSet<Path> {
            let back = reached[module].iter().filter(|other| reached[**other].contains(module));
            back.map(|other| (*other).clone()).collect()
        };
        self.0.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    /// Removes an arrow.
    pub(super) fn remove(&mut self, from: &[String], to: &[String]) {
        if let Some(targets) = self.0.get_mut(from) {
            targets.remove(to);
        }
    }

    /// Returns the arrows without those by which only a module and its direct children know each other.
    ///
    /// A child's arrow to its parent is left out if every way from the parent back to the child leads over the parent's
    /// direct children alone. So no circle loses an arrow that has a member besides one parent and its children.
    pub(super) fn without_families(&self) -> Self {
        let is_in_family = |module: &Path, parent: &Path| module == parent || is_child(module, parent);
        let is_family_matter = |child: &Path, parent: &Path| {
            let mut outside = self.reached(parent, Some(child)).into_iter();
            is_child(child, parent)
                && outside.all(|other| {
                    is_in_family(other, parent) || !self.reached(other, Some(parent)).contains(child)
                })
        };
        let without = |(module, targets): (&Path, &BTreeMap<Path, BTreeSet<String>>)| {
            let kept = targets.iter().filter(|(target, _)| !is_family_matter(module, target));
            (module.clone(), kept.map(|(target, names)| (target.clone(), names.clone())).collect())
        };
        Self(self.0.iter().map(without).collect())
    }

    /// Returns the modules that the arrows lead to from one, by no way over `avoided`.
    fn reached<'a>(&'a self, from: &'a Path, avoided: Option<&Path>) -> BTreeSet<&'a Path> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(targets) = open.pop().and_then(|next| self.0.get(next)) {
            let targets = targets.keys().filter(|target| Some(*target) != avoided);
            open.extend(targets.filter(|target| reached.insert(*target)));
        }
        reached
    }
}

fn is_child(module: &Path, parent: &Path) -> bool {
    module.len() == parent.len() + 1 && module.starts_with(parent)
}
