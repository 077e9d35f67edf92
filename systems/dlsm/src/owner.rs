//! Owners of ranges of keys, where any compute node takes any key.
//!
//! A range is a shard. It has two words in the directory: its *owner* (a [`Claim`]; 0: none), and
//! the segment of its *manifest*. A node that is not the owner asks it ([`crate::forward`]). A
//! range without an owner becomes the first one's that compare-and-sets its word; the node with
//! the number of its slice is asked to, if it has the index open.
//!
//! *Take-over.* The owner's word may be changed once the owner is fenced: the membership says that
//! no verb of it executes at any node any more. So what the claimant reads then is all that the
//! owner has ever acknowledged: manifest first, which names tables and blocks of the log, then the
//! log. It writes a segment of its own before it answers anything. It may die at any step: the next
//! claimant finds the same. What the owner has allocated and no manifest names a collection finds
//! ([`crate::collect`]).
//!
//! *Hand-over.* An owner that lives gives a range away itself ([`crate::handover`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, ErrorKind, GlobalAddr, Member, NodeId, Result};
use dmtree_pool::BlockPtr;

use crate::client::Client;
use crate::collect::{Collecting, blocks_of};
use crate::durable::Durability;
use crate::fetch::InUse;
use crate::frame::Series;
use crate::log::{Log, Record, records};
use crate::manifest::{self, Kept};
use crate::memtable::MemTable;
use crate::mutants::Mutant;
use crate::node::DlsmNode;
use crate::recorder::{Found, Recorder};
use crate::router::Router;
use crate::shard::Shard;
use crate::table::Table;
use crate::version::{LEVELS, Version};

/// Claims of this process that last, by their words.
static CLAIMS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Claims of this process, and openings of indexes.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A word of this process: compute node (16 bits), incarnation (16), and a number of the process.
pub(crate) fn next_word(me: Member) -> u64 {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
    u64::from(me.node.bits()) << 48 | u64::from(me.incarnation as u16) << 32 | number
}

/// A claim of a range: the word with which a node owns it, as long as this is there. No two claims
/// have the same word, so that a compare-and-set which comes late changes nothing.
#[derive(Debug)]
pub(crate) struct Claim(u64);

impl Claim {
    pub(crate) fn new(me: Member) -> Self {
        let word = next_word(me);
        locked(&CLAIMS).insert(word);
        Self(word)
    }

    pub(crate) fn word(&self) -> u64 {
        self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        locked(&CLAIMS).remove(&self.0);
    }
}

/// Where a range is served.
pub(crate) enum Owner {
    /// By this node.
    Here(Arc<Shard>),
    /// By this one.
    There(NodeId),
}

/// The node of a word.
pub(crate) fn node_of(word: u64) -> NodeId {
    NodeId::from_bits((word >> 48) as u16)
}

impl DlsmNode {
    /// Whether the owner that a word names is gone: no verb of it executes any more.
    pub(crate) fn is_owner_gone(&self, word: u64) -> bool {
        match word >> 32 == self.me >> 32 {
            true => !locked(&CLAIMS).contains(&word),
            false => self.is_gone(word),
        }
    }

    /// Whether the membership knows this node, if it knows any.
    pub(crate) fn has_joined(&self) -> bool {
        let living = self.pool.membership().living();
        living.is_empty() || living.contains(&self.pool.member())
    }

    /// The compute node with the number of a range's slice.
    pub(crate) fn of_slice(&self, range: usize) -> NodeId {
        NodeId::compute((range / self.o.shards as usize) as u16)
    }

    /// The same of the node of a client, or of a word.
    pub(crate) fn is_gone(&self, client: u64) -> bool {
        let (node, incarnation) = (node_of(client), (client >> 32) as u16);
        self.pool.is_revoked(node, incarnation)
            || self.mutants.has(Mutant::UnfencedTakeOver)
                && self.pool.is_suspected(node, incarnation)
    }
}

/// The words of a range.
pub(crate) fn head_of(router: &Router, range: usize) -> GlobalAddr {
    router.heads.plus(16 * range as u64)
}

/// How ranges get owners, and others.
pub(crate) struct Ranges<'c>(pub(crate) &'c Client);

