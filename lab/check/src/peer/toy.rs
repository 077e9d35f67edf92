//! A toy index that can be told to go wrong, to try on it what judges indexes. It keeps its pairs
//! in a map of this process, and READs one word for each operation. Its workers READ it once more
//! for each write. A snapshot is a copy of the map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use dmtree_fabric::{Capabilities, Endpoint, OpKind, OpOutcome, Result};
use dmtree_parts::worker::WorkerSignal;
use dmtree_parts::{
    BatchWrite, CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, Pause, RangeIndex,
    Resume, Root, ScanRequest, Shape, SnapshotId, SnapshotTable, Write, check_batch, check_key,
};
use serde::{Deserialize, Serialize};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
type Map = Arc<Mutex<Pairs>>;

/// The most writes of a batch.
const BATCH_WRITES: u32 = 50;

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
    /// A half of a batch is there before its verb, always.
    TearsBatches,
    /// A batch over the limit is written up to it, always.
    CutsBatches,
    /// A half of a snapshot is copied before its verb, always.
    TearsSnapshots,
    /// A snapshot shows the present, always.
    LooseSnapshots,
    /// A snapshot can be released again, always.
    ReleasesTwice,
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
    snapshots: SnapshotTable<Arc<Pairs>>,
    mutant: Mutant,
    calls: AtomicU64,
    /// Writes that no worker has seen.
    unseen: AtomicU64,
    has_workers: bool,
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
    fn map(&self) -> MutexGuard<'_, Pairs> {
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

    /// What a snapshot shows.
    fn shown(&self, s: SnapshotId) -> Result<Arc<Pairs>> {
        let copy = self.node.snapshots.note(s)?;
        Ok(if self.is(Mutant::LooseSnapshots) { Arc::new(self.map().clone()) } else { copy })
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.node.mutant == mutant
    }

    fn apply(&self, batch: &[BatchWrite<'_>]) {
        let mut map = self.map();
        for (key, value) in batch {
            match value {
                Some(v) => _ = map.insert(key.to_vec(), v.to_vec()),
                None => _ = map.remove(*key),
            }
        }
    }

    /// Fills a page. With a mutant pages are small, so that scans take several.
    fn page_of(&self, map: &Pairs, r: &ScanRequest<'_>, page: &mut Page) -> Option<Resume> {
        let limit = if self.is(Mutant::None) { r.limit } else { r.limit.min(7) };
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
        resume.filter(|_| more)
    }
}

impl RangeIndex for Toy {
    const OPS: OpSet = OpSet { snapshots: true, batch_writes: BATCH_WRITES, ..OpSet::ALL };
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
        Ok(Arc::new(Node {
            map,
            snapshots: SnapshotTable::new(root.index, cx.pool.member()),
            mutant: o.mutant,
            calls: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            has_workers: o.workers > 0,
            signal: Arc::default(),
            root,
            made_by: std::thread::current().id(),
        }))
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

    fn is_settled(&self) -> bool {
        !self.node.has_workers || self.node.unseen.load(Ordering::Relaxed) == 0
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

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        page.clear();
        let op = self.ep.begin(OpKind::Scan);
        self.ep.read(self.node.root.word, 8).await?;
        let resume = self.page_of(&self.map(), r, page);
        op.end(OpOutcome::Other);
        let early = self.misbehaves(Mutant::StopsScansEarly);
        Ok(resume.filter(|_| !early))
    }

    async fn take_snapshot(&mut self) -> Result<SnapshotId> {
        let op = self.ep.begin(OpKind::Admin);
        let early = self.map().clone();
        self.ep.read(self.node.root.word, 8).await?;
        let torn = self.is(Mutant::TearsSnapshots);
        let half = |k: &[u8]| torn && k.iter().fold(0, |sum, b| sum ^ b) % 2 == 1;
        let s = self.node.snapshots.take(|| {
            let mut copy = self.map().clone();
            copy.retain(|k, _| !half(k));
            copy.extend(early.into_iter().filter(|(k, _)| half(k)));
            Arc::new(copy)
        })?;
        op.end(OpOutcome::Other);
        Ok(s)
    }

    async fn get_at(&mut self, s: SnapshotId, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        out.clear();
        let shown = self.shown(s)?;
        let found = shown.get(key);
        out.extend_from_slice(found.map_or(&[], Vec::as_slice));
        Ok(found.is_some())
    }

    async fn scan_at(
        &mut self,
        s: SnapshotId,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        Ok(self.page_of(&*self.shown(s)?, r, page))
    }

    async fn release_snapshot(&mut self, s: SnapshotId) -> Result<()> {
        match self.node.snapshots.release(s) {
            Err(_) if self.is(Mutant::ReleasesTwice) => Ok(()),
            released => released.map(drop),
        }
    }

    async fn write_batch(&mut self, batch: &[BatchWrite<'_>]) -> Result<()> {
        let most = batch.len().min(BATCH_WRITES as usize);
        if self.is(Mutant::CutsBatches) {
            self.apply(&batch[..most]);
        }
        check_batch(batch, BATCH_WRITES)?;
        let op = self.ep.begin(OpKind::WriteMany);
        let before = if self.is(Mutant::TearsBatches) { batch.len() / 2 } else { 0 };
        self.apply(&batch[..before]);
        self.ep.read(self.node.root.word, 8).await?;
        self.apply(&batch[before..]);
        op.end(OpOutcome::Other);
        Ok(())
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
