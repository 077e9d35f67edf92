//! A node with its memory in this process: its region, its services, and the access rights of other
//! nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::addr::{GlobalAddr, NodeId};
use crate::cpu::prefetch_at;
use crate::direct::DirectMemory;
use crate::error::{Error, Result};
use crate::jobs::Jobs;
use crate::membership::{Member, Presence};
use crate::region::Region;
use crate::rpc::{Cores, RpcHost};
use crate::sync::locked;
use crate::transport::{Opcode, WorkRequest};

/// The part of a node that still works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Power {
    /// All of it.
    On,
    /// Its NIC serves memory; its processors stand still.
    Hung,
    /// Nothing.
    Off,
}

/// A node.
pub(crate) struct Host {
    pub(crate) node: NodeId,
    pub(crate) incarnation: u32,
    pub(crate) region: Region,
    /// The NIC's own memory, where there is any.
    chip: Region,
    pub(crate) rpc: RpcHost,
    /// Held while a service runs: one at a time, as on a node with one core for them.
    pub(crate) rpc_core: Mutex<()>,
    /// The cores of its data services.
    pub(crate) cores: Cores,
    pub(crate) jobs: Jobs,
    fenced: AtomicBool,
    /// A [`Power`].
    power: AtomicU8,
    /// The incarnations of other nodes that this one has connections to, where they are not the
    /// first.
    peers: Mutex<BTreeMap<NodeId, u32>>,
    /// The memory nodes that are away, as the membership has told this node.
    away: Mutex<BTreeMap<NodeId, Presence>>,
    /// Bumped by every revocation: connections look at `revoked` again.
    pub(crate) revocations: AtomicU32,
    /// Highest incarnation of each node that may not reach this one any more.
    revoked: Mutex<BTreeMap<NodeId, u32>>,
    /// This node's own connections, to wait for verbs in execution.
    execution_marks: Mutex<Vec<Weak<ExecutionMark>>>,
}

/// A client thread's mark: odd while it executes verbs.
#[derive(Default)]
pub(crate) struct ExecutionMark {
    busy: AtomicU64,
}

