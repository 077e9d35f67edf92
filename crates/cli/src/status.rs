//! `status` and `top`: the nodes of a running pool, and what they do.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use dmtree_command::{Failure, Result};
use dmtree_fabric::net::NicConfig;
use dmtree_pool::{AwaitedReport, IndexReport, Latencies, MemberStatus, PoolStatus, WaitReport};

use crate::args::{AskedArgs, StatusArgs, TopArgs};
use crate::{Hangup, clock, output, stop_flag};

/// A membership that has not answered for longer is worth a line, ms.
const SILENT_MS: u64 = 1_000;

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// `status`.
pub fn run(a: &StatusArgs) -> Result<()> {
    let status = ask(&a.pool)?;
    if a.json {
        let text = serde_json::to_string_pretty(&status)
            .map_err(|e| Failure::input(format!("the status has no text: {e}")))?;
        output::line(&text);
    } else {
        output::out(&text(&status, None));
    }
    match trouble(&status) {
        None => Ok(()),
        Some(what) => Err(Failure::violation(what)),
    }
}

/// `top`.
pub fn top(a: &TopArgs) -> Result<()> {
    let stop = stop_flag(Hangup::Ends)?;
    let mut former: Option<(Instant, PoolStatus)> = None;
    for look in 1.. {
        let (now, status) = (clock::now(), ask(&a.pool)?);
        let since = former.as_ref().map(|(then, before)| (now - *then, before));
        let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
        output::out(&format!("{clear}{}", text(&status, since)));
        former = Some((now, status));
        if a.count == Some(look) {
            break;
        }
        if !clock::reaches(now + Duration::from_secs(a.every), &stop) {
            break;
        }
    }
    Ok(())
}

fn ask(a: &AskedArgs) -> Result<PoolStatus> {
    let nic_config = NicConfig::with(a.access.access()?);
    PoolStatus::ask(&a.connect, &nic_config).map_err(Failure::refused)
}

/// What keeps the pool from serving everything.
fn trouble(status: &PoolStatus) -> Option<String> {
    let (ready, all) = (status.ready_memory_nodes, status.memory_nodes);
    if ready < all {
        return Some(format!("the pool waits for its memory nodes: {ready} of {all} are there"));
    }
    let away = status
        .nodes
        .iter()
        .find(|n| ["missing", "lost", "present;"].iter().any(|bad| n.standing.starts_with(bad)));
    away.map(|n| format!("{} is {}", n.node, n.standing))
}

/// The tables; with rates where there is an earlier status.
fn text(status: &PoolStatus, since: Option<(Duration, &PoolStatus)>) -> String {
    let living = status.nodes.iter().filter(|n| n.standing == "living").count();
    let mut out = format!(
        "pool {} of {} on {}: epoch {}, {} of {} memory nodes, {living} of {} compute nodes, {} \
         have died or left{}\n\n",
        status.pool,
        status.first,
        status.fabric,
        status.epoch,
        status.ready_memory_nodes,
        status.memory_nodes,
        status.most_compute_nodes,
        status.deaths,
        if status.moves_tables { "; tables are being moved" } else { "" },
    );
    if status.membership != "mn0" {
        out.insert_str(out.len() - 1, &format!("membership in {}\n", status.membership));
    }
    if status.membership_silent_ms > SILENT_MS {
        out.insert_str(
            out.len() - 1,
            &format!("the membership has not answered for {} ms\n", status.membership_silent_ms),
        );
    }
    let head = ["node", "incarnation", "address", "standing", "lease ms", "links", "memory"];
    out.push_str(&table(&head, status.nodes.iter().map(member)));
    for member in &status.nodes {
        if let Some(trouble) = &member.trouble {
            out.push_str(&format!("{}: {trouble}\n", member.node));
        }
    }
    let insecure: Vec<_> = status.nodes.iter().filter(|n| n.is_insecure).collect();
    if !insecure.is_empty() {
        let names: Vec<_> = insecure.iter().map(|n| n.node.as_str()).collect();
        out.push_str(&format!(
            "INSECURE: whatever can connect to {} reads and changes all of the pool: it has no keys\n",
            names.join(", ")
        ));
    }
    let before = since.map(|(time, before)| (time, indexes(before).collect::<BTreeMap<_, _>>()));
    let rows: Vec<_> = indexes(status)
        .map(|(at, report)| {
            let before = before.as_ref().and_then(|(t, all)| Some((*t, *all.get(&at)?)));
            index(&at, report, before)
        })
        .collect();
    if !rows.is_empty() {
        let rate = if since.is_some() { "per second" } else { "operations" };
        let head = ["index", "node", "sessions", rate, "errors", "round trips", "cache", "hits"];
        out.push_str(&format!("\n{}", table(&head, rows.into_iter())));
    }
    for (at, report) in indexes(status) {
        for line in details(report) {
            out.push_str(&format!("{} on {}: {line}\n", at.0, at.1));
        }
    }
    out
}

