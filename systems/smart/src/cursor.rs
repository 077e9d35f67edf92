//! A descent: a slot as it was READ or cached, and the child that it names.
//!
//! The descent starts at the deepest cached slot on the key's path, or at the root slot (READ
//! slot). Each step READs the child that the slot names, a node or a leaf.
//!
//! *Reverse check*: a slot from the cache may be stale. A node or leaf begins with a reverse
//! pointer, the address of the slot that names it, and a node has the position at which it begins.
//! If either does not fit a cached slot, the client drops the cache entry and READs the slot again.
//! If the slot was READ itself, a wrong reverse pointer of the child is out of date: the client
//! corrects it with one CAS that it does not await.
//!
//! Invariants: a slot that was READ names the child of its prefix; a reverse pointer is only a
//! hint, and the published protocol can set it back (DESIGN.md, section 7). A node's header may
//! begin before the position of the descent (an unfinished header split), never behind it.
//!
//! A crash between the steps of a structure change leaves reverse pointers and headers old. The
//! descent accepts both, and repairs reverse pointers as it passes.

use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step, Verified, verb};

use crate::cache::EntryId;
use crate::format::header::Header;
use crate::format::leaf;
use crate::format::node::{self, HEADER_OFFSET, Node};
use crate::format::slot::{NodeType, Slot};
use crate::index::Smart;

/// The position of a descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The slot; for a node, with the type that the node itself has.
    pub slot: Slot,
    /// The slot as it was read.
    pub word: Slot,
    /// Where it is.
    pub at: GlobalAddr,
    /// The node that has the slot; the root word's address for the root slot.
    pub node: GlobalAddr,
    /// The position behind the slot's byte.
    pub next: usize,
    /// The cache entry that the slot is from.
    pub cached: Option<EntryId>,
}

impl Cursor {
    /// Sets the slot to the word that it has now.
    pub fn reread(&mut self, word: u64) {
        self.word = Slot::from_bits(word);
        self.slot = self.word;
        self.cached = None;
    }

    /// Descends to slot number `i` of a node that was READ.
    pub fn descend(&mut self, n: &Node, i: usize, word: Slot) {
        let at = node::slot_at(n.at, i);
        let next = n.header.discriminates() + 1;
        *self = Self { slot: word, word, at, node: n.at, next, cached: None };
    }

    /// The word that a change of the slot compares with.
    pub fn compared(&self, keep_words: bool) -> Slot {
        if keep_words { self.word } else { self.slot }
    }
}

/// The position among a node's shared bytes where a key differs from them, if it does.
pub(crate) fn parts_at(n: &Node, key: &[u8]) -> Option<usize> {
    let from = usize::from(n.header.depth) - 1;
    let rest = key.get(from..).unwrap_or(&[]);
    n.header.shared().iter().enumerate().find(|(i, b)| rest.get(*i) != Some(b)).map(|(i, _)| i)
}

/// A descent, node by node.
pub(crate) struct Cursors<'c>(pub(crate) &'c Smart);

