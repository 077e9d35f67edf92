//! Inserts a leaf for a new key into an empty slot of the node where its path ends.
//!
//! Verbs in order:
//! 1. WRITE leaf. An attempt at another slot only WRITEs its reverse pointer again.
//! 2. CAS slot: 0 -> leaf. This is the linearization point of a slot within the node's type.
//! 3. If the slot is behind the node's type (*type switch*): CAS of the type in the slot above, and
//!    CAS of the header, in one round trip, repeated until both have at least the new type.
//!
//! Slots are taken in order and stay taken. Two clients that insert under the same byte therefore
//! meet at the same slot, and a byte has one slot. A node that has no slot left grows in place;
//! every node has room for the largest type.
//!
//! A crash between 1 and 2 loses the memory of the leaf. A crash between 2 and 3 leaves a slot
//! behind the type, which readers do not READ. With `help_types` the next writer that meets the
//! slot completes step 3; as published it accepts the slot, and its write cannot be found
//! (DESIGN.md, section 7). A crash inside of step 3 leaves different types in the slot above and in
//! the header; readers take the type of the header, and writers that grow the node again raise
//! both.

use dmtree_fabric::{Error, GlobalAddr, Result, Step, verb::VerbVec};
use dmtree_parts::op::{INSERTED, SPLIT, Written};

use crate::cursor::Cursor;
use crate::cursor::Cursors;
use crate::format::header::Header;
use crate::format::node::{HEADER_OFFSET, Node, slot_at};
use crate::format::slot::{NodeType, Slot};
use crate::format::{byte_at, leaf};
use crate::index::Smart;
use crate::write::Job;

/// The outcome of an attempt to take a slot.
enum Taken {
    Done,
    /// Slot number `.0` belongs to another key with the same byte, and has this word.
    SameByte(usize, Slot),
    /// The slot belongs to another byte.
    Other,
}

/// Inserts of new keys.
pub(crate) struct Inserts<'c>(pub(crate) &'c Smart);

