//! The panels of the dashboard that is shipped, with what they show of the run.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};
use dlock_interop::collector::of_the_project;
use plotters::prelude::*;
use serde::Deserialize;

use crate::prometheus::{Line, Prometheus};

/// Columns of a Grafana dashboard, and how large one cell is drawn.
const COLUMNS: u32 = 24;
const CELL: (u32, u32) = (60, 30);
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];
const INK: RGBColor = RGBColor(40, 44, 52);
const FRAME: RGBColor = RGBColor(208, 212, 220);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dashboard {
    panels: Vec<Settings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    title: String,
    #[serde(rename = "type")]
    kind: String,
    grid_pos: Place,
    /// A row has none.
    #[serde(default)]
    targets: Vec<Target>,
    #[serde(default)]
    field_config: FieldConfig,
    /// Those of a row that is collapsed.
    #[serde(default)]
    panels: Vec<serde::de::IgnoredAny>,
}

#[derive(Clone, Copy, Deserialize)]
struct Place {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
struct Target {
    expr: String,
}

#[derive(Default, Deserialize)]
struct FieldConfig {
    defaults: Defaults,
}

#[derive(Default, Deserialize)]
struct Defaults {
    unit: Option<String>,
}

/// A panel, and what it shows.
pub(crate) struct Panel {
    settings: Settings,
    lines: Vec<Line>,
    seconds: f64,
}

/// What each panel shows of the time of the run.
pub(crate) async fn panels(prometheus: &Prometheus, run: (SystemTime, SystemTime)) -> Result<Vec<Panel>> {
    let text = std::fs::read_to_string(of_the_project("observability/grafana/dashboards/dlock.json"))?;
    let dashboard: Dashboard = serde_json::from_str(&text)?;
    let seconds = run.1.duration_since(run.0)?.as_secs_f64();
    let mut panels = Vec::new();
    for settings in dashboard.panels {
        let mut lines = Vec::new();
        for target in &settings.targets {
            let expression = target
                .expr
                .replace("$backend", ".*")
                .replace("$template", ".*")
                .replace("$__rate_interval", "5s")
                .replace("$__range", &format!("{seconds:.0}s"));
            lines.extend(prometheus.range(&expression, run).await.context(settings.title.clone())?);
        }
        panels.push(Panel { settings, lines, seconds });
    }
    Ok(panels)
}

pub(crate) fn draw(picture: &Path, panels: &[Panel]) -> Result<()> {
    let rows = panels.iter().map(|panel| panel.settings.grid_pos).map(|place| place.y + place.h).max();
    let size = (COLUMNS * CELL.0, rows.unwrap_or(1) * CELL.1);
    let area = SVGBackend::new(picture, size).into_drawing_area();
    area.fill(&WHITE)?;
    for panel in panels {
        let Place { x, y, w, h } = panel.settings.grid_pos;
        let (left, top) = ((x * CELL.0).cast_signed(), (y * CELL.1).cast_signed());
        let place = area.clone().shrink((left + 4, top + 4), (w * CELL.0 - 8, h * CELL.1 - 8));
        panel.draw(&place).map_err(|error| anyhow!("{}: {error}", panel.settings.title))?;
    }
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let (width, height) = area.dim_in_pixel();
        let (width, height) = (width.cast_signed(), height.cast_signed());
        if self.settings.kind == "row" {
            let style = ("sans-serif", 16).into_font().color(&INK);
            let title = match self.settings.panels.len() {
                0 => self.settings.title.clone(),
                collapsed => format!("> {} ({collapsed} panels)", self.settings.title),
            };
            area.draw(&Text::new(title, (8, 4), style))?;
            return Ok(());
        }
        area.draw(&Rectangle::new([(0, 0), (width - 1, height - 1)], FRAME))?;
        area.draw(&Text::new(
            self.settings.title.clone(),
            (8, 6),
            ("sans-serif", 14).into_font().color(&INK),
        ))?;
        if self.settings.kind == "stat" {
            let last = self.lines.iter().filter_map(|line| line.points.last()).map(|point| point.1).sum();
            let text = if self.lines.is_empty() { "none".into() } else { self.shown(last) };
            let style = ("sans-serif", 36).into_font().color(&COLOURS[0]);
            area.draw(&Text::new(text, (width / 2 - 24, height / 2 - 10), style))?;
            return Ok(());
        }
        let lines: Vec<_> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        if lines.is_empty() {
            let style = ("sans-serif", 13).into_font().color(&INK.mix(0.6));
            area.draw(&Text::new("none", (width / 2 - 14, height / 2), style))?;
            return Ok(());
        }
        // The legend is below, as in Grafana, where it covers no curve.
        let legend = 14 * i32::try_from(lines.len())?.min(5);
        let plot = area.clone().shrink((4, 26), (width - 12, height - 38 - legend));
        let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
        let most = if most > 0.0 { most * 1.05 } else { 1.0 };
        let mut chart = ChartBuilder::on(&plot)
            .x_label_area_size(18)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..self.seconds, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(FRAME.mix(0.6))
            .axis_style(FRAME)
            .x_labels(6)
            .y_labels(4)
            .x_label_formatter(&|at| format!("{at:.0} s"))
            .y_label_formatter(&|value| self.shown(*value))
            .label_style(("sans-serif", 11).into_font().color(&INK))
            .draw()?;
        for (n, (line, colour)) in (0..).zip(lines.into_iter().zip(COLOURS.iter().cycle())) {
            let style = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            let name = if line.name.is_empty() { "all" } else { &line.name };
            let top = height - 6 - legend + 14 * n;
            area.draw(&PathElement::new([(66, top + 5), (78, top + 5)], style))?;
            let style = ("sans-serif", 11).into_font().color(&INK);
            area.draw(&Text::new(name.to_owned(), (84, top), style))?;
        }
        Ok(())
    }

    /// A value in the panel's unit.
    fn shown(&self, value: f64) -> String {
        match self.settings.field_config.defaults.unit.as_deref() {
            Some("s") if value == 0.0 => "0".into(),
            Some("s") if value < 1e-3 => format!("{:.0} us", value * 1e6),
            Some("s") if value < 1.0 => format!("{:.1} ms", value * 1e3),
            Some("s") => format!("{value:.1} s"),
            Some("ops") => format!("{value:.1}/s"),
            _ if value.fract().abs() < 0.005 => format!("{value:.0}"),
            _ => format!("{value:.2}"),
        }
    }
}
