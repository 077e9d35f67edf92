//! The interface between index code and a transport: one hot, object-safe call per doorbell.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::addr::{GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::error::Result;
use crate::local::LocalTransport;
use crate::membership::{Member, Presence};
use crate::rpc::{RpcCall, RpcHandler, ServiceId};
use crate::scope::Stage;

/// Nanoseconds of the fabric's clock: real time since start-up, or virtual time.
pub type Nanos = u64;

/// A posted list of verbs. The generation makes stale completions harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) posting: u32,
    pub(crate) generation: u32,
}

/// The four one-sided verbs. A WRITE of one word carries it in the request (inline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Copies remote memory into the local buffer.
    Read,
    /// Copies the local buffer into remote memory.
    Write,
    /// Writes the 8 bytes of `a`.
    WriteWord,
    /// Compare-and-swap `a -> b`; the previous word lands in the local buffer.
    Cas,
    /// Fetch-and-add of `a`; the previous word lands in the local buffer.
    Faa,
}

impl Opcode {
    /// Whether it is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::Cas | Self::Faa)
    }
}

/// One verb as a transport sees it.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// Which verb.
    pub op: Opcode,
    /// Waits for all earlier verbs of the chain to complete first.
    pub fenced: bool,
    /// The next request of the list belongs to the same chain: same queue pair, ordered as the
    /// contract says.
    pub chained: bool,
    /// An unvalidated READ: the memory may have been freed or reused, and the poster expects that.
    pub unvalidated: bool,
    /// Bytes.
    pub len: u32,
    /// Remote address.
    pub at: GlobalAddr,
    /// Compare value, addend or inline word.
    pub a: u64,
    /// Swap value.
    pub b: u64,
    /// The chunk of the executor's slab that the local buffer lies in: a NIC finds its key by it.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC asks"))]
    pub(crate) chunk: u32,
    /// Local buffer, owned by the posting until it completes; null for [`Opcode::WriteWord`].
    pub(crate) local: *mut u8,
}

impl WorkRequest {
    /// A single verb without operands and without a local buffer.
    #[cfg(feature = "tcp")]
    pub(crate) const fn alone(op: Opcode, at: GlobalAddr, len: u32) -> Self {
        Self {
            op,
            fenced: false,
            chained: false,
            unvalidated: false,
            len,
            at,
            a: 0,
            b: 0,
            chunk: 0,
            local: std::ptr::null_mut(),
        }
    }
}

/// Shadow state of a range of memory, as its allocator reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// Any access is allowed.
    Plain,
    /// Handed out with undefined contents: to be written before it is read.
    Undefined,
    /// Free: no verb may access it.
    Freed,
    /// A free object of a type-stable arena: old caches may READ it and try its lock.
    FreedTyped,
}

/// The outcome of a call of [`Transport::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Completions were delivered.
    Made,
    /// Nothing to do; something is due at this time, if anything is.
    Idle(Option<Nanos>),
}

/// Why an idle executor woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Look again.
    Again,
    /// Nothing can ever happen: no event, no timer, no other thread.
    Never,
}

/// One client thread's access to memory.
pub trait Transport {
    /// Posts a list of verbs with one doorbell per queue pair. `Ready` means that all effects and
    /// results are in place; `Pending` that [`Core::complete`] follows, once per list.
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>>;
    /// Memory of this process, where verbs need not be posted. Asked once for each endpoint.
    fn direct(self: Rc<Self>) -> Option<Rc<LocalTransport>> {
        None
    }
    /// The memory of the client's own node, where its processor reaches it.
    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        None
    }
    /// Calls a service; the reply goes to [`Core::complete_rpc`], or is returned when `Ready`.
    fn rpc(&self, core: &Core, ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>>;
    /// Delivers completions that are there.
    fn poll(&self, core: &Core) -> Progress;
    /// The executor is dropped: finishes the detached lists, within a second.
    fn drain_detached(&self, _core: &Core) {}
    /// Nothing is ready: waits for something, until `due` at the latest. `spins` counts calls
    /// without progress.
    fn idle(&self, core: &Core, due: Option<Nanos>, spins: u32) -> Idle;
    /// The fabric's clock, as this client thread sees it.
    fn now(&self) -> Nanos;
    /// The fabric's clock for timers. In virtual time a thread may be ahead of it by the work it
    /// has been charged for.
    fn clock(&self) -> Nanos {
        self.now()
    }
    /// Transports with the same number, unless it is 0, share one source of completions: polling
    /// one of them is enough.
    fn driver(&self) -> u64 {
        0
    }
    /// The capabilities of the fabric.
    fn caps(&self) -> Capabilities;
    /// The node that this client belongs to.
    fn node(&self) -> NodeId;
    /// Charges CPU time for a step of an operation; only a simulator does.
    fn charge(&self, _stage: Stage, _units: u32) {}
    /// Whether [`Transport::charge`] does anything.
    fn charges(&self) -> bool {
        false
    }
    /// Whether this thread's code is charged for the time that it takes on this machine, in place
    /// of [`Transport::charge`]; true only in simulators that were told to.
    fn measures_work(&self) -> bool {
        false
    }
    /// Code of an index begins to run on this thread, where its time is measured.
    fn work_begins(&self) {}
    /// It has returned.
    fn work_ends(&self) {}
    /// Whether an interleaving point shall suspend now; true only in simulators and with test
    /// knobs.
    fn interleave(&self) -> bool {
        false
    }
    /// Whether an allocation shall fail now as if no memory were left; true only in simulators.
    fn is_scarce(&self) -> bool {
        false
    }
    /// Adds the transport's own prefetch hints to an endpoint over it, with
    /// [`crate::Endpoint::prefetch`].
    fn add_prefetch_hints(&self, _ep: &crate::Endpoint) {}
    /// Reads a word of this node's own region without a verb: a hint only.
    fn peek(&self, offset: u64) -> Option<u64>;
}

