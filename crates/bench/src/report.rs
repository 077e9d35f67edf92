//! One page to look at: charts, tables, settings. Needs no network, and no other file.

use crate::panel::{Bar, Bars, Curve, Curves, Point, Source, colour};
use crate::report_tables as tables;
use crate::results::{Cell, Results};
use crate::svg::escaped;

const STYLE: &str = "body{font-family:system-ui,'DejaVu Sans',sans-serif;margin:2em auto;max-width:96em;padding:0 1.5em;color:#1a1a1a;line-height:1.45}\
h1{margin-bottom:.2em}h2{margin-top:2em;border-bottom:2px solid #ddd;padding-bottom:.2em}h3{margin:1.4em 0 .3em}\
table{border-collapse:collapse;margin:.8em 0;font-size:.86em;font-variant-numeric:tabular-nums}\
td,th{padding:.25em .65em;border-bottom:1px solid #e2e2e2;text-align:right;white-space:nowrap}th{background:#f6f6f6;vertical-align:bottom}\
td.l,th.l{text-align:left}tr:hover td{background:#fafafa}.wide{overflow-x:auto}\
.note{background:#eef4fb;border-left:4px solid #0072b2;padding:.6em 1em}.bad{color:#b00020;font-weight:bold}.fine{color:#006b3c}\
pre{background:#f4f4f4;padding:1em;overflow:auto;font-size:.8em}.panels{display:flex;flex-wrap:wrap;gap:.4em 1em}\
.legend span{display:inline-block;margin-right:1.4em;white-space:nowrap}.swatch{display:inline-block;width:.8em;height:.8em;margin-right:.4em;vertical-align:-.05em}\
.line{display:inline-block;width:1.4em;height:0;border-top:3px solid #111;margin-right:.4em;vertical-align:.25em}details{margin:.6em 0}summary{cursor:pointer}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;font-size:.9em}dt{color:#555}dd{margin:0}";

/// Says in the page itself what a browser made of it, for the test that renders it: how many charts have a size, and how many
/// pairs of their texts overlap.
const PROBE: &str = "<script>(function(){var d=document,b=d.body,n=0,o=0,box=function(e){return e.getBoundingClientRect()};\
d.querySelectorAll('svg').forEach(function(s){if(s.closest('details'))return;var r=box(s);if(r.width>0&&r.height>0)n++;var t=[].map.call(s.querySelectorAll('text'),box);\
for(var i=0;i<t.length;i++)for(var j=0;j<i;j++){var a=t[i],c=t[j];if(a.left+1<c.right&&c.left+1<a.right&&a.top+2<c.bottom&&c.top+2<a.bottom)o++}\
t.forEach(function(a){if(a.left<r.left-1||a.right>r.right+1||a.top<r.top-1||a.bottom>r.bottom+1)o++})});\
b.setAttribute('data-charts',n);b.setAttribute('data-overlaps',o);b.setAttribute('data-overflow',d.documentElement.scrollWidth>window.innerWidth+1?1:0)})()</script>\n";

/// The page.
pub fn html(r: &Results) -> String {
    let mut h = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>dmtree {0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n<p>{1}</p>\n<p class=\"note\">{2}</p>\n",
        escaped(&r.experiment),
        escaped(&r.description),
        escaped(&r.note)
    );
    if r.interrupted {
        h += "<p class=\"bad\">Interrupted: only finished cells are shown.</p>\n";
    }
    if let Some(f) = &r.failure {
        h += &format!("<p class=\"bad\">Ended early: {}</p>\n", escaped(f));
    }
    h += &tables::facts(r);
    h += &tables::verdict(r);
    let series = series(r);
    for d in r.distributions() {
        let cells: Vec<&Cell> = r.cells.iter().filter(|c| c.distribution == d).collect();
        h += &format!("<h2>{}</h2>\n", escaped(&d));
        h += &legend(r, &series);
        h += &charts(&cells, &series);
        h += &tables::cells(r, &cells);
    }
    if let Some(gains) = &r.gains {
        h += &gains.html();
    }
    h += &tables::steps(r);
    h += &tables::resources(r);
    h += &tables::memory(r);
    h += &tables::errors(r);
    h += &tables::settings(r);
    h + PROBE + "</body></html>\n"
}

/// What is varied, and where a cell stands: `threads=12` is ("threads", "12"). Of several settings the last is the axis, the
/// others name the series.
fn place(c: &Cell) -> Option<(String, String, String)> {
    let variant = c.variant.as_deref()?;
    let (before, last) = variant.rsplit_once(' ').unwrap_or(("", variant));
    // A value may hold spaces itself.
    let (before, last) = if last.contains('=') && !last.starts_with(char::is_numeric) {
        (before, last)
    } else {
        ("", variant)
    };
    let (axis, value) = last.split_once('=')?;
    Some((before.to_owned(), axis.to_owned(), value.to_owned()))
}

/// Where a value lies on an axis: a size, or the last number in it.
fn position(value: &str) -> f64 {
    if let Ok(bytes) = value.parse::<crate::bytes::Bytes>() {
        return bytes.0 as f64;
    }
    let digits = |c: char| !(c.is_ascii_digit() || c == '.');
    value.split(digits).filter_map(|n| n.trim_matches('.').parse().ok()).next_back().unwrap_or(0.0)
}

/// A value as it stands under an axis: the range `uniform(1..=100)` as `1-100`.
fn short(value: &str) -> String {
    let inner = value.strip_prefix("uniform(").and_then(|v| v.strip_suffix(')'));
    inner.map_or_else(|| value.to_owned(), |v| v.replace("..=", "-"))
}