impl Inserts<'_> {
    /// The leaf of a new key, under the slot that shall name it. The first call WRITEs the leaf;
    /// later calls WRITE only the slot's address.
    pub(crate) async fn ready_leaf(&self, job: &mut Job<'_>, slot: GlobalAddr) -> Result<Slot> {
        let g = &self.0.node.g;
        self.0.ep.step(Step::Entry);
        let at = match job.leaf {
            Some(at) => {
                self.0.ep.write_word(at, slot.bits()).await?;
                at
            }
            None => {
                let at = self.0.new_leaf().await?;
                job.leaf = Some(at);
                job.latest();
                let mut image = self.0.blank(g.leaf_bytes()).await?;
                leaf::put(g, &mut image, slot, job.key, &job.value);
                self.0.ep.write(at, image).await?;
                at
            }
        };
        Slot::leaf(0, g.leaf_bytes(), at)
    }

    /// Fills an empty slot: the root slot of an empty tree.
    pub(crate) async fn fill_slot(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
    ) -> Result<Option<Written>> {
        let new = self.ready_leaf(job, c.at).await?;
        let new = new.with_partial(byte_at(job.key, c.next - 1));
        self.0.ep.step(Step::Structure);
        let was = self.0.ep.cas(c.at, 0, new.bits()).await?;
        if was != 0 {
            self.0.retried.set(true);
            c.reread(was);
            return Ok(None);
        }
        job.leaf = None;
        Ok(Some(INSERTED))
    }

    /// Takes the first free slot of a node that has none for the key's byte. `None`: another client
    /// was first with that byte, and the descent goes on there.
    pub(crate) async fn add_slot(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        n: Node,
    ) -> Result<Option<Written>> {
        let byte = byte_at(job.key, n.header.discriminates());
        let capacity = n.header.kind.capacity();
        for i in n.taken().. {
            if i >= self.0.node.g.types.largest {
                return Err(Error::invalid(format!(
                    "more than {i} different bytes follow one prefix: make the index with a larger largest_node"
                )));
            }
            match self.take_slot(job, &n, i, byte).await? {
                Taken::Done if i < capacity => return Ok(Some(INSERTED)),
                Taken::Done => {
                    self.switch_type(c, &n, i, job.key).await?;
                    return Ok(Some(SPLIT));
                }
                Taken::SameByte(i, word) => {
                    if i >= capacity && self.0.node.o.help_types {
                        self.switch_type(c, &n, i, job.key).await?;
                    }
                    c.descend(&n, i, word);
                    return Ok(None);
                }
                Taken::Other => {}
            }
        }
        Err(Error::corrupt(format!("node {} has no end", n.at)))
    }

    async fn take_slot(&self, job: &mut Job<'_>, n: &Node, i: usize, byte: u8) -> Result<Taken> {
        let at = slot_at(n.at, i);
        let new = self.ready_leaf(job, at).await?.with_partial(byte);
        self.0.ep.step(Step::Structure);
        let was = Slot::from_bits(self.0.ep.cas(at, 0, new.bits()).await?);
        if was.is_empty() {
            job.leaf = None;
            return Ok(Taken::Done);
        }
        self.0.retried.set(true);
        Ok(if was.partial() == byte { Taken::SameByte(i, was) } else { Taken::Other })
    }

    /// Makes a node large enough for slot number `i`: raises the type in the slot that names it and
    /// in its header, in one round trip.
    async fn switch_type(&self, c: &Cursor, n: &Node, i: usize, key: &[u8]) -> Result<()> {
        let kind = self.0.node.g.types.fitting(i + 1);
        let kind = kind.ok_or_else(|| Error::corrupt(format!("slot {i} of node {}", n.at)))?;
        let mut word = c.compared(self.0.node.o.keep_words);
        let mut header = n.header;
        let (mut slot_at, header_at) = (c.at, n.at.plus(HEADER_OFFSET));
        self.0.ep.step(Step::Structure);
        let mut both = VerbVec::new();
        loop {
            let slot_due = is_smaller(word.kind(), kind);
            let header_due = is_smaller(Some(header.kind), kind);
            if !slot_due && !header_due {
                break;
            }
            self.0.ep.check_deadline("a node's type", n.at.bits())?;
            let a = slot_due.then(|| both.cas(slot_at, word.bits(), word.with_kind(kind).bits()));
            let b = header_due
                .then(|| both.cas(header_at, header.bits(), header.with_kind(kind).bits()));
            both = self.0.ep.batch(both).await?;
            if let Some(a) = a {
                let was = Slot::from_bits(both.word(a));
                let done = was == word;
                word = if done { word.with_kind(kind) } else { was };
                if !done && was.kind().is_some() && was.child() != n.at {
                    (slot_at, word) = self.slot_of(n.at, was).await?;
                }
            }
            if let Some(b) = b {
                let was = Header::parse(both.word(b));
                let was = was.ok_or_else(|| Error::corrupt(format!("{header_at}: no header")))?;
                header = if was == header { header.with_kind(kind) } else { was };
            }
            both.clear();
        }
        // As published, the whole copy of the node above is dropped.
        Cursors(self.0).forget_node(c.node, key);
        Ok(())
    }

    /// The slot that names a node now, below a slot that named it before. New nodes between them
    /// have it in their first slot.
    async fn slot_of(&self, node: GlobalAddr, from: Slot) -> Result<(GlobalAddr, Slot)> {
        let mut word = from;
        loop {
            self.0.ep.check_deadline("the slot that names a node", node.bits())?;
            if word.kind().is_none() {
                return Err(Error::corrupt(format!("no slot names node {node}")));
            }
            let at = slot_at(word.child(), 0);
            word = Slot::from_bits(self.0.ep.read(at, 8).await?.word(0));
            if word.child() == node {
                return Ok((at, word));
            }
        }
    }
}

fn is_smaller(kind: Option<NodeType>, than: NodeType) -> bool {
    kind.is_some_and(|k| k.capacity() < than.capacity())
}