/// Polls a transport, for a second at most, until it is idle.
#[cfg(feature = "tcp")]
pub(crate) fn poll_until(t: &impl Transport, core: &Core, is_idle: impl Fn() -> bool) {
    let until = t.now() + 1_000_000_000;
    while !is_idle() && t.now() < until {
        if t.poll(core) != Progress::Made {
            std::thread::yield_now();
        }
    }
}

/// A fabric: nodes, their memory, and the transports of their clients.
pub trait Fabric: Send + Sync {
    /// A name for reports: `local`, `sim`, ...
    fn name(&self) -> &'static str;
    /// The compute nodes that may run operations, in id order. A node that began one before the
    /// call is among them until every memory node has revoked its access: before that it may READ.
    ///
    /// # Errors
    /// `Unreachable` where the answer is on another node.
    fn members(&self) -> Result<Vec<NodeId>>;
    /// Bytes of a node's region; `None` for a node that does not exist.
    fn region_bytes(&self, node: NodeId) -> Option<u64>;
    /// A client thread's transport on compute (or, for services, memory) node `node`.
    ///
    /// # Errors
    /// `NotFound` for an unknown node, `Revoked` for one that lost its membership.
    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>>;
    /// The capabilities that the fabric grants to all clients.
    fn caps(&self) -> Capabilities;
    /// Installs the handler of a service on a node. Later registrations replace earlier ones.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()>;
    /// Returns when no verb of `node` in `incarnation` (or an earlier one) can execute at `host`
    /// any more.
    ///
    /// # Errors
    /// `NotFound` for unknown nodes.
    fn revoke(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()>;
    /// The connections of `node` to `to` are with that incarnation from now on. A node that
    /// restarts is unknown to all nodes that knew it before: their verbs and calls fail as
    /// `Unreachable` until the membership has told them its new incarnation. A node that joins
    /// knows the present incarnations of all.
    fn connect(&self, _node: NodeId, _to: NodeId, _incarnation: u32) {}
    /// An incarnation of a compute node is dead, as the membership has told `node`: the verbs of
    /// `node`'s clients in flight to it end at once, with an unknown effect, and they post nothing
    /// more to it. Verbs that still execute there do so in memory that no living node uses once all
    /// know of the death.
    fn abandon(&self, _node: NodeId, _dead: Member) {}
    /// Whether a memory node can be used, as the membership has told `node`: while it is away,
    /// verbs and calls of `node`'s clients to it fail as `Unreachable`, with [`Presence::refusal`].
    fn set_presence(&self, _node: NodeId, _of: NodeId, _presence: Presence) {}
    /// The present incarnation of a node; `None` for a node that does not exist.
    fn incarnation(&self, node: NodeId) -> Option<u32>;
    /// An allocation event: an allocator that hands memory out, or takes it back, reports the
    /// range's new state. Fabrics that check accesses record it, unless the memory's node has
    /// revoked the access of `by`: memory that a node held when it lost its membership belongs to
    /// others by now.
    fn allocation_event(&self, _by: Member, _at: GlobalAddr, _bytes: u64, _now: ShadowState) {}
}
