//! Reads from the text of a crate's files which modules use which.

use std::collections::{BTreeMap, BTreeSet};

use super::arrows::{Arrows, Path};

/// The modules of a crate.
#[derive(Default)]
pub(super) struct Modules {
    /// What each module uses, as paths from the root. A path that begins with a name from outside of the crate stands
    /// below the module that uses it, where nothing is found under it.
    uses: BTreeMap<Path, Vec<Path>>,
    /// What each module imports: under which name, and from where. A module below it, and any other if the name is
    /// exported again, reaches the origin under this name.
    imports: BTreeMap<(Path, String), Path>,
}

impl Modules {
    /// Reads a file, whose path is given from the crate's `src`.
    pub(super) fn read(&mut self, file: &str, text: &str) {
        let mut module: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let is_root = module.len() == 1 && (module[0] == "lib" || module[0] == "main");
        module.pop_if(|last| last == "mod" || is_root);
        let text = code(&mut text.lines(), None);
        let (mut uses, mut exported, mut body) = (Vec::new(), BTreeSet::new(), String::new());
        for item in text.split_inclusive(';') {
            let Some((before, import)) =
                item.rsplit_once("use ").filter(|(before, _)| begins_an_item(before))
            else {
                body.push_str(item);
                continue;
            };
            let last_line = before.trim_end().rsplit('\n').next().unwrap_or_default();
            let is_export = last_line.trim_start().starts_with("pub");
            for (path, name) in expand(import.trim_end_matches(';')) {
                let path = absolute(&module, &path);
                // The names that a glob exports are not resolved: the module counts as using their origin.
                if is_export && name != "*" {
                    exported.insert(name.clone());
                } else {
                    uses.push(path.clone());
                }
                self.imports.insert((module.clone(), name), path);
            }
            body.push_str(before);
        }
        let paths = paths(&body);
        let paths = paths.filter(|path| path.contains("::") || exported.contains(*path));
        uses.extend(paths.map(|path| absolute(&module, path)));
        self.uses.entry(module).or_default().extend(uses);
    }

    /// Returns which modules use which.
    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::default();
        for (module, uses) in &self.uses {
            let targets = arrows.0.entry(module.clone()).or_default();
            for path in uses {
                let target = self.target(path, 6);
                if target != *module && self.uses.contains_key(&target) {
                    let name = path.last().filter(|name| target.last() != Some(name));
                    targets.entry(target).or_default().extend(name.cloned());
                }
            }
        }
        arrows
    }

    /// Returns the module that a path leads to, through re-exports.
    fn target(&self, path: &[String], steps: u32) -> Path {
        let length =
            (0..=path.len()).rev().find(|length| self.uses.contains_key(&path[..*length])).unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let imported = rest.first().and_then(|name| self.imports.get(&(module.to_vec(), name.clone())));
        match imported {
            Some(from) if steps > 0 => self.target(&[from, &rest[1..]].concat(), steps - 1),
            _ => module.to_vec(),
        }
    }
}

/// Returns the lines up to `end`, without comments and tests, as if all of them stood in the file's own module.
fn code<'a>(lines: &mut impl Iterator<Item = &'a str>, end: Option<&str>) -> String {
    let mut code = String::new();
    while let Some(line) = lines.next().filter(|line| Some(*line) != end) {
        let item = line.trim_start();
        let end = format!("{}}}", &line[..line.len() - item.len()]);
        match item.strip_suffix(" {").and_then(|item| item.rsplit_once("mod ")) {
            Some((visibility, name)) if visibility.is_empty() || visibility.starts_with("pub") => {
                let inner = self::code(lines, Some(&end));
                if name != "tests" {
                    code.push_str(&outward(&inner));
                }
            }
            _ if item.starts_with("//") => {}
            _ => {
                code.push_str(line);
                code.push('\n');
            }
        }
    }
    code
}

/// Returns the code of a module inside a file with the paths that the file's own module would write.
fn outward(inner: &str) -> String {
    let (marked, mut outward) = (inner.replace("super::", "\0"), String::new());
    for part in marked.split_inclusive(|c| c != '\0') {
        let rest = part.trim_start_matches('\0');
        match part.len() - rest.len() {
            0 => {}
            1 => outward.push_str("self::"),
            supers => outward.push_str(&"super::".repeat(supers - 1)),
        }
        outward.push_str(rest);
    }
    outward
}

fn begins_an_item(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default().trim();
    line.is_empty() || line.starts_with("pub")
}

/// Returns the paths in code, and single names that may be items: types, and functions that are called.
fn paths(body: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut place = 0;
    std::iter::from_fn(move || {
        loop {
            let begin = place + body[place..].find(is_part)?;
            let end = body[begin..].find(|c| !is_part(c)).map_or(body.len(), |length| begin + length);
            place = end;
            let (before, path, after) = (&body[..begin], body[begin..end].trim_matches(':'), &body[end..]);
            let may_be_item = path.contains("::")
                || path.starts_with(|c: char| c.is_uppercase())
                || after.starts_with(['(', '!']);
            // Not an item: a field, a method, text, or the scope of `pub(in ...)`.
            let is_none = path.is_empty() || before.ends_with(['.', '"']) || before.ends_with("(in ");
            if may_be_item && !is_none {
                return Some(path);
            }
        }
    })
}

/// Returns the paths of an import, each with the name it gets.
fn expand(import: &str) -> Vec<(String, String)> {
    let import = import.trim();
    let Some((before, list)) = import.split_once('{') else {
        let import = import.trim_end_matches("::self");
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

/// Returns the path from the root of the crate.
fn absolute(module: &[String], path: &str) -> Path {
    let mut words = path.split("::").map(str::to_owned).peekable();
    let mut base = module.to_vec();
    if words.next_if(|word| word == "crate").is_some() {
        base.clear();
    } else if words.next_if(|word| word == "self").is_none() {
        while words.next_if(|word| word == "super").is_some() {
            base.pop();
        }
    }
    base.extend(words);
    base
}