impl Ranges<'_> {
    /// The owner of a range; this node, if the range has none and this node is to be it.
    ///
    /// # Errors
    /// `Corrupt` or `Incompatible` for a manifest or a log that is none; those of the fabric.
    pub(crate) async fn owner(
        &self,
        router: &Router,
        range: usize,
        is_asked: bool,
    ) -> Result<Owner> {
        let (ep, node, head) = (&self.0.ep, &*self.0.node, head_of(router, range));
        let mut backoff = ep.backoff("the membership, for a range", head);
        loop {
            if let Some(shard) = router.shards[range].get() {
                return Ok(Owner::Here(shard));
            }
            let known = router.owners[range].load(Ordering::SeqCst);
            if known != 0 && !node.is_owner_gone(known) {
                return Ok(Owner::There(node_of(known)));
            }
            let _turn = node.opening.take(ep, [range as u64]).await?;
            if router.shards[range].get().is_some() {
                continue;
            }
            let word = ep.read(head, 8).await?.word(0);
            router.owners[range].store(word, Ordering::SeqCst);
            if word == 0 && !is_asked {
                // Its own slice has the first call on it, as long as it is there.
                let first = node.of_slice(range);
                if first != node.pool.cn() && !router.is_passed_over(range) {
                    return Ok(Owner::There(first));
                }
            }
            if word == 0 || node.is_owner_gone(word) {
                if !node.has_joined() {
                    // The membership could not say that this claim is over.
                    if is_asked {
                        return Ok(Owner::There(node.pool.cn()));
                    }
                    backoff.step().await?;
                    continue;
                }
                node.pool.check_lease_untouched(ep)?;
                let claim = Claim::new(node.pool.member());
                if ep.cas(head, word, claim.word()).await? == word {
                    node.is_collection_due.fetch_or(word != 0, Ordering::SeqCst);
                    Box::pin(self.begin(router, range, claim)).await?;
                }
            }
        }
    }

    /// Begins to own a range that has the word of this claim. The turn of the range is held.
    ///
    /// # Errors
    /// As [`Ranges::owner`].
    pub(crate) async fn begin(&self, router: &Router, range: usize, claim: Claim) -> Result<()> {
        let claim = Arc::new(claim);
        // The next attempt may free what this one reads: until then this node asks itself in vain.
        let _in_use = InUse(&self.0.ep, &claim);
        match self.take_over(router, range, claim.clone()).await {
            Ok(shard) => router.shards[range].set(shard),
            // A dropped attempt of this node was late, and has left the same state.
            Err(e) if e.kind() == ErrorKind::Contended => self.0.ep.check_deadline("a range", 0)?,
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Reads what is kept of a range that this node has claimed, and makes a shard of it.
    async fn take_over(&self, router: &Router, range: usize, claim: Arc<Claim>) -> Result<Shard> {
        let (ep, node) = (&self.0.ep, &self.0.node);
        let torn = node.mutants.has(Mutant::TornRecords);
        let head = head_of(router, range);
        let word = ep.read(head.plus(8), 8).await?.word(0);
        let index = node.root.index;
        let (series, logs) = (Series::manifest(index, range), Series::log(index, range));
        let (life, kept) = match word {
            0 => (0, first_state(router, range)),
            _ => manifest::read(ep, (series, word), torn).await?,
        };
        let mut version = Version::default();
        for (level, metas) in kept.levels.iter().enumerate() {
            for meta in metas {
                let (number, fetch) = (version.tables().count() as u64 + 1, node.remote(ep));
                let table = Table::open(&fetch, meta.clone(), number, None).await?;
                node.indexes.add(&table);
                version.add(level, table, false);
            }
        }
        let (blocks, records) = match node.mutants.has(Mutant::LogForgotten) {
            true => Default::default(),
            false => read_logs(ep, (logs, &kept), torn).await?,
        };
        let first = kept.flushed + 1;
        let last = records.last_key_value().map_or(kept.flushed, |(seq, _)| *seq);
        let mut sessions: Vec<_> = kept.sessions.iter().map(|its| (*its, kept.flushed)).collect();
        sessions.extend(records.values().filter_map(|r| Some((r.origin?, r.seq))));
        let logged = (!records.is_empty())
            .then(|| MemTable::logged((first, last), records.into_values().collect(), &node.room));
        let (log, flushed) = (Log::taken_over(logs, &blocks, kept.next_log), kept.flushed);
        let found = Found { head, claim, series, word, life, flushed, log, sessions };
        let recorder = Recorder::new(found, node.o.log, &node.mutants);
        let start = (version, logged, last);
        let shard = Shard::new(
            (&node.within, &node.room),
            node.home(range),
            start,
            &node.snapshots,
            Some(recorder),
        );
        if let Some(recorder) = &shard.recorder {
            Durability(self.0).keep((&shard, recorder), recorder.last_edit()).await?;
        }
        Collecting(self.0).adopt(&shard.view().version).await?;
        node.hold(blocks_of(&shard));
        // The former segment never goes back.
        node.hold((word != 0).then(|| BlockPtr::from_bits(word)));
        // A take-over that has failed frees nothing: the next one needs it.
        shard.view().version.tables().for_each(|table| table.set_garbage(Some(&node.garbage)));
        Ok(shard)
    }
}

/// What a load has made of a range.
fn first_state(router: &Router, range: usize) -> Kept {
    let mut levels = vec![Vec::new(); LEVELS];
    if let Some((level, metas)) = router.loaded.get(range) {
        levels[usize::from(*level)].clone_from(metas);
    }
    let flushed = levels.iter().flatten().map(|meta| meta.numbers.1).max().unwrap_or(0);
    Kept { levels, flushed, ..Kept::default() }
}

/// Blocks of a log, with the last number of each; and records behind those that are flushed.
type Logged = (Vec<(u64, BlockPtr, u64)>, BTreeMap<u64, Record>);

async fn read_logs(ep: &Endpoint, (series, kept): (Series, &Kept), torn: bool) -> Result<Logged> {
    let mut all = Logged::default();
    for (id, place) in &kept.logs {
        let place = BlockPtr::from_bits(*place);
        // A block that was named ahead may have nothing yet.
        let read = ep.read_unvalidated(place.addr(), place.capacity()).await?;
        let found = read.extract(|bytes| records(bytes, (series, *id), torn));
        let found = found.map_err(|e| e.context(format!("the log at {}", place.addr())))?;
        all.0.push((*id, place, found.iter().map(|r| r.seq).max().unwrap_or(0)));
        all.1.extend(found.into_iter().filter(|r| r.seq > kept.flushed).map(|r| (r.seq, r)));
    }
    Ok(all)
}
