//! Hopscotch leaves: the steps from ROLEX towards CHIME.
//!
//! A search READs the neighbourhood of its key in every leaf of the window, and in their synonyms.
//! An insert READs the leaf and its synonym whole, or with `vacancy`, after the CAS, the vacancy
//! word, and the slots from the home to the first bucket with a free slot. It writes the slots from
//! the home to the free one, and with the lock the vacancy word. A key that finds no room in its
//! leaf goes to the synonym. A new synonym is written whole, and so is the leaf that links it.
//!
//! Invariants: keys move within a leaf as `parts::hopscotch` says, and never from a leaf to its
//! synonym. The word before the lock errs towards "full".
//!
//! A crash leaves what the crash of a writer of sorted leaves leaves (`write.rs`), and perhaps a
//! key in two slots.

use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage};
use dmtree_parts::held::Unlock;
use dmtree_parts::hopscotch::{Leaf, Part, Table};
use dmtree_parts::op::{INSERTED, Written};
use dmtree_parts::sharing::SharedWrite;

use crate::format::MAP_BITS;
use crate::index::Rolex;
use crate::leaf::Node;
use crate::write::Held;
use crate::write::Writes;

/// The bits of a leaf in the vacancy word.
const MAP: u64 = (1 << MAP_BITS) - 1;

/// A leaf or a synonym under the lock: where it is, what was READ of it, and the lowest bit of its
/// map in the vacancy word.
struct Half<'g> {
    at: GlobalAddr,
    leaf: Leaf<'g>,
    shift: usize,
}

impl Half<'_> {
    /// The vacancy word after slots have changed.
    fn noted(&self, word: u64, slots: impl Iterator<Item = usize> + Clone) -> u64 {
        let map = self.leaf.mapped(word >> self.shift & MAP, slots);
        word & !(MAP << self.shift) | map << self.shift
    }
}

/// Moves between the slots of a leaf.
pub(crate) struct Hops<'c>(pub(crate) &'c Rolex);

