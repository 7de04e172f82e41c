//! Suggestions for a misspelled name: the nearest of some names.

/// Returns the name nearest to `wrong`, if it is near enough to be a slip of the keyboard.
pub(crate) fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (wrong.chars().count() / 3).max(1);
    names
        .into_iter()
        .map(|name| (distance(wrong, name), name))
        .filter(|&(distance, name)| distance <= allowed && distance < name.chars().count())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// Formats names as `` `a`, `b`, `c` ``.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn one text into the
/// other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn the_distance_counts_single_edits_and_swaps() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("bakend", "backend"), 1);
        assert_eq!(distance("on_lsot", "on_lost"), 1);
        assert_eq!(distance("wait", "lease"), 4);
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let names = ["key", "backend", "wait", "lease"];
        assert_eq!(nearest("bakend", names), Some("backend"));
        assert_eq!(nearest("kez", names), Some("key"));
        assert_eq!(nearest("retries", names), None);
        assert_eq!(nearest("i", ["x"]), None);
    }
}
