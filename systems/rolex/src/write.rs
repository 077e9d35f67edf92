//! Point writes: put, insert and update, all under the lock of the key's leaf.
//!
//! Verbs of an insert, in order: READ window (as published; it only tells of synonyms); CAS lock;
//! READ leaf, and its synonym; [WRITE leaf, WRITE synonym, WRITE lock] in one chain, without the
//! middle one where the synonym has not changed. Of an update: READ window; CAS lock of the leaf;
//! READ the leaf or the synonym, whichever has the key; [WRITE it, WRITE lock]. Leaves are written
//! whole. The WRITE of what holds the key is the linearization point.
//!
//! Invariants: the lock of a leaf covers its synonym. All keys of a full leaf are below those of
//! its synonym: the largest of the leaf's keys and a new one goes there. There is one synonym, and
//! when it is full the insert fails: as published, nothing is retrained. The value is fixed
//! directly before the WRITE, when no other writer can join any more.
//!
//! As published a writer writes the leaf, without the key that moves, before the synonym
//! (`destination_first`); a put leaves the value of a key that exists alone (`upsert`); an update
//! of an absent key keeps its place in the queue of writers (`scoped_release`).
//!
//! A crash between the CAS and the release leaves the lock held; one between two WRITEs loses the
//! key that moves. As published no client recovers them.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::Write;
use dmtree_parts::bytes::put_u64;
use dmtree_parts::held::Unlock;
use dmtree_parts::op::{ABSENT, INSERTED, UPDATED, Written};
use dmtree_parts::sharing::{SharedWrite, Sharing};

use crate::directory::Directory;
use crate::format::Leaf;
use crate::hop::Hops;
use crate::index::Rolex;
use crate::leaf::Node;
use crate::read::Group;
use crate::read::Reads;

/// A sorted leaf, and its synonym if it has one.
struct Pair<'g> {
    at: GlobalAddr,
    leaf: Leaf<'g>,
    synonym: Option<Leaf<'g>>,
}

/// A held lock: its word.
#[derive(Clone, Copy, Debug)]
pub struct Held(GlobalAddr);

impl Unlock<Held> for Rolex {
    async fn unlock(&self, held: Held) -> Result<()> {
        self.ep.step(Step::Lock);
        self.ep.write_word(held.0, 0).await
    }
}

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Rolex);

impl<'c> Writes<'c> {
    /// A write that may share its WRITE, or that of another writer.
    pub(crate) async fn write_shared(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let change = async |sharing: &mut Sharing| {
            let mut job = SharedWrite::new(key, &w, sharing);
            match w {
                Write::Update(_) => self.update(&mut job).await,
                _ => self.insert(&mut job).await,
            }
        };
        self.0.node.sharers.write(&self.0.ep, (key, &w), change).await
    }

    /// Takes the lock of a leaf.
    pub(crate) async fn lock(&self, leaf: GlobalAddr) -> Result<Held> {
        let word = leaf.plus(self.0.node.g.lock_at());
        self.0.take_lock(word).await?;
        Ok(Held(word))
    }