impl ExecutionMark {
    /// Marks the beginning of an execution. The exchange is a full barrier: a revocation that this
    /// thread does not see afterwards will see the mark.
    #[inline]
    pub(crate) fn enter(&self) {
        debug_assert!(self.busy.load(Ordering::Relaxed).is_multiple_of(2), "no list inside a list");
        self.busy.swap(self.busy.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.busy.store(self.busy.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Waits until what is being executed now has ended.
    fn quiesce(&self) {
        let seen = self.busy.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.busy.load(Ordering::SeqCst) == seen {
            std::thread::yield_now();
        }
    }
}

impl Host {
    #[cfg(feature = "tcp")]
    pub(crate) fn new(node: NodeId, incarnation: u32, region: Region) -> Self {
        Self::with_chip(node, incarnation, region, (Region::new(0), 1))
    }

    /// A node with on-chip memory, and so many cores for data services.
    pub(crate) fn with_chip(
        node: NodeId,
        incarnation: u32,
        region: Region,
        (chip, cores): (Region, u32),
    ) -> Self {
        Self {
            node,
            incarnation,
            region,
            chip,
            rpc: RpcHost::default(),
            rpc_core: Mutex::default(),
            cores: Cores::new(cores),
            jobs: Jobs::default(),
            fenced: AtomicBool::new(false),
            power: AtomicU8::new(Power::On as u8),
            peers: Mutex::default(),
            away: Mutex::default(),
            revocations: AtomicU32::new(0),
            revoked: Mutex::default(),
            execution_marks: Mutex::default(),
        }
    }

    pub(crate) fn member(&self) -> Member {
        Member { node: self.node, incarnation: self.incarnation }
    }

    pub(crate) fn alive(&self) -> bool {
        !self.fenced.load(Ordering::SeqCst)
    }

    pub(crate) fn power(&self) -> Power {
        match self.power.load(Ordering::SeqCst) {
            0 => Power::On,
            1 => Power::Hung,
            _ => Power::Off,
        }
    }

    /// Cuts it off: connections check their access again, and jobs end.
    pub(crate) fn set_power(&self, power: Power) {
        self.power.store(power as u8, Ordering::SeqCst);
        self.jobs.cancel(|_| true);
        self.revocations.fetch_add(1, Ordering::SeqCst);
    }

    /// Its connections to `node` are with that incarnation from now on.
    pub(crate) fn connect(&self, node: NodeId, incarnation: u32) {
        locked(&self.peers).insert(node, incarnation);
    }

    /// Its clients post nothing to a memory node that is away. Connections look again when the
    /// other host's `revocations` change.
    pub(crate) fn set_presence(&self, of: &Self, presence: Presence) {
        let mut away = locked(&self.away);
        match presence.is_away() {
            true => away.insert(of.node, presence),
            false => away.remove(&of.node),
        };
        of.revocations.fetch_add(1, Ordering::SeqCst);
    }

    /// Which incarnation of `node` its connections are with.
    fn knows(&self, node: NodeId) -> u32 {
        locked(&self.peers).get(&node).copied().unwrap_or(1)
    }

    /// Nodes without access to the node's former incarnation have none to this one.
    pub(crate) fn inherit(&self, former: &Self) {
        let revoked = locked(&former.revoked).clone();
        self.revocations.fetch_add(revoked.len() as u32, Ordering::SeqCst);
        *locked(&self.revoked) = revoked;
    }

    /// Why this node executes no verb of `issuer`.
    pub(crate) fn refusal(&self, issuer: &Self) -> Option<Error> {
        if self.power() == Power::Off {
            return Some(down(self.node));
        }
        if self.incarnation > 1 && issuer.knows(self.node) != self.incarnation {
            return Some(Error::unreachable(format!(
                "{} has restarted: {} has no connection to its incarnation {}",
                self.node, issuer.node, self.incarnation
            )));
        }
        if let Some(presence) = locked(&issuer.away).get(&self.node) {
            return Some(presence.refusal(self.node));
        }
        let revoked = self.revocations.load(Ordering::SeqCst) > 0
            && self.is_revoked(issuer.node, issuer.incarnation);
        revoked.then(|| {
            Error::revoked(format!(
                "{} refuses {}: it has lost its membership",
                self.node, issuer.node
            ))
        })
    }

    /// Why this node executes no verb of a job of this member.
    #[cfg(feature = "sim")]
    pub(crate) fn refusal_of_job(&self, member: Option<Member>) -> Option<Error> {
        let revoked = member.filter(|m| self.is_revoked(m.node, m.incarnation))?;
        Some(Error::revoked(format!(
            "{} executes no more of a job of {revoked}: it has lost its membership",
            self.node
        )))
    }

    /// A copy of a WRITE's payload.
    #[cfg(feature = "sim")]
    pub(crate) fn payload(wr: &WorkRequest) -> Vec<u8> {
        if wr.op == Opcode::WriteWord {
            return wr.a.to_le_bytes().to_vec();
        }
        // SAFETY: a WRITE's `local` is a buffer of at least `len` bytes, which the posting keeps
        // alive and unchanged until the completion.
        unsafe { std::slice::from_raw_parts(wr.local, wr.len as usize) }.to_vec()
    }

    /// Appends a WRITE's payload.
    #[cfg(feature = "tcp")]
    pub(crate) fn append_payload(wr: &WorkRequest, out: &mut Vec<u8>) {
        // SAFETY: as for `payload`.
        out.extend(unsafe { std::slice::from_raw_parts(wr.local, wr.len as usize) });
    }

    /// Copies the result of a READ (its length) or an atomic (a word) into its buffer. Before the
    /// completion only.
    #[cfg(feature = "tcp")]
    pub(crate) fn deliver(wr: &WorkRequest, found: &[u8]) {
        let len = if wr.op == Opcode::Read { wr.len as usize } else { 8 };
        assert_eq!(found.len(), len, "the transport splits results by verb");
        // SAFETY: `local` is a buffer of at least `len` bytes (an atomic's is a word) owned by the
        // posting until its completion, which the transport reports after this.
        let out = unsafe { std::slice::from_raw_parts_mut(wr.local, len) };
        out.copy_from_slice(found);
    }

    /// Its verbs are refused from now on.
    pub(crate) fn mark_revoked(&self) {
        self.fenced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn add_execution_mark(&self) -> Arc<ExecutionMark> {
        let mark = Arc::new(ExecutionMark::default());
        let mut execution_marks = locked(&self.execution_marks);
        execution_marks.retain(|l| l.strong_count() > 0);
        execution_marks.push(Arc::downgrade(&mark));
        mark
    }

    pub(crate) fn revoke(&self, node: NodeId, incarnation: u32) {
        let mut revoked = locked(&self.revoked);
        let highest = revoked.entry(node).or_default();
        *highest = (*highest).max(incarnation);
        self.revocations.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether this node's access was revoked somewhere, and all of these hosts refuse it.
    pub(crate) fn is_revoked_by_all<'h>(
        &self,
        mut others: impl Iterator<Item = &'h Arc<Self>>,
    ) -> bool {
        !self.alive() && others.all(|o| o.is_revoked(self.node, self.incarnation))
    }

    pub(crate) fn is_revoked(&self, node: NodeId, incarnation: u32) -> bool {
        let revoked = locked(&self.revoked);
        revoked.get(&node).is_some_and(|r| *r >= incarnation)
    }

    /// Waits until no verb of this node's clients that began before is being executed.
    pub(crate) fn quiesce(&self) {
        let execution_marks = locked(&self.execution_marks).clone();
        for mark in execution_marks.iter().filter_map(Weak::upgrade) {
            mark.quiesce();
        }
    }

    /// The memory that an address is in; it was checked.
    #[inline]
    pub(crate) fn memory(&self, at: GlobalAddr) -> &Region {
        if at.is_on_chip() { &self.chip } else { &self.region }
    }

    /// Refuses verbs that no NIC accepts.
    pub(crate) fn check(&self, wr: &WorkRequest) -> Result<()> {
        let space = u8::from(wr.at.is_on_chip());
        check_request(wr, space, self.memory(wr.at).len())
    }

    /// The memory of a READ or WRITE of `len` bytes.
    #[inline(always)]
    pub(crate) fn range(&self, at: GlobalAddr, len: usize) -> Result<&Region> {
        // Most verbs are for the main memory. A slice is shorter than the range of an address.
        let is_inside = at.offset() + len as u64 <= self.region.len();
        match at.space() == 0 && at.offset() >= FIRST_OFFSET && is_inside {
            true => Ok(&self.region),
            false => self.odd_range(at, len),
        }
    }

    /// [`Host::range`] of another kind of memory, or of a range that is not inside.
    #[cold]
    fn odd_range(&self, at: GlobalAddr, len: usize) -> Result<&Region> {
        let region = self.memory(at);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        check_range(at, len, u8::from(at.is_on_chip()), region.len())?;
        Ok(region)
    }

    /// The memory of a word.
    #[inline(always)]
    pub(crate) fn word(&self, at: GlobalAddr) -> Result<&Region> {
        check_aligned(at)?;
        self.range(at, 8)
    }

    /// The second half of an atomic that found `found`: it overwrites any change of the word since.
    #[cfg(feature = "sim")]
    pub(crate) fn finish_atomic(&self, wr: &WorkRequest, found: u64, fail_is_readonly: bool) {
        let (region, at) = (self.memory(wr.at), wr.at.offset());
        match wr.op {
            Opcode::Faa => region.store(at, found.wrapping_add(wr.a)),
            Opcode::Cas if found == wr.a => region.store(at, wr.b),
            Opcode::Cas if !fail_is_readonly => region.store(at, found),
            _ => {}
        }
        put_word(wr, found);
    }

    /// Fills the destination of a READ or an atomic with garbage: its contents are undefined until
    /// the completion.
    #[cfg(feature = "sim")]
    pub(crate) fn scribble(wr: &WorkRequest) {
        let len = match wr.op {
            Opcode::Read => wr.len as usize,
            Opcode::Cas | Opcode::Faa => 8,
            Opcode::Write | Opcode::WriteWord => return,
        };
        // SAFETY: `local` is a buffer of at least `len` bytes (an atomic's is a word) owned by the
        // posting that is being executed.
        let out = unsafe { std::slice::from_raw_parts_mut(wr.local, len) };
        out.fill(0xdb);
    }

    /// Executes a verb on this node's memory.
    pub(crate) fn serve(&self, wr: &WorkRequest) -> Result<()> {
        self.check(wr)?;
        let region = self.memory(wr.at);
        let at = wr.at.offset();
        match wr.op {
            Opcode::Read => {
                // SAFETY: `local` is a buffer of at least `len` bytes owned by the posting, or the
                // direct list, that is being executed; no other code has access to it before the
                // completion.
                let out = unsafe { std::slice::from_raw_parts_mut(wr.local, wr.len as usize) };
                region.read(at, out);
            }
            Opcode::Write => {
                // SAFETY: as above; the posting keeps the source alive and unchanged until the
                // completion.
                let src = unsafe { std::slice::from_raw_parts(wr.local, wr.len as usize) };
                region.write(at, src);
            }
            Opcode::WriteWord => region.store(at, wr.a),
            Opcode::Cas => put_word(wr, region.cas(at, wr.a, wr.b)),
            Opcode::Faa => put_word(wr, region.faa(at, wr.a)),
        }
        Ok(())
    }
}

/// As its own processor reaches it, and as verbs of others do that are not posted.
impl DirectMemory for Host {
    fn begin(&self) {}

    fn end(&self) {}

    #[inline]
    fn prefetch(&self, at: GlobalAddr, len: u32) {
        prefetch_at(self.memory(at).place(at.offset()), len as usize);
    }

    #[inline(always)]
    fn read(&self, at: GlobalAddr, out: &mut [u8]) -> Result<()> {
        self.range(at, out.len())?.read(at.offset(), out);
        Ok(())
    }

    #[inline(always)]
    fn write(&self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        self.range(at, bytes.len())?.write(at.offset(), bytes);
        Ok(())
    }

    #[inline(always)]
    fn write_word(&self, at: GlobalAddr, word: u64) -> Result<()> {
        self.word(at)?.store(at.offset(), word);
        Ok(())
    }

    #[inline(always)]
    fn cas(&self, at: GlobalAddr, old: u64, new: u64) -> Result<u64> {
        Ok(self.word(at)?.cas(at.offset(), old, new))
    }

    fn faa(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        Ok(self.word(at)?.faa(at.offset(), add))
    }
}

/// Refuses verbs that no NIC accepts: a range must lie inside the `bytes` of its kind of memory,
/// without the first line of the main memory, and words must be aligned.
pub(crate) fn check_request(wr: &WorkRequest, space: u8, bytes: u64) -> Result<()> {
    check_range(wr.at, wr.len, space, bytes)?;
    if matches!(wr.op, Opcode::Read | Opcode::Write) { Ok(()) } else { check_aligned(wr.at) }
}

/// No verb reaches the first line of the main memory.
const FIRST_OFFSET: u64 = 64;

#[inline]
fn check_range(at: GlobalAddr, len: u32, space: u8, bytes: u64) -> Result<()> {
    let offset = at.offset();
    let end = offset.checked_add(u64::from(len));
    if at.space() != space
        || (space == 0 && offset < FIRST_OFFSET)
        || end.is_none_or(|end| end > bytes)
    {
        return Err(out_of_bounds(at, len));
    }
    Ok(())
}

#[inline]
fn check_aligned(at: GlobalAddr) -> Result<()> {
    match at.offset().is_multiple_of(8) {
        true => Ok(()),
        false => Err(unaligned(at)),
    }
}

#[cold]
fn unaligned(at: GlobalAddr) -> Error {
    Error::invalid(format!("{at} is not aligned to a word"))
}

fn put_word(wr: &WorkRequest, word: u64) {
    // SAFETY: an atomic's `local` is an aligned word of a buffer owned by the posting, or by the
    // direct list, that is being executed.
    unsafe { wr.local.cast::<u64>().write(word.to_le()) };
}

/// The error of a verb or call to a node that does not answer.
#[cold]
pub(crate) fn down(node: NodeId) -> Error {
    Error::unreachable(format!(
        "{node} does not answer: it, or the network to it, is down; try again when it is back"
    ))
}

#[cold]
fn out_of_bounds(at: GlobalAddr, len: u32) -> Error {
    Error::corrupt(format!("{len} bytes at {at} are outside the region"))
}
