//! Writes of a tree.

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::tree::{area, block};
use dmtree_parts::{Outcome, Write, check_key};
use dmtree_pool::BlockPtr;

use super::leaf::{Entry, Image};
use super::tree::{Map, Place, Stop, Tree, Visit};
use crate::wire::{Counts, Pair};

impl Tree {
    /// Executes a write: the store of its slot is where it takes effect.
    pub(crate) fn write(
        &self,
        v: &Visit<'_>,
        knows: bool,
        key: &[u8],
        w: &Write<'_>,
    ) -> Result<(Outcome, Counts), Stop> {
        check_key(key)?;
        w.check()?;
        let mut splits = false;
        loop {
            let map = self.shared(knows)?;
            if let Some((outcome, counts)) = self.write_leaf(v, &map, (key, w))? {
                let split = counts == Counts::Inserted && splits;
                return Ok((outcome, if split { Counts::Split } else { counts }));
            }
            drop(map);
            self.split(v, key)?;
            splits = true;
        }
    }

    /// The same, unless the leaf is full.
    fn write_leaf(
        &self,
        v: &Visit<'_>,
        map: &Map,
        (key, w): (&[u8], &Write<'_>),
    ) -> Result<Option<(Outcome, Counts)>, Stop> {
        let at = map.leaf_of(key)?.at;
        v.searched(map.leaves.len());
        v.entries(1);
        let _latch = self.latch(at);
        let mut image = self.load(v, at)?;
        let found = image.find(v, key)?;
        let old = match (w, found) {
            (Write::CompareAndSet { .. }, Some(i)) => Some(image.value(v, i)?),
            (_, found) => found.map(|_| (&[][..]).into()),
        };
        if let Some((outcome, _)) = w.refused(old.as_deref()) {
            let counts = if old.is_some() { Counts::Hit } else { Counts::Absent };
            return Ok(Some((outcome, counts)));
        }
        drop(old);
        let Some(value) = w.value() else {
            return self.remove(v, &mut image, found).map(Some);
        };
        let Some(i) = found.or_else(|| image.free()) else { return Ok(None) };
        let old = found.map(|i| image.entry(i)).transpose()?;
        let value = self.value_area(v, value)?;
        let entry = match &old {
            Some(old) => Entry { key: old.key.clone(), value },
            None => self.with_key(v, key, value)?,
        };
        image.set(i, &entry);
        image.store_slot(v, i)?;
        if let Some(b) = old.as_ref().and_then(Entry::value_block) {
            self.room.give_back(b);
        }
        let counts = if old.is_some() { Counts::Hit } else { Counts::Inserted };
        Ok(Some((Outcome::Done, counts)))
    }

    fn remove(
        &self,
        v: &Visit<'_>,
        image: &mut Image,
        found: Option<usize>,
    ) -> Result<(Outcome, Counts), Stop> {
        let Some(i) = found else { return Ok((Outcome::NotFound, Counts::Absent)) };
        let old = image.entry(i)?;
        image.set_free(i);
        image.store_slot(v, i)?;
        let blocks = [old.key_block(), old.value_block()];
        blocks.into_iter().flatten().for_each(|b| self.room.give_back(b));
        Ok((Outcome::Done, Counts::Hit))
    }

    /// The area of a value: the value, or a block with it.
    fn value_area(&self, v: &Visit<'_>, value: &[u8]) -> Result<(Vec<u8>, area::Mode), Stop> {
        let mut bytes = vec![0; self.g.v];
        if let Some(mode) = area::put_inline(&mut bytes, value) {
            return Ok((bytes, mode));
        }
        let mode = area::put_value_block(&mut bytes, self.new_block(v, (&[], value))?);
        Ok((bytes, mode))
    }

    /// An entry of a key and the area of its value. The value's block comes back if there is no
    /// room.
    fn with_key(
        &self,
        v: &Visit<'_>,
        key: &[u8],
        value: (Vec<u8>, area::Mode),
    ) -> Result<Entry, Stop> {
        let mut bytes = vec![0; self.g.k];
        if let Some(mode) = area::put_inline(&mut bytes, key) {
            return Ok(Entry { key: (bytes, mode), value });
        }
        let mut entry = Entry { key: (bytes, area::Mode::Full), value };
        match self.new_block(v, (key, &[])) {
            Ok(block) => {
                let hash = KeyHash::of(key);
                entry.key.1 = area::put_key_block(&mut entry.key.0, key, hash, block);
                Ok(entry)
            }
            Err(stop) => {
                entry.value_block().into_iter().for_each(|b| self.room.give_back(b));
                Err(stop)
            }
        }
    }

    fn new_block(&self, v: &Visit<'_>, (key, value): Pair<'_>) -> Result<BlockPtr, Stop> {
        let len = block::bytes(key.len(), value.len());
        let at = self.room.take_block(len).ok_or(Stop::Room(u64::from(len) * 5 / 4 + 64))?;
        let mut bytes = vec![0; len.next_multiple_of(8) as usize];
        block::fill(at, &mut bytes, key, value);
        v.copied(bytes.len());
        v.memory.write(at.addr().offset(), &bytes)?;
        Ok(at)
    }

    /// Splits the leaf of a key if it is full. The upper half is stored before the map names it,
    /// and before the lower half is: with it the version of every slot changes, so that no READ
    /// mixes slots of both times.
    fn split(&self, v: &Visit<'_>, key: &[u8]) -> Result<(), Stop> {
        let mut map = self.alone();
        let Place { at, low, high } = map.leaf_of(key)?;
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        let mut left = self.load(v, at)?;
        if left.free().is_some() {
            return Ok(());
        }
        let mut right = self.new_leaf()?;
        v.entries(2 * self.g.fanout);
        let (border, moves) = {
            let keys = left.sorted(v)?;
            let middle = keys.len() / 2;
            let moves: Vec<usize> = keys[middle..].iter().map(|(_, i)| *i).collect();
            (between(&keys[middle - 1].0, &keys[middle].0), moves)
        };
        let ver = right.ver();
        right.set_header(ver, (&border, high.as_deref()), left.next());
        for (i, from) in moves.iter().enumerate() {
            right.set(i, &left.entry(*from)?);
        }
        right.store(v)?;
        self.restamp(&mut left, (&low, Some(&border)), right.at, &moves)?;
        left.store(v)?;
        map.leaves.insert(border, right.at.offset());
        Ok(())
    }

    /// Gives a leaf new fences, and with them a new version of every slot; some become free.
    pub(crate) fn restamp(
        &self,
        image: &mut Image,
        fences: (&[u8], Option<&[u8]>),
        next: GlobalAddr,
        freed: &[usize],
    ) -> Result<()> {
        let live: Vec<usize> = image.live().filter(|i| !freed.contains(i)).collect();
        let ver = image.next_ver();
        image.set_header(ver, fences, next);
        for i in 0..self.g.fanout {
            match live.contains(&i) {
                true => {
                    let entry = image.entry(i)?;
                    image.set(i, &entry);
                }
                false => image.set_free(i),
            }
        }
        Ok(())
    }

    /// Appends a leaf of pairs behind all keys; false when there are such keys already, or the
    /// pairs are none of a leaf.
    pub(crate) fn append(&self, v: &Visit<'_>, pairs: &[Pair<'_>]) -> Result<bool, Stop> {
        let mut map = self.alone();
        let ascend = pairs.windows(2).all(|w| w[0].0 < w[1].0);
        let Some((first, _)) = pairs.first().filter(|_| ascend && pairs.len() <= self.g.fanout)
        else {
            return Ok(false);
        };
        pairs.iter().try_for_each(|(key, _)| check_key(key))?;
        let last = map.leaves.last_key_value().map(|(low, at)| (low.clone(), *at));
        let Some((low, at)) = last else { return Ok(false) };
        let mut before = self.load(v, at)?;
        let greatest = before.sorted(v)?.last().map(|(key, _)| key.to_vec());
        let border = match &greatest {
            None if low.is_empty() => Vec::new(),
            Some(greatest) if greatest < &first.to_vec() => between(greatest, first),
            _ => return Ok(false),
        };
        v.entries(pairs.len());
        if border.is_empty() {
            self.fill(v, &mut before, pairs)?;
            before.store(v)?;
            return Ok(true);
        }
        let mut leaf = self.new_leaf()?;
        let ver = leaf.ver();
        leaf.set_header(ver, (&border, map.end()), GlobalAddr::NULL);
        if let Err(stop) = self.fill(v, &mut leaf, pairs) {
            self.room.give_back_leaf(leaf.at.offset());
            return Err(stop);
        }
        leaf.store(v)?;
        self.restamp(&mut before, (&low, Some(&border)), leaf.at, &[])?;
        before.store(v)?;
        map.leaves.insert(border, leaf.at.offset());
        Ok(true)
    }

    /// Puts pairs into an image; without room it gives back the blocks that it has taken.
    fn fill(&self, v: &Visit<'_>, image: &mut Image, pairs: &[Pair<'_>]) -> Result<(), Stop> {
        for (i, (key, value)) in pairs.iter().enumerate() {
            let entry = self.value_area(v, value).and_then(|value| self.with_key(v, key, value));
            match entry {
                Ok(entry) => image.set(i, &entry),
                Err(stop) => {
                    for done in 0..i {
                        let entry = image.entry(done)?;
                        let blocks = [entry.key_block(), entry.value_block()];
                        blocks.into_iter().flatten().for_each(|b| self.room.give_back(b));
                    }
                    return Err(stop);
                }
            }
        }
        Ok(())
    }
}

/// The shortest key above one and not above another.
fn between(below: &[u8], key: &[u8]) -> Vec<u8> {
    let common = below.iter().zip(key).take_while(|(a, b)| a == b).count();
    key[..key.len().min(common + 1)].to_vec()
}