/// Objects that a line of waits names.
const NAMED: usize = 3;

/// What an index says beyond its row: latencies, waits, what is due.
fn details(r: &IndexReport) -> Vec<String> {
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let latency = |(kind, sampled): (&String, &Latencies)| {
        let [half, most] = [0.5, 0.99].map(|share| sampled.quantile_ns(share).map(us));
        Some(format!("{kind} {} / {}", half?, most?))
    };
    let latencies: Vec<_> = r.latencies.iter().filter_map(latency).collect();
    let mut waits: Vec<_> = r.waits.iter().collect();
    waits.sort_by_key(|(_, w)| std::cmp::Reverse((w.ns, w.waits)));
    let wait = |(what, w): &(&String, &WaitReport)| {
        format!("{what} {} times, {:.1} ms", w.waits, w.ns as f64 / 1e6)
    };
    let waits: Vec<_> = waits.iter().take(NAMED).map(wait).collect();
    let object = |o: &AwaitedReport| format!("{} {:#x} ({} waits)", o.what, o.at, o.waits);
    let objects: Vec<_> = r.most_awaited.iter().take(NAMED).map(object).collect();
    let due: Vec<_> =
        r.due.iter().map(|(what, n)| format!("{n} {}", what.replace('_', " "))).collect();
    let lines = [
        ("latency below, half and 99 %", latencies),
        ("waits", waits),
        ("most awaited", objects),
        ("due", due),
    ];
    let named = lines.into_iter().filter(|(_, what)| !what.is_empty());
    named.map(|(name, what)| format!("{name}: {}", what.join("; "))).collect()
}

fn member(m: &MemberStatus) -> Vec<String> {
    let partitions = match m.report.partitions {
        0 => String::new(),
        n => format!("{n} partitions of tables, "),
    };
    let memory = match (&m.report.memory, &m.report.compute) {
        (Some(r), _) => format!(
            "{} of {} ({:.0} %)",
            mib(r.used_bytes),
            mib(r.total_bytes),
            100.0 * r.used_bytes as f64 / r.total_bytes.max(1) as f64
        ),
        (None, Some(r)) => {
            format!("{partitions}{} retired", mib(r.retired_bytes))
        }
        (None, None) => "-".to_owned(),
    };
    vec![
        m.node.clone(),
        m.incarnation.to_string(),
        m.address.clone(),
        format!("{}{}", m.standing, if m.is_asked_to_leave { ", asked to leave" } else { "" }),
        m.lease_ms.map_or("-".to_owned(), |ms| ms.to_string()),
        m.links.map_or("-".to_owned(), |links| links.to_string()),
        memory,
    ]
}

type At<'s> = (&'s str, &'s str);

fn indexes(status: &PoolStatus) -> impl Iterator<Item = (At<'_>, &IndexReport)> {
    status
        .nodes
        .iter()
        .flat_map(|m| m.report.indexes.iter().map(|r| ((r.name.as_str(), m.node.as_str()), r)))
}

fn index(at: &At<'_>, now: &IndexReport, before: Option<(Duration, &IndexReport)>) -> Vec<String> {
    let then = before.map(|(_, r)| r);
    let count = |of: &dyn Fn(&IndexReport) -> u64| of(now) - then.map_or(0, of).min(of(now));
    let operations = count(&all_operations);
    let shown = match before {
        Some((time, _)) => format!("{:.0}", operations as f64 / time.as_secs_f64()),
        None => operations.to_string(),
    };
    let (hits, misses) = (count(&|r| r.cache.hits), count(&|r| r.cache.misses));
    let share = |part: u64, of: u64| match of {
        0 => "-".to_owned(),
        of => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    };
    vec![
        at.0.to_owned(),
        at.1.to_owned(),
        now.sessions.to_string(),
        shown,
        count(&errors).to_string(),
        count(&|r| r.round_trips).to_string(),
        format!(
            "{} of {}",
            mib(now.cache.used_bytes + now.cache.image_bytes),
            mib(now.cache.budget_bytes)
        ),
        share(hits, hits + misses),
    ]
}

fn all_operations(r: &IndexReport) -> u64 {
    r.operations.values().flat_map(BTreeMap::values).sum()
}

fn errors(r: &IndexReport) -> u64 {
    r.operations.values().filter_map(|outcomes| outcomes.get("error")).sum()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Columns as wide as their widest cell.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(rows);
    let width = |i: usize| all.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    all.iter().map(line).collect()
}
