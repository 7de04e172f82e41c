//! The tables of docs/compared.md.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Between these the page is written by this program.
const BEGIN: &str = "<!-- made by `cargo xtask compare` -->";
const END: &str = "<!-- the end of what was made -->";

/// What is written of one store: its columns, and its lines with their titles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) lines: Vec<(String, Vec<String>)>,
}

impl Table {
    /// The cell of a line and a column, or a new one.
    pub(crate) fn set(&mut self, title: &str, column: &str, text: &str) {
        let Some(at) = self.columns.iter().position(|known| known == column) else { return };
        let line = match self.lines.iter().position(|(known, _)| known == title) {
            Some(line) => line,
            None => {
                self.lines.push((title.to_owned(), vec![String::new(); self.columns.len()]));
                self.lines.len() - 1
            }
        };
        self.lines[line].1[at] = text.to_owned();
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text =
            format!("| | {} |\n|---|{}\n", self.columns.join(" | "), "---|".repeat(self.columns.len()));
        for (title, cells) in &self.lines {
            let cells: Vec<&str> =
                cells.iter().map(|cell| if cell.is_empty() { "not run" } else { cell }).collect();
            text += &format!("| {title} | {} |\n", cells.join(" | "));
        }
        text
    }

    /// What an earlier run has written.
    fn parse(lines: &[&str]) -> Self {
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut rows = lines.iter().map(|line| cells(line));
        let columns = rows.next().map(|mut row| row.split_off(1)).unwrap_or_default();
        let lines = rows.skip(1).filter(|row| row.len() > columns.len());
        let lines = lines.map(|mut row| (row.remove(0), row)).collect();
        Self { columns, lines }
    }
}

/// What earlier runs have written, by the name of the store.
pub(crate) fn read(page: &Path) -> Result<BTreeMap<String, Table>> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let made = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(made, _)| made);
    let made = made.with_context(|| format!("{} has lost its marks", page.display()))?;
    let mut tables = BTreeMap::new();
    for section in made.split("\n### ").skip(1) {
        let (name, rest) = section.split_once('\n').unwrap_or((section, ""));
        let lines: Vec<&str> = rest.lines().filter(|line| line.starts_with('|')).collect();
        tables.insert(name.to_owned(), Table::parse(&lines));
    }
    Ok(tables)
}

/// Replaces what earlier runs have written.
pub(crate) fn write(page: &Path, tables: &[(String, Table)]) -> Result<()> {
    let text = std::fs::read_to_string(page)?;
    let (before, rest) = text.split_once(BEGIN).context("no beginning")?;
    let (_, after) = rest.split_once(END).context("no end")?;
    let mut made = String::new();
    for (name, table) in tables {
        made += &format!("\n### {name}\n\n{}", table.markdown());
    }
    Ok(std::fs::write(page, format!("{before}{BEGIN}\n{made}\n{END}{after}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again_and_single_cells_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        std::fs::write(&page, format!("# Before\n\n{BEGIN}\n{END}\n\nAfter.\n")).unwrap();
        let mut table = Table { columns: vec!["one".into(), "two".into()], lines: Vec::new() };
        table.set("killed", "two", "0.9 / 1.0");
        write(&page, &[("Redis".into(), table.clone())]).unwrap();
        let mut again = read(&page).unwrap().remove("Redis").unwrap();
        assert_eq!(again.lines, [("killed".to_owned(), vec!["not run".to_owned(), "0.9 / 1.0".to_owned()])]);
        again.set("killed", "one", "1.0");
        write(&page, &[("Redis".into(), again)]).unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains("| killed | 1.0 | 0.9 / 1.0 |"), "{text}");
        assert!(text.starts_with("# Before\n") && text.ends_with("\nAfter.\n"), "{text}");
    }
}
