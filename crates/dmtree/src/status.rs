//! What this process says of its indexes when the pool is asked how it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_engine::DmTree;
use dmtree_fabric::{OpKind, OpOutcome, Result, SideCounts, Snapshot, WaitCount, WaitReason};
use dmtree_parts::{CacheStats, RangeIndex};
use dmtree_pool::{
    AwaitedReport, CacheReport, IndexReport, IndexReports, Latencies, SideReport, WaitReport,
};

use crate::counters::CounterSum;
use crate::open::OpenIndex;
use crate::pool::{Pool, PoolInner};
use crate::stats::{Operation, OperationCounts};

/// See [`Pool::metrics`].
pub(crate) fn metrics(pool: &Pool) -> Result<String> {
    use dmtree_pool::{MemoryReport, metrics};
    #[cfg(feature = "tcp")]
    if let Some(status) = pool.status() {
        return metrics::of_status(&status);
    }
    let node = pool.inner().incarnation().cluster.compute_node(0)?;
    let (stats, mut report) = (pool.stats()?, node.work());
    let (total_bytes, used_bytes) = (stats.total_bytes(), stats.used_bytes());
    report.memory = Some(MemoryReport { total_bytes, used_bytes });
    report.indexes = reports(pool.inner())();
    metrics::of_report(&report)
}

/// The reports of the open indexes. What is busy being opened is left out: nothing waits.
pub(crate) fn reports(pool: &Arc<PoolInner>) -> IndexReports {
    let pool = Arc::downgrade(pool);
    Arc::new(move || {
        let Some(pool) = pool.upgrade() else { return Vec::new() };
        let Ok(opened) = pool.opened.try_lock() else { return Vec::new() };
        let opened: Vec<_> = opened.values().cloned().collect();
        opened.iter().map(|open| report(open)).collect()
    })
}

fn report(open: &OpenIndex) -> IndexReport {
    let (sum, sessions) = open.counted();
    let operation = |what: Operation| (what.name().to_owned(), outcomes(sum.counts(what)));
    let total = sum.costs.total(&OpKind::FOREGROUND).counts;
    let caches = open.nodes().trees.iter().map(|n| DmTree::cache_stats(n)).collect::<Vec<_>>();
    IndexReport {
        name: open.name.clone(),
        sessions: sessions as u64,
        operations: Operation::ALL.into_iter().map(operation).collect(),
        maintenance_errors: sum.maintenance_errors,
        cache: caches.iter().fold(CacheReport::default(), add),
        memory_side: side(&total.mn),
        compute_side: side(&total.cn),
        round_trips: total.round_trips,
        repeated: repeated(&sum.costs),
        waits: sum.costs.waits.by_reason().map(waits).collect(),
        most_awaited: sum.costs.waits.most_awaited().iter().map(awaited).collect(),
        latencies: Operation::ALL.into_iter().filter_map(|what| latencies(&sum, what)).collect(),
        due: due(open),
    }
}

/// Operations that repeated a step, by kind.
fn repeated(costs: &Snapshot) -> BTreeMap<String, u64> {
    let again = |kind: OpKind| (kind, costs.cell(kind, OpOutcome::Retried).ops);
    let all = OpKind::FOREGROUND.into_iter().map(again).filter(|(_, ops)| *ops > 0);
    all.map(|(kind, ops)| (kind.name().to_owned(), ops)).collect()
}

fn waits((what, count): (&str, WaitCount)) -> (String, WaitReport) {
    (what.to_owned(), WaitReport { waits: count.waits, ns: count.ns })
}

fn awaited((why, waits): &(WaitReason, u64)) -> AwaitedReport {
    AwaitedReport { what: why.what.to_owned(), at: why.at, waits: *waits }
}

fn latencies(sum: &CounterSum, what: Operation) -> Option<(String, Latencies)> {
    let sampled = sum.latencies.of(what);
    (sampled.samples() > 0).then(|| (what.name().to_owned(), sampled))
}

fn due(open: &OpenIndex) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (what, count) in open.nodes().trees.iter().flat_map(|node| node.due()) {
        *sum.entry(what.to_owned()).or_insert(0) += count;
    }
    sum
}

fn outcomes(counts: OperationCounts) -> BTreeMap<String, u64> {
    let OperationCounts { done, exists, not_found, mismatch, errors } = counts;
    let named = [
        ("done", done),
        ("exists", exists),
        ("not_found", not_found),
        ("mismatch", mismatch),
        ("error", errors),
    ];
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

fn add(sum: CacheReport, cache: &CacheStats) -> CacheReport {
    CacheReport {
        budget_bytes: sum.budget_bytes + cache.budget_bytes,
        used_bytes: sum.used_bytes + cache.used_bytes,
        image_bytes: sum.image_bytes + cache.image_bytes,
        hits: sum.hits + cache.hits,
        misses: sum.misses + cache.misses,
        evictions: sum.evictions + cache.evictions,
    }
}

fn side(counts: &SideCounts) -> SideReport {
    SideReport {
        reads: counts.read,
        writes: counts.write,
        atomics: counts.atomic,
        calls: counts.rpc,
        read_bytes: counts.bytes_read,
        written_bytes: counts.bytes_written,
    }
}
