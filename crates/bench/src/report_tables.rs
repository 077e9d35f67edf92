//! The tables of the report.

use crate::offered::CRITERION;
use crate::panel::Source;
use crate::results::{Cell, Results};
use crate::simulated::NodeUse;
use crate::svg::escaped;
use crate::table::{mops, time};

/// A cell of a table that shows a figure of a cell: the value goes along, unrounded.
fn figure(c: &Cell, field: &'static str, value: f64, text: &str) -> String {
    let source = Source { cell: c.key(), field };
    format!("<td{}>{}</td>", source.attributes(value), escaped(text))
}

fn head(columns: &[&str], left: usize) -> String {
    let cell = |(i, name): (usize, &&str)| {
        let class = if i < left { " class=\"l\"" } else { "" };
        format!("<th{class}>{name}</th>")
    };
    let cells: String = columns.iter().enumerate().map(cell).collect();
    format!("<div class=\"wide\"><table>\n<tr>{cells}</tr>\n")
}

const END: &str = "</table></div>\n";

/// Days since 1970 as a date, UTC (H. Hinnant's algorithm).
fn date(unix_seconds: u64) -> String {
    let z = (unix_seconds / 86_400) as i64 + 719_468;
    let era = z / 146_097;
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let minutes = unix_seconds % 86_400 / 60;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// What was run, on what.
pub(crate) fn facts(r: &Results) -> String {
    let c = &r.config;
    let per = if c.simulated() { " per compute node" } else { "" };
    let mut rows = vec![
        ("nodes", format!("{} compute nodes, {} memory nodes", c.cns, c.mns)),
        (
            "clients",
            format!("{} threads x {} coroutines{per}; load {}", c.threads, c.coroutines, c.load),
        ),
        ("data", format!("{} keys ({}), values of {} bytes", c.keys, c.key_form, c.value_size)),
    ];
    let own = |w: &&dmtree_workload::Workload| {
        c.per_workload.get(w.name()).is_some_and(|o| o.keys.is_some())
    };
    for w in c.workloads.iter().filter(own) {
        let cell = c.for_cell("", w);
        let ops = cell.ops.map(|n| format!(", {n} operations")).unwrap_or_default();
        rows.push(("", format!("{w}: {} keys{ops}", cell.keys)));
    }
    if let Some(p) = &c.profile {
        rows.push(("profile", p.title()));
    }
    let varied: Vec<&str> = r.cells.iter().filter_map(|c| c.variant.as_deref()).collect();
    if let (Some(first), Some(last)) = (varied.first(), varied.last()) {
        rows.push(("varied", format!("from {first} to {last}")));
    }
    rows.push(("seed", r.seed.to_string()));
    rows.push(("rounds", c.rounds.to_string()));
    rows.push(("configuration", r.config_hash.clone()));
    let machine = format!("{} ({} cores, {})", r.machine.cpu, r.machine.cores, r.machine.os);
    rows.push(("made", format!("{} by dmtree {} on {machine}", date(r.created_unix), r.version)));
    if !c.not_built.is_empty() {
        rows.push(("not built yet", format!("{}: not run", c.not_built.join(", "))));
    }
    let row = |(k, v): &(&str, String)| format!("<dt>{k}</dt><dd>{}</dd>", escaped(v));
    format!("<dl>{}</dl>\n", rows.iter().map(row).collect::<String>())
}

/// How the cells compare with what was published.
pub(crate) fn verdict(r: &Results) -> String {
    let Some(p) = &r.published else { return String::new() };
    let judged = r.cells.iter().filter_map(|c| c.published_figure.as_ref()?.bounds).count();
    let outside = r.outside();
    let mut h = format!(
        "<h2>Compared with what was published</h2>\n<p>Published: {}.</p>\n",
        escaped(&p.source)
    );
    if judged > 0 {
        let class = if outside.is_empty() { "fine" } else { "bad" };
        h += &format!(
            "<p class=\"{class}\">{} of the {judged} cells for which the experiment states bounds lie within them.</p>\n",
            judged - outside.len()
        );
    }
    if !outside.is_empty() {
        h += "<ul>";
        for c in outside {
            if let Some(f) = &c.published_figure {
                let (key, why) = (escaped(&c.key()), escaped(f.why()));
                h += &format!("<li class=\"bad\">{key}: ratio {}: {why}</li>", f.text());
            }
        }
        h += "</ul>\n";
    }
    if !p.without_counterpart.is_empty() {
        h += &format!(
            "<p>Its rows without a system here: {}.</p>\n",
            escaped(&p.without_counterpart.join(", "))
        );
    }
    h
}

/// A row for every cell.
pub(crate) fn cells(r: &Results, cells: &[&Cell]) -> String {
    let compared = cells.iter().any(|c| c.published_figure.is_some());
    let simulated = cells.iter().any(|c| c.sim.is_some());
    let mut columns = vec!["system", "workload", "Mops"];
    if compared {
        columns.extend(["published", "ratio"]);
    }
    columns.extend([
        "p50",
        "p90",
        "p99",
        "p99.9",
        "round<br>trips",
        "verbs<br>MN",
        "verbs<br>CN",
        "bytes<br>MN",
        "bytes<br>CN",
    ]);
    if simulated {
        columns.push("busiest server");
    }
    columns.extend(["shared", "errors"]);
    let mut h = head(&columns, 2);
    for c in cells {
        h += &row(c, compared, simulated);
    }
    h += END;
    if cells.iter().any(|c| c.saturated()) {
        h += &format!("<p>{}.</p>\n", escaped(CRITERION));
    }
    if r.config.simulated() && r.config.load == crate::offered::LoadShape::Closed {
        h += "<p>The load is closed: latencies are those of a system driven as hard as its clients can. An open load (<code>--load open:RATE</code>) says more about latency.</p>\n";
    }
    h
}

fn row(c: &Cell, compared: bool, simulated: bool) -> String {
    let m = if c.mops_summary.rounds > 1 { c.mops_summary.text() } else { mops(c.mops) };
    let mut h = format!(
        "<tr><td class=\"l\">{}</td><td class=\"l\">{}</td>{}",
        escaped(&c.label()),
        escaped(&c.workload),
        figure(c, "mops", c.mops, &m)
    );
    if compared {
        h += &match &c.published_figure {
            Some(p) => {
                let class = if p.outside { " class=\"bad\"" } else { "" };
                format!("<td>{}</td><td{class}>{}</td>", mops(p.mops), p.text())
            }
            None => "<td>-</td><td>-</td>".to_owned(),
        };
    }
    let percentile = |field, ns: u64| {
        if c.saturated() {
            "<td>saturated</td>".to_owned()
        } else {
            figure(c, field, ns as f64, &time(ns))
        }
    };
    h += &percentile("p50_ns", c.p50_ns);
    h += &percentile("p90_ns", c.p90_ns);
    h += &percentile("p99_ns", c.p99_ns);
    h += &percentile("p999_ns", c.p999_ns);
    h += &figure(c, "round_trips", c.round_trips, &format!("{:.2}", c.round_trips));
    h += &figure(c, "mn_verbs", c.mn.verbs(), &format!("{:.2}", c.mn.verbs()));
    h += &figure(c, "cn_verbs", c.cn.verbs(), &format!("{:.2}", c.cn.verbs()));
    h += &figure(c, "mn_bytes", c.mn.bytes(), &format!("{:.0}", c.mn.bytes()));
    h += &figure(c, "cn_bytes", c.cn.bytes(), &format!("{:.0}", c.cn.bytes()));
    if simulated {
        let busiest = c.sim.as_ref().and_then(|s| s.busiest.as_ref());
        h +=
            &format!("<td>{}</td>", busiest.map_or_else(|| "-".to_owned(), |b| escaped(&b.text())));
    }
    let bad = if c.errors > 0 { " class=\"bad\"" } else { "" };
    h + &format!("<td>{}</td><td{bad}>{}</td></tr>\n", c.combined, c.errors)
}

/// Time of operations, step by step.
pub(crate) fn steps(r: &Results) -> String {
    let mut names: Vec<&String> = Vec::new();
    for steps in r.cells.iter().flat_map(|c| c.steps_ns.values()) {
        for name in steps.keys() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut columns = vec!["cell", "operation"];
    columns.extend(names.iter().map(|n| n.as_str()));
    columns.push("together");
    let mut h = "<h2>Time of an operation, step by step</h2>\n<p>Nanoseconds of an average operation.</p>\n".to_owned();
    h += &head(&columns, 2);
    for c in &r.cells {
        for (kind, steps) in &c.steps_ns {
            h += &format!(
                "<tr><td class=\"l\">{}</td><td class=\"l\">{}</td>",
                escaped(&c.key()),
                escaped(kind)
            );
            for name in &names {
                h += &format!("<td>{:.0}</td>", steps.get(*name).copied().unwrap_or(0.0));
            }
            h += &format!("<td>{:.0}</td></tr>\n", steps.values().sum::<f64>());
        }
    }
    h + END
}

/// A strip of thin bars: the busy share of each thread.
fn strip(cpu: &[f64]) -> String {
    let mut s = format!(
        "<svg width=\"{0}\" height=\"16\" viewBox=\"0 0 {0} 16\"><rect width=\"100%\" height=\"100%\" fill=\"#eee\"/>",
        cpu.len() * 2
    );
    for (i, share) in cpu.iter().enumerate() {
        let high = 16.0 * share.clamp(0.0, 1.0);
        s += &format!(
            "<rect x=\"{}\" y=\"{:.1}\" width=\"1.5\" height=\"{high:.1}\" fill=\"#0072b2\"/>",
            i * 2,
            16.0 - high
        );
    }
    s + "</svg>"
}

fn node_row(cell: &str, n: &NodeUse) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let cpu = if n.cpu.is_empty() {
        "<td>-</td><td></td>".to_owned()
    } else {
        let low = n.cpu.iter().copied().fold(f64::INFINITY, f64::min);
        let high = n.cpu.iter().copied().fold(0.0, f64::max);
        format!(
            "<td>{:.0} % ({:.0} to {:.0})</td><td class=\"l\">{}</td>",
            n.mean_cpu() * 100.0,
            low * 100.0,
            high * 100.0,
            strip(&n.cpu)
        )
    };
    format!(
        "<tr><td class=\"l\">{}</td><td class=\"l\">{}</td><td>{:.2}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{cpu}</tr>\n",
        escaped(cell),
        n.node,
        n.mverbs,
        n.in_gbps,
        n.out_gbps,
        percent(n.in_wire),
        percent(n.out_wire),
        percent(n.responder),
        percent(n.initiator),
    )
}

/// What nodes did in the measuring windows.
pub(crate) fn resources(r: &Results) -> String {
    if r.cells.iter().all(|c| c.sim.is_none()) {
        return String::new();
    }
    let mut h = "<h2>What the nodes did</h2>\n<p>In the measuring window. Wire rates count headers; a share of 100 % is a server that others wait for. A bar per thread shows its CPU.</p>\n".to_owned();
    for c in &r.cells {
        let Some(sim) = &c.sim else { continue };
        let busiest =
            sim.busiest.as_ref().map(|b| format!(": busiest is {}", b.text())).unwrap_or_default();
        h += &format!("<details><summary>{}{}</summary>\n", escaped(&c.key()), escaped(&busiest));
        h += &head(
            &[
                "cell",
                "node",
                "Mverbs/s<br>served",
                "Gb/s<br>in",
                "Gb/s<br>out",
                "in-wire",
                "out-wire",
                "responder",
                "initiator",
                "CPU of threads",
                "",
            ],
            2,
        );
        h += &sim.nodes.iter().map(|n| node_row(&c.label(), n)).collect::<String>();
        h += END;
        let (from, to) = sim.window_ns;
        h += &format!(
            "<p>Window of {:.3} ms of virtual time with {} operations; trace {}.</p></details>\n",
            (to - from) as f64 / 1e6,
            sim.window_ops,
            sim.trace_hash
        );
    }
    h
}

/// What keys cost in memory.
pub(crate) fn memory(r: &Results) -> String {
    let mut h = "<h2>Memory</h2>\n".to_owned();
    h += &head(
        &[
            "system",
            "workload",
            "keys",
            "bytes per key<br>on memory nodes",
            "of tables,<br>anywhere",
            "MiB on all<br>memory nodes",
            "MiB of cache on<br>a compute node",
            "its budget,<br>MiB",
            "bytes per<br>cached key",
            "cached",
            "hits",
            "process<br>peak, MiB",
            "x held<br>bytes",
        ],
        2,
    );
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    for c in &r.cells {
        let Some(m) = &c.memory else { continue };
        let peak = m.peak().map_or_else(
            || "<td></td><td></td>".to_owned(),
            |(mib, times)| format!("<td>{mib:.0}</td><td>{times:.2}</td>"),
        );
        h += &format!(
            "<tr><td class=\"l\">{}</td><td class=\"l\">{}, {}</td><td>{}</td>{}<td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.0} %</td><td>{:.1} %</td>{peak}</tr>\n",
            escaped(&c.label()),
            escaped(&c.workload),
            escaped(&c.distribution),
            m.keys,
            figure(
                c,
                "mn_bytes_per_key",
                m.mn_bytes_per_key,
                &format!("{:.1}", m.mn_bytes_per_key)
            ),
            m.table_bytes_per_key,
            mib(m.mn_bytes_per_key * m.keys as f64),
            mib(m.cache_used_bytes as f64),
            mib(m.cache_budget_bytes as f64),
            m.cn_bytes_per_cached_key,
            m.cached_share * 100.0,
            m.cache_hit_rate * 100.0
        );
    }
    h + END
}

/// What went wrong.
pub(crate) fn errors(r: &Results) -> String {
    let mut h = String::new();
    for c in r.cells.iter().filter(|c| c.errors > 0) {
        h += &format!("<p class=\"bad\">{} errors in {}</p><ul>", c.errors, escaped(&c.key()));
        for s in &c.error_samples {
            h += &format!("<li>{}</li>", escaped(s));
        }
        h += "</ul>\n";
    }
    h
}

/// All settings, and the profile.
pub(crate) fn settings(r: &Results) -> String {
    let lines = |text: &str| text.lines().map(escaped).collect::<Vec<_>>().join("\n");
    let mut config = r.config.clone();
    let profile = config.profile.take();
    let json = serde_json::to_string_pretty(&config).unwrap_or_default();
    let mut h = format!(
        "<h2>Settings</h2>\n<p>Seed {}, configuration {}.</p>\n<details><summary>All settings</summary><pre>{}</pre></details>\n",
        r.seed,
        escaped(&r.config_hash),
        lines(&json)
    );
    if let Some(p) = profile {
        h += &format!(
            "<details><summary>Profile {}</summary><pre>{}</pre></details>\n",
            escaped(&p.title()),
            lines(&p.toml)
        );
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_276_799), "2026-11-21 15:59 UTC");
    }
}
