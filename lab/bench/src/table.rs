//! Results as text for a terminal.

use comfy_table::{CellAlignment, LineStyle, TableStyle};

use crate::bytes::Bytes;
use crate::config::Resolved;
use crate::published::Reference;
use crate::results::{Cell, Machine, MemoryFigures, Results, SplitFigures, distinct, note};
use crate::simulated::{Busiest, CpuSource};

/// Columns of text, some left-aligned, the others right-aligned.
#[derive(Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// A table with this head; the first `left` columns are left-aligned.
    pub fn new(head: &[&str], left: usize) -> Self {
        let style = TableStyle::new().header_separator(LineStyle::none().fill('-'));
        let mut t = comfy_table::Table::new();
        t.load_style(style).set_header(head);
        for (i, column) in t.column_iter_mut().enumerate() {
            let right = if i + 1 < head.len() { 2 } else { 0 };
            column.set_padding((0, right));
            if i >= left {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(t)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }

    /// The text, with a line under the head.
    pub fn text(&self) -> String {
        self.0.trim_fmt() + "\n"
    }
}

/// A time with a unit that suits its size.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..100_000 => format!("{:.2}us", ns as f64 / 1e3),
        100_000..10_000_000 => format!("{:.0}us", ns as f64 / 1e3),
        _ => format!("{:.1}ms", ns as f64 / 1e6),
    }
}

/// Millions per second with the significant digits.
pub fn mops(v: f64) -> String {
    match v {
        10.0.. => format!("{v:.2}"),
        0.1.. => format!("{v:.3}"),
        0.0 => "0".to_owned(),
        _ => format!("{v:.5}"),
    }
}

/// The header of a run: system, machine and settings.
pub fn header(r: &Resolved, machine: &Machine) -> String {
    let c = &r.config;
    let limit = match (c.ops, c.duration, c.budget) {
        (_, _, Some(s)) => format!("{s} s for all cells"),
        (Some(n), _, None) => format!("{n} operations per cell"),
        (None, Some(s), None) => format!("{s} s per cell"),
        (None, None, None) => "no limit".to_owned(),
    };
    let mut out = format!("{}: {}\n  {}\n", r.name, r.description, note(c));
    let per = if c.simulated() { " per compute node" } else { "" };
    out += &format!(
        "  {} compute nodes, {} memory nodes; {} keys ({}), values of {} bytes; {} threads x {} coroutines{per}; load {}; {limit}; seed {}\n",
        c.cns, c.mns, c.keys, c.key_form, c.value_size, c.threads, c.coroutines, c.load, c.seed
    );
    for own in &c.cells {
        out += &format!("  {}\n", own.described());
    }
    out += &format!(
        "  dmtree {}, config {}, {} ({} cores)\n",
        env!("CARGO_PKG_VERSION"),
        c.hash(),
        machine.cpu,
        machine.cores
    );
    out
}

/// All cells, with a table per distribution, then memory, then errors.
pub fn render(r: &Results) -> String {
    let mut out = String::new();
    let columns = columns(r);
    for d in r.groups() {
        let table = table_of((&columns, 2), r.cells.iter().filter(|c| c.group() == d));
        out += &format!("{d} (per operation: round trips RT, verbs, bytes)\n{table}\n");
    }
    if let Some(p) = &r.published {
        out += &format!("published: {}\n", p.source);
        if !p.without_counterpart.is_empty() {
            out += &format!(
                "  its rows without a system here: {}\n",
                p.without_counterpart.join(", ")
            );
        }
        let outside = r.outside();
        let judged = r.cells.iter().filter_map(|c| c.published_figure.as_ref()?.bounds).count();
        out += &format!("  {} of {judged} cells with bounds lie outside of them\n", outside.len());
        for c in outside {
            if let Some(f) = &c.published_figure {
                out += &format!("    {}: {}: {}\n", c.key(), f.text(), f.why());
            }
        }
        out.push('\n');
    }
    if let Some(gains) = &r.gains {
        out += &gains.text();
    }
    out += &crate::matched::text(&r.matched);
    if r.cells.iter().any(Cell::saturated) {
        out += &format!("{}\n\n", r.saturated_means);
    }
    out += &steps(r);
    let with_memory = r.cells.iter().filter_map(|c| Some((c, c.memory.as_ref()?)));
    out += &format!("memory\n{}", table_of((&memory_columns(), 2), with_memory));
    for (c, series) in r.cells.iter().filter_map(|c| Some((c, c.series.as_ref()?))) {
        out += &format!("\n{}: {}\n", c.key(), series.text());
    }
    for c in r.cells.iter().filter(|c| c.foretold_keys > 0) {
        out += &format!("\n{}: foretold {} keys of its inserts\n", c.key(), c.foretold_keys);
    }
    for c in r.cells.iter().filter(|c| c.cpu == CpuSource::Measured) {
        let what = "its CPU time is that of its code on this machine, which varies from run to run";
        out += &format!("\n{}: {what}\n", c.key());
    }
    for c in r.cells.iter().filter(|c| c.cpu == CpuSource::Counted) {
        let what = "its CPU time is that of its instructions, as docs/instructions.md counts them, at the profile's rate";
        out += &format!("\n{}: {what}\n", c.key());
    }
    for c in r.cells.iter().filter(|c| c.cpu == CpuSource::Free) {
        let what = "the index charges no CPU, so this is an upper bound";
        out += &format!("\n{}: {what}; --cpu measured charges what its code takes\n", c.key());
    }
    for c in r.cells.iter().filter(|c| c.errors > 0) {
        out += &format!("\n{} errors in {}:\n", c.errors, c.key());
        for s in &c.error_samples {
            out += &format!("  {s}\n");
        }
    }
    if r.interrupted {
        out += "\ninterrupted: only finished cells are shown\n";
    }
    out
}

