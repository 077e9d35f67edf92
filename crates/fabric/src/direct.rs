//! Memory of this process: lists of verbs execute on the posting thread, verb by verb.
//!
//! Nothing is staged and nothing is in flight: the results are there when the post returns, so no
//! buffer outlives its caller. The verbs, their order, their checks and their counts are those of a
//! posted list.

use crate::addr::{GlobalAddr, NodeId, Role};
use crate::counters::{Counters, SideCounts};
use crate::error::{Error, Result};
use crate::local::LocalTransport;
use crate::slab::{Buf, Slab};
use crate::transport::Opcode;

/// Access of a transport to memory of this process: verbs execute on the posting thread.
pub trait DirectMemory {
    /// A list begins. A revocation of this node's access waits until the list has ended.
    fn begin(&self);
    /// The list has ended.
    fn end(&self);
    /// A hint that a READ of these bytes comes soon.
    fn prefetch(&self, at: GlobalAddr, len: u32);
    /// READs bytes. As for every verb here, the right to reach the node is checked before, and a
    /// verb that fails has no effect.
    ///
    /// # Errors
    /// As a posted verb.
    fn read(&self, at: GlobalAddr, out: &mut [u8]) -> Result<()>;
    /// WRITEs bytes.
    ///
    /// # Errors
    /// As a posted verb.
    fn write(&self, at: GlobalAddr, bytes: &[u8]) -> Result<()>;
    /// WRITEs a word.
    ///
    /// # Errors
    /// As a posted verb.
    fn write_word(&self, at: GlobalAddr, word: u64) -> Result<()>;
    /// Compare-and-swap; the previous word.
    ///
    /// # Errors
    /// As a posted verb.
    fn cas(&self, at: GlobalAddr, old: u64, new: u64) -> Result<u64>;
    /// Fetch-and-add; the previous word.
    ///
    /// # Errors
    /// As a posted verb.
    fn faa(&self, at: GlobalAddr, add: u64) -> Result<u64>;
}

/// A list that executes.
pub struct DirectList<'a> {
    memory: &'a LocalTransport,
    slab: &'a Slab,
    counters: &'a Counters,
    /// The node of the chain that executes.
    chain: Option<NodeId>,
    chained: bool,
    named: Named,
    /// The node of the last verb, and the verbs to it that are not counted yet.
    to: Option<NodeId>,
    verbs: SideCounts,
}

/// A list executes until this is dropped: also when a validator panics, or a revocation would wait
/// for ever.
pub(crate) struct Executing<'a, M: DirectMemory + ?Sized>(&'a M);

impl<'a, M: DirectMemory + ?Sized> Executing<'a, M> {
    #[inline]
    pub(crate) fn begin(memory: &'a M) -> Self {
        memory.begin();
        Self(memory)
    }

    #[inline]
    pub(crate) fn memory(&self) -> &'a M {
        self.0
    }
}

impl<M: DirectMemory + ?Sized> Drop for Executing<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The memory of a service's own node: its processor loads and stores, without verbs. A store is
/// words, each whole, in any order: a READ of another node that races it sees any mix.
pub struct OwnMemory<'a>(Executing<'a, dyn DirectMemory + 'a>, NodeId);

impl<'a> OwnMemory<'a> {
    pub(crate) fn begin(memory: &'a dyn DirectMemory, node: NodeId) -> Self {
        Self(Executing::begin(memory), node)
    }

    /// Loads bytes from an offset.
    ///
    /// # Errors
    /// `Corrupt` for a range outside of the region.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.memory().read(GlobalAddr::new(self.1, offset), out)
    }

    /// Stores bytes at an offset.
    ///
    /// # Errors
    /// As [`OwnMemory::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.memory().write(GlobalAddr::new(self.1, offset), bytes)
    }
}

/// The nodes that a list has named: a doorbell for each.
#[derive(Default)]
struct Named {
    memory: u64,
    compute: u64,
    /// Those with larger numbers.
    others: Vec<NodeId>,
}

impl Named {
    /// Whether the node is new.
    fn add(&mut self, node: NodeId) -> bool {
        let Some(bit) = 1u64.checked_shl(node.index() as u32) else {
            let is_new = !self.others.contains(&node);
            self.others.push(node);
            return is_new;
        };
        let nodes = match node.role() {
            Role::Memory | Role::Journal => &mut self.memory,
            Role::Compute => &mut self.compute,
        };
        let is_new = *nodes & bit == 0;
        *nodes |= bit;
        is_new
    }
}

impl<'a> DirectList<'a> {
    /// Executes `list`; `chained` when all of it is one chain.
    pub(crate) fn run<T>(
        memory: &'a LocalTransport,
        (slab, counters): (&'a Slab, &'a Counters),
        chained: bool,
        list: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let _executing = Executing::begin(memory);
        let (named, verbs) = (Named::default(), SideCounts::default());
        let mut this =
            Self { memory, slab, counters, chain: None, chained, named, to: None, verbs };
        let done = list(&mut this);
        this.count();
        done.map_err(Error::effect_unknown)
    }

    /// Counts the verbs to the last node.
    fn count(&mut self) {
        if let Some(node) = self.to.take() {
            self.counters.verbs(node, &self.verbs, self.named.add(node));
            self.verbs = SideCounts::default();
        }
    }

    /// The next verb of the list.
    #[inline]
    fn next(&mut self, op: Opcode, at: GlobalAddr, len: usize) -> Result<&'a LocalTransport> {
        let node = at.node();
        if self.chained && self.chain.replace(node).is_some_and(|other| other != node) {
            return Err(Error::invalid(format!("a chain goes to one node, not also to {node}")));
        }
        if self.to != Some(node) {
            self.count();
            self.to = Some(node);
        }
        self.verbs.count(op, len as u32);
        Ok(self.memory)
    }

    /// READs bytes into a buffer of the slab.
    pub(crate) fn read(&mut self, at: GlobalAddr, len: u32) -> Result<Buf> {
        let mut buf = self.slab.alloc(len);
        self.next(Opcode::Read, at, buf.len())?.read(at, &mut buf)?;
        Ok(buf)
    }

    /// WRITEs a whole buffer.
    pub(crate) fn write(&mut self, at: GlobalAddr, buf: &Buf) -> Result<()> {
        self.next(Opcode::Write, at, buf.len())?.write(at, buf)
    }

    /// WRITEs a word.
    pub(crate) fn write_word(&mut self, at: GlobalAddr, word: u64) -> Result<()> {
        self.next(Opcode::WriteWord, at, 8)?.write_word(at, word)
    }

    /// An atomic on a word; the previous one.
    pub(crate) fn atomic(&mut self, op: Opcode, at: GlobalAddr, a: u64, b: u64) -> Result<u64> {
        let memory = self.next(op, at, 8)?;
        if op == Opcode::Faa { memory.faa(at, a) } else { memory.cas(at, a, b) }
    }

    /// Executes a part of the list as one chain.
    pub(crate) fn in_chain<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = (std::mem::replace(&mut self.chained, true), self.chain.take());
        let done = part(self);
        (self.chained, self.chain) = outer;
        done
    }

    /// Whether a chain executes.
    pub(crate) fn is_chained(&self) -> bool {
        self.chained
    }

    /// Whether the next verb belongs to a chain: to that of the last one, if it did.
    pub(crate) fn set_chained(&mut self, chained: bool) {
        if !chained {
            self.chain = None;
        }
        self.chained = chained;
    }
}
