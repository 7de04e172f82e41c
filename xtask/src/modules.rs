//! Circles of modules: files that cannot be understood one after the other.
//!
//! A module and its direct children may know each other: a child is a part of its parent that got a file of its own.
//! Any other circle is a mistake, or listed in [`KNOWN`]. The folders of dlock-core have [`levels`] besides.

mod arrows;
mod levels;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use self::arrows::{Arrows, Path};
use self::read::Modules;
use crate::sources::SourceFile;

/// The name of the module that all others of a crate are below.
const ROOT: &str = "crate";

/// What still closes a circle: the folder of the crate, the module that uses, and the one that is used. Without these
/// there is no circle, and each of them closes one: the list only gets shorter. One is meant to stay: the engine's
/// registry has holds, which leave it.
const KNOWN: &[(&str, &str, &str)] = &[
    ("dlock-cli/src/", "run", "crate"),
    ("dlock-core/src/", "engine::registry", "engine::hold"),
    ("dlock-sim/src/", "backend", "majority"),
    ("dlock-sim/src/", "exec", "world"),
    ("dlock-sim/src/", "lease", "session"),
    ("dlock-sim/src/", "lease", "shared"),
    ("dlock-sim/src/", "lease", "world"),
    ("dlock-sim/src/", "modes", "run"),
    ("dlock-sim/src/", "run", "jobs"),
    ("dlock-sim/src/", "world", "judge"),
    ("dlock-sim/src/", "world", "majority"),
    ("dlock-sim/src/", "world", "net"),
    ("dlock-testkit/src/", "conformance::stage", "conformance"),
    ("examples/flash-sale/src/", "round", "report"),
    ("tests/compare/src/", "stage", "peers"),
];

/// The modules of a crate use each other in no circle, but for a module and its direct children, and for [`KNOWN`].
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let crates = crates(sources);
    if let Some((root, ..)) = KNOWN.iter().find(|(root, ..)| !crates.contains_key(*root)) {
        bail!("{root} stands in the list in xtask/src/modules.rs, and is no folder of sources");
    }
    let mut wrong = Vec::new();
    for (root, arrows) in &crates {
        let known: Vec<_> =
            KNOWN.iter().filter(|(of, ..)| of == root).map(|(_, from, to)| (*from, *to)).collect();
        wrong.extend(wrong_in(arrows, &known).into_iter().map(|what| format!("{root}: {what}")));
    }
    if let Some(arrows) = crates.get("dlock-core/src/") {
        wrong.extend(levels::wrong_in(arrows).into_iter().map(|what| format!("dlock-core/src/: {what}")));
    }
    if !wrong.is_empty() {
        bail!(
            "{}\nfind a better place for one of the things used: `cargo xtask circles` prints which modules use what \
             of each other. The lists are in xtask/src/modules.rs and xtask/src/modules/levels.rs",
            wrong.join("\n")
        );
    }
    let modules: usize = crates.values().map(|arrows| arrows.0.len()).sum();
    println!("{modules} modules of {} crates, no circle but by {} known arrows", crates.len(), KNOWN.len());
    Ok(())
}

/// Returns which circles there are without the known arrows, and which of these close none.
fn wrong_in(arrows: &Arrows, known: &[(&str, &str)]) -> Vec<String> {
    let without = |kept: Option<usize>| {
        let mut rest = arrows.clone();
        let removed = known.iter().enumerate().filter(|(index, _)| Some(*index) != kept);
        removed.for_each(|(_, (from, to))| rest.remove(&path(from), &path(to)));
        rest.without_families().circles()
    };
    let circles = without(None);
    if !circles.is_empty() {
        let names = |circle: &BTreeSet<Path>| circle.iter().map(name_of).collect::<Vec<_>>().join(", ");
        return circles.iter().map(|circle| format!("a circle of {}", names(circle))).collect();
    }
    let close_none = known.iter().enumerate().filter(|(index, _)| without(Some(*index)).is_empty());
    close_none.map(|(_, (from, to))| format!("{from} -> {to} closes no circle any more")).collect()
}

/// Prints the circles of the crates whose folder begins with `folder`, with the names by which they hold together.
pub(crate) fn print(sources: &[SourceFile], folder: &str) {
    for (root, arrows) in crates(sources).iter().filter(|(root, _)| root.starts_with(folder)) {
        let arrows = arrows.without_families();
        for circle in arrows.circles() {
            println!("{root}: {} modules", circle.len());
            for module in &circle {
                for (target, names) in arrows.0[module].iter().filter(|(target, _)| circle.contains(*target))
                {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    println!("  {} -> {}: {}", name_of(module), name_of(target), names.join(", "));
                }
            }
        }
    }
}

