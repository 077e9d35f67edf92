//! `dump` and `load`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::ops::Bound;
use std::path::Path;

use dmtree_bench::config::LoadBy;
use dmtree_bench::dump::{Dumper, Pair, read};
use dmtree_bench::facade::{DynPool, Session};
use dmtree_bench::opened::PoolSpec;
use dmtree_bench::{Failure, Result, registry, sizing};
use dmtree_parts::{Fill, Outcome, ScanRequest, Write as IndexWrite};
use dmtree_workload::trace::{Record, TraceReader};
use dmtree_workload::{LOADED, LoadOrder, Seed, WorkloadSpec};

use crate::args::{DumpArgs, LoadArgs};
use crate::output;
use crate::store::Source;
use crate::words::shown;

/// Everything, in order.
pub const ALL: ScanRequest<'static> = ScanRequest {
    low: Bound::Unbounded,
    high: Bound::Unbounded,
    reverse: false,
    limit: usize::MAX,
};

/// Writes all pairs of an index as a dump: to a file whole or not at all, or to standard output for
/// `-`.
pub fn write_dump(session: &mut (impl Source + ?Sized), to: &Path) -> Result<u64> {
    if to == Path::new("-") {
        let mut text = Vec::new();
        let pairs = dump_into(session, &mut text).map_err(|e| e.context("standard output"))?;
        output::out_bytes(&text);
        return Ok(pairs);
    }
    let name = to.file_name().ok_or_else(|| Failure::input("name a file for the dump"))?;
    let temporary =
        to.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let file = File::create(&temporary).map_err(|e| Failure::file("write", to, &e))?;
    let done = dump_into(session, BufWriter::new(file)).and_then(|pairs| {
        std::fs::rename(&temporary, to).map_err(|e| Failure::file("write", to, &e))?;
        Ok(pairs)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

fn dump_into(session: &mut (impl Source + ?Sized), to: impl Write) -> Result<u64> {
    let failed = |e: std::io::Error| Failure::input(format!("cannot write the dump: {e}"));
    let mut dumper = Dumper::new(to).map_err(failed)?;
    let mut written = Ok(());
    session.for_each(ALL, &mut |k, v| {
        written = dumper.pair(k, v);
        written.is_ok()
    })?;
    written.map_err(failed)?;
    Ok(dumper.finish().map_err(failed)?.0)
}

/// Reads a whole dump; nothing is done before its end was seen to be right.
pub fn read_dump(from: &Path) -> Result<Vec<Pair>> {
    let file = File::open(from).map_err(|e| Failure::file("open", from, &e))?;
    let mut pairs = Vec::new();
    read(&from.display().to_string(), BufReader::new(file), |pair| {
        pairs.push(pair);
        Ok(())
    })?;
    Ok(pairs)
}

/// An empty index with room for these pairs.
fn open_for(system: &str, pairs: &[Pair]) -> Result<Box<dyn DynPool>> {
    let (mut key, mut value, mut bytes) = (1, 0, 0u64);
    for (k, v) in pairs {
        key = key.max(k.len() as u64);
        value = value.max(v.len() as u64);
        bytes += sizing::bytes_per_key(k.len() as u64, v.len() as u64);
    }
    // The inline sizes are those of the longest, as far as they stay inside; so every entry pays
    // for them.
    let (k, v) = (key.min(32), value.min(64));
    let memory = bytes * 2 + pairs.len() as u64 * 3 * (k + v) + (128 << 20);
    registry::find(system)?.open(&PoolSpec::small(2, memory.next_multiple_of(1 << 20)), k, v)
}

fn store(session: &mut Session, pairs: &[Pair], by: LoadBy) -> Result<()> {
    match by {
        LoadBy::Bulk => {
            let loaded = session.load(&mut pairs.iter().cloned(), true, Fill::Even(0.7))?;
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
fn verify(session: &mut Session, pairs: &[Pair]) -> Result<()> {
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
        write_dump(&mut other, to)?;
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
    let written = write_dump(&mut session, &a.to)?;
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
    let plan = if n == 0 { return Ok(Vec::new()) } else { spec.build()? };
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
    for op in TraceReader::open(&a.from_trace)? {
        let op = op?;
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
