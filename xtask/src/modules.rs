//! Circles of modules: files that cannot be understood one after the other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use crate::lint::SourceFile;

/// The crates without circles, but for these: the engine, its registry and the holds in it know each other.
const CRATES: [(&str, &[&str]); 8] = [
    ("dlock-core/src/", &["engine", "engine::hold", "engine::registry"]),
    ("dlock-redis/src/", &[]),
    ("dlock-tower/src/", &[]),
    ("dlock-macros/src/", &[]),
    ("dlock-cli/src/", &[]),
    ("dlock-testkit/src/", &[]),
    ("tests/rig/src/", &[]),
    ("bench/src/", &[]),
];

type Path = Vec<String>;

#[derive(Default)]
struct Modules {
    /// What each module uses, as absolute paths.
    uses: BTreeMap<Path, Vec<Path>>,
    /// What each module re-exports: under which name, and from where.
    exports: BTreeMap<(Path, String), Path>,
}

/// No modules of a crate use each other in a circle, but for those that [`CRATES`] allows.
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let mut count = 0;
    for (root, allowed) in CRATES {
        let mut modules = Modules::default();
        for source in sources {
            if let Some(file) = source.path.strip_prefix(root) {
                modules.read(file, &source.text);
            }
        }
        count += modules.uses.len();
        let allowed: BTreeSet<String> = allowed.iter().copied().map(str::to_owned).collect();
        let circles = modules.circles();
        let more: Vec<_> = circles.iter().filter(|circle| **circle != allowed).collect();
        if !more.is_empty() {
            bail!(
                "modules of {root} use each other in circles: {more:?}; find a better place for one of the things used"
            );
        }
    }
    println!("{count} modules of {} crates, no circle that is not allowed", CRATES.len());
    Ok(())
}

impl Modules {
    fn read(&mut self, file: &str, text: &str) {
        let mut module: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        module.pop_if(|last| last == "mod" || last == "lib");
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let (mut uses, mut rest) = (Vec::new(), String::new());
        for item in text.split_inclusive(';') {
            let Some((before, import)) =
                item.rsplit_once("use ").filter(|(before, _)| begins_an_item(before))
            else {
                rest.push_str(item);
                continue;
            };
            let is_export = before
                .trim_end()
                .rsplit('\n')
                .next()
                .is_some_and(|line| line.trim_start().starts_with("pub"));
            for (path, name) in expand(import.trim_end_matches(';')) {
                let Some(path) = absolute(&module, &path) else { continue };
                if is_export {
                    self.exports.insert((module.clone(), name), path);
                } else {
                    uses.push(path);
                }
            }
            rest.push_str(before);
        }
        for (at, _) in rest.match_indices("crate::").chain(rest.match_indices("super::")) {
            let path = rest[at..].split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next();
            uses.extend(path.and_then(|path| absolute(&module, path)));
        }
        self.uses.insert(module, uses);
    }

    /// Returns the module that a path leads to, through re-exports.
    fn target(&self, path: &[String], steps: u32) -> Path {
        let length =
            (0..=path.len()).rev().find(|length| self.uses.contains_key(&path[..*length])).unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let exported = rest.first().and_then(|name| self.exports.get(&(module.to_vec(), name.clone())));
        match exported {
            Some(from) if steps > 0 => self.target(&[from, &rest[1..]].concat(), steps - 1),
            _ => module.to_vec(),
        }
    }

    /// Returns the sets of modules that all reach each other.
    fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let direct = |module: &Path| -> BTreeSet<Path> {
            let targets = self.uses[module].iter().map(|path| self.target(path, 6));
            targets.filter(|target| target != module && self.uses.contains_key(target)).collect()
        };
        let direct: BTreeMap<_, _> = self.uses.keys().map(|module| (module, direct(module))).collect();
        let reached = |from: &Path| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(next) = open.pop() {
                open.extend(direct[next].iter().filter(|target| reached.insert((*target).clone())));
            }
            reached
        };
        let reached: BTreeMap<_, _> = self.uses.keys().map(|module| (module, reached(module))).collect();
        let circle = |module: &Path| -> BTreeSet<String> {
            let back = reached[module].iter().filter(|other| reached[other].contains(module));
            back.map(|module| module.join("::")).collect()
        };
        self.uses.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }
}

fn begins_an_item(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default().trim();
    line.is_empty() || line.starts_with("pub")
}

/// Returns the paths of an import, each with the name it gets.
fn expand(import: &str) -> Vec<(String, String)> {
    let import = import.trim();
    let Some((before, list)) = import.split_once('{') else {
        let (path, name) =
            import.split_once(" as ").unwrap_or((import, import.rsplit("::").next().unwrap_or_default()));
        return vec![(path.trim().to_owned(), name.trim().to_owned())];
    };
    let list = list.strip_suffix('}').unwrap_or(list);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in list.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match (c, depth, parts.last_mut()) {
            (',', 0, _) => parts.push(String::new()),
            (_, _, Some(part)) => part.push(c),
            _ => {}
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts.iter().flat_map(|part| expand(&format!("{before}{}", part.trim()))).collect()
}

/// Returns the path from the root of the crate; `None` for one that leads out of it.
fn absolute(module: &[String], path: &str) -> Option<Path> {
    let mut words = path.split("::").map(str::to_owned).peekable();
    let mut base = module.to_vec();
    match words.peek()?.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            while words.next_if(|word| word == "super").is_some() {
                base.pop();
            }
            return Some(base.into_iter().chain(words).collect());
        }
        _ => return None,
    }
    Some(base.into_iter().chain(words.skip(1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> BTreeSet<BTreeSet<String>> {
        let mut modules = Modules::default();
        files.iter().for_each(|(file, text)| modules.read(file, text));
        modules.circles()
    }

    #[test]
    fn a_circle_is_found_also_through_a_re_export_and_a_path_in_the_code() {
        let found = circles(&[
            ("lib.rs", "pub use a::Alpha;"),
            ("a.rs", "use crate::b::{c::Gamma, Beta};"),
            ("b/mod.rs", ""),
            ("b/c.rs", "fn f(_: crate::a::Alpha) {}"),
        ]);
        assert_eq!(found, [["a".to_owned(), "b::c".to_owned()].into()].into());
        let reexported = circles(&[
            ("m/mod.rs", "pub(crate) use crate::a::Alpha;"),
            ("a.rs", "use crate::m::{Alpha, Other};"),
        ]);
        assert!(reexported.is_empty());
    }

    #[test]
    fn modules_that_only_build_on_each_other_and_tests_are_no_circle() {
        let tests = "#[cfg(test)]\nmod tests { use crate::a::A; }";
        let found = circles(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", tests)]);
        assert!(found.is_empty(), "{found:?}");
    }
}
