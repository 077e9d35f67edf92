//! An operation on memory of this process: its verbs execute at once, from first to last.
//!
//! The verbs, their order, their checks and their counts are those of a posted operation. Nothing
//! is staged and nothing suspends, so the operation needs no future, no buffer of the slab and no
//! clock. An operation that has to wait goes on as a posted one ([`DirectOp::go_on`]).
//!
//! *Revocation.* The client's mark says for the whole operation that verbs execute: a revocation
//! waits until the operation has ended, or goes on as a posted one. Each verb, or the list that it
//! is in ([`DirectOp::list_at`]), checks the right to reach its node. A verb that is refused has no
//! effect.
//!
//! *Counts.* Most operations of a client cost the same, verb by verb. Their counts are added up
//! only when a snapshot is taken, or when an operation costs something else.

use crate::addr::{GlobalAddr, NodeId};
use crate::counters::DirectCost;
use crate::direct::{DirectMemory, Executing};
use crate::endpoint::{Endpoint, OpScope};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::local::{Connected, LocalTransport};
use crate::sampled::Sampled;
use crate::scope::{OpKind, OpOutcome};
use crate::slab::Slab;
use crate::transport::Opcode;

/// An operation that executes on the calling thread, made by [`Endpoint::begin_direct`]. Dropped
/// without [`DirectOp::end`], it counts as failed. It reaches one memory node and one compute node
/// at most. Begun inside of another operation, it is a part of that one.
pub struct DirectOp<'e> {
    ep: &'e Endpoint,
    _executing: Executing<'e, LocalTransport>,
    connected: Connected<'e>,
    kind: OpKind,
    is_part: bool,
    cost: DirectCost,
    is_counted: bool,
}

impl<'e> DirectOp<'e> {
    #[inline]
    pub(crate) fn new(
        ep: &'e Endpoint,
        memory: &'e LocalTransport,
        (kind, is_part): (OpKind, bool),
    ) -> Self {
        let (_executing, cost) = (Executing::begin(memory), DirectCost::default());
        let connected = Connected::new(memory);
        Self { ep, _executing, connected, kind, is_part, cost, is_counted: false }
    }

    #[inline]
    fn counted(&self, outcome: OpOutcome) {
        match self.is_part {
            false => self.ep.counters().ended_direct(self.kind, outcome, &self.cost),
            true => self.ep.counters().go_on(&self.cost),
        }
    }

    /// The verbs from here on are one list that is awaited. A list goes to one node.
    #[inline]
    pub fn list(&mut self) {
        self.cost.list();
    }

    /// Verbs of one list, all to this node: its connection is looked up once.
    ///
    /// # Errors
    /// As a posted verb, and those of the verbs.
    #[inline(always)]
    pub fn list_at<T>(
        &mut self,
        node: NodeId,
        verbs: impl FnOnce(&mut DirectVerbs<'_>) -> Result<T>,
    ) -> Result<T> {
        let Self { ep, connected, cost, .. } = self;
        let host = connected.reach(node)?;
        verbs(&mut DirectVerbs { node, host, slab: ep.core().slab(), cost })
    }

    /// A list that is not awaited; false when it has failed. As with a posted one, its error is
    /// that of the next [`Endpoint::drain`].
    #[inline]
    pub fn detached_list<T>(&mut self, verbs: impl FnOnce(&mut Self) -> Result<T>) -> bool {
        self.cost.detached_list();
        match verbs(self) {
            Ok(_) => true,
            Err(e) => {
                self.ep.core().detached_failed(e.effect_unknown());
                false
            }
        }
    }

    /// A hint that a READ of these bytes comes soon.
    #[inline(always)]
    pub fn prefetch(&self, at: GlobalAddr, len: usize) {
        if let Some(host) = self.connected.known(at.node()) {
            host.prefetch(at, len as u32);
        }
    }

    /// READ of bytes.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn read(&mut self, at: GlobalAddr, out: &mut [u8]) -> Result<()> {
        self.cost.verb(Opcode::Read, at.node(), out.len());
        match self.connected.known(at.node()) {
            Some(host) => host.read(at, out),
            None => self.connected.otherwise(|by| by.read(at, out)),
        }
    }

