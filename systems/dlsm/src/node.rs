//! The state that the clients of one compute node share, and how they learn which keys are theirs.
//!
//! The word `root.directory` names the *directory*, once the keys are cut: the length of its body
//! (8 bytes), a checksum (8), a word for each owner, and the body: the borders of the shards, and
//! the tables that a load has made of each. An owner sets its word when it opens its shards. Later
//! writes are in its memory alone, so nothing opens them a second time. Where any node takes any
//! key there are two words for each shard instead (`owner.rs`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, Error, ErrorKind, GlobalAddr, NodeId, Result};
use dmtree_parts::op::Lookups;
use dmtree_parts::worker::WorkerSignal;
use dmtree_parts::{CacheStats, NodeContext, Root, SnapshotTable};
use dmtree_pool::{PoolNode, Ungated, provide};

use crate::desk::Desk;
use crate::fetch::{Fetch, Remote};
use crate::garbage::Garbage;
use crate::host::Host;
use crate::indexes::Indexes;
use crate::memtable::Room;
use crate::mutants::{Mutant, Mutants};
use crate::near::Left;
use crate::options::Options;
use crate::owner::next_word;
use crate::parts::Offers;
use crate::recorder::Recorder;
use crate::router::{Directory, Router, Slot, foreign};
use crate::shard::{Shard, Snapshots};
use crate::table::Table;
use crate::turns::Turns;
use crate::version::Version;
use crate::wire::{self, SERVICE};

/// Kind of the chunks of a directory, as the pool records it.
const KIND: u8 = 1;
/// Ranges that a node opens at a time.
const OPENINGS_AT_A_TIME: usize = 16;
/// Local mutexes of keys.
const MUTEXES: usize = 4096;
/// Longest directory, bytes.
const LONGEST: u64 = 1 << 30;

/// Memory nodes of this process, and those that it founds, have the service.
pub(crate) fn provide_service() {
    provide(SERVICE, Host::make);
}

/// What a node has of an index in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Versions that are in no table yet, or were flushed and are read.
    pub memtable_bytes: u64,
    /// Tables; their data is on memory nodes.
    pub tables: u64,
    /// Their indexes, or what is in the place of those that are READ by the page.
    pub index_bytes: u64,
    /// Their filters.
    pub filter_bytes: u64,
    /// Records that are not on a memory node yet; requests and answers of other nodes.
    pub buffer_bytes: u64,
}

impl NodeMemory {
    /// All of it, bytes.
    pub fn all(&self) -> u64 {
        self.memtable_bytes + self.index_bytes + self.filter_bytes + self.buffer_bytes
    }
}

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct DlsmNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) root: Root,
    pub(crate) o: Arc<Options>,
    /// The same within the budget of the node: of its shards.
    pub(crate) within: Arc<Options>,
    /// What its MemTables have together.
    pub(crate) room: Arc<Room>,
    pub(crate) router: OnceLock<Router>,
    /// One write of a key at a time.
    pub(crate) turns: Turns,
    /// One attempt at a time to open the shards; and each range.
    pub(crate) opening: Turns,
    pub(crate) snapshots: Arc<Snapshots>,
    /// The threads that have written.
    threads: Mutex<BTreeSet<usize>>,
    pub(crate) garbage: Arc<Garbage>,
    pub(crate) left: Left,
    /// Those of all tables of the node.
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) signal: Arc<WorkerSignal>,
    /// Shards that are being given away, which the router does not have. One is counted before it
    /// leaves the router: a look at the router, then at a count of 0, has seen all shards with
    /// edits that are not kept.
    pub(crate) leaving: AtomicU32,
    /// Ranges of dead owners were taken over: what those had taken is to be found.
    pub(crate) is_collection_due: AtomicBool,
    pub(crate) flushes: AtomicU32,
    /// Workers that merge; and those of them that execute parts for another one.
    pub(crate) compactions: AtomicU32,
    pub(crate) parts: AtomicU32,
    pub(crate) offers: Offers,
    /// How many pieces of background work have ended.
    pub(crate) progress: AtomicU64,
    /// Where the next piece is looked for first.
    pub(crate) turn: AtomicU64,
    pub(crate) lookups: Arc<Lookups>,
    /// Tells this opening of the index from all others.
    pub(crate) me: u64,
    /// Itself, and what it keeps for clients of other nodes.
    pub(crate) this: OnceLock<Weak<Self>>,
    pub(crate) desk: Desk,
    pub(crate) mutants: Mutants,
    cache_bytes: u64,
    /// Operations are not announced: the memory is the index's while this is there.
    _open: Ungated,
}

