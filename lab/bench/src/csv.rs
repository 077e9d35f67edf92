//! `cells.csv`: a row for every cell, with what the tables of the terminal and of the page show of
//! it. Numbers are unrounded, and a figure that a cell does not have is an empty field.

use crate::place::SEED;
use crate::results::{Cell, MemoryFigures, Results, Side, distinct};
use crate::simulated::{Busiest, SimFigures};

/// The name of the file.
pub const CELLS: &str = "cells.csv";

/// A column: its name, what it is, and its text for a cell.
type Column = (&'static str, &'static str, fn(&Results, &Cell) -> String);

/// The columns that every file has, in their order. Behind them are the settings that vary, as
/// `swept_NAME`.
#[rustfmt::skip] // one line each: `cargo xtask fields` makes the table of the document of them
const COLUMNS: [Column; 77] = [
    ("experiment", "The experiment.", |r, _| r.experiment.clone()),
    ("commit", "The commit of the program; with `+` where its sources had changes that were not committed.", |r, _| some(r.commit.as_ref())),
    ("version", "The version of the program.", |r, _| r.version.clone()),
    ("created_unix", "Time of the run, seconds since 1970.", |r, _| r.created_unix.to_string()),
    ("config_hash", "XXH3-64 of the settings.", |r, _| r.config_hash.clone()),
    ("seed", "The seed of the cell.", |r, c| swept(c, SEED).map_or_else(|| r.seed.to_string(), str::to_owned)),
    ("fabric", "The fabric.", |_, c| c.fabric.clone()),
    ("profile", "The profile of the simulated fabric.", |r, _| some(r.config.profile.as_ref().map(|p| &p.name))),
    ("profile_set", "Its fields with other values, `FIELD=VALUE` behind spaces.", profile_set),
    ("system", "The system.", |_, c| c.system.clone()),
    ("family", "Its family.", |_, c| c.family.clone()),
    ("as_published", "Whether it is as published: layouts, verbs and unsoundness included.", |_, c| c.published.to_string()),
    ("cpu", "Where CPU time has come from on the simulated fabric: `charged`, `measured`, `counted` or `free`.", |_, c| some(c.sim.as_ref().map(|_| format!("{:?}", c.cpu).to_lowercase()))),
    ("foretold_keys", "Keys of inserts that the index was told of before it was loaded.", |_, c| c.foretold_keys.to_string()),
    ("workload", "The workload.", |_, c| c.workload.clone()),
    ("distribution", "The distribution that was asked for.", |_, c| c.distribution.clone()),
    ("law", "The one in effect: the workload's own, if it has one.", |_, c| c.law.clone()),
    ("loaded_keys", "Keys loaded before the cell.", |_, c| c.loaded_keys.to_string()),
    ("clients", "Clients of all compute nodes.", |_, c| c.clients.to_string()),
    ("rounds", "How often the cell was measured.", |_, c| c.rounds.len().to_string()),
    ("mops", "Million operations per second, the average over rounds.", |_, c| c.mops.to_string()),
    ("mops_min", "The lowest of several rounds.", |_, c| some(c.mops_summary.min)),
    ("mops_max", "The highest of several rounds.", |_, c| some(c.mops_summary.max)),
    ("mops_half_width_95", "Half the width of the 95 % interval of five rounds and more.", |_, c| some(c.mops_summary.half_width_95)),
    ("published_mops", "The published figure.", |_, c| some(c.published_figure.as_ref().map(|p| p.mops))),
    ("published_ratio", "The ratio to it.", |_, c| some(c.published_figure.as_ref().map(|p| p.ratio))),
    ("offered_per_s", "Offered operations per second of an open load.", |_, c| some(c.open.map(|o| o.offered_per_s))),
    ("saturated", "Whether the system did not keep up with it; latencies then say nothing.", |_, c| some(c.open.map(|o| o.saturated))),
    ("drained_mops", "Million operations per second up to the end of the work that was due.", |_, c| some(c.drain.map(|d| d.mops))),
    ("drain_s", "Seconds of that work.", |_, c| some(c.drain.map(|d| d.seconds))),
    ("limit", "What limits the cell: `merge`, `flush`, `CPU`, `wire`, `NIC`, or `waiting`.", |_, c| some(busiest(c).map(Busiest::limit))),
    ("p50_ns", "Median latency, ns.", |_, c| c.latency.p50_ns.to_string()),
    ("p90_ns", "90th percentile, ns.", |_, c| c.latency.p90_ns.to_string()),
    ("p99_ns", "99th percentile, ns.", |_, c| c.latency.p99_ns.to_string()),
    ("p999_ns", "99.9th percentile, ns.", |_, c| c.latency.p999_ns.to_string()),
    ("round_trips", "Dependent round trips of an operation.", |_, c| c.round_trips.to_string()),
    ("round_trips_p99", "Their 99th percentile; 64 stands for more.", |_, c| c.round_trips_p99.to_string()),
    ("detached", "Lists of an operation that were posted and not awaited.", |_, c| c.detached.to_string()),
    ("doorbells", "Doorbells of an operation.", |_, c| c.doorbells.to_string()),
    ("mn_verbs", "Verbs of an operation towards memory nodes.", |_, c| c.mn.verbs().to_string()),
    ("mn_reads", "READs among them.", |_, c| c.mn.read.to_string()),
    ("mn_writes", "WRITEs among them.", |_, c| c.mn.write.to_string()),
    ("mn_atomics", "Compare-and-swaps and fetch-and-adds among them.", |_, c| c.mn.atomic.to_string()),
    ("mn_calls", "Remote calls of an operation to memory nodes.", |_, c| c.mn.rpc.to_string()),
    ("mn_bytes_read", "Bytes of an operation from memory nodes.", |_, c| c.mn.bytes_read.to_string()),
    ("mn_bytes_written", "Bytes of an operation to memory nodes.", |_, c| c.mn.bytes_written.to_string()),
    ("cn_verbs", "Verbs of an operation towards compute nodes.", |_, c| c.cn.verbs().to_string()),
    ("cn_reads", "READs among them.", |_, c| c.cn.read.to_string()),
    ("cn_writes", "WRITEs among them.", |_, c| c.cn.write.to_string()),
    ("cn_atomics", "Compare-and-swaps and fetch-and-adds among them.", |_, c| c.cn.atomic.to_string()),
    ("cn_calls", "Remote calls of an operation to compute nodes.", |_, c| c.cn.rpc.to_string()),
    ("cn_bytes_read", "Bytes of an operation from compute nodes.", |_, c| c.cn.bytes_read.to_string()),
    ("cn_bytes_written", "Bytes of an operation to compute nodes.", |_, c| c.cn.bytes_written.to_string()),
    ("background_verbs", "Verbs of maintenance and of no operation, for each operation.", |_, c| c.background.verbs().to_string()),
    ("background_bytes", "Their bytes.", |_, c| Side::bytes(&c.background).to_string()),
    ("busiest_node", "The node of the busiest server.", |_, c| some(busiest(c).map(|b| &b.node))),
    ("busiest_server", "That server: `in-wire`, `responder`, `cpu`, ...", |_, c| some(busiest(c).map(|b| &b.server))),
    ("busiest_utilization", "The share of the window that it was busy, 0 to 1.", |_, c| some(busiest(c).map(|b| b.utilization))),
    ("mn_cpu_ns", "Time of cores of memory nodes for each operation, ns.", |_, c| some(c.sim.as_ref().map(|s| s.mn_cpu_ns_per_op))),
    ("trace_hash", "The hash of all events of a simulated cell: equal in every run.", |_, c| some(c.sim.as_ref().map(|s: &SimFigures| &s.trace_hash))),
    ("entries_per_scan", "Pairs that a scan returned.", |_, c| some(c.entries_per_scan)),
    ("splits_per_insert", "Leaves that an insert divided.", |_, c| some(c.splits.map(|s| s.per_insert))),
    ("split_load_factor", "How full these were.", |_, c| some(c.splits.map(|s| s.load_factor))),
    ("ops", "Operations that were measured.", |_, c| c.ops.to_string()),
    ("combined", "Those among them that another client's verb served.", |_, c| c.combined.to_string()),
    ("errors", "Wrong results and failed operations.", |_, c| c.errors.to_string()),
    ("keys", "Keys at the end.", |_, c| memory(c, |m| m.keys.to_string())),
    ("mn_bytes_per_key", "Bytes on memory nodes for each key.", |_, c| memory(c, |m| m.mn_bytes_per_key.to_string())),
    ("table_bytes_per_key", "Bytes of tables for each key, on any nodes.", |_, c| memory(c, |m| m.table_bytes_per_key.to_string())),
    ("cn_bytes_per_cached_key", "Bytes of cache for each key below the cached nodes, of a compute node.", |_, c| memory(c, |m| m.cn_bytes_per_cached_key.to_string())),
    ("cached_share", "Share of the inner nodes in the cache of a compute node.", |_, c| memory(c, |m| m.cached_share.to_string())),
    ("cache_hit_rate", "Share of lookups with a cached bottom node.", |_, c| memory(c, |m| m.cache_hit_rate.to_string())),
    ("cache_used_bytes", "Cache in use on a compute node, bytes.", |_, c| memory(c, |m| m.cache_used_bytes.to_string())),
    ("cache_parts", "What that is, kind by kind, bytes.", |_, c| memory(c, |m| m.cache_parts.iter().map(|(n, b)| format!("{n} {b}")).collect::<Vec<_>>().join("; "))),
    ("levels", "Inner levels.", |_, c| memory(c, |m| m.levels.to_string())),
    ("leaf_metadata_bytes", "Bytes of a leaf besides the pairs of its slots.", |_, c| memory(c, |m| some(m.leaf_metadata))),
    ("peak_bytes", "Most bytes that were resident in the process.", |_, c| memory(c, |m| some(m.peak_bytes))),
];

