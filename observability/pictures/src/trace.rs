//! The trace of a request that waited, with that of the request it waited for.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use plotters::prelude::*;

const WIDTH: u32 = 1_200;
/// Where the names end and the bars begin.
const NAMES: i32 = 380;
const ROW: i32 = 24;
const TOP: i32 = 40;
const INK: RGBColor = RGBColor(40, 44, 52);
const HOLDER: RGBColor = RGBColor(44, 160, 44);
const WAITER: RGBColor = RGBColor(31, 119, 180);
const LINK: RGBColor = RGBColor(214, 39, 40);

#[derive(Clone, Copy)]
struct One<'a> {
    instance: &'a str,
    span: &'a Span,
}

fn all(resources: &[ResourceSpans]) -> impl Iterator<Item = One<'_>> {
    resources.iter().flat_map(|resource| {
        let attributes = resource.resource.as_ref().map_or(&[][..], |resource| &resource.attributes);
        let instance = text(attributes, "service.instance.id").unwrap_or("?");
        resource.scope_spans.iter().flat_map(|scope| &scope.spans).map(move |span| One { instance, span })
    })
}

fn text<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Draws the trace of a request that waited for one of another replica. Returns what it shows.
pub(crate) fn draw(picture: &Path, resources: &[ResourceSpans]) -> Result<String> {
    let by_id: HashMap<&[u8], One<'_>> = all(resources).map(|one| (&*one.span.span_id, one)).collect();
    let mut pairs: Vec<_> = by_id
        .values()
        .filter(|one| one.span.name.starts_with("acquire ") && one.span.links.len() == 1)
        .filter_map(|one| Some((*one, *by_id.get(&*one.span.links[0].span_id)?)))
        .filter(|(waiter, holder)| waiter.instance != holder.instance)
        .collect();
    // A typical one: as many waited longer as shorter.
    pairs.sort_by_key(|(waiter, _)| (length(waiter.span), waiter.span.span_id.clone()));
    let (waiter, holder) = *pairs.get(pairs.len() / 2).context("nobody waited for another replica")?;

    let mut rows = of_trace(&by_id, &holder.span.trace_id);
    let of_holder = rows.len();
    rows.extend(of_trace(&by_id, &waiter.span.trace_id));
    ensure!(rows.len() < 60, "{} spans", rows.len());
    let begin = rows.iter().map(|(_, one)| one.span.start_time_unix_nano).min().unwrap_or_default();
    let end = rows.iter().map(|(_, one)| one.span.end_time_unix_nano).max().unwrap_or_default();
    let width = f64::from(WIDTH.cast_signed() - NAMES - 90);
    let x = |at: u64| NAMES + ((at - begin) as f64 / (end - begin).max(1) as f64 * width) as i32;

    let height = TOP + ROW * i32::try_from(rows.len() + 2)? + 10;
    let area = SVGBackend::new(picture, (WIDTH, height.cast_unsigned())).into_drawing_area();
    area.fill(&WHITE)?;
    let write = |words: String, at: (i32, i32), size: i32, colour: &RGBColor| {
        area.draw(&Text::new(words, at, ("sans-serif", size).into_font().color(colour)))
    };
    let mut places = HashMap::new();
    let mut top = TOP - ROW;
    for (number, (depth, one)) in rows.iter().enumerate() {
        let (colour, whose) = match number < of_holder {
            true => (HOLDER, "the request that held the lock"),
            false => (WAITER, "the request that waited for it"),
        };
        if number == 0 || number == of_holder {
            top += if number == 0 { 0 } else { ROW / 2 };
            let trace: String = one.span.trace_id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            write(format!("{whose}: {}, trace {trace}...", one.instance), (10, top), 14, &colour)?;
            top += ROW;
        }
        let outcome =
            text(&one.span.attributes, "dlock.outcome").map(|word| format!(", {word}")).unwrap_or_default();
        write(format!("{}{outcome}", one.span.name), (20 + 16 * depth, top + 4), 13, &INK)?;
        let (from, to) = (x(one.span.start_time_unix_nano), x(one.span.end_time_unix_nano));
        let bar = [(from, top + 3), (to.max(from + 2), top + ROW - 5)];
        area.draw(&Rectangle::new(bar, colour.mix(0.75).filled()))?;
        let took = length(one.span) as f64 / 1e6;
        write(format!("{took:.1} ms"), (to.max(from + 2) + 6, top + 4), 12, &INK)?;
        places.insert(&*one.span.span_id, (from, top + ROW / 2 - 1));
        top += ROW;
    }
    let (from, to) = (places[&*waiter.span.span_id], places[&*holder.span.span_id]);
    let aside = from.0.min(to.0) - 14;
    let way = [from, (aside, from.1), (aside, to.1), to];
    area.draw(&PathElement::new(way, LINK.stroke_width(2)))?;
    area.draw(&Polygon::new([to, (to.0 - 8, to.1 - 4), (to.0 - 8, to.1 + 4)], LINK.filled()))?;
    // Above its line, where no name of a row is.
    write("link".into(), (aside + 6, from.1 - 14), 12, &LINK)?;
    area.present()?;
    let waited = length(waiter.span) as f64 / 1e6;
    Ok(format!(
        "{} waited {waited:.1} ms for {}, one of {} such waits",
        waiter.instance,
        holder.instance,
        pairs.len()
    ))
}

fn length(span: &Span) -> u64 {
    span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano)
}

/// The spans of a trace, each with its depth, children after their parent and in their order.
fn of_trace<'a>(spans: &HashMap<&'a [u8], One<'a>>, trace: &[u8]) -> Vec<(i32, One<'a>)> {
    let mut ours: Vec<_> = spans.values().copied().filter(|one| one.span.trace_id == trace).collect();
    ours.sort_by_key(|one| (one.span.start_time_unix_nano, one.span.span_id.clone()));
    let is_root = |one: &One<'_>| !ours.iter().any(|other| other.span.span_id == one.span.parent_span_id);
    let mut open: Vec<_> = ours.iter().rev().filter(|one| is_root(one)).map(|one| (0, *one)).collect();
    let mut rows = Vec::new();
    while let Some((depth, one)) = open.pop() {
        rows.push((depth, one));
        let children = ours.iter().rev().filter(|other| other.span.parent_span_id == one.span.span_id);
        open.extend(children.map(|child| (depth + 1, *child)));
    }
    rows
}