impl DlsmNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot be, or a budget without room for MemTables;
    /// `Closed` for a dropped index.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        provide_service();
        let member = cx.pool.member();
        Ok(Self {
            pool: cx.pool.clone(),
            root,
            o: Arc::new(o.clone()),
            within: Arc::new(o.within(cx.cache_bytes)?),
            room: Room::of(o.memtables_bytes(cx.cache_bytes)),
            router: OnceLock::new(),
            turns: Turns::new(MUTEXES),
            opening: Turns::new(if o.any_node { OPENINGS_AT_A_TIME } else { 1 }),
            snapshots: Arc::new(SnapshotTable::new(root.index, member)),
            threads: Mutex::default(),
            garbage: Arc::default(),
            left: Left::default(),
            indexes: Arc::new(Indexes::within(o.tables_bytes(cx.cache_bytes))),
            signal: Arc::default(),
            leaving: AtomicU32::new(0),
            is_collection_due: AtomicBool::new(false),
            flushes: AtomicU32::new(0),
            compactions: AtomicU32::new(0),
            parts: AtomicU32::new(0),
            offers: Offers::default(),
            progress: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            lookups: Arc::default(),
            me: next_word(member),
            this: OnceLock::new(),
            desk: Desk::within(o.messages_bytes(cx.cache_bytes)),
            mutants: Mutants::default(),
            cache_bytes: cx.cache_bytes,
            _open: cx.pool.open_ungated(root.index)?,
        })
    }

    /// Enables mutants here, and disables all others: for checkers.
    #[doc(hidden)]
    pub fn set_mutants(&self, on: &[Mutant]) {
        self.mutants.set(on);
    }

    /// The memory node of a shard.
    pub(crate) fn home(&self, shard: usize) -> NodeId {
        let n = self.pool.memory_nodes();
        NodeId::memory(((self.root.index as usize + shard) % n) as u16)
    }

    /// How tables are read.
    pub(crate) fn remote<'e>(&self, ep: &'e Endpoint) -> Remote<'e> {
        Remote { ep, calls: self.o.calls }
    }

    fn slot(&self) -> usize {
        self.pool.cn().index()
    }

    /// The shards, opened if there are any yet.
    ///
    /// # Errors
    /// `Corrupt` for a directory that is none; `Closed` when another opening has the shards; those
    /// of the fabric.
    pub(crate) async fn opened(&self, ep: &Endpoint) -> Result<Option<&Router>> {
        if self.router.get().is_none() {
            let _turn = self.opening.take(ep, [0]).await?;
            if self.router.get().is_none() {
                let word = ep.read(self.root.directory(), 8).await?.word(0);
                if word == 0 {
                    return Ok(None);
                }
                let router = self.open(ep, GlobalAddr::from_bits(word)).await?;
                // The turn is this client's: nothing else sets it.
                let _ = self.router.set(router);
            }
        }
        Ok(self.router.get())
    }

    /// The shards; a write to an index without any makes them.
    ///
    /// # Errors
    /// As [`DlsmNode::opened`].
    pub(crate) async fn made(&self, ep: &Endpoint) -> Result<&Router> {
        loop {
            if let Some(router) = self.opened(ep).await? {
                return Ok(router);
            }
            if self.o.borders.is_empty() && self.slot() > 0 && !self.o.any_node {
                return Err(foreign("an index without borders", 0, self.pool.cn()));
            }
            let borders = self.o.borders.clone();
            self.publish(ep, &Directory { borders, loaded: Vec::new() }).await?;
        }
    }

    /// Makes a directory the one of the index; false when there is one.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub(crate) async fn publish(&self, ep: &Endpoint, directory: &Directory) -> Result<bool> {
        let body = wire::encode(directory)?;
        let mut bytes = (body.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&u64::from(crc32c([0; 2], &body)).to_le_bytes());
        bytes.resize(bytes.len() + self.o.words_bytes() as usize, 0);
        bytes.extend(body);
        let (pool, key) = (&self.pool, (self.root.index, KIND));
        let mut at = Err(Error::full("no memory node"));
        // One that is lost, or full, has no room: any other one does.
        for near in 0..pool.memory_nodes() {
            at = pool.supply().alloc_region(ep, key, bytes.len() as u64, self.home(near)).await;
            if !at.as_ref().is_err_and(|e| e.kind() == ErrorKind::Full) {
                break;
            }
        }
        let at = at?;
        let mut behind = at;
        for part in bytes.chunks(self.o.piece_bytes as usize & !7) {
            ep.write_bytes(behind, part).await?;
            behind = behind.plus(part.len() as u64);
        }
        Ok(ep.cas(self.root.directory(), 0, at.bits()).await? == 0)
    }

    async fn open(&self, ep: &Endpoint, at: GlobalAddr) -> Result<Router> {
        let directory = self.read_directory(ep, at).await?;
        let (o, slot) = (&self.o, self.slot());
        // Without borders all keys are the first owner's, in one shard.
        let shards = if directory.borders.is_empty() { 1 } else { o.shards as usize };
        let own: Range<usize> = match directory.borders.is_empty() && slot > 0 {
            _ if o.any_node => return Ok(Router::of_all(directory, at.plus(16))),
            true => 0..0,
            false if slot < o.owners as usize => slot * shards..(slot + 1) * shards,
            false => 0..0,
        };
        if !own.is_empty() {
            let word = at.plus(16 + 8 * slot as u64);
            let found = ep.cas(word, 0, self.me).await?;
            if found != 0 {
                return Err(Error::new(
                    ErrorKind::Closed,
                    "the shards of this compute node were opened before: what was written to \
                     them since is lost with the memory of their owner; create another index",
                ));
            }
        }
        let mut all = Vec::new();
        for number in own.clone() {
            let mut version = Version::default();
            if let Some((level, metas)) = directory.loaded.get(number) {
                for (i, meta) in metas.iter().enumerate() {
                    let fetch = self.remote(ep);
                    let garbage = Some(self.garbage.clone());
                    let table = Table::open(&fetch, meta.clone(), i as u64 + 1, garbage).await?;
                    self.indexes.add(&table);
                    version.add(usize::from(*level), table, false);
                }
            }
            let start = (version.clone(), None, version.last());
            let shard = Shard::new(
                (&self.within, &self.room),
                self.home(number),
                start,
                &self.snapshots,
                None,
            );
            let slot = Slot::default();
            slot.set(shard);
            all.push(slot);
        }
        Ok(Router::of_own(directory.borders, (own.start, all), at.plus(16)))
    }

    async fn read_directory(&self, ep: &Endpoint, at: GlobalAddr) -> Result<Directory> {
        let broken = |what: &str| Error::corrupt(format!("the directory at {at}: {what}"));
        let head = ep.read(at, 16).await?;
        let (length, sum) = (head.word(0), head.word(1));
        if length > LONGEST {
            return Err(broken("it is too long"));
        }
        let mut body = Vec::new();
        let from = at.plus(16 + self.o.words_bytes());
        while (body.len() as u64) < length {
            let part = (length - body.len() as u64).min(self.o.piece_bytes.into()) as u32;
            let fetch = Remote { ep, calls: false };
            fetch.fetch(&[(from.plus(body.len() as u64), part)]).await?.iter().for_each(|some| {
                body.extend_from_slice(some);
            });
        }
        if u64::from(crc32c([0; 2], &body)) != sum {
            return Err(broken("its checksum fails"));
        }
        let directory: Directory = wire::decode(&body)?;
        self.o.check_borders(&directory.borders).map_err(|e| broken(&e.to_string()))?;
        match directory
            .loaded
            .iter()
            .any(|(level, _)| usize::from(*level) >= crate::version::LEVELS)
        {
            true => Err(broken("it names a level that no tree has")),
            false => Ok(directory),
        }
    }

    /// MemTables that take writes have all the room: the largest one waits for its flush.
    pub(crate) fn seal_largest(&self) {
        let own = self.router.get().into_iter().flat_map(Router::own);
        let largest = own.max_by_key(|shard| shard.view().active.bytes());
        largest.into_iter().for_each(|shard| shard.seal());
        self.signal.raise();
    }

    /// A thread writes; how many do.
    pub(crate) fn writes(&self, thread: usize) -> u32 {
        let mut threads = locked(&self.threads);
        threads.insert(thread);
        threads.len() as u32
    }

    /// Whether nothing is to be done, or under way.
    pub(crate) fn is_settled(&self) -> bool {
        let running = [&self.flushes, &self.compactions].map(|n| n.load(Ordering::SeqCst));
        let mut shards = self.router.get().into_iter().flat_map(Router::own);
        let nothing_left = self.left.is_empty() && self.garbage.is_empty();
        running == [0, 0] && nothing_left && shards.all(|shard| shard.is_settled())
    }

    /// What this node has in its memory.
    pub fn memory(&self) -> NodeMemory {
        let mut sum = NodeMemory { buffer_bytes: self.desk.bytes(), ..NodeMemory::default() };
        for shard in self.router.get().into_iter().flat_map(Router::own) {
            let view = shard.view();
            sum.tables += view.version.tables().count() as u64;
            for (index, filter) in view.version.tables().map(|table| table.bytes()) {
                sum.index_bytes += index;
                sum.filter_bytes += filter;
            }
            let memtables = view.immutables.iter().chain([&view.active]);
            sum.memtable_bytes += memtables.map(|table| table.held_bytes()).sum::<u64>();
            sum.buffer_bytes += shard.recorder.as_ref().map_or(0, Recorder::buffer_bytes);
        }
        sum
    }

    pub(crate) fn cache_use(&self) -> CacheStats {
        let memory = self.memory();
        CacheStats {
            budget_bytes: self.cache_bytes,
            used_bytes: memory.all(),
            nodes: memory.tables,
            parts: [
                ("MemTables", memory.memtable_bytes),
                ("indexes", memory.index_bytes),
                ("filters", memory.filter_bytes),
                ("buffers", memory.buffer_bytes),
            ],
            ..CacheStats::default()
        }
    }
}
