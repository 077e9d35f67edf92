//! `demo`: a short tour.

use std::ops::Bound;

use dmtree_bench::registry;
use dmtree_bench::system::Tool;
use dmtree_check::client::Client;
use dmtree_command::{Failure, Result};
use dmtree_fabric::OpKind;
use dmtree_parts::{Outcome, ScanRequest, Write};

use super::any_system::pool;
use super::demo_crash;
use crate::args::ToolArgs;
use crate::output;
use crate::words::shown;

/// Counters of a client at one moment.
#[derive(Clone, Copy, Default)]
struct Cost {
    trips: u64,
    mn: u64,
    cn: u64,
}

impl Cost {
    fn now(s: &Client) -> Self {
        let c = s.counts().total(&OpKind::FOREGROUND).counts;
        Self { trips: c.round_trips, mn: c.mn.verbs(), cn: c.cn.verbs() }
    }

    /// What was done since, in words.
    fn since(s: &Client, before: Self) -> String {
        let now = Self::now(s);
        format!(
            "{} round trips, {} verbs to memory nodes, {} to compute nodes",
            now.trips - before.trips,
            now.mn - before.mn,
            now.cn - before.cn
        )
    }
}

const SPICES: [(&str, &str); 8] = [
    ("anise", "seed"),
    ("cardamom", "pod"),
    ("clove", "bud"),
    ("cumin", "seed"),
    ("ginger", "root"),
    ("mace", "aril"),
    ("nutmeg", "seed"),
    ("saffron", "stigma"),
];

/// `demo`.
pub fn run(a: &ToolArgs) -> Result<()> {
    let system = registry::find(&a.system)?;
    let pool = Tool::open(&system, &pool(a, 2, None)?, 24, 24)?;
    match &a.connect {
        None => output::line(&format!(
            "1. A pool in this process: 1 memory node of {}, 2 compute nodes, an empty {}.",
            a.memory_bytes, a.system
        )),
        Some(first) => output::line(&format!(
            "1. The pool of {first}, on fabric {}: this process is 2 of its compute nodes, with an empty {}.",
            pool.opened.fabric(),
            a.system
        )),
    }
    output::line(
        "   Nothing outlives the process, and times say nothing about a NIC; counts of verbs do.\n",
    );
    let (mut here, mut there) = (pool.client(0)?, pool.client(1)?);

    output::line("2. Compute node 0 writes.");
    for (k, v) in SPICES {
        expect(&mut here, k, Write::Put(v.as_bytes()), Outcome::Done)?;
    }
    let before = Cost::now(&here);
    expect(&mut here, "pepper", Write::Insert(b"berry"), Outcome::Done)?;
    output::line(&format!("   insert pepper berry     done: {}", Cost::since(&here, before)));
    expect(&mut here, "pepper", Write::Insert(b"again"), Outcome::Exists)?;
    output::line("   insert pepper again     exists already");
    expect(&mut here, "fennel", Write::Update(b"seed"), Outcome::NotFound)?;
    output::line("   update fennel seed      not found\n");

    output::line("3. Compute node 1 reads what node 0 wrote.");
    for turn in ["cold cache", "warm cache"] {
        let before = Cost::now(&there);
        let found = there.get(b"nutmeg")?;
        let text = found.as_deref().map_or_else(|| "not found".to_owned(), shown);
        output::line(&format!(
            "   get nutmeg              {text} ({turn}: {})",
            Cost::since(&there, before)
        ));
        if found.as_deref() != Some(b"seed") {
            return Err(Failure::violation("get nutmeg does not give what was put"));
        }
    }
    output::line("");

    output::line("4. It changes a value only if it is what it believes, and node 0 sees that.");
    let cas = |new| Write::CompareAndSet { expected: b"aril", new: Some(new) };
    expect(&mut there, "mace", cas(b"red aril"), Outcome::Done)?;
    output::line("   cas mace aril \"red aril\"  done");
    expect(&mut here, "mace", cas(b"lost"), Outcome::Mismatch)?;
    output::line("   cas mace aril lost        the value is another\n");

    output::line("5. Ordered scans, both ways, and a delete.");
    expect(&mut here, "clove", Write::Delete, Outcome::Done)?;
    output::line("   delete clove            done");
    scan(
        &mut there,
        "scan c..h",
        Bound::Included(b"c"),
        Bound::Excluded(b"h"),
        false,
        &["cardamom", "cumin", "ginger"],
    )?;
    scan(
        &mut there,
        "rscan, 3",
        Bound::Unbounded,
        Bound::Unbounded,
        true,
        &["saffron", "pepper", "nutmeg"],
    )?;
    output::line("");

    output::line("6. Ten thousand more keys, then the whole structure is walked and checked.");
    for i in 0..10_000u32 {
        let key = format!("key{:06}", i.wrapping_mul(7919) % 10_000);
        expect(&mut here, &key, Write::Put(&i.to_le_bytes()), Outcome::Done)?;
    }
    let shape = there.walk()?;
    let bytes = shape.structure_bytes + shape.block_bytes;
    let leaves: u64 = shape.leaves.iter().map(|(_, n)| n).sum();
    output::line(&format!(
        "   {} keys in {leaves} leaves under {} levels of inner nodes; {:.1} bytes per key on the memory node",
        shape.keys,
        shape.levels,
        bytes as f64 / shape.keys.max(1) as f64
    ));
    let due = SPICES.len() as u64 + 10_000;
    if shape.keys != due {
        return Err(Failure::violation(format!("{} keys where {due} must be", shape.keys)));
    }
    output::line(
        "\n7. A simulated cluster of its own: a compute node dies in an update, with the lock of the leaf.",
    );
    demo_crash::run()?;
    output::line("\nNext: `dmtree shell` to try it by hand, `dmtree bench quick` to measure it.");
    Ok(())
}

fn expect(s: &mut Client, key: &str, w: Write<'_>, due: Outcome) -> Result<()> {
    let outcome = s.write(key.as_bytes(), w)?;
    if outcome == due {
        return Ok(());
    }
    Err(Failure::violation(format!("{w:?} of {key} gives {outcome:?} where {due:?} must come")))
}

fn scan(
    s: &mut Client,
    what: &str,
    low: Bound<&[u8]>,
    high: Bound<&[u8]>,
    reverse: bool,
    due: &[&str],
) -> Result<()> {
    let before = Cost::now(s);
    let mut keys = Vec::new();
    s.for_each(ScanRequest { low, high, reverse, limit: 3 }, &mut |k, _| {
        keys.push(String::from_utf8_lossy(k).into_owned());
        true
    })?;
    output::line(&format!("   {what:<22}  {} ({})", keys.join(", "), Cost::since(s, before)));
    if keys != due {
        return Err(Failure::violation(format!("{what} gives {keys:?} where {due:?} must come")));
    }
    Ok(())
}