    /// WRITE of bytes.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn write(&mut self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        self.cost.verb(Opcode::Write, at.node(), bytes.len());
        match self.connected.known(at.node()) {
            Some(host) => host.write(at, bytes),
            None => self.connected.otherwise(|by| by.write(at, bytes)),
        }
    }

    /// WRITE of a word.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn write_word(&mut self, at: GlobalAddr, word: u64) -> Result<()> {
        self.cost.verb(Opcode::WriteWord, at.node(), 8);
        match self.connected.known(at.node()) {
            Some(host) => host.write_word(at, word),
            None => self.connected.otherwise(|by| by.write_word(at, word)),
        }
    }

    /// Compare-and-swap; the previous word.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn cas(&mut self, at: GlobalAddr, old: u64, new: u64) -> Result<u64> {
        self.cost.verb(Opcode::Cas, at.node(), 8);
        match self.connected.known(at.node()) {
            Some(host) => host.cas(at, old, new),
            None => self.connected.otherwise(|by| by.cas(at, old, new)),
        }
    }

    /// Whether it has executed any list.
    pub fn has_begun(&self) -> bool {
        self.cost.has_begun()
    }

    /// There was no operation: it has executed nothing.
    pub fn cancel(mut self) {
        debug_assert!(!self.has_begun(), "lists are counted");
        self.is_counted = true;
    }

    /// The operation has ended: it executes nothing from here on.
    #[inline]
    pub fn end(&mut self, outcome: OpOutcome) {
        self.is_counted = true;
        self.counted(outcome);
    }

    /// The rest of the operation is posted: it may wait. A part has no scope of its own.
    #[cold]
    pub fn go_on(mut self) -> Option<OpScope<'e>> {
        self.is_counted = true;
        let scope = (!self.is_part).then(|| self.ep.begin(self.kind));
        self.ep.counters().go_on(&self.cost);
        scope
    }
}

/// Verbs of one list, to one node.
pub struct DirectVerbs<'v> {
    node: NodeId,
    host: &'v Host,
    slab: &'v Slab,
    cost: &'v mut DirectCost,
}

impl DirectVerbs<'_> {
    /// Counts a verb, which goes to the list's node.
    #[inline(always)]
    fn verb(&mut self, op: Opcode, at: GlobalAddr, len: usize) -> Result<&Host> {
        if at.node() != self.node {
            return Err(Error::invalid(format!("a list to {} with a verb at {at}", self.node)));
        }
        self.cost.verb(op, self.node, len);
        Ok(self.host)
    }

    /// READ of bytes.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn read(&mut self, at: GlobalAddr, out: &mut [u8]) -> Result<()> {
        self.verb(Opcode::Read, at, out.len())?.read(at, out)
    }

    /// READ of bytes that have to be validated, into a buffer of the slab.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline]
    pub fn sample(&mut self, at: GlobalAddr, len: u32) -> Result<Sampled> {
        let mut buf = self.slab.alloc(len);
        self.read(at, &mut buf)?;
        Ok(Sampled::new(buf))
    }

    /// WRITE of bytes.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn write(&mut self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        self.verb(Opcode::Write, at, bytes.len())?.write(at, bytes)
    }

    /// Compare-and-swap; the previous word.
    ///
    /// # Errors
    /// As a posted verb.
    #[inline(always)]
    pub fn cas(&mut self, at: GlobalAddr, old: u64, new: u64) -> Result<u64> {
        self.verb(Opcode::Cas, at, 8)?.cas(at, old, new)
    }
}

impl Drop for DirectOp<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_counted {
            self.counted(OpOutcome::Failed);
        }
    }
}
