//! The seam between index code and a transport: one hot, object-safe call per doorbell.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::addr::{GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::core::Core;
use crate::error::Result;
use crate::membership::{Member, MemberEvent, Presence};
use crate::rpc::{RpcHandler, ServiceId};
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
    /// The next request of the list belongs to the same chain: same queue pair, ordered as the contract says.
    pub chained: bool,
    /// A READ of memory that may be anybody's by now, and whose poster knows that.
    pub unvalidated: bool,
    /// Bytes.
    pub len: u32,
    /// Remote address.
    pub at: GlobalAddr,
    /// Compare value, addend or inline word.
    pub a: u64,
    /// Swap value.
    pub b: u64,
    /// The chunk of the executor's slab that the local buffer lies in: what a NIC finds its key by.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC asks"))]
    pub(crate) chunk: u32,
    /// Local buffer, owned by the posting until it completes; null for [`Opcode::WriteWord`].
    pub(crate) local: *mut u8,
}

impl WorkRequest {
    /// A verb by itself, without operands and without a local buffer.
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

/// What a range of memory is, as far as whoever hands it out knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// Anybody may do anything.
    Plain,
    /// Handed out with undefined contents: to be written before it is read.
    Undefined,
    /// Nobody's: no verb may go there.
    Freed,
    /// A free object of a type-stable arena: old caches may READ it and try its lock.
    FreedTyped,
}

/// What a call of [`Transport::poll`] achieved.
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

/// One client thread's way to memory.
pub trait Transport {
    /// Posts a list of verbs with one doorbell per queue pair. `Ready` means that all effects and results are in place;
    /// `Pending` that [`Core::complete`] follows, once per list.
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>>;
    /// Calls a service; the reply goes to [`Core::complete_rpc`], or is returned when `Ready`.
    fn rpc(
        &self,
        core: &Core,
        ticket: Ticket,
        to: NodeId,
        service: ServiceId,
        request: &[u8],
    ) -> Poll<Result<Vec<u8>>>;
    /// Delivers completions that are there.
    fn poll(&self, core: &Core) -> Progress;
    /// The executor goes: finishes what was posted and nobody waits for, within a second.
    fn settle(&self, _core: &Core) {}
    /// Nothing is ready: waits for something, until `due` at the latest. `spins` counts calls without progress.
    fn idle(&self, core: &Core, due: Option<Nanos>, spins: u32) -> Idle;
    /// The fabric's clock, as this client thread sees it.
    fn now(&self) -> Nanos;
    /// The fabric's clock for timers. In virtual time a thread may be ahead of it by the work it has been charged for.
    fn clock(&self) -> Nanos {
        self.now()
    }
    /// Transports with the same number, unless it is 0, share one source of completions: polling one of them is enough.
    fn driver(&self) -> u64 {
        0
    }
    /// What the fabric grants.
    fn caps(&self) -> Capabilities;
    /// The node whose client this is.
    fn node(&self) -> NodeId;
    /// Charges CPU time for a step of an operation; only a simulator does.
    fn charge(&self, _stage: Stage, _units: u32) {}
    /// Whether [`Transport::charge`] does anything.
    fn charges(&self) -> bool {
        false
    }
    /// Whether an interleaving point shall suspend now; only simulators and test knobs say yes.
    fn interleave(&self) -> bool {
        false
    }
    /// Whether an allocation shall fail now as if no memory were left; only simulators say yes.
    fn is_scarce(&self) -> bool {
        false
    }
    /// Tells an endpoint over it what else its client uses, with [`crate::Endpoint::uses`].
    fn note_near(&self, _ep: &crate::Endpoint) {}
    /// Reads a word of this node's own region without a verb: a hint only.
    fn peek(&self, offset: u64) -> Option<u64>;
}

/// A fabric: nodes, their memory, and the ways to attach to them.
pub trait Fabric: Send + Sync {
    /// A name for reports: `local`, `sim`, ...
    fn name(&self) -> &'static str;
    /// Nodes that are members now, in id order.
    fn nodes(&self) -> Vec<NodeId>;
    /// The compute nodes that may run operations, in id order. Whoever began one before the call is among them, until every memory
    /// node has fenced it: before that it may READ.
    ///
    /// # Errors
    /// Where others have to be asked: `Unreachable`.
    fn members(&self) -> Result<Vec<NodeId>>;
    /// Bytes of a node's region; `None` for a node that does not exist.
    fn region_bytes(&self, node: NodeId) -> Option<u64>;
    /// A client thread's transport on compute (or, for services, memory) node `node`.
    ///
    /// # Errors
    /// `NotFound` for an unknown node, `Fenced` for one that lost its membership.
    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>>;
    /// What the fabric grants to everybody.
    fn caps(&self) -> Capabilities;
    /// Installs the handler of a service on a node. Later registrations replace earlier ones.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()>;
    /// Returns when no verb of `node` in `incarnation` (or an earlier one) can execute at `host` any more.
    ///
    /// # Errors
    /// `NotFound` for unknown nodes.
    fn fence(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()>;
    /// The connections of `node` to `to` are with that incarnation from now on. A node that restarts is a stranger to all who knew
    /// it before: their verbs and calls fail as `Unreachable` until they have learnt of its new incarnation, which membership
    /// tells them. Whoever joins knows the present incarnations of all.
    fn connect(&self, _node: NodeId, _to: NodeId, _incarnation: u32) {}
    /// A life of a compute node is over, as the membership has told `node`: what the clients of `node` have in flight to it ends at
    /// once, with an unknown effect, and they post nothing more to it. What still executes there does so in memory that nobody living
    /// uses when all have heard of the death.
    fn abandon(&self, _node: NodeId, _dead: Member) {}
    /// Whether a memory node can be used, as the membership has told `node`: while it is away, what the clients of `node` post to it
    /// fails as `Unreachable`, with [`Presence::refusal`].
    fn set_presence(&self, _node: NodeId, _of: NodeId, _presence: Presence) {}
    /// The present incarnation of a node; `None` for a node that does not exist.
    fn incarnation(&self, node: NodeId) -> Option<u32>;
    /// Who hands memory out, or takes it back, says what a range is from now on. Fabrics that check accesses listen, unless the
    /// memory's node has fenced the teller: memory that a node held when it lost its membership is others' by now.
    fn tell(&self, _by: Member, _at: GlobalAddr, _bytes: u64, _now: ShadowState) {}
    /// Membership events from number `since` on.
    fn events(&self, since: u64) -> Vec<MemberEvent>;
}