/// The series' names of a cell: its system, and what is varied besides the axis.
fn series_of(c: &Cell) -> String {
    let mark = if c.published { " (as published)" } else { "" };
    match place(c) {
        Some((before, ..)) if !before.is_empty() => format!("{}{mark}, {before}", c.system),
        _ => format!("{}{mark}", c.system),
    }
}

/// All series of the results, in the order in which they appear: the order of the colours.
fn series(r: &Results) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for c in &r.cells {
        let name = series_of(c);
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

fn legend(r: &Results, series: &[String]) -> String {
    let mut h = "<p class=\"legend\">".to_owned();
    for (i, name) in series.iter().enumerate() {
        h += &format!(
            "<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>",
            colour(i),
            escaped(name)
        );
    }
    if r.cells.iter().any(|c| c.published_figure.is_some()) {
        let shape = if r.cells.iter().any(|c| c.variant.is_some()) {
            "<b>&#9671;</b> published, in the colour of the system that stands for it"
        } else {
            "<i class=\"line\"></i>published"
        };
        h += &format!("<span>{shape}</span>");
    }
    h + "</p>\n"
}

/// What a chart takes from a cell; nothing where it means nothing.
struct Figure {
    heading: &'static str,
    axis: &'static str,
    field: &'static str,
    of: fn(&Cell) -> Option<f64>,
    mark: fn(&Cell) -> Option<f64>,
}

const FIGURES: [Figure; 3] = [
    Figure {
        heading: "Throughput",
        axis: "million operations / s",
        field: "mops",
        of: |c| Some(c.mops),
        mark: |c| c.published_figure.as_ref().map(|p| p.mops),
    },
    Figure {
        heading: "Latency, 99th percentile",
        axis: "microseconds",
        field: "p99_us",
        of: |c| (!c.saturated()).then_some(c.p99_ns as f64 / 1e3),
        mark: |_| None,
    },
    Figure {
        heading: "Dependent round trips",
        axis: "per operation",
        field: "round_trips",
        of: |c| Some(c.round_trips),
        mark: |_| None,
    },
];

/// Charts of cells: for each figure one per workload, bars, or curves where a setting varies.
fn charts(cells: &[&Cell], series: &[String]) -> String {
    let mut h = String::new();
    let mut workloads: Vec<&str> = Vec::new();
    for c in cells {
        if !workloads.contains(&c.workload.as_str()) {
            workloads.push(&c.workload);
        }
    }
    // Figures of few charts stand beside each other.
    h += "<div class=\"panels\">\n";
    for f in &FIGURES {
        h += &format!("<div><h3>{}</h3>\n<div class=\"panels\">\n", f.heading);
        for w in &workloads {
            let mine: Vec<&Cell> = cells.iter().copied().filter(|c| c.workload == *w).collect();
            h += &match mine.iter().find_map(|c| place(c)) {
                Some((_, axis, _)) => curves(w, f, &mine, series, &axis).svg(),
                None => bars(w, f, &mine, series).svg(),
            };
        }
        h += "</div></div>\n";
    }
    h + "</div>\n"
}

fn number_of(series: &[String], name: &str) -> usize {
    series.iter().position(|s| s == name).unwrap_or(0)
}

fn bars(workload: &str, f: &Figure, cells: &[&Cell], series: &[String]) -> Bars {
    let bar = |c: &&Cell| {
        let name = series_of(c);
        Some(Bar {
            colour: colour(number_of(series, &name)),
            name,
            value: (f.of)(c)?,
            mark: (f.mark)(c),
            source: Source { cell: c.key(), field: f.field },
        })
    };
    Bars {
        title: workload.to_owned(),
        axis: f.axis.to_owned(),
        bars: cells.iter().filter_map(bar).collect(),
    }
}

fn curves(workload: &str, f: &Figure, cells: &[&Cell], series: &[String], axis: &str) -> Curves {
    let point = |c: &&Cell| {
        let (_, _, value) = place(c)?;
        Some(Point {
            x: position(&value),
            label: short(&value),
            value: (f.of)(c)?,
            mark: (f.mark)(c),
            source: Source { cell: c.key(), field: f.field },
        })
    };
    let one = |(i, name): (usize, &String)| {
        let mine = cells.iter().filter(|c| series_of(c) == *name);
        let mut points: Vec<Point> = mine.filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        (!points.is_empty()).then(|| Curve { name: name.clone(), colour: colour(i), points })
    };
    Curves {
        title: workload.to_owned(),
        axis: f.axis.to_owned(),
        across: across(axis, cells.iter().any(|c| c.sim.is_some())).to_owned(),
        curves: series.iter().enumerate().filter_map(one).collect(),
    }
}

/// The name of a setting with its unit.
fn across(setting: &str, simulated: bool) -> &str {
    match setting {
        "threads" if simulated => "threads of each compute node",
        "coroutines" => "coroutines of a thread",
        "cns" => "compute nodes",
        "mns" => "memory nodes",
        "keys" => "keys",
        "value-size" => "bytes of a value",
        "scan-length" => "pairs that a scan asks for",
        "cache-bytes" => "cache of a compute node",
        "cache-at-billion" => "cache of a node, at 1e9 keys",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_places() {
        assert_eq!(position("uniform(1..=100)"), 100.0);
        assert_eq!(position("12"), 12.0);
        assert_eq!(position("7.5GB"), 7.5e9);
        assert_eq!((short("uniform(1..=10)"), short("8")), ("1-10".to_owned(), "8".to_owned()));
    }
}