    /// Replaces the value of a key.
    async fn update(&self, job: &mut SharedWrite<'_>) -> Result<Written> {
        let mut backoff = self.0.ep.backoff("the leaf of a key", self.0.node.root.word);
        loop {
            let (_, groups) = Reads(self.0).window(job.key).await?;
            let holds = |group: &&Group<'_>| group.value(job.key).is_some();
            let Some(group) = groups.iter().find(holds) else {
                if !self.0.node.o.scoped_release {
                    // As published the other writers of the key wait for this one from now on.
                    std::mem::forget(std::mem::replace(job.sharing, Sharing::None));
                }
                return Ok(ABSENT);
            };
            let in_leaf = group.leaf.value(job.key).is_some();
            let place = if in_leaf { group.at } else { group.leaf.synonym() };
            let held = self.lock(group.at).await?;
            let found = self.find_again(place, job.key).await;
            let (held, found) = self.0.under(held, found).await?;
            if let Some((at, node)) = found {
                return self.overwrite(held, at, node, job).await;
            }
            self.0.unlock(held).await?;
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// READs the leaf or the synonym that had a key, under the lock; the key may have moved from
    /// the one to the other since.
    async fn find_again(
        &self,
        at: GlobalAddr,
        key: &[u8],
    ) -> Result<Option<(GlobalAddr, Node<'_>)>> {
        let leaf = Reads(self.0).read_leaf(at, Some(key)).await?;
        if leaf.value(key).is_some() {
            return Ok(Some((at, leaf)));
        }
        let synonym = leaf.synonym();
        if synonym.is_null() {
            return Ok(None);
        }
        let leaf = Reads(self.0).read_leaf(synonym, Some(key)).await?;
        Ok(leaf.value(key).is_some().then_some((synonym, leaf)))
    }

    /// Replaces the value of a key that a leaf has.
    pub(crate) async fn overwrite(
        &self,
        held: Held,
        at: GlobalAddr,
        node: Node<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let writes = match node {
            Node::Sorted(mut leaf) => {
                if let Ok(slot) = leaf.find(job.key) {
                    leaf.set_value(slot, job.value());
                }
                vec![(at, self.sealed(&mut Node::Sorted(leaf)).await?)]
            }
            Node::Hopscotch(leaf) => Hops(self.0).overwritten(at, leaf, job).await?,
        };
        self.release(held, writes, None).await?;
        Ok(UPDATED)
    }

    async fn insert(&self, job: &mut SharedWrite<'_>) -> Result<Written> {
        let (mut d, _) = Reads(self.0).window(job.key).await?;
        let mut backoff = self.0.ep.backoff("leaves that move", d.at);
        loop {
            self.0.ep.stage_cost(Stage::CacheLookup, 1);
            let home = d.models.home(d.number(job.key));
            let held = self.lock(d.leaf(home)).await?;
            let done = match &self.0.node.g.table {
                Some(table) => {
                    Hops(self.0).insert_hopscotch(held, table, d.leaf(home), job).await?
                }
                None => self.insert_sorted(held, &d, home, job).await?,
            };
            match done {
                Some(written) => return Ok(written),
                None => d = Reads(self.0).next_directory(&d, &mut backoff).await?,
            }
        }
    }

    /// Puts a pair into its leaf or the synonym; `None` when the leaf has moved.
    async fn insert_sorted(
        &self,
        held: Held,
        d: &Directory,
        home: u32,
        job: &mut SharedWrite<'_>,
    ) -> Result<Option<Written>> {
        // Under the lock nothing moves, so both can be READ at once.
        let read = Reads(self.0).groups(d, (home..=home, None), false).await;
        let (held, read) = self.0.under(held, read).await?;
        match read.and_then(|mut groups| groups.pop()) {
            Some(Group { at, leaf: Node::Sorted(leaf), synonym }) => {
                let synonym = match synonym {
                    Some(Node::Sorted(synonym)) => Some(synonym),
                    _ => None,
                };
                self.put(held, Pair { at, leaf, synonym }, job).await.map(Some)
            }
            _ => self.0.unlock(held).await.map(|()| None),
        }
    }

    /// The answer to a put of a key that a leaf or its synonym has.
    pub(crate) async fn put_present(
        &self,
        held: Held,
        (at, node): (GlobalAddr, Node<'_>),
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let refused = job.write.refused(node.value(job.key));
        if refused.is_none() && self.0.node.o.upsert {
            return self.overwrite(held, at, node, job).await;
        }
        self.0.unlock(held).await?;
        Ok(refused.unwrap_or(UPDATED))
    }

    async fn put(
        &self,
        held: Held,
        mut group: Pair<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let synonym_at = group.leaf.synonym();
        if group.leaf.find(job.key).is_ok() {
            return self.put_present(held, (group.at, Node::Sorted(group.leaf)), job).await;
        }
        match group.synonym.take() {
            Some(synonym) if synonym.find(job.key).is_ok() => {
                return self.put_present(held, (synonym_at, Node::Sorted(synonym)), job).await;
            }
            other => group.synonym = other,
        }
        if !group.leaf.is_full() {
            group.leaf.insert(job.key, job.value());
            let image = self.sealed(&mut Node::Sorted(group.leaf)).await?;
            self.release(held, vec![(group.at, image)], None).await?;
            return Ok(INSERTED);
        }
        if group.synonym.as_ref().is_some_and(Leaf::is_full) {
            return self.full(held, group.at).await;
        }
        let (held, synonym) = self.with_synonym(held, &mut group).await?;
        self.overflow(held, group, synonym, job).await
    }

    /// An insert finds no room.
    pub(crate) async fn full(&self, held: Held, at: GlobalAddr) -> Result<Written> {
        self.0.unlock(held).await?;
        Err(Error::unsupported(format!(
            "the leaf at {at} and its synonym are full: as published a leaf has one synonym, and \
             models are not trained again; foretell the keys, or use the index dmtree"
        )))
    }

    /// The synonym of a leaf, which gets one if it has none.
    async fn with_synonym(&self, held: Held, group: &mut Pair<'c>) -> Result<(Held, Leaf<'c>)> {
        if let Some(synonym) = group.synonym.take() {
            return Ok((held, synonym));
        }
        let (held, at) = self.0.under(held, self.new_synonym(group.at).await).await?;
        group.leaf.set_synonym(at);
        Ok((held, self.0.node.g.empty()))
    }

    /// Memory for the synonym of a leaf, on its node.
    pub(crate) async fn new_synonym(&self, of: GlobalAddr) -> Result<GlobalAddr> {
        let (bytes, node) = (self.0.node.g.stride() as u32, of.node());
        let memory = &self.0.node.synonyms[node.index()];
        let at = self.0.node.pool.supply().alloc_bump_near(&self.0.ep, memory, bytes, node).await?;
        self.0.synonyms.borrow_mut().insert(of, at);
        Ok(at)
    }

    /// Puts a pair into a full leaf: the largest key goes to the synonym, which has room.
    async fn overflow(
        &self,
        held: Held,
        mut group: Pair<'_>,
        mut synonym: Leaf<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let at = group.leaf.synonym();
        let value = job.value().to_vec();
        let largest = match group.leaf.last() > Some(job.key) {
            true => group.leaf.pop(),
            false => None,
        };
        match largest {
            Some((key, old)) => {
                synonym.insert(&key, &old);
                group.leaf.insert(job.key, &value);
            }
            None => synonym.insert(job.key, &value),
        }
        let leaf = (group.at, self.sealed(&mut Node::Sorted(group.leaf)).await?);
        let synonym = (at, self.sealed(&mut Node::Sorted(synonym)).await?);
        let first = self.0.node.o.destination_first;
        let both = if first { vec![synonym, leaf] } else { vec![leaf, synonym] };
        self.release(held, both, None).await?;
        Ok(INSERTED)
    }

    /// The bytes of a WRITE of a leaf.
    pub(crate) async fn sealed(&self, leaf: &mut Node<'_>) -> Result<Buf> {
        let mut image = self.0.blank(self.0.node.g.raw_bytes()).await?;
        leaf.seal(&self.0.node.g, &mut image);
        Ok(image)
    }

    /// WRITEs parts of leaves of a memory node, in this order, and the vacancy word if there is a
    /// new one, and releases the lock: one doorbell.
    pub(crate) async fn release(
        &self,
        held: Held,
        writes: Vec<(GlobalAddr, Buf)>,
        word: Option<u64>,
    ) -> Result<()> {
        let mut verbs = VerbVec::new();
        for (at, image) in writes {
            verbs.write(at, image);
            verbs.then();
        }
        match word {
            None => _ = verbs.write_word(held.0, 0),
            Some(word) => {
                let mut both = self.0.blank(16).await?;
                put_u64(&mut both, 0, word);
                verbs.write(GlobalAddr::from_bits(held.0.bits() - 8), both);
            }
        }
        self.0.ep.step(Step::Entry);
        self.0.ep.batch(verbs).await.map(drop).map_err(Error::effect_unknown)
    }
}