fn short(distribution: &str) -> &str {
    distribution.split(['-', '(']).next().unwrap_or(distribution)
}

/// A column: its head and its text for a row.
pub(crate) type Column<T> = (&'static str, fn(T) -> String);

/// The text of a table of these columns, the first `left` of them left-aligned.
pub(crate) fn table_of<T: Copy>(
    (columns, left): (&[Column<T>], usize),
    rows: impl IntoIterator<Item = T>,
) -> String {
    let head: Vec<&str> = columns.iter().map(|c| c.0).collect();
    let mut t = Table::new(&head, left);
    rows.into_iter().for_each(|row| t.row(columns.iter().map(|column| (column.1)(row)).collect()));
    t.text()
}

fn memory_columns<'r>() -> [Column<(&'r Cell, &'r MemoryFigures)>; 14] {
    [
        ("system", |(c, _)| c.label()),
        ("workload", |(c, _)| format!("{} {}", c.workload, short(&c.distribution))),
        ("keys", |(_, m)| m.keys.to_string()),
        ("B/key on MN", |(_, m)| format!("{:.1}", m.mn_bytes_per_key)),
        ("B/key tables", |(_, m)| format!("{:.1}", m.table_bytes_per_key)),
        ("MiB on MN", |(_, m)| {
            format!("{:.1}", m.mn_bytes_per_key * m.keys as f64 / f64::from(1 << 20))
        }),
        ("B/cached key on CN", |(_, m)| format!("{:.1}", m.cn_bytes_per_cached_key)),
        ("cached", |(_, m)| format!("{:.0}%", m.cached_share * 100.0)),
        ("hits", |(_, m)| format!("{:.1}%", m.cache_hit_rate * 100.0)),
        ("cache used", |(_, m)| {
            let kib = |bytes: u64| Bytes(bytes >> 10 << 10).to_string();
            let parts = m.cache_parts.iter().map(|(name, bytes)| format!("{name} {}", kib(*bytes)));
            let parts = parts.collect::<Vec<_>>().join(", ");
            let used = kib(m.cache_used_bytes);
            if parts.is_empty() { used } else { format!("{used}: {parts}") }
        }),
        ("levels", |(_, m)| m.levels.to_string()),
        ("B/leaf besides pairs", |(_, m)| {
            m.leaf_metadata.map_or("-".to_owned(), |bytes| format!("{bytes:.0}"))
        }),
        ("peak MiB", |(_, m)| m.peak().map_or("-".to_owned(), |(mib, _)| format!("{mib:.0}"))),
        ("of held", |(_, m)| m.peak().map_or("-".to_owned(), |(_, times)| format!("{times:.2}x"))),
    ]
}

