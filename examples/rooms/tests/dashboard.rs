//! The dashboard and the alerts ask for what there is.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[derive(Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

/// What Grafana takes without a word where it is wrong: it then shows something else.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: String,
    #[serde(rename = "type")]
    kind: String,
    grid_pos: Place,
    #[serde(default)]
    targets: Vec<Target>,
    #[serde(default)]
    field_config: FieldConfig,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    collapsed: bool,
    #[serde(default)]
    panels: Vec<Self>,
}

#[derive(Deserialize)]
struct Place {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    ref_id: String,
    expr: String,
}

#[derive(Default, Deserialize)]
struct FieldConfig {
    defaults: Defaults,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Defaults {
    no_value: Option<String>,
    unit: Option<String>,
}

#[derive(Default, Deserialize)]
struct Options {
    legend: Option<Legend>,
}

#[derive(Deserialize)]
struct Legend {
    placement: String,
}

/// Every panel, those of collapsed rows too.
fn panels() -> Vec<Panel> {
    let text = file("observability/grafana/dashboards/dlock.json");
    let dashboard: Dashboard = serde_json::from_str(&text).expect("the fields that Grafana has");
    let mut panels = dashboard.panels;
    let inside: Vec<Panel> = panels.iter_mut().flat_map(|panel| std::mem::take(&mut panel.panels)).collect();
    panels.extend(inside);
    panels
}

#[test]
fn no_two_panels_of_the_dashboard_share_a_place_or_an_id() {
    let panels = panels();
    assert!(panels.len() > 15, "{}", panels.len());
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in &panels {
        assert!(ids.insert(panel.id), "{}: the id {} again", panel.title, panel.id);
        let Place { x, y, w, h } = panel.grid_pos;
        assert!(w > 0 && h > 0 && x + w <= 24, "{}: outside the 24 columns", panel.title);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{}: covers another panel at {cell:?}", panel.title);
        }
    }
}

#[test]
fn every_row_is_a_question_or_collapsed_and_begins_with_panels_of_its_own() {
    let panels = panels();
    let rows: Vec<_> = panels.iter().filter(|panel| panel.kind == "row").collect();
    assert_eq!(panels.iter().map(|panel| panel.grid_pos.y).min(), rows.first().map(|row| row.grid_pos.y));
    for row in rows {
        assert!(row.title.ends_with('?') || row.collapsed, "{}", row.title);
        let below = row.grid_pos.y + row.grid_pos.h;
        assert!(panels.iter().any(|panel| panel.grid_pos.y == below), "{}: nothing below it", row.title);
    }
}

#[test]
fn a_panel_without_data_says_so_and_no_legend_covers_a_curve() {
    for panel in panels().iter().filter(|panel| panel.kind != "row") {
        let title = &panel.title;
        let defaults = &panel.field_config.defaults;
        assert!(matches!(panel.kind.as_str(), "stat" | "timeseries"), "{title}: {}", panel.kind);
        assert!(defaults.no_value.is_some(), "{title}: nothing is said where there is no data");
        assert!(defaults.unit.is_some(), "{title}: no unit");
        let legend = panel.options.legend.as_ref().map(|legend| legend.placement.as_str());
        assert_eq!(legend, (panel.kind == "timeseries").then_some("bottom"), "{title}");
        let queries: BTreeSet<_> = panel.targets.iter().map(|target| &target.ref_id).collect();
        assert!(!queries.is_empty() && queries.len() == panel.targets.len(), "{title}: {queries:?}");
        for expression in panel.targets.iter().map(|target| &target.expr) {
            let open = |c| expression.matches(c).count();
            assert!(open('(') == open(')') && open('{') == open('}') && open('[') == open(']'), "{title}");
        }
    }
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