fn some<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}

fn memory(c: &Cell, of: fn(&MemoryFigures) -> String) -> String {
    c.memory.as_ref().map_or(String::new(), of)
}

fn busiest(c: &Cell) -> Option<&Busiest> {
    c.sim.as_ref()?.busiest.as_ref()
}

/// The settings that vary, with the values of this cell.
fn all_swept(c: &Cell) -> impl Iterator<Item = (&str, &str)> {
    let all = c.place.iter().flat_map(|place| &place.swept);
    all.map(|(name, value)| (name.as_str(), value.as_str()))
}

fn swept<'c>(c: &'c Cell, setting: &str) -> Option<&'c str> {
    all_swept(c).find(|(name, _)| *name == setting).map(|(_, value)| value)
}

/// The fields of the profile with other values, in this cell.
fn profile_set(r: &Results, c: &Cell) -> String {
    let mut set: Vec<String> = r.config.profile.iter().flat_map(|p| p.set.clone()).collect();
    let fields = all_swept(c).filter_map(|(name, v)| Some((name.strip_prefix("profile.")?, v)));
    set.extend(fields.map(|(field, value)| format!("{field}={value}")));
    set.join(" ")
}

/// The text of the file.
pub fn cells(r: &Results) -> String {
    let settings = distinct(r.cells.iter().flat_map(all_swept).map(|(name, _)| name));
    let names = COLUMNS.iter().map(|(name, ..)| (*name).to_owned());
    let more = settings.iter().map(|name| quoted(&format!("swept_{name}")));
    let mut out = names.chain(more).collect::<Vec<_>>().join(",") + "\n";
    for c in &r.cells {
        let fixed = COLUMNS.iter().map(|(.., of)| quoted(&of(r, c)));
        let more = settings.iter().map(|name| quoted(swept(c, name).unwrap_or_default()));
        out += &fixed.chain(more).collect::<Vec<_>>().join(",");
        out.push('\n');
    }
    out
}

/// A field, quoted if necessary.
pub(crate) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
