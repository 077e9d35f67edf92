//! The runner against a toy index that can return wrong results: the runner must find wrong
//! results, and accept correct ones.
#![allow(clippy::disallowed_methods, reason = "a test")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::group::{CellPlan, Group, Host, Measured, Progress};
use dmtree_bench::system::System;
use dmtree_bench::{Failure, Result};
use dmtree_fabric::{Capabilities, Endpoint, OpKind, OpOutcome, Result as FabricResult};
use dmtree_parts::peer::SystemSpec;
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Write,
};
use dmtree_workload::Workload;
use serde::{Deserialize, Serialize};

type Map = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// One map per formatted index of the process.
static MAPS: Mutex<BTreeMap<u64, Map>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Mutant {
    #[default]
    None,
    ForgetsReads,
    WrongValues,
    SkipsInScans,
    StopsScansEarly,
    Unordered,
    LosesInserts,
    SayExists,
    DropsInLoad,
    PanicsWhenMade,
    PanicsInReads,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Options {
    mutant: Mutant,
}

struct Node {
    map: Map,
    mutant: Mutant,
    calls: AtomicU64,
    made_by: std::thread::ThreadId,
}

struct Toy {
    ep: Endpoint,
    node: Arc<Node>,
}

impl Toy {
    fn map(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.node.map.lock().unwrap()
    }

    /// Whether this call returns a wrong result: at intervals.
    fn misbehaves(&self, mutant: Mutant) -> bool {
        self.node.mutant == mutant && self.node.calls.fetch_add(1, Ordering::Relaxed) % 1000 == 999
    }
}

impl RangeIndex for Toy {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = Node;

    fn check_options(_: &Options, _: &NodeContext) -> FabricResult<()> {
        Ok(())
    }
    async fn format(ep: &Endpoint, _: &NodeContext, _: &Options, root: Root) -> FabricResult<()> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        MAPS.lock().unwrap().insert(id, Map::default());
        ep.write_word(root.word, id).await
    }
    fn node(cx: &NodeContext, o: &Options, root: Root) -> FabricResult<Arc<Node>> {
        let ep = cx.pool.endpoint(0)?;
        let id = ep.core().block_on(ep.slot(), ep.faa(root.word, 0))?;
        let map = MAPS.lock().unwrap()[&id].clone();
        let made_by = std::thread::current().id();
        Ok(Arc::new(Node { map, mutant: o.mutant, calls: AtomicU64::new(0), made_by }))
    }
    fn client(ep: Endpoint, node: Arc<Node>) -> Self {
        let elsewhere = node.made_by != std::thread::current().id();
        assert!(node.mutant != Mutant::PanicsWhenMade || !elsewhere, "a mutant panics");
        Self { ep, node }
    }
    fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> FabricResult<bool> {
        let ep = self.ep.clone();
        let op = ep.begin(OpKind::Get);
        out.clear();
        assert!(!self.misbehaves(Mutant::PanicsInReads), "a mutant panics");
        let found = self.map().get(key).cloned();
        let found = found.filter(|_| !self.misbehaves(Mutant::ForgetsReads));
        if let Some(v) = &found {
            out.extend_from_slice(v);
            if self.misbehaves(Mutant::WrongValues) {
                out[0] ^= 1;
            }
        }
        op.end(if found.is_some() { OpOutcome::Hit } else { OpOutcome::Absent });
        Ok(found.is_some())
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        let ep = self.ep.clone();
        let op = ep.begin(OpKind::Put);
        let there = self.map().contains_key(key);
        let outcome = match w {
            Write::Insert(_) if there || self.misbehaves(Mutant::SayExists) => Outcome::Exists,
            Write::Insert(_) if self.misbehaves(Mutant::LosesInserts) => Outcome::Done,
            Write::Update(_) | Write::Delete if !there => Outcome::NotFound,
            Write::Put(v) | Write::Insert(v) | Write::Update(v) => {
                self.map().insert(key.to_vec(), v.to_vec());
                Outcome::Done
            }
            Write::Delete => {
                self.map().remove(key);
                Outcome::Done
            }
            Write::CompareAndSet { .. } => Outcome::Mismatch,
        };
        op.end(OpOutcome::Hit);
        Ok(outcome)
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> FabricResult<Option<Resume>> {
        let ep = self.ep.clone();
        let op = ep.begin(OpKind::Scan);
        // Small pages, so that scans take several.
        let limit = r.limit.min(7);
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = self
            .map()
            .range::<[u8], _>((r.low, r.high))
            .take(limit + 1)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let more = pairs.len() > limit;
        pairs.truncate(limit);
        let resume = pairs.last().map(|(k, _)| Resume(Bound::Excluded(k.clone())));
        if pairs.len() > 2 && self.misbehaves(Mutant::SkipsInScans) {
            pairs.remove(1);
        }
        if pairs.len() > 2 && self.misbehaves(Mutant::Unordered) {
            pairs.swap(0, 1);
        }
        pairs.iter().for_each(|(k, v)| page.push(k, v));
        op.end(OpOutcome::Other);
        let early = self.misbehaves(Mutant::StopsScansEarly);
        Ok(if more && !early { resume } else { None })
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        _sorted: bool,
        _fill: Fill,
    ) -> FabricResult<Loaded> {
        let mut n = 0;
        for (k, v) in pairs {
            n += 1;
            if !(self.node.mutant == Mutant::DropsInLoad && n == 500) {
                self.map().insert(k, v);
            }
        }
        Ok(Loaded { pairs: n, leaves: 0 })
    }

    async fn walk(&mut self) -> FabricResult<Shape> {
        let keys = self.map().len() as u64;
        Ok(Shape { keys, structure_bytes: 50 * keys, inner_nodes: 1, ..Shape::default() })
    }

    fn cache_stats(_: &Node) -> CacheStats {
        CacheStats { used_bytes: 1000, nodes: 1, ..CacheStats::default() }
    }
}

fn measure(mutant: Mutant, workload: &str, flags: &[&str], stop: bool) -> Result<Vec<Measured>> {
    let system =
        System::of::<Toy>(SystemSpec::of::<Toy>(("toy", "toy"), "a map", &Options { mutant }));
    let small = "keys = 2000\nops = 20_000\ncns = 3\nthreads = 2\ncoroutines = 2";
    let config = resolve(&Experiment::parse("toy", "toy", small)?, &Flags::of(flags)?)?.config;
    let workload: Workload = workload.parse().unwrap();
    let distribution = "zipfian".parse().unwrap();
    let cell = CellPlan { number: 0, workload, distribution, config, variant: None, same_as: None };
    let group = Group { system: system.clone(), cells: vec![cell], round: 0 };
    let mut out = Vec::new();
    let mut progress = |_: Progress<'_>| {};
    let mut measured = |_: &Group, _: &CellPlan, m: Measured| out.push(m);
    let mut host = Host {
        stop: Arc::new(AtomicBool::new(stop)),
        deadline: None,
        cells_left: 1,
        cells: 1,
        loads_left: 0,
        load_cost: std::time::Duration::ZERO,
        oracle: None,
        progress: &mut progress,
        measured: &mut measured,
    };
    system.run(&group, &mut host)?;
    Ok(out)
}

#[test]
fn an_honest_index_has_no_errors() {
    for workload in ["search", "search-absent", "insert", "update", "delete", "scan"] {
        for load_by in ["--load-by=bulk", "--load-by=put"] {
            let m = measure(Mutant::None, workload, &[load_by], false).unwrap().remove(0);
            assert_eq!(m.tally.errors, 0, "{workload}: {:?}", m.tally.samples);
            let due = if workload == "delete" { 2000 } else { 20_000 };
            assert_eq!(m.tally.ops, due, "{workload}");
            assert_eq!(m.per_cn.iter().map(|c| c.1).collect::<Vec<_>>(), [2, 1, 1]);
            assert_eq!(m.tally.latency.total().len(), due);
            let memory = m.memory.unwrap();
            assert_eq!(memory.keys, 2000 + m.tally.inserted - m.tally.deleted);
        }
    }
    for workload in ["ycsb-a", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let m = measure(Mutant::None, workload, &[], false).unwrap().remove(0);
        assert_eq!(m.tally.errors, 0, "{workload}: {:?}", m.tally.samples);
    }
}

#[test]
fn every_mutant_is_found() {
    for (mutant, workload, word) in [
        (Mutant::ForgetsReads, "search", "absent"),
        (Mutant::WrongValues, "search", "not written for this key"),
        (Mutant::SkipsInScans, "scan", "misses"),
        (Mutant::SkipsInScans, "ycsb-e", "misses"),
        (Mutant::StopsScansEarly, "scan", "although"),
        (Mutant::Unordered, "scan", ""),
        (Mutant::LosesInserts, "insert", "keys where"),
        (Mutant::SayExists, "insert", "Exists"),
    ] {
        let m = measure(mutant, workload, &["--warmup=0"], false);
        match m {
            Ok(mut all) => {
                let t = all.remove(0).tally;
                assert!(t.errors > 0, "{mutant:?} in {workload}");
                assert!(t.samples.iter().any(|s| s.contains(word)), "{mutant:?}: {:?}", t.samples);
            }
            // The warm-up has already found it.
            Err(Failure::Violation(_)) => {
                assert!([Mutant::ForgetsReads, Mutant::WrongValues].contains(&mutant))
            }
            Err(e) => panic!("{mutant:?}: {e}"),
        }
    }
    let e = measure(Mutant::DropsInLoad, "search", &[], false).unwrap_err();
    assert!(e.to_string().contains("1999") && e.exit_code() == 1, "{e}");
}

/// Regressions: the runner waited for ever for a client that panicked at its creation, and two
/// panicking clients ended the process.
#[test]
fn a_panic_ends_a_cell() {
    for mutant in [Mutant::PanicsWhenMade, Mutant::PanicsInReads] {
        let e = measure(mutant, "search", &[], false).unwrap_err();
        assert!(e.to_string().contains("panicked") && e.exit_code() == 1, "{mutant:?}: {e}");
    }
}

#[test]
fn a_stop_ends_a_group() {
    assert_eq!(measure(Mutant::None, "search", &[], true).unwrap_err(), Failure::Interrupted);
}

#[test]
fn a_time_limit_ends_a_cell() {
    let flags = ["--ops=18446744073709551615", "--duration=0.05"];
    let m = measure(Mutant::None, "search", &flags, false).unwrap().remove(0);
    assert_eq!(m.tally.ended.name(), "duration");
    assert!(m.tally.ops > 0);
}
