//! The files that are checked without being compiled.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::run::root;

/// A file of the repository.
pub(crate) struct SourceFile {
    /// From the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the Rust and Markdown files of the repository.
pub(crate) fn sources() -> Result<Vec<SourceFile>> {
    let mut found = Vec::new();
    collect(&root(), &mut found)?;
    Ok(found)
}

fn collect(dir: &Path, found: &mut Vec<SourceFile>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && name != "node_modules" && !name.to_string_lossy().starts_with('.') {
                collect(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            found.push(SourceFile { path, text });
        }
    }
    Ok(())
}
