//! `dump` and `load`.

use std::collections::BTreeMap;
use std::path::Path;

use dmtree_bench::config::LoadBy;
use dmtree_bench::opened::PoolSpec;
use dmtree_bench::system::{Tool, fit};
use dmtree_bench::{registry, sizing};
use dmtree_check::client::Client;
use dmtree_command::dump::Pair;
use dmtree_command::{Failure, Result};
use dmtree_parts::peer::leaf_bytes_per_key;
use dmtree_parts::{Fill, Outcome, Write as IndexWrite};
use dmtree_workload::trace::{Record, TraceReader};
use dmtree_workload::{LOADED, LoadOrder, Seed, WorkloadSpec};

use super::args::{DumpArgs, LoadArgs};
use crate::dumps::{ALL, read_dump, write_dump};
use crate::output;
use crate::words::shown;

/// An empty index with room for these pairs.
fn open_for(system: &str, pairs: &[Pair]) -> Result<Tool> {
    let (mut key, mut value, mut bytes) = (1, 0, 0u64);
    for (k, v) in pairs {
        key = key.max(k.len() as u64);
        value = value.max(v.len() as u64);
        bytes += leaf_bytes_per_key(&fit(k.len() as u64, v.len() as u64));
    }
    // The inline sizes are those of the longest, as far as they stay inside; so every entry pays
    // for them.
    let (k, v) = (key.min(32), value.min(64));
    let memory = bytes * 2 + pairs.len() as u64 * 3 * (k + v) + (128 << 20);
    let spec = PoolSpec::small(2, memory.next_multiple_of(1 << 20));
    Tool::open(&registry::find(system)?, &spec, k, v)
}

fn store(session: &mut Client, pairs: &[Pair], by: LoadBy) -> Result<()> {
    match by {
        LoadBy::Bulk => {
            let loaded = session.load(pairs.to_vec(), true, Fill::Even(0.7))?;
            if loaded.pairs != pairs.len() as u64 {
                return Err(Failure::violation(format!(
                    "{} of {} pairs were stored",
                    loaded.pairs,
                    pairs.len()
                )));
            }
        }
        LoadBy::Put => {
            for (k, v) in pairs {
                let outcome = session.write(k, IndexWrite::Put(v))?;
                if outcome != Outcome::Done {
                    return Err(Failure::violation(format!(
                        "a put of {} gives {outcome:?}",
                        shown(k)
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Compares what a scan returns with what was stored.
fn verify(session: &mut Client, pairs: &[Pair]) -> Result<()> {
    let mut wrong = None;
    let mut due = pairs.iter();
    session.for_each(ALL, &mut |k, v| match due.next() {
        Some((dk, dv)) if dk == k && dv == v => true,
        Some((dk, _)) => {
            wrong = Some(format!("{} where {} must be", shown(k), shown(dk)));
            false
        }
        None => {
            wrong = Some(format!("{} was never stored", shown(k)));
            false
        }
    })?;
    let wrong = wrong.or_else(|| due.next().map(|(k, _)| format!("{} is missing", shown(k))));
    wrong.map_or(Ok(()), |w| Err(Failure::violation(format!("scanning back: {w}"))))
}

/// `load`.
pub fn load(a: &LoadArgs) -> Result<()> {
    let pairs = read_dump(&a.file)?;
    if let Some(dir) =
        a.then_dump.as_deref().filter(|p| *p != Path::new("-")).and_then(Path::parent)
        && !dir.as_os_str().is_empty()
        && !dir.is_dir()
    {
        return Err(Failure::input(format!("there is no directory {}", dir.display())));
    }
    let pool = open_for(&a.system, &pairs)?;
    let mut session = pool.client(0)?;
    store(&mut session, &pairs, a.load_by)?;
    // Through another compute node: its caches are empty.
    let mut other = pool.client(1)?;
    verify(&mut other, &pairs)?;
    let shape = other.walk()?;
    let bytes = shape.structure_bytes + shape.block_bytes + shape.table_bytes;
    output::note(&format!(
        "{}: {} pairs loaded and verified; {} levels, {:.1} bytes per key",
        a.system,
        pairs.len(),
        shape.levels,
        bytes as f64 / (pairs.len().max(1)) as f64
    ));
    if let Some(to) = &a.then_dump {
        write_dump(|r, each| other.for_each(r, each), to)?;
    }
    Ok(())
}

/// `dump`.
pub fn dump(a: &DumpArgs) -> Result<()> {
    let pairs = match a.keys {
        Some(n) => generated(a, n)?,
        None => left_by_trace(a)?,
    };
    let pool = open_for(&a.system, &pairs)?;
    let mut session = pool.client(0)?;
    store(&mut session, &pairs, LoadBy::Bulk)?;
    let written = write_dump(|r, each| session.for_each(r, each), &a.to)?;
    if written != pairs.len() as u64 {
        return Err(Failure::violation(format!("{written} of {} pairs were written", pairs.len())));
    }
    output::note(&format!("{written} pairs written"));
    Ok(())
}

fn generated(a: &DumpArgs, n: u64) -> Result<Vec<Pair>> {
    let spec = WorkloadSpec {
        keys: a.key_form.clone(),
        records: n,
        value_size: a.value_size,
        seed: Seed(a.seed),
        ..WorkloadSpec::default()
    };
    let size = sizing::longest_key(&a.key_form) + u64::from(a.value_size.max());
    if n.saturating_mul(size + 100) > sizing::available() {
        return Err(Failure::input(format!("{n} keys do not fit the memory of this machine")));
    }
    let plan =
        if n == 0 { return Ok(Vec::new()) } else { spec.build().map_err(Failure::refused)? };
    let make = |record| {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        plan.key(record, &mut key);
        plan.value(record, &key, LOADED, &mut value);
        (key, value)
    };
    Ok(plan.load(LoadOrder::Sorted).records(0..n).map(make).collect())
}

fn left_by_trace(a: &DumpArgs) -> Result<Vec<Pair>> {
    let mut records: BTreeMap<Vec<u8>, Record> = BTreeMap::new();
    for op in TraceReader::open(&a.from_trace).map_err(Failure::refused)? {
        let op = op.map_err(Failure::refused)?;
        dmtree_parts::check_key(&op.key)?;
        let before = records.remove(&op.key);
        if let Some(after) = op.action.apply(before) {
            records.insert(op.key, after);
        }
    }
    let mut pairs = Vec::new();
    for (key, record) in records {
        let mut value = Vec::new();
        record.encode(&mut value);
        dmtree_parts::check_value(&value)?;
        pairs.push((key, value));
    }
    Ok(pairs)
}
