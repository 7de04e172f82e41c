//! The dashboard and the alerts ask for what there is.

use std::collections::BTreeSet;
use std::path::Path;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of the page's tables, as Prometheus has them: of the series, and of the labels.
fn documented() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut series, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for line in file("docs/observability.md").lines() {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, name, instrument, unit, ..] = cells[..] else { continue };
        if !name.starts_with("dlock.") {
            continue;
        }
        let unit = match unit {
            "s" => "_seconds",
            _ => "",
        };
        let name = name.replace('.', "_");
        match instrument {
            "histogram" => {
                series.extend(["bucket", "count", "sum"].map(|part| format!("{name}{unit}_{part}")));
            }
            "counter" => drop(series.insert(format!("{name}{unit}_total"))),
            "up-down counter" => drop(series.insert(format!("{name}{unit}"))),
            _ => drop(labels.insert(name)),
        }
    }
    (series, labels)
}

/// All words of a text that are names of dlock's.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dlock_")).map(str::to_owned).collect()
}

#[test]
fn every_name_in_the_dashboard_and_the_alerts_is_documented() {
    let (series, labels) = documented();
    assert!(series.len() >= 20 && labels.len() >= 3, "{series:?} {labels:?}");
    let asked =
        named(&(file("observability/grafana/dashboards/dlock.json") + &file("observability/alerts.yaml")));
    let unknown: Vec<_> =
        asked.iter().filter(|name| !series.contains(*name) && !labels.contains(*name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are in neither table of docs/observability.md");
}

#[test]
fn every_metric_of_a_lock_is_on_the_dashboard() {
    let asked = named(&file("observability/grafana/dashboards/dlock.json"));
    let (series, _) = documented();
    let families: BTreeSet<&str> = series
        .iter()
        .map(|name| name.trim_end_matches("_bucket").trim_end_matches("_count").trim_end_matches("_sum"))
        .collect();
    let missing: Vec<_> =
        families.into_iter().filter(|family| !asked.iter().any(|name| name.starts_with(family))).collect();
    assert!(missing.is_empty(), "{missing:?} are on no panel");
}
