//! Training, and the bulk load: a new directory takes the place of one without keys.
//!
//! Order:
//! 1. Lock all leaves of the present directory, READ them, and check that they are empty.
//! 2. Train on its keys and the new ones; allocate a region on every memory node; WRITE all leaves,
//!    the trained keys and the header. Nothing names them yet.
//! 3. WRITE the old leaves: they have moved.
//! 4. CAS of the root word: old directory -> new directory. From here on all pairs are in the
//!    index.
//! 5. Release the locks of the old leaves.
//!
//! Clients that find a leaf that has moved READ the root word until it names another directory.
//! Between 3 and 4 they wait, so that no client finds old leaves empty after another has found a
//! pair. An index with keys is left alone.
//!
//! A crash before 3 loses the new memory, and leaves locks held. A crash between 3 and 4 leaves all
//! clients waiting; one after 4 leaves locks that no client needs. As published no client recovers
//! them.

use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;

use crate::directory::{Directory, Header, KEY_BYTES, Models, check_of, share};
use crate::form::Form;
use crate::hop::Hops;
use crate::index::Rolex;
use crate::leaf::Node;
use crate::node::KIND;
use crate::read::Reads;
use crate::write::Held;
use crate::write::Writes;

/// Bytes of a WRITE of trained keys.
const PIECE: usize = 64 << 10;

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c Rolex);