/// Returns which modules use which, for each folder of sources.
fn crates(sources: &[SourceFile]) -> BTreeMap<String, Arrows> {
    let mut crates = BTreeMap::<String, Modules>::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let path = format!("/{}", source.path);
        if let Some((root, file)) = path.split_once("/src/") {
            let root = format!("{root}/src/").trim_start_matches('/').to_owned();
            crates.entry(root).or_default().read(file, &source.text);
        }
    }
    crates.into_iter().map(|(root, modules)| (root, modules.arrows())).collect()
}

fn name_of(module: &Path) -> String {
    if module.is_empty() { ROOT.to_owned() } else { module.join("::") }
}

fn path(name: &str) -> Path {
    if name == ROOT { Path::new() } else { name.split("::").map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Arrows {
        let mut modules = Modules::default();
        files.iter().for_each(|(file, text)| modules.read(file, text));
        modules.arrows()
    }

    fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
        arrows.circles().iter().map(|circle| circle.iter().map(name_of).collect()).collect()
    }

    #[test]
    fn a_circle_is_found_also_through_a_re_export_and_a_path_in_the_code() {
        let found = arrows(&[
            ("lib.rs", "pub use a::Alpha;"),
            ("a.rs", "use crate::b::{c::Gamma, Beta};"),
            ("b/mod.rs", ""),
            ("b/c.rs", "fn f(_: crate::a::Alpha) {}"),
        ]);
        assert_eq!(circles(&found.without_families()), [["a", "b::c"]]);
        let reexported = arrows(&[
            ("m/mod.rs", "pub(crate) use crate::a::Alpha;"),
            ("a.rs", "use crate::m::{Alpha, Other};"),
        ]);
        assert!(reexported.circles().is_empty());
        let used_too = arrows(&[
            ("m/mod.rs", "pub(crate) use crate::a::Alpha;\nfn f(_: Alpha) {}"),
            ("a.rs", "use crate::m::Other;"),
        ]);
        assert_eq!(circles(&used_too), [["a", "m"]]);
        let all = arrows(&[
            ("m/mod.rs", "pub(crate) use crate::a::*;"),
            ("a.rs", "use crate::b::Beta;"),
            ("b.rs", "use crate::m::Alpha;"),
        ]);
        assert_eq!(circles(&all), [["a", "b", "m"]]);
    }

    #[test]
    fn modules_that_only_build_on_each_other_and_tests_are_no_circle() {
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
        let found = arrows(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", tests)]);
        assert!(found.circles().is_empty());
    }

    #[test]
    fn a_child_is_found_without_self_and_may_know_its_parent() {
        for parent in ["mod c; use c::C; pub struct S;", "mod c; pub struct S; fn f() { c::C::new(); }"] {
            let found = arrows(&[("m.rs", parent), ("m/c.rs", "use super::S; pub struct C;")]);
            assert_eq!(circles(&found), [["m", "m::c"]]);
            assert!(found.without_families().circles().is_empty());
        }
    }

    #[test]
    fn a_parent_and_its_children_are_a_circle_with_a_member_from_elsewhere_or_without_the_parent() {
        let by_another = arrows(&[
            ("m.rs", "mod c; use crate::x::X; pub struct S;"),
            ("m/c.rs", "use super::S; pub struct C;"),
            ("x.rs", "use crate::m::c::C;"),
        ]);
        assert_eq!(circles(&by_another.without_families()), [["m", "m::c", "x"]]);
        let siblings = arrows(&[
            ("m.rs", "mod c; mod d; use c::C; pub struct S;"),
            ("m/c.rs", "use super::{S, d::D};"),
            ("m/d.rs", "use super::c::C;"),
        ]);
        assert_eq!(circles(&siblings.without_families()), [["m::c", "m::d"]]);
    }

    #[test]
    fn a_known_arrow_is_listed_no_longer_than_it_closes_a_circle() {
        let circle = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
        assert_eq!(wrong_in(&arrows(&circle), &[]), ["a circle of a, b"]);
        assert!(wrong_in(&arrows(&circle), &[("b", "a")]).is_empty());
        for mended in [&[circle[0], ("b.rs", "")], &[("a.rs", ""), circle[1]]] {
            assert_eq!(wrong_in(&arrows(mended), &[("b", "a")]), ["b -> a closes no circle any more"]);
        }
    }

    #[test]
    fn a_module_inside_of_a_file_is_a_part_of_it_but_for_its_tests() {
        let inner =
            "mod inner {\n    use super::super::b::B;\n    mod tests {\n        use crate::c::C;\n    }\n}\n";
        let found =
            arrows(&[("m/a.rs", inner), ("m/b.rs", "use super::a::A;"), ("c.rs", "use crate::m::a::A;")]);
        assert_eq!(circles(&found), [["m::a", "m::b"]]);
        let far = "mod inner {\n    use super::super::super::c::C;\n}\n";
        let found = arrows(&[("lib.rs", ""), ("m.rs", ""), ("m/a.rs", far), ("c.rs", "use crate::m::a::A;")]);
        assert_eq!(circles(&found), [["c", "m::a"]]);
    }
}