impl Cursors<'_> {
    /// Starts a descent: at the deepest cached slot, or at the root slot.
    pub(crate) async fn start(&self, key: &[u8]) -> Result<Cursor> {
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        if let Some(f) = self.0.node.cache.lookup(key) {
            self.0.hits.count();
            let (slot, cached) = (f.slot, Some(f.entry));
            return Ok(Cursor { slot, word: slot, at: f.at, node: f.node, next: f.next, cached });
        }
        self.0.node.lookups.count_miss();
        self.root().await
    }

    pub(crate) async fn root(&self) -> Result<Cursor> {
        let at = self.0.node.root.word;
        self.0.ep.step(Step::Route);
        let slot = Slot::from_bits(self.0.ep.read(at, 8).await?.word(0));
        Ok(Cursor { slot, word: slot, at, node: at, next: 1, cached: None })
    }

    /// Handles a stale slot: READs it again.
    pub(crate) async fn again(&self, c: &mut Cursor) -> Result<()> {
        self.0.retried.set(true);
        self.0.ep.check_deadline("a slot that leads to the key", c.at.bits())?;
        self.forget(c);
        self.0.ep.step(Step::Route);
        c.reread(self.0.ep.read(c.at, 8).await?.word(0));
        Ok(())
    }

    /// Drops the cache entry that the slot is from.
    pub(crate) fn forget(&self, c: &mut Cursor) {
        if let Some(entry) = c.cached.take() {
            self.0.node.cache.remove(entry);
        }
    }

    /// Drops the copy of a node on a key's path.
    pub(crate) fn forget_node(&self, node: GlobalAddr, key: &[u8]) {
        if let Some(entry) = self.0.node.cache.entry_of(key, node) {
            self.0.node.cache.remove(entry);
        }
    }

    /// Corrects a reverse pointer, if it is unchanged since the READ. The outcome does not matter.
    fn repair_rev(&self, child: GlobalAddr, was: GlobalAddr, c: &Cursor) {
        self.0.ep.detach(verb::cas(child, was.bits(), c.at.bits()), None);
    }

    /// READs the node that a slot names. `None`: the slot had to be READ again, and the descent
    /// goes on from its new word.
    pub(crate) async fn read_node(&self, c: &mut Cursor, key: &[u8]) -> Result<Option<Node>> {
        let bad = || Error::corrupt(format!("slot {} names neither leaf nor node", c.at));
        let kind = c.slot.kind().ok_or_else(bad)?;
        let Some(n) = self.fetch_node(c.slot.child(), kind).await? else {
            // A deleted node, or garbage behind a stale slot.
            self.again(c).await?;
            return Ok(None);
        };
        if c.cached.is_none() && n.rev != c.at {
            self.repair_rev(n.at, n.rev, c);
        }
        let depth = usize::from(n.header.depth);
        if depth > c.next || (c.cached.is_some() && n.rev != c.at) {
            self.again(c).await?;
            return Ok(None);
        }
        c.slot = c.slot.with_kind(n.header.kind);
        if n.header.kind != kind {
            self.forget(c);
        }
        c.cached = None;
        if depth == c.next {
            self.remember(&n, key);
        }
        Ok(Some(n))
    }

    /// READs a node: as many slots as type `kind` has, and the rest if the node has grown.
    pub(crate) async fn fetch_node(&self, at: GlobalAddr, kind: NodeType) -> Result<Option<Node>> {
        check_place(at)?;
        let slots = kind.capacity().min(self.0.node.g.types.largest);
        self.0.ep.step(Step::Route);
        let bytes = self.0.ep.read(at, node::bytes(slots) as u32).await?;
        // Words are never torn, and the protocol allows for every mix of old and new words.
        let Some(mut n) = bytes.extract(|b| Node::parse(at, b)) else { return Ok(None) };
        let more = n.header.kind.capacity().min(self.0.node.g.types.largest);
        if more > slots {
            let rest = self.0.ep.read(node::slot_at(at, slots), 8 * (more - slots) as u32).await?;
            rest.extract(|b| n.extend(b));
        }
        self.0.ep.stage_cost(Stage::NodeImage, n.slots.len() as u32);
        Ok(Some(n))
    }

    /// Caches a node; the root node is not cached.
    pub(crate) fn remember(&self, n: &Node, key: &[u8]) {
        let before = usize::from(n.header.depth) - 1;
        if before == 0 || before > key.len() {
            return;
        }
        self.0.ep.stage_cost(Stage::CacheFill, 1);
        let prefix = [&key[..before], n.header.shared()].concat();
        self.0.node.cache.insert(&prefix, n.at, &n.slots);
    }

    /// READs the leaf that a slot names until it is whole. `None`: as `Cursors::read_node`. An
    /// invalid leaf is about to be replaced; it also gives `None`, unless `any` asks for it.
    pub(crate) async fn read_leaf(&self, c: &mut Cursor, any: bool) -> Result<Option<Verified>> {
        let at = c.slot.child();
        check_place(at)?;
        let g = &self.0.node.g;
        let mut backoff = self.0.ep.backoff("leaf being written", at);
        let (rev, valid, image) = loop {
            self.0.ep.step(Step::Entry);
            let bytes = self.0.ep.read(at, g.leaf_bytes() as u32).await?;
            self.0.ep.stage_cost(Stage::EntryCheck, 1);
            let seen =
                bytes.check(|b| leaf::check(g, b).map(|leaf| (leaf.rev, leaf.valid)).ok_or(()));
            if let Ok(((rev, valid), image)) = seen {
                break (rev, valid, image);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        };
        let cached = c.cached.is_some();
        if !cached && rev != c.at {
            self.repair_rev(at, rev, c);
        }
        if (!valid && (cached || !any)) || (cached && rev != c.at) {
            if !cached {
                self.0.ep.sleep(1_000).await;
            }
            self.again(c).await?;
            return Ok(None);
        }
        Ok(Some(image))
    }

    /// Whether a conclusion from a slot holds. A conclusion from a cached slot holds only if the
    /// slot still names this child; otherwise the descent goes on from its new word. As published
    /// this is not checked.
    pub(crate) async fn is_final(&self, c: &mut Cursor, cached: bool) -> Result<bool> {
        if !cached || !self.0.node.o.recheck_absent {
            return Ok(true);
        }
        let was = c.slot;
        self.0.ep.step(Step::Route);
        c.reread(self.0.ep.read(c.at, 8).await?.word(0));
        Ok(c.slot.names_same(was))
    }

    /// Changes a node's header by CAS, beginning with the word as READ, until `change` has nothing
    /// left to do.
    pub(crate) async fn change_header(
        &self,
        n: &Node,
        change: impl Fn(Header) -> Option<Header>,
    ) -> Result<()> {
        let at = n.at.plus(HEADER_OFFSET);
        let mut now = n.header;
        while let Some(new) = change(now) {
            let was = self.0.ep.cas(at, now.bits(), new.bits()).await?;
            if was == now.bits() {
                return Ok(());
            }
            self.0.ep.check_deadline("a node's header", at.bits())?;
            now = Header::parse(was)
                .ok_or_else(|| Error::corrupt(format!("{at} holds no header")))?;
        }
        Ok(())
    }
}

fn check_place(at: GlobalAddr) -> Result<()> {
    if at.node().role() != Role::Memory || at.is_null() {
        return Err(Error::corrupt(format!("{at} cannot be a node or a leaf")));
    }
    Ok(())
}
