//! Prints a failing case as text: the operations with their times and results.

use std::fmt::Write as _;

use crate::case::Case;
use crate::history::Op;
use crate::log::{Answer, Record, Wrong};
use crate::verdict::{Finding, Verdict};

/// At most this many operations are printed; the last ones count.
const MOST_LINES: usize = 80;

/// The operations with client, times and results. For a history that is not linearizable, only
/// those of the key.
pub fn trace(case: &Case, verdict: &Verdict) -> String {
    let mut out = String::new();
    let Some(finding) = &verdict.finding else { return out };
    let _ = writeln!(
        out,
        "{} clients on {} compute nodes, {} memory nodes; fabric faults {}",
        (0..case.total()).filter(|c| !case.numbers_of(*c).is_empty()).count(),
        case.pool.compute_nodes,
        case.pool.memory_nodes,
        fabric_faults(case)
    );
    let records = verdict.log.records();
    let concerns = |r: &&Record| {
        let (low, high) = r.call.range();
        key_of(finding).is_none_or(|key| (low..=high).contains(&key))
    };
    let shown: Vec<&Record> = records.iter().filter(concerns).collect();
    if shown.len() > MOST_LINES {
        let _ = writeln!(out, "  ... {} operations before", shown.len() - MOST_LINES);
    }
    let marked = marked(finding, records);
    for r in shown.iter().skip(shown.len().saturating_sub(MOST_LINES)) {
        let mark = if marked == Some(r.called) { '>' } else { ' ' };
        let cn = r.client % u32::from(case.pool.compute_nodes);
        let client = match r.client < case.total() {
            true => format!("c{} cn{cn}", r.client),
            false => "at the end".to_owned(),
        };
        let _ = writeln!(out, "{mark} {}  {client:10}  {}", span(r), what(finding, r));
    }
    let _ = write!(out, "{}: {}", finding.kind(), said(finding, records));
    out
}

fn fabric_faults(case: &Case) -> String {
    let value = serde_json::to_value(case.fabric_faults).unwrap_or_default();
    let none = serde_json::to_value(dmtree_fabric::sim::FabricFaults::NONE).unwrap_or_default();
    let on = value.as_object().into_iter().flatten().filter(|(name, v)| none[name.as_str()] != **v);
    let on: Vec<String> = on.map(|(name, v)| format!("{name}={v}")).collect();
    if on.is_empty() { "none".to_owned() } else { on.join(" ") }
}

fn span(r: &Record) -> String {
    let us = |ns: u64| format!("{:.3}", ns as f64 / 1000.0);
    let end =
        r.ret.as_ref().map_or("          ?".to_owned(), |ret| format!("{:>11}", us(ret.at_ns)));
    format!("{:>11} to {end} us", us(r.called_ns))
}

/// The key that a finding is about.
fn key_of(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::History(Wrong::Order { key, .. }) => Some(*key),
        _ => None,
    }
}

/// The call and its answer; of a scan, its answer for the key.
fn what(finding: &Finding, r: &Record) -> String {
    let Some(ret) = &r.ret else { return format!("{} -> (has not returned)", r.call) };
    if let (Some(key), Answer::Pairs(pairs)) = (key_of(finding), &ret.answer) {
        let found = pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        return format!("{} -> k{key} {}", r.call, Answer::Found(found));
    }
    format!("{} -> {}", r.call, ret.answer)
}

/// The call time of the operation that a finding names.
fn marked(finding: &Finding, records: &[Record]) -> Option<u64> {
    match finding {
        Finding::History(Wrong::Order { violation, .. }) => Some(violation.op.call),
        Finding::History(Wrong::Answer { record, .. }) => records.get(*record).map(|r| r.called),
        _ => None,
    }
}

/// A finding in words that fit the trace.
fn said(finding: &Finding, records: &[Record]) -> String {
    let Finding::History(Wrong::Order { key, violation }) = finding else {
        return finding.to_string();
    };
    let named = |op: &Op| {
        let record = records.iter().find(|r| r.called == op.call);
        record.map_or(format!("{:?}", op.event), |r| format!("c{} {}", r.client, what(finding, r)))
    };
    let running: Vec<String> = violation.running.iter().map(named).collect();
    let with = if running.is_empty() {
        String::new()
    } else {
        format!("; running with it: {}", running.join("; "))
    };
    format!("no order of the operations on k{key} explains {}{with}", named(&violation.op))
}