impl Loads<'_> {
    /// Writes the directory of an empty index that was told of no key.
    pub(crate) async fn format_directory(&self) -> Result<()> {
        let d = self.write_directory(Form::default(), Vec::new(), &Pairs::default()).await?;
        self.0.set_first_root(d.at).await
    }

    /// Trains an index without keys anew, on what it was trained on and on these keys, and stores
    /// the pairs; their keys are among these. Returns the number of its leaves; `None` if the index
    /// has keys.
    pub(crate) async fn train(&self, more: Vec<&[u8]>, pairs: &Pairs) -> Result<Option<u64>> {
        let old = self.latest().await?;
        let Some(locks) = self.lock_empty(&old).await? else { return Ok(None) };
        let built = async {
            let (form, keys) = self.merged(&old, more)?;
            self.write_directory(form, keys, pairs).await
        };
        let built = match built.await {
            Ok(built) => built,
            Err(e) => {
                self.unlock_all(locks).await?;
                return Err(e);
            }
        };
        for ordinal in 0..old.models.leaves() {
            self.0.ep.renew_deadline();
            let (at, mut leaf) = (old.leaf(ordinal), self.0.node.g.empty_node());
            leaf.set_moved();
            self.0.ep.write(at, Writes(self.0).sealed(&mut leaf).await?).await?;
        }
        let (from, to) = (old.at.bits(), built.at.bits());
        if self.0.ep.cas(self.0.node.root.word, from, to).await? != from {
            return Err(Error::corrupt("the directory has changed under all of its locks"));
        }
        let leaves = u64::from(built.models.leaves());
        Reads(self.0).uses(built);
        self.unlock_all(locks).await?;
        Ok(Some(leaves))
    }

    /// The directory that the root word names.
    async fn latest(&self) -> Result<Arc<Directory>> {
        let known = Reads(self.0).directory().await?;
        match self.0.root_pointer().await? {
            at if at == known.at => Ok(known),
            at => Ok(Reads(self.0).uses(Reads(self.0).read_directory(at).await?)),
        }
    }

    /// Locks all leaves of a directory; `None` when one of them has a key, or has moved.
    async fn lock_empty(&self, d: &Directory) -> Result<Option<Vec<Held>>> {
        let mut locks = Vec::new();
        for ordinal in 0..d.models.leaves() {
            self.0.ep.renew_deadline();
            let at = d.leaf(ordinal);
            locks.push(Writes(self.0).lock(at).await?);
            let is_empty = match Reads(self.0).read_leaf(at, None).await {
                Ok(leaf) => leaf.pairs().is_empty() && !leaf.has_moved(),
                Err(e) => {
                    self.unlock_all(locks).await?;
                    return Err(e);
                }
            };
            if !is_empty {
                self.unlock_all(locks).await?;
                return Ok(None);
            }
        }
        Ok(Some(locks))
    }

    async fn unlock_all(&self, locks: Vec<Held>) -> Result<()> {
        for held in locks {
            self.0.ep.renew_deadline();
            self.0.unlock(held).await?;
        }
        Ok(())
    }

    /// The keys of a directory and more, ascending, as numbers that fit all of them.
    fn merged(&self, old: &Directory, more: Vec<&[u8]>) -> Result<(Form, Vec<u128>)> {
        let (form, bytes) = (&old.header.form, self.0.node.g.key);
        let held: Vec<Vec<u8>> =
            old.models.keys().iter().map(|number| form.key(*number, bytes)).collect();
        let mut all: Vec<&[u8]> = held.iter().map(Vec::as_slice).chain(more).collect();
        all.sort_unstable();
        all.dedup();
        let form = Form::of(&all)?;
        let numbers = all.iter().map(|key| form.number(key)).collect();
        Ok((form, numbers))
    }

    /// WRITEs a directory that nothing names yet.
    async fn write_directory(
        &self,
        form: Form,
        keys: Vec<u128>,
        pairs: &Pairs,
    ) -> Result<Arc<Directory>> {
        let (pool, index, stride) =
            (&self.0.node.pool, self.0.node.root.index, self.0.node.g.stride());
        let check = check_of(&keys);
        let models = Models::train(&self.0.node.o, keys)?;
        let mut regions = Vec::new();
        for node in self.0.node.memory_nodes() {
            self.0.ep.renew_deadline();
            let bytes = share(models.leaves(), stride, pool.memory_nodes());
            regions.push(pool.supply().alloc_region(&self.0.ep, (index, KIND), bytes, node).await?);
        }
        let stored = self.write_keys(models.keys()).await?;
        let header = Header { form, keys: (models.keys().len() as u64, stored, check), regions };
        let mut image = self.0.blank(Header::bytes(pool.memory_nodes())).await?;
        header.encode(&mut image);
        let bytes = image.len() as u32;
        let at =
            pool.supply().alloc_bump_on(&self.0.ep, (index, KIND), bytes, stored.node()).await?;
        self.0.ep.write(at, image).await?;
        let d = Arc::new(Directory::new(at, header, models, stride));
        self.write_pairs(&d, pairs).await?;
        Ok(d)
    }

    async fn write_keys(&self, keys: &[u128]) -> Result<GlobalAddr> {
        let (pool, bytes) = (&self.0.node.pool, (keys.len() * KEY_BYTES) as u64);
        let mut nodes = self.0.node.memory_nodes();
        let node = nodes.next().ok_or_else(|| Error::invalid("a pool without memory nodes"))?;
        let at = pool
            .supply()
            .alloc_region(&self.0.ep, (self.0.node.root.index, KIND), bytes, node)
            .await?;
        for (n, piece) in keys.chunks(PIECE / KEY_BYTES).enumerate() {
            self.0.ep.renew_deadline();
            let mut image = self.0.blank(piece.len() * KEY_BYTES).await?;
            let numbers = image.chunks_exact_mut(KEY_BYTES).zip(piece);
            numbers.for_each(|(to, key)| to.copy_from_slice(&key.to_le_bytes()));
            self.0.ep.write(at.plus((n * PIECE) as u64), image).await?;
        }
        Ok(at)
    }

    /// WRITEs the leaves of a directory; of sorted ones those that get pairs. (Fresh memory is an
    /// empty sorted leaf.)
    async fn write_pairs(&self, d: &Directory, pairs: &Pairs) -> Result<()> {
        let home = |i: usize| d.models.home(d.number(pairs.key(i)));
        let mut next = 0;
        for ordinal in 0..d.models.leaves() {
            let first = next;
            while next < pairs.len() && home(next) == ordinal {
                next += 1;
            }
            let (own, at) = ((first..next).map(|i| pairs.get(i)), d.leaf(ordinal));
            self.0.ep.renew_deadline();
            if let Some(table) = &self.0.node.g.table {
                Hops(self.0).write_hopscotch(table, at, own).await?;
            } else if first < next {
                let mut leaf = self.0.node.g.empty();
                own.for_each(|(key, value)| leaf.insert(key, value));
                self.0.ep.write(at, Writes(self.0).sealed(&mut Node::Sorted(leaf)).await?).await?;
            }
        }
        Ok(())
    }
}
