//! A sorted array under one lock on a memory node: an example of what an index crate says of
//! itself.
//!
//! Layout: the number of pairs, then the pairs in order of their keys. The root word names the
//! array, the word behind it is the lock. A write acquires the lock with compare-and-swap, READs
//! the array, WRITEs it, and releases the lock; a client that crashes in between keeps it. Readers
//! acquire the lock, too, unless `locked_reads` is off: their READ may then mix two WRITEs, a
//! defect.
#![forbid(unsafe_code)]

mod systems;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use dmtree_fabric::{Endpoint, Error, ErrorKind, OpOutcome, Result};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Base, Client, Limits, Published};
use dmtree_parts::{
    Fill, NodeContext, OpSet, Outcome, Page, Resume, Root, ScanRequest, Shape, Write,
};
use dmtree_pool::Bump;

pub use systems::systems;

dmtree_parts::mutants! {
    /// A write does not acquire the lock.
    NoLock,
}

dmtree_parts::options! {
    /// Options of the array.
    pub struct Options = Self::first();
    /// Bytes of every key.
    key_bytes: usize = 24;
    /// Bytes of every value.
    value_bytes: usize = 8;
    /// Most pairs.
    capacity: usize = 3200, in 1..=20_000;
    /// Readers acquire the lock, too.
    locked_reads: bool = true;
}

impl Options {
    /// Size of the array with so many pairs.
    fn bytes(&self, pairs: usize) -> usize {
        8 + (pairs * (self.key_bytes + self.value_bytes)).next_multiple_of(8)
    }
}

/// The array on a compute node.
#[derive(Debug)]
pub struct Node(Base, Bump, Options, Mutants);

dmtree_parts::begins_with!(Node => Base, 0);

/// A client of the array.
#[derive(Debug)]
pub struct Array(Client<Node>);

dmtree_parts::begins_with!(Array => Client<Node>, 0);

type Sorted = BTreeMap<Vec<u8>, Vec<u8>>;

impl Array {
    /// Executes `work`, under the lock.
    async fn locked<T>(&self, lock: bool, work: impl Future<Output = Result<T>>) -> Result<T> {
        let at = self.node.root.aux();
        let mut backoff = self.ep.backoff("the lock of the array", at);
        while lock && self.ep.cas(at, 0, self.tag).await? != 0 {
            self.retried.set(true);
            backoff.step().await?;
        }
        let done = work.await;
        if lock {
            // No WRITE: a compare-and-swap that fails may write back what it read before.
            self.ep.cas(at, self.tag, 0).await?;
        }
        done
    }

    async fn read(&self) -> Result<Sorted> {
        let (at, o) = (self.root_pointer().await?, &self.node.2);
        let corrupt = |()| Error::corrupt(format!("{at}: the keys of the array do not ascend"));
        let count = self.ep.read(at, 8).await?.word(0) as usize;
        if count > o.capacity {
            return Err(corrupt(()));
        }
        let pairs = self.ep.read(at.plus(8), (o.bytes(count).max(16) - 8) as u32).await?;
        let decode = |b: &[u8]| {
            let pairs = b.chunks_exact(o.key_bytes + o.value_bytes).take(count);
            let pairs = pairs.map(|pair| pair.split_at(o.key_bytes));
            let all: Sorted = pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            (all.len() == count).then_some(all).ok_or(())
        };
        pairs.check(decode).map(|(all, _)| all).map_err(corrupt)
    }

    async fn write(&self, all: &Sorted) -> Result<()> {
        let (at, o) = (self.root_pointer().await?, &self.node.2);
        if all.len() > o.capacity {
            return Err(Error::new(ErrorKind::Full, "the array is full"));
        }
        let pairs: Vec<u8> = all.iter().flat_map(|(k, v)| [&k[..], &v[..]].concat()).collect();
        let mut image = self.blank(o.bytes(all.len())).await?;
        image[..8].copy_from_slice(&(all.len() as u64).to_le_bytes());
        image[8..8 + pairs.len()].copy_from_slice(&pairs);
        self.ep.write(at, image).await.map(drop)
    }
}

impl Published for Array {
    const HAS: OpSet = OpSet { reverse_scan: false, any_length: false, ..OpSet::ALL };
    type Settings = Options;
    type Shared = Node;

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<Node> {
        o.check_ranges()?;
        let (key, value, least_cache) = (o.key_bytes, o.value_bytes, 0);
        let base = Base::new(cx, root, Limits { key, value, timeout_ms: 10_000, least_cache })?;
        Ok(Node(base, cx.pool.supply().bump(root.index, 0), o.clone(), Mutants::default()))
    }

    fn connect(ep: Endpoint, node: Arc<Node>) -> Self {
        Self(Client::new(ep, node))
    }

    async fn format_empty(&self) -> Result<()> {
        let (Node(base, memory, o, _), ep) = (&*self.node, &self.ep);
        let bytes = o.bytes(o.capacity);
        let at = base.pool.supply().alloc_bump(ep, memory, bytes as u32).await?;
        ep.write(at, self.blank(bytes).await?).await?;
        self.set_first_root(at).await
    }

    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let all = self.locked(self.node.2.locked_reads, self.read()).await?;
        let found = all.get(key);
        out.extend(found.into_iter().flatten());
        Ok(self.read_by_itself(found.is_some()))
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<(Outcome, OpOutcome)> {
        let work = async {
            let mut all = self.read().await?;
            let old = all.get(key).map(Vec::as_slice);
            if let Some(refused) = w.refused(old) {
                return Ok(refused);
            }
            let counts = if old.is_some() { OpOutcome::Hit } else { OpOutcome::InsertPlain };
            match w.value() {
                Some(value) => all.insert(key.to_vec(), value.to_vec()),
                None => all.remove(key),
            };
            self.write(&all).await.map(|()| (Outcome::Done, counts))
        };
        self.locked(!self.node.3.has(Mutant::NoLock), work).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let all = self.locked(self.node.2.locked_reads, self.read()).await?;
        let mut inside = all.iter().filter(|(k, _)| r.contains(k));
        inside.by_ref().take(r.limit).for_each(|(k, v)| page.push(k, v));
        Ok(inside.next().map(|(k, _)| Resume(Bound::Included(k.clone()))))
    }

    async fn load_empty(&self, all: &mut Pairs, _: Fill) -> Result<Option<u64>> {
        let pairs = (0..all.len()).map(|i| all.get(i));
        let pairs = pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        let work = async {
            match self.read().await?.is_empty() {
                true => self.write(&pairs).await.map(|()| Some(1)),
                false => Ok(None),
            }
        };
        self.locked(true, work).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        let o = &self.node.2;
        shape.add_leaf(o.capacity, self.read().await?.len(), o.bytes(o.capacity) as u64);
        Ok(())
    }
}
