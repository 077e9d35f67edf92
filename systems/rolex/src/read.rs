//! Point reads, and READs of directories and of leaves with their synonyms.
//!
//! Order of a read: with delegation it joins the readers of its key on this compute node
//! (`parts::sharing`); the model of the key's segment gives a window, without a verb; all leaves of
//! the window are READ with their synonyms. A key is in its leaf, which its rank determines, or in
//! the synonym of that leaf. The linearization point is the READ that has the key; of an absence
//! the READ of its leaf or of the synonym.
//!
//! Order of a READ of some leaves: all of them, and the synonyms that the client knows, in one
//! doorbell; then the synonyms that the heads of the leaves name and the client did not know. While
//! any of them is being written, all are READ again. With `destination_first` no synonym is READ
//! before its leaf has been.
//!
//! Invariants: an image is of one WRITE (`parts::lines`). A key moves from a leaf to its synonym,
//! never back, so a reader that READs the synonym after the leaf finds it. READs change nothing, so
//! a crash leaves nothing behind.

use std::ops::RangeInclusive;
use std::sync::Arc;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Backoff, Error, GlobalAddr, OpOutcome, Result, Role, Stage, Step};
use dmtree_parts::bytes::get_u64;

use crate::directory::{Directory, Header, KEY_BYTES, Models, check_of};
use crate::index::Rolex;
use crate::leaf::Node;

/// Bytes of a READ of trained keys.
const PIECE: usize = 64 << 10;

/// A leaf, and its synonym if it has one.
#[derive(Debug)]
pub struct Group<'g> {
    /// Where the leaf is.
    pub at: GlobalAddr,
    /// The leaf.
    pub leaf: Node<'g>,
    /// The synonym.
    pub synonym: Option<Node<'g>>,
}

impl<'g> Group<'g> {
    /// Both, as far as they are there.
    pub fn parts(&self) -> impl Iterator<Item = &Node<'g>> {
        [Some(&self.leaf), self.synonym.as_ref()].into_iter().flatten()
    }

    /// The value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.parts().find_map(|leaf| leaf.value(key))
    }

    /// Its pairs, in order.
    pub fn pairs(&self) -> Vec<(&[u8], &[u8])> {
        let mut all: Vec<_> = self.parts().flat_map(Node::pairs).collect();
        all.sort_unstable();
        all
    }
}

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c Rolex);

impl<'c> Reads<'c> {
    /// A read that may share its READ, or that of another reader.
    pub(crate) async fn get_shared(
        &self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        let find = async |out: &mut Vec<u8>| {
            let (_, groups) = self.window(key).await?;
            let value = groups.iter().find_map(|group| group.value(key));
            out.extend_from_slice(value.unwrap_or_default());
            Ok(value.is_some())
        };
        self.0.node.sharers.read(&self.0.ep, key, out, find).await
    }

    /// READs the window of a key. Returns the directory that it is a window of, too.
    pub(crate) async fn window(&self, key: &[u8]) -> Result<(Arc<Directory>, Vec<Group<'c>>)> {
        let mut d = self.directory().await?;
        let mut backoff = self.0.ep.backoff("leaves that move", d.at);
        loop {
            self.0.ep.stage_cost(Stage::CacheLookup, 1);
            let window = d.models.window(d.number(key));
            let apart = self.0.node.o.destination_first;
            match self.groups(&d, (window, Some(key)), apart).await? {
                Some(groups) => return Ok((d, groups)),
                None => d = self.next_directory(&d, &mut backoff).await?,
            }
        }
    }

    /// The directory, as far as this client knows it.
    pub(crate) async fn directory(&self) -> Result<Arc<Directory>> {
        if let Some(known) = &*self.0.directory.borrow() {
            return Ok(known.clone());
        }
        let known = match self.0.node.known() {
            Some(known) => known,
            None => self.read_directory(self.0.root_pointer().await?).await?,
        };
        Ok(self.uses(known))
    }

    /// This client, and its compute node, use a directory.
    pub(crate) fn uses(&self, directory: Arc<Directory>) -> Arc<Directory> {
        self.0.node.learn(&directory);
        self.0.directory.replace(Some(directory.clone()));
        directory
    }

    /// The next directory, when the leaves of one have moved.
    pub(crate) async fn next_directory(
        &self,
        old: &Directory,
        backoff: &mut Backoff<'_>,
    ) -> Result<Arc<Directory>> {
        self.0.retried.set(true);
        if let Some(known) = self.0.node.known().filter(|known| known.at != old.at) {
            return Ok(self.uses(known));
        }
        loop {
            let at = self.0.root_pointer().await?;
            if at != old.at {
                return Ok(self.uses(self.read_directory(at).await?));
            }
            backoff.step().await?;
        }
    }