impl<'c> Hops<'c> {
    /// The WRITE of the slot of a key with a new value.
    pub(crate) async fn overwritten(
        &self,
        at: GlobalAddr,
        mut leaf: Leaf<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Vec<(GlobalAddr, Buf)>> {
        let lost = || Error::corrupt(format!("the leaf at {at} has lost a key under its lock"));
        let slot = leaf.find(job.key).ok_or_else(lost)?;
        leaf.set_value(slot, job.value());
        let table = self.0.node.g.table.as_ref().ok_or_else(lost)?;
        self.images(at, &leaf, &[table.single(slot)]).await
    }

    /// The WRITEs of some parts of a leaf.
    async fn images(
        &self,
        at: GlobalAddr,
        leaf: &Leaf<'_>,
        parts: &[Part],
    ) -> Result<Vec<(GlobalAddr, Buf)>> {
        let mut writes = Vec::new();
        let Some(table) = &self.0.node.g.table else { return Ok(writes) };
        for part in parts {
            let raw = table.leaf.written(part.clone());
            let mut image = self.0.blank(raw.len()).await?;
            table.leaf.encode(part.clone(), &leaf.bytes, &mut image);
            writes.push((at.plus(raw.start as u64), image));
        }
        Ok(writes)
    }

    /// READs what is missing of a leaf or a synonym, under its lock.
    async fn complete<'g>(&self, half: &Half<'g>) -> Result<Leaf<'g>> {
        match &half.leaf.rest()[..] {
            [] => Ok(half.leaf.clone()),
            rest => self.0.with_parts(half.leaf.clone(), half.at, (rest, self.0.node.g.span)).await,
        }
    }

    /// READs what an insert of a key needs of a leaf or a synonym.
    async fn half<'g>(
        &self,
        table: &'g Table,
        (at, shift): (GlobalAddr, usize),
        (word, home): (u64, usize),
    ) -> Result<Half<'g>> {
        let slots = table.reach(word >> shift & MAP, home).max(table.near);
        let parts = table.parts(home, slots);
        let leaf = self.0.with_parts(table.unread(), at, (&parts, self.0.node.g.span)).await?;
        Ok(Half { at, leaf, shift })
    }

    /// Puts a pair into its leaf or the synonym; `None` when the leaf has moved.
    pub(crate) async fn insert_hopscotch(
        &self,
        held: Held,
        table: &Table,
        at: GlobalAddr,
        job: &mut SharedWrite<'_>,
    ) -> Result<Option<Written>> {
        let (g, home) = (&self.0.node.g, table.home(job.key));
        let read = async {
            let word = match g.has_vacancy {
                true => self.0.ep.read(at.plus(g.lock_at() - 8), 8).await?.word(0),
                false => u64::MAX,
            };
            let half = self.half(table, (at, 0), (word, home)).await?;
            let node = Node::Hopscotch(half.leaf.clone());
            let synonym = match node.synonym() {
                synonym if synonym.is_null() || node.has_moved() => None,
                synonym => Some(self.half(table, (synonym, MAP_BITS), (word, home)).await?),
            };
            Ok((word, half, synonym, node.has_moved()))
        };
        let (held, (word, leaf, synonym, moved)) = self.0.under(held, read.await).await?;
        if moved {
            return self.0.unlock(held).await.map(|()| None);
        }
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let mut halves: Vec<Half<'_>> = [Some(leaf), synonym].into_iter().flatten().collect();
        let has = |half: &Half<'_>| half.leaf.find(job.key).is_some();
        if let Some(found) = halves.iter().position(has) {
            let half = halves.swap_remove(found);
            // The slot is written with what its line holds; the head too, where there are replicas.
            let place = (half.at, Node::Hopscotch(half.leaf));
            return Writes(self.0).put_present(held, place, job).await.map(Some);
        }
        let mut held = held;
        for half in &mut halves {
            let room = self.put_half(held, table, half, word, job).await?;
            match room {
                Ok(written) => return Ok(Some(written)),
                Err(back) => held = back,
            }
        }
        if halves.len() > 1 {
            return Writes(self.0).full(held, at).await.map(Some);
        }
        let Some(leaf) = halves.pop() else { return Ok(None) };
        self.link_synonym(held, table, leaf, word, job).await.map(Some)
    }

    /// Puts a pair into a leaf or a synonym; gives the lock back when it has no room.
    async fn put_half(
        &self,
        held: Held,
        table: &Table,
        half: &mut Half<'_>,
        word: u64,
        job: &mut SharedWrite<'_>,
    ) -> Result<Result<Written, Held>> {
        let home = table.home(job.key);
        if !half.leaf.has_free_from(home) {
            half.leaf = self.0.under(held, self.complete(half).await).await?.1;
        }
        let Some(room) = table.room(&half.leaf.offsets(), home) else { return Ok(Err(held)) };
        half.leaf.put_into(&room, job.key, job.value());
        let touched = (0..room.reach).map(|d| table.slot(home, d));
        let word = self.0.node.g.has_vacancy.then(|| half.noted(word, touched));
        let parts = table.touched(home, room.reach);
        let writes = self.images(half.at, &half.leaf, &parts).await?;
        Writes(self.0).release(held, writes, word).await?;
        Ok(Ok(INSERTED))
    }

    /// Puts a pair into a new synonym of a leaf without room.
    async fn link_synonym(
        &self,
        held: Held,
        table: &Table,
        mut leaf: Half<'_>,
        word: u64,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let read =
            async { Ok((self.complete(&leaf).await?, Writes(self.0).new_synonym(leaf.at).await?)) };
        let (held, (whole, at)) = self.0.under(held, read.await).await?;
        leaf.leaf = whole;
        leaf.leaf.set_metadata(at, &[], &[]);
        let mut synonym = Half { at, leaf: table.empty_leaf(), shift: MAP_BITS };
        synonym.leaf.fill(table.home(job.key), job.key, job.value());
        let slots = 0..table.span;
        let noted = synonym.noted(leaf.noted(word, slots.clone()), slots);
        let leaf = (leaf.at, Writes(self.0).sealed(&mut Node::Hopscotch(leaf.leaf)).await?);
        let synonym = (at, Writes(self.0).sealed(&mut Node::Hopscotch(synonym.leaf)).await?);
        let first = self.0.node.o.destination_first;
        let both = if first { vec![synonym, leaf] } else { vec![leaf, synonym] };
        Writes(self.0).release(held, both, self.0.node.g.has_vacancy.then_some(noted)).await?;
        Ok(INSERTED)
    }

    /// WRITEs a leaf that nothing names yet, with these pairs, and its synonym if it needs one.
    pub(crate) async fn write_hopscotch<'p>(
        &self,
        table: &Table,
        at: GlobalAddr,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])>,
    ) -> Result<()> {
        let mut leaf = Half { at, leaf: table.empty_leaf(), shift: 0 };
        let mut synonym: Option<Half<'_>> = None;
        for (key, value) in pairs {
            let home = table.home(key);
            if let Some(room) = table.room(&leaf.leaf.offsets(), home) {
                leaf.leaf.put_into(&room, key, value);
                continue;
            }
            if synonym.is_none() {
                let at = Writes(self.0).new_synonym(at).await?;
                leaf.leaf.set_metadata(at, &[], &[]);
                synonym = Some(Half { at, leaf: table.empty_leaf(), shift: MAP_BITS });
            }
            let room = |half: &Half<'_>| table.room(&half.leaf.offsets(), home);
            match synonym.as_mut().and_then(|half| room(half).map(|room| (half, room))) {
                Some((half, room)) => half.leaf.put_into(&room, key, value),
                None => return Err(Error::unsupported("a leaf and its synonym have no room")),
            }
        }
        let mut word = 0;
        for half in [Some(leaf), synonym].into_iter().flatten() {
            word = half.noted(word, 0..table.span);
            let image = Writes(self.0).sealed(&mut Node::Hopscotch(half.leaf)).await?;
            self.0.ep.write(half.at, image).await?;
        }
        if self.0.node.g.has_vacancy {
            self.0.ep.write_word(at.plus(self.0.node.g.lock_at() - 8), word).await?;
        }
        Ok(())
    }
}
