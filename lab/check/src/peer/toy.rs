//! A toy index that can be told to go wrong, to try on it what judges indexes. It keeps its pairs
//! in a map of this process, and READs one word for each operation. Its workers READ it once more
//! for each write.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use dmtree_fabric::{Capabilities, Endpoint, OpKind, OpOutcome, Result};
use dmtree_parts::worker::WorkerSignal;
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, Pause, RangeIndex, Resume, Root,
    ScanRequest, Shape, Write, check_key,
};
use serde::{Deserialize, Serialize};

type Map = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// The maps of the process, by the number in the root word, minus one.
static MAPS: Mutex<Vec<Map>> = Mutex::new(Vec::new());

/// What goes wrong: at one call in a thousand, or as said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Mutant {
    #[default]
    None,
    ForgetsReads,
    WrongValues,
    SkipsInScans,
    StopsScansEarly,
    Unordered,
    LosesInserts,
    SayExists,
    /// The pair of this number in a load.
    DropsInLoad,
    PanicsWhenMade,
    PanicsInReads,
    /// A new key beside twenty others, always.
    LosesKeys,
    /// A worker removes the least key, always.
    LosesInWork,
    /// A write acts on what was there before its verb, always.
    Races,
}

/// Options of the toy.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Options {
    /// What goes wrong.
    pub mutant: Mutant,
    /// Workers of each compute node.
    #[serde(default)]
    pub workers: u32,
}

dmtree_parts::any_options! { Options => Toy }

/// The toy on a compute node.
#[derive(Debug)]
pub struct Node {
    map: Map,
    mutant: Mutant,
    calls: AtomicU64,
    /// Writes that no worker has seen.
    unseen: AtomicU64,
    signal: Arc<WorkerSignal>,
    root: Root,
    made_by: ThreadId,
}

/// A client of it.
#[derive(Debug)]
pub struct Toy {
    ep: Endpoint,
    node: Arc<Node>,
}

impl Toy {
    fn map(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.node.map.lock().expect("no panic under this lock")
    }

    /// Whether this call returns a wrong result.
    fn misbehaves(&self, mutant: Mutant) -> bool {
        self.node.mutant == mutant && self.node.calls.fetch_add(1, Ordering::Relaxed) % 1000 == 999
    }

    fn write_to(&self, key: &[u8], before: Option<&Vec<u8>>, w: Write<'_>) -> Outcome {
        let inserts = matches!(w, Write::Insert(_));
        if inserts && self.misbehaves(Mutant::SayExists) {
            return Outcome::Exists;
        }
        if inserts && before.is_none() && self.misbehaves(Mutant::LosesInserts) {
            return Outcome::Done;
        }
        if let Some((outcome, _)) = w.refused(before.map(Vec::as_slice)) {
            return outcome;
        }
        let mut map = self.map();
        let loses = self.node.mutant == Mutant::LosesKeys && before.is_none() && map.len() >= 20;
        match w.value() {
            Some(v) if !loses => _ = map.insert(key.to_vec(), v.to_vec()),
            Some(_) => {}
            None => _ = map.remove(key),
        }
        Outcome::Done
    }
}

impl RangeIndex for Toy {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = Node;

    fn check_options(_: &Options, _: &NodeContext) -> Result<()> {
        Ok(())
    }
    async fn format(ep: &Endpoint, _: &NodeContext, _: &Options, root: Root) -> Result<()> {
        let number = {
            let mut maps = MAPS.lock().expect("no panic under this lock");
            maps.push(Map::default());
            maps.len() as u64
        };
        ep.write_word(root.word, number).await
    }
    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<Node>> {
        let ep = cx.pool.endpoint(0)?;
        let number = ep.core().block_on(ep.slot(), ep.faa(root.word, 0))?;
        let map = MAPS.lock().expect("no panic under this lock")[number as usize - 1].clone();
        let made_by = std::thread::current().id();
        let (calls, unseen, signal) = (AtomicU64::new(0), AtomicU64::new(0), Arc::default());
        Ok(Arc::new(Node { map, mutant: o.mutant, calls, unseen, signal, root, made_by }))
    }
    fn client(ep: Endpoint, node: Arc<Node>) -> Self {
        let elsewhere = node.made_by != std::thread::current().id();
        assert!(node.mutant != Mutant::PanicsWhenMade || !elsewhere, "a mutant panics");
        Self { ep, node }
    }
    fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        let op = self.ep.begin(OpKind::Get);
        self.ep.read(self.node.root.word, 8).await?;
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

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        check_key(key)?;
        w.check()?;
        let op = self.ep.begin(OpKind::Put);
        let early = self.map().get(key).cloned();
        self.ep.read(self.node.root.word, 8).await?;
        let late = self.map().get(key).cloned();
        let before = if self.node.mutant == Mutant::Races { early } else { late };
        let outcome = self.write_to(key, before.as_ref(), w);
        op.end(OpOutcome::InsertPlain);
        self.node.unseen.fetch_add(1, Ordering::Relaxed);
        self.node.signal.raise();
        Ok(outcome)
    }

    fn workers(o: &Options) -> u32 {
        o.workers
    }

    async fn work(&mut self) -> Result<Pause> {
        let take = |n: u64| n.checked_sub(1);
        if self.node.unseen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Ok(Pause::Until(self.node.signal.clone(), 1_000_000_000));
        }
        let op = self.ep.begin(OpKind::Maintain);
        self.ep.read(self.node.root.word, 8).await?;
        if self.node.mutant == Mutant::LosesInWork {
            self.map().pop_first();
        }
        op.end(OpOutcome::Other);
        Ok(Pause::None)
    }

    /// With a mutant pages are small, so that scans take several.
    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        page.clear();
        let op = self.ep.begin(OpKind::Scan);
        self.ep.read(self.node.root.word, 8).await?;
        let map = self.map();
        let limit = if self.node.mutant == Mutant::None { r.limit } else { r.limit.min(7) };
        let most = if r.reverse { usize::MAX } else { limit.saturating_add(1) };
        let from = map.range::<[u8], _>((r.low, Bound::Unbounded));
        let mut inside: Vec<_> = from.take_while(|(k, _)| r.contains(k)).take(most).collect();
        if r.reverse {
            inside.reverse();
        }
        let more = inside.len() > limit;
        inside.truncate(limit);
        let resume = inside.last().map(|(k, _)| Resume(Bound::Excluded((*k).clone())));
        if inside.len() > 2 && self.misbehaves(Mutant::SkipsInScans) {
            inside.remove(1);
        }
        if inside.len() > 2 && self.misbehaves(Mutant::Unordered) {
            inside.swap(0, 1);
        }
        inside.iter().for_each(|(k, v)| page.push(k, v));
        op.end(OpOutcome::Other);
        let early = self.misbehaves(Mutant::StopsScansEarly);
        Ok(if more && !early { resume } else { None })
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        _: bool,
        _: Fill,
    ) -> Result<Loaded> {
        let dropped = |n| self.node.mutant == Mutant::DropsInLoad && n == 500;
        let pairs = pairs.zip(1..).map(|((k, v), n)| {
            if !dropped(n) {
                self.map().insert(k, v);
            }
        });
        Ok(Loaded { pairs: pairs.count() as u64, leaves: 0 })
    }

    async fn walk(&mut self) -> Result<Shape> {
        let keys = self.map().len() as u64;
        Ok(Shape { keys, structure_bytes: 50 * keys, inner_nodes: 1, ..Shape::default() })
    }

    fn cache_stats(_: &Node) -> CacheStats {
        CacheStats { used_bytes: 1000, nodes: 1, ..CacheStats::default() }
    }
}