    /// READs a directory, and trains its models.
    pub(crate) async fn read_directory(&self, at: GlobalAddr) -> Result<Arc<Directory>> {
        let (o, g) = (&self.0.node.o, &self.0.node.g);
        let torn = |what: &str| Error::corrupt(format!("the directory at {at}: {what}"));
        let bytes = Header::bytes(self.0.node.pool.memory_nodes());
        self.0.ep.step(Step::Route);
        let image = self.0.ep.read(at, bytes as u32).await?;
        let header = image.extract(Header::decode).ok_or_else(|| torn("no header"))?;
        let (count, first, check) = header.keys;
        let mut keys: Vec<u128> = Vec::new();
        while (keys.len() as u64) < count {
            self.0.ep.renew_deadline();
            let left = (count - keys.len() as u64).saturating_mul(KEY_BYTES as u64);
            let from = first.plus((keys.len() * KEY_BYTES) as u64);
            let piece = self.0.ep.read(from, left.min(PIECE as u64) as u32).await?;
            piece.extract(|bytes| {
                let numbers = bytes.chunks_exact(KEY_BYTES);
                let number = |b: &[u8]| u128::from(get_u64(b, 8)) << 64 | u128::from(get_u64(b, 0));
                keys.extend(numbers.map(number));
            });
        }
        if check_of(&keys) != check {
            return Err(torn("other keys than it was written with"));
        }
        let models = Models::train(o, keys)?;
        Ok(Arc::new(Directory::new(at, header, models, g.stride())))
    }

    /// READs leaves with their synonyms, as far as a key can be there, or whole; `None` when one of
    /// them has moved. `apart`: synonyms are READ after their leaves.
    pub(crate) async fn groups(
        &self,
        d: &Directory,
        (leaves, key): (RangeInclusive<u32>, Option<&[u8]>),
        apart: bool,
    ) -> Result<Option<Vec<Group<'c>>>> {
        let places: Vec<GlobalAddr> = leaves.map(|ordinal| d.leaf(ordinal)).collect();
        let mut backoff = self.0.ep.backoff("leaves being written", places[0]);
        loop {
            if let Some(groups) = self.sample((&places, key), apart).await? {
                let moved = groups.iter().any(|group| group.leaf.has_moved());
                return Ok((!moved).then_some(groups));
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// READs leaves with their synonyms once; `None` while one of them is being written.
    async fn sample(
        &self,
        (places, key): (&[GlobalAddr], Option<&[u8]>),
        apart: bool,
    ) -> Result<Option<Vec<Group<'c>>>> {
        let mut known = Vec::new();
        if !apart {
            let all = self.0.synonyms.borrow();
            let of = |(i, at): (usize, &GlobalAddr)| all.get(at).map(|synonym| (i, *synonym));
            known.extend(places.iter().enumerate().filter_map(of));
        }
        let addresses = places.iter().copied().chain(known.iter().map(|(_, at)| *at));
        let Some(mut read) = self.read_leaves(addresses, key).await? else { return Ok(None) };
        let synonyms = read.split_off(places.len());
        let group = |(at, leaf): (&GlobalAddr, _)| Group { at: *at, leaf, synonym: None };
        let mut groups: Vec<Group<'_>> = places.iter().zip(read).map(group).collect();
        known.iter().zip(synonyms).for_each(|((i, _), s)| groups[*i].synonym = Some(s));
        let unknown = |group: &&mut Group<'_>| {
            group.synonym.is_none() && !group.leaf.synonym().is_null() && !group.leaf.has_moved()
        };
        let mut without: Vec<&mut Group<'_>> = groups.iter_mut().filter(unknown).collect();
        if without.is_empty() {
            return Ok(Some(groups));
        }
        let addresses: Vec<_> = without.iter().map(|group| group.leaf.synonym()).collect();
        let Some(read) = self.read_leaves(addresses.into_iter(), key).await? else {
            return Ok(None);
        };
        for (group, synonym) in without.iter_mut().zip(read) {
            self.0.synonyms.borrow_mut().insert(group.at, group.leaf.synonym());
            group.synonym = Some(synonym);
        }
        Ok(Some(groups))
    }

    /// READs leaves, in one doorbell; `None` while one of them is being written.
    async fn read_leaves(
        &self,
        places: impl Iterator<Item = GlobalAddr>,
        key: Option<&[u8]>,
    ) -> Result<Option<Vec<Node<'c>>>> {
        let (g, mut verbs, mut bytes) = (&self.0.node.g, VerbVec::new(), 0);
        let parts = g.parts(key);
        for at in places {
            if at.node().role() != Role::Memory {
                return Err(Error::corrupt(format!("{at} cannot be a leaf")));
            }
            for raw in parts.iter().map(|part| g.raw(part)) {
                bytes += raw.len();
                verbs.read(at.plus(raw.start as u64), raw.len() as u32);
            }
        }
        self.0.ep.step(Step::Entry);
        let (count, mut read) = (verbs.len() / parts.len(), self.0.ep.batch(verbs).await?);
        let slots = bytes * g.span / g.raw_bytes();
        self.0.ep.stage_cost(Stage::NodeImage, slots as u32);
        let decode = |i: usize| {
            let mut node = g.unread();
            let whole = parts.iter().enumerate().all(|(n, part)| {
                let sampled = read.take_sampled(i * parts.len() + n);
                sampled.extract(|raw| node.take(part.clone(), raw))
            });
            (whole && node.is_still(g, key)).then_some(node)
        };
        Ok((0..count).map(decode).collect())
    }

    /// READs a leaf until it is whole, as far as a key can be there, or all of it.
    pub(crate) async fn read_leaf(&self, at: GlobalAddr, key: Option<&[u8]>) -> Result<Node<'c>> {
        let mut backoff = self.0.ep.backoff("leaf being written", at);
        loop {
            let read = self.read_leaves(std::iter::once(at), key).await?;
            if let Some(node) = read.and_then(|mut all| all.pop()) {
                return Ok(node);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }
}