fn columns(r: &Results) -> Vec<Column<&Cell>> {
    let mut out: Vec<Column<&Cell>> = vec![
        ("system", Cell::label),
        ("workload", |c| c.workload.clone()),
        ("Mops", |c| if c.mops_summary.rounds > 1 { c.mops_summary.text() } else { mops(c.mops) }),
    ];
    if r.cells.iter().any(|c| c.published_figure.is_some()) {
        out.push(("published", |c| {
            c.published_figure.as_ref().map_or("-".to_owned(), |p| mops(p.mops))
        }));
        out.push(("ratio", |c| {
            c.published_figure.as_ref().map_or("-".to_owned(), Reference::text)
        }));
    }
    if r.cells.iter().any(|c| c.drain.is_some()) {
        out.push(("to drain", |c| c.drain.map_or("-".to_owned(), |d| mops(d.mops))));
        out.push(("drain s", |c| c.drain.map_or("-".to_owned(), |d| format!("{:.3}", d.seconds))));
        out.push(("limit", |c| limit(c).to_owned()));
    }
    out.push(("p50", |c| percentile(c, c.latency.p50_ns)));
    out.push(("p90", |c| percentile(c, c.latency.p90_ns)));
    out.push(("p99", |c| percentile(c, c.latency.p99_ns)));
    out.push(("p99.9", |c| percentile(c, c.latency.p999_ns)));
    out.push(("RT", |c| format!("{:.2}", c.round_trips)));
    out.push(("RT p99", |c| c.round_trips_p99.to_string()));
    out.push(("MN verbs", |c| format!("{:.2}", c.mn.verbs())));
    out.push(("CN verbs", |c| format!("{:.2}", c.cn.verbs())));
    out.push(("MN bytes", |c| format!("{:.0}", c.mn.bytes())));
    out.push(("CN bytes", |c| format!("{:.0}", c.cn.bytes())));
    if r.cells.iter().any(|c| c.sim.is_some()) {
        out.push(("busiest", |c| {
            let busiest = c.sim.as_ref().and_then(|s| s.busiest.as_ref());
            busiest.map_or("-".to_owned(), Busiest::text)
        }));
    }
    let mn_cpu = |c: &Cell| c.sim.as_ref().map_or(0.0, |s| s.mn_cpu_ns_per_op);
    if r.cells.iter().any(|c| mn_cpu(c) > 0.0) {
        out.push(("MN CPU ns", |c| {
            let ns = c.sim.as_ref().map_or(0.0, |s| s.mn_cpu_ns_per_op);
            format!("{ns:.0}")
        }));
    }
    if r.cells.iter().any(|c| c.splits.is_some()) {
        out.push(("splits", |c| splits(c, |s| s.per_insert)));
        out.push(("full at", |c| splits(c, |s| s.load_factor)));
    }
    out.push(("combined", |c| c.combined.to_string()));
    out.push(("errors", |c| c.errors.to_string()));
    out
}

/// What limits a phase.
fn limit(c: &Cell) -> &'static str {
    c.sim.as_ref().and_then(|s| s.busiest.as_ref()).map_or("-", Busiest::limit)
}

/// A figure of the leaves that inserts divided, per cent; `-` where there is none.
fn splits(c: &Cell, of: fn(&SplitFigures) -> f64) -> String {
    let figure = c.splits.as_ref().map(of).filter(|share| *share > 0.0);
    figure.map_or("-".to_owned(), |share| format!("{:.2}%", share * 100.0))
}

/// Time of operations by step, if it was measured.
fn steps(r: &Results) -> String {
    let all = || r.cells.iter().flat_map(|c| c.steps_ns.iter().map(move |(kind, s)| (c, kind, s)));
    let names = distinct(all().flat_map(|(_, _, s)| s.keys().map(String::as_str)));
    if names.is_empty() {
        return String::new();
    }
    let mut head = vec!["system", "operation"];
    head.extend(&names);
    let mut t = Table::new(&head, 2);
    for (c, kind, steps) in all() {
        let mut row = vec![c.label(), kind.clone()];
        row.extend(
            names.iter().map(|n| steps.get(*n).map_or("-".to_owned(), |ns| format!("{ns:.0}"))),
        );
        t.row(row);
    }
    format!("time of an operation by step, ns (of scans: by page)\n{}\n", t.text())
}

/// A percentile; or `saturated` if the system does not keep up with its load.
fn percentile(c: &Cell, ns: u64) -> String {
    if c.saturated() { "saturated".to_owned() } else { time(ns) }
}

/// One line for a cell that was just measured.
pub fn line(c: &Cell) -> String {
    let ratio = c.published_figure.as_ref().map(|p| format!("  ratio {}", p.text()));
    format!(
        "{:<24} {:<10} {:<22} {:>8} Mops  p50 {:>8}  p99 {:>8}  RT {:.2}  errors {}{}",
        c.label(),
        c.workload,
        c.distribution,
        mops(c.mops),
        percentile(c, c.latency.p50_ns),
        percentile(c, c.latency.p99_ns),
        c.round_trips,
        c.errors,
        ratio.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&["a", "b"], 1);
        t.row(vec!["long".into(), "1".into()]);
        assert_eq!(t.text(), "a     b\n-------\nlong  1\n");
        assert_eq!(time(999), "999ns");
        assert_eq!(
            (time(1500), time(250_000), time(12_000_000)),
            ("1.50us".into(), "250us".into(), "12.0ms".into())
        );
    }
}
