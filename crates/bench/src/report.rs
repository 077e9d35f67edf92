//! One page to look at: charts, tables, settings. Needs no network.

use crate::config::Config;
use crate::results::{Cell, Results};
use crate::svg::{charts, escaped};
use crate::table::{mops, time};

const STYLE: &str = "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse;margin:1em 0}\
td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child,td.l{text-align:left}\
.note{background:#fff4d6;padding:.5em 1em}.bad{color:#b00020}pre{background:#f4f4f4;padding:1em;overflow:auto}svg{max-width:100%;height:auto}";

/// The page.
pub fn html(r: &Results) -> String {
    let mut h = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>dmtree {0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n<p>{1}</p>\n<p class=\"note\">{2}</p>\n",
        escaped(&r.experiment),
        escaped(&r.description),
        escaped(&r.note)
    );
    if r.interrupted {
        h += "<p class=\"bad\">Interrupted: only finished cells are shown.</p>\n";
    }
    for (_, chart) in charts(r) {
        h += &chart.svg();
    }
    for d in r.distributions() {
        h += &format!("<h2>{}</h2>\n", escaped(&d));
        h += "<table><tr><th>system</th><th>workload</th><th>Mops</th><th>p50</th><th>p99</th><th>p99.9</th><th>round trips</th><th>MN verbs</th><th>CN verbs</th><th>MN bytes</th><th>CN bytes</th><th>combined</th><th>errors</th></tr>\n";
        for c in r.cells.iter().filter(|c| c.distribution == d) {
            h += &cell_row(c);
        }
        h += "</table>\n";
    }
    h += "<h2>Memory</h2>\n<table><tr><th>system</th><th>workload</th><th>keys</th><th>bytes per key on memory nodes</th><th>of tables</th><th>per cached key on a compute node</th><th>cached</th><th>hit rate</th></tr>\n";
    for c in &r.cells {
        if let Some(m) = &c.memory {
            h += &format!(
                "<tr><td>{}</td><td class=\"l\">{}, {}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.0} %</td><td>{:.1} %</td></tr>\n",
                escaped(&c.label()),
                escaped(&c.workload),
                escaped(&c.distribution),
                m.keys,
                m.mn_bytes_per_key,
                m.table_bytes_per_key,
                m.cn_bytes_per_cached_key,
                m.cached_share * 100.0,
                m.cache_hit_rate * 100.0
            );
        }
    }
    h += "</table>\n<h2>Settings</h2>\n";
    h += &format!(
        "<p>Seed {}, configuration {}, dmtree {}, {} ({} cores, {}), made at {} s since 1970.</p>\n",
        r.seed,
        escaped(&r.config_hash),
        escaped(&r.version),
        escaped(&r.machine.cpu),
        r.machine.cores,
        escaped(&r.machine.os),
        r.created_unix
    );
    h += &format!("<pre>{}</pre>\n</body></html>\n", escaped_lines(&config_json(&r.config)));
    h
}

fn config_json(c: &Config) -> String {
    serde_json::to_string_pretty(c).unwrap_or_default()
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

fn cell_row(c: &Cell) -> String {
    let bad = if c.errors > 0 { " class=\"bad\"" } else { "" };
    let m = if c.mops_summary.rounds > 1 { c.mops_summary.text() } else { mops(c.mops) };
    format!(
        "<tr><td>{}</td><td class=\"l\">{}</td><td>{m}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{:.0}</td><td>{:.0}</td><td>{}</td><td{bad}>{}</td></tr>\n",
        escaped(&c.label()),
        escaped(&c.workload),
        time(c.p50_ns),
        time(c.p99_ns),
        time(c.p999_ns),
        c.round_trips,
        c.mn.verbs(),
        c.cn.verbs(),
        c.mn.bytes(),
        c.cn.bytes(),
        c.combined,
        c.errors
    )
}
