//! What the charts of a report show: figures of cells, as bars, or as curves over a setting that varies.

use crate::panel::{Bar, Bars, Curve, Curves, Panel, Point, Source, colour};
use crate::results::{Cell, Results};

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
pub fn series(r: &Results) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for c in &r.cells {
        let name = series_of(c);
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// What a chart takes from a cell; nothing where it means nothing.
pub struct Figure {
    /// What it shows.
    pub heading: &'static str,
    /// The same in names of files.
    pub stem: &'static str,
    axis: &'static str,
    field: &'static str,
    of: fn(&Cell) -> Option<f64>,
    mark: fn(&Cell) -> Option<f64>,
}

/// The figures of every report.
pub const FIGURES: [Figure; 3] = [
    Figure {
        heading: "Throughput",
        stem: "throughput",
        axis: "million operations / s",
        field: "mops",
        of: |c| Some(c.mops),
        mark: |c| c.published_figure.as_ref().map(|p| p.mops),
    },
    Figure {
        heading: "Latency, 99th percentile",
        stem: "p99",
        axis: "microseconds",
        field: "p99_us",
        of: |c| (!c.saturated()).then_some(c.p99_ns as f64 / 1e3),
        mark: |_| None,
    },
    Figure {
        heading: "Dependent round trips",
        stem: "round_trips",
        axis: "per operation",
        field: "round_trips",
        of: |c| Some(c.round_trips),
        mark: |_| None,
    },
];

impl Figure {
    /// One chart per workload of these cells: bars, or curves where a setting varies.
    pub fn panels(&self, cells: &[&Cell], series: &[String]) -> Vec<Panel> {
        let mut workloads: Vec<&str> = Vec::new();
        for c in cells {
            if !workloads.contains(&c.workload.as_str()) {
                workloads.push(&c.workload);
            }
        }
        let panel = |w: &&str| {
            let mine: Vec<&Cell> = cells.iter().copied().filter(|c| c.workload == **w).collect();
            match mine.iter().find_map(|c| place(c)) {
                Some((_, axis, _)) => curves(w, self, &mine, series, &axis).panel(),
                None => bars(w, self, &mine, series).panel(),
            }
        };
        workloads.iter().map(panel).collect()
    }
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
