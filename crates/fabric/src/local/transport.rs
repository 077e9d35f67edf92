//! The transport of a client thread: its connections to all nodes of the in-process fabric.

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::{Clock, LocalShared, Tearing};
use crate::addr::{ByNode, GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{ExecutionMark, Host};
use crate::jobs::{self, Begun, JOBS};
use crate::rng::{golden_hash, scrambled, xorshift64};
use crate::rpc::{Charged, RpcCall, WithoutCalls, answer_data, check_reply};
use crate::sync::locked;
use crate::transport::{Idle, Nanos, Opcode, Progress, Ticket, Transport, WorkRequest};

/// Longest time that a thread waits without a look around: a wake ends it before.
const LONGEST_PARK_NS: u64 = 50_000_000;

/// Verbs execute on the posting thread: a WRITE is whole unless the process dies, and then
/// everything is gone.
pub(super) const CAPS: Capabilities =
    Capabilities { whole_write_bytes: u32::MAX, cas_fail_is_readonly: true, ..Capabilities::NONE };

/// A connection: bound to the target's incarnation.
struct Connection {
    host: Arc<Host>,
    /// `host.revocations` when the right to reach it was last checked.
    checked: Cell<u32>,
    /// What the data services of the target run on when this client calls them.
    service: RefCell<Option<Endpoint>>,
}

impl Connection {
    /// Whether no right to reach the target was revoked since its own was checked.
    #[inline(always)]
    fn may_reach(&self) -> bool {
        self.checked.get() == self.host.revocations.load(Ordering::SeqCst)
    }
}

type Connections = ByNode<Option<Rc<Connection>>>;

/// Connections that are borrowed once for several verbs in a row. As for the [`ExecutionMark`], no
/// list executes beside.
pub(crate) struct Connected<'e> {
    by: &'e LocalTransport,
    all: Option<Ref<'e, Connections>>,
}

impl<'e> Connected<'e> {
    #[inline(always)]
    pub(crate) fn new(by: &'e LocalTransport) -> Self {
        Self { by, all: Some(by.connections.borrow()) }
    }

    /// A node, if there is a connection to it, with the right to reach it.
    #[inline(always)]
    pub(crate) fn known(&self, node: NodeId) -> Option<&Host> {
        match self.all.as_ref()?.get(node) {
            Some(Some(known)) if known.may_reach() => Some(&known.host),
            _ => None,
        }
    }

    /// The same after a check of the right, if it takes one.
    #[inline(always)]
    pub(crate) fn reach(&mut self, node: NodeId) -> Result<&Host> {
        if self.known(node).is_none() {
            self.otherwise(|by| by.reached(node).map(drop))?;
        }
        self.known(node).ok_or_else(|| refused(node))
    }

    /// A verb to a node that is not known.
    #[cold]
    #[inline(never)]
    pub(crate) fn otherwise<T>(&mut self, verb: impl FnOnce(&LocalTransport) -> T) -> T {
        self.all = None;
        let done = verb(self.by);
        self.all = Some(self.by.connections.borrow());
        done
    }
}

#[cold]
fn refused(node: NodeId) -> Error {
    Error::unreachable(format!("the right to reach {node} was revoked; try again"))
}

/// See the head of this file.
pub struct LocalTransport {
    shared: Arc<LocalShared>,
    own: Arc<Host>,
    link: Arc<ExecutionMark>,
    connections: RefCell<Connections>,
    /// Lists suspended by the test knob: executed already, or not yet.
    suspended: RefCell<VecDeque<Suspended>>,
    rng: Cell<u64>,
    /// Virtual time that waits of this service have taken, ns.
    waited: Cell<Nanos>,
    /// The test knob is for clients, not for services.
    is_service: bool,
}

/// When a suspended list executes.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before the suspension.
    Before,
    /// After it.
    After,
    /// Its last READ or WRITE in two pieces, one before and one after.
    Around {
        /// Where it is cut.
        cut: u64,
    },
}

/// A suspended list: with its requests when it has not been executed yet, with its result when it
/// has.
type Suspended = (Ticket, Option<Vec<WorkRequest>>, Result<()>);

impl LocalTransport {
    pub(crate) fn new(shared: Arc<LocalShared>, own: Arc<Host>) -> Self {
        let link = own.add_execution_mark();
        let seed = golden_hash(shared.knobs.seed)
            ^ u64::from(own.node.bits()).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self {
            shared,
            own,
            link,
            connections: RefCell::default(),
            suspended: RefCell::default(),
            rng: Cell::new(seed | 1),
            waited: Cell::new(0),
            is_service: false,
        }
    }

    fn connection(&self, node: NodeId) -> Result<Rc<Connection>> {
        if let Some(Some(c)) = self.connections.borrow().get(node) {
            return Ok(c.clone());
        }
        let host = self.known(node)?;
        let c =
            Rc::new(Connection { host, checked: Cell::new(u32::MAX), service: RefCell::default() });
        *self.connections.borrow_mut().at(node) = Some(c.clone());
        Ok(c)
    }

    /// A connection that broke is made anew by the next verb.
    fn disconnect(&self, node: NodeId, why: &Error) {
        if why.kind() == ErrorKind::Unreachable {
            *self.connections.borrow_mut().at(node) = None;
        }
    }

    fn may_reach(&self, c: &Connection) -> Result<()> {
        let revocations = c.host.revocations.load(Ordering::SeqCst);
        if let Some(e) = c.host.refusal(&self.own) {
            return Err(e);
        }
        c.checked.set(revocations);
        Ok(())
    }

    fn execute(&self, list: &[WorkRequest]) -> Result<()> {
        self.link.enter();
        let mut verbs = list.iter();
        let result = verbs.try_for_each(|wr| self.reach(wr.at.node(), |host| host.serve(wr)));
        self.link.leave();
        result.map_err(Error::effect_unknown)
    }

    /// A verb to a node, with the right to reach it.
    #[inline(always)]
    pub(crate) fn reach<T>(
        &self,
        node: NodeId,
        verb: impl FnOnce(&Host) -> Result<T>,
    ) -> Result<T> {
        let all = self.connections.borrow();
        if let Some(Some(known)) = all.get(node)
            && known.may_reach()
        {
            return verb(&known.host);
        }
        drop(all);
        verb(&self.reached(node)?.host)
    }

    /// Whether its lists execute at once.
    fn is_direct(&self) -> bool {
        self.is_service || self.shared.knobs.suspend_one_in == 0
    }

    /// The node that this client belongs to.
    #[cfg(feature = "sim")]
    pub(crate) fn own(&self) -> &Arc<Host> {
        &self.own
    }

    /// Whether the test knob suspends now, and when the list executes then.
    fn suspend(&self) -> Option<When> {
        let one_in = self.shared.knobs.suspend_one_in;
        if one_in == 0 || self.is_service {
            return None;
        }
        self.rng.set(xorshift64(self.rng.get()));
        let draw = scrambled(self.rng.get()) >> 32;
        let when = match draw >> 20 & 3 {
            0 => When::Before,
            1 => When::After,
            2 if self.shared.tears == Tearing::Never => When::Before,
            3 if self.shared.tears == Tearing::Never => When::After,
            _ => When::Around { cut: draw >> 8 },
        };
        draw.is_multiple_of(u64::from(one_in)).then_some(when)
    }

    /// Executes a list but for a part of its last READ or WRITE, which is returned to be executed
    /// later: torn.
    fn execute_torn(&self, list: &[WorkRequest], cut: u64) -> Result<Option<WorkRequest>> {
        let Some((last, first)) = list.split_last() else { return Ok(None) };
        let words = u64::from(last.len / 8);
        if !matches!(last.op, Opcode::Read | Opcode::Write) || words < 2 {
            return self.execute(list).map(|()| None);
        }
        let at = (1 + cut % (words - 1)) as u32 * 8;
        let lower = WorkRequest { len: at, ..*last };
        let upper = WorkRequest {
            at: last.at.plus(u64::from(at)),
            len: last.len - at,
            local: last.local.wrapping_add(at as usize),
            ..*last
        };
        // Nothing orders the bytes of one verb: either end may come first, unless the fabric is
        // configured otherwise.
        let lower_first = self.shared.tears == Tearing::Ascending || cut & (1 << 11) == 0;
        let (now, later) = if lower_first { (lower, upper) } else { (upper, lower) };
        self.execute(first)?;
        self.execute(&[now])?;
        Ok(Some(later))
    }

    /// Runs a service on this thread, in the name of its node: once, so that it takes effect once.
    #[cfg(feature = "sim")]
    pub(crate) fn call(&self, call: RpcCall<'_>) -> Result<Vec<u8>> {
        self.serve(&*self.reached(call.to)?, call)
    }

    /// The connection to a node, its right to reach the node checked anew.
    #[cold]
    #[inline(never)]
    fn reached(&self, to: NodeId) -> Result<Rc<Connection>> {
        let c = self.connection(to)?;
        self.may_reach(&c).inspect_err(|e| self.disconnect(to, e))?;
        Ok(c)
    }

    fn serve(&self, c: &Connection, call: RpcCall<'_>) -> Result<Vec<u8>> {
        let RpcCall { to, service, request } = call;
        if service == JOBS {
            let (reply, begun) = c.host.jobs.answer(&c.host, self.own.member(), request)?;
            if let Some(job) = begun {
                self.start_job(&c.host, job);
            }
            return Ok(reply);
        }
        let handler = c.host.rpc.handler(to, service)?;
        if handler.is_data() {
            let mut service = c.service.borrow_mut();
            let ep = service.get_or_insert_with(|| self.service_on(&c.host, None));
            let _core = c.host.cores.take();
            return answer_data(&*handler, ep, (self.own.node, request));
        }
        let _core = locked(&c.host.rpc_core);
        let ep = self.service_on(&c.host, None);
        check_reply(to, ep.block_on(handler.call(&ep, self.own.node, request))?)
    }

    /// Runs a service that waits, beside the clients of this thread: what it waits for may be one
    /// of them.
    fn serve_beside(
        &self,
        (core, ticket): (&Core, Ticket),
        c: &Connection,
        call: RpcCall<'_>,
    ) -> Result<()> {
        let handler = c.host.rpc.handler(call.to, call.service)?;
        let served = Self::serving(self.shared.clone(), c.host.clone());
        let transport = WithoutCalls::serving(Rc::new(served), None);
        let (from, to, request) = (self.own.node, call.to, call.request.to_vec());
        core.tasks.spawn(move |core, slot| {
            Box::pin(async move {
                let ep = Endpoint::new(core.clone(), transport, slot);
                let answer = handler.call(&ep, from, &request).await;
                let done = answer.and_then(|reply| check_reply(to, reply));
                let done = done.map(|reply| core.complete_rpc(ticket, reply));
                core.complete(ticket, done);
            })
        });
        Ok(())
    }

    /// What a service of a node reaches memory by.
    pub(crate) fn service_on(&self, host: &Arc<Host>, charged: Option<Rc<Charged>>) -> Endpoint {
        let served = Self::serving(self.shared.clone(), host.clone());
        Endpoint::alone(WithoutCalls::serving(Rc::new(served), charged), 0)
    }

    fn serving(shared: Arc<LocalShared>, host: Arc<Host>) -> Self {
        Self { is_service: true, ..Self::new(shared, host) }
    }

    /// Runs a job: on a thread, or at once where time stands still.
    fn start_job(&self, host: &Arc<Host>, job: Begun) {
        let (shared, on) = (self.shared.clone(), host.clone());
        let open = move || {
            let transport = Self::serving(shared, on);
            Ok(Endpoint::alone(WithoutCalls::for_job(transport), 0))
        };
        match self.shared.clock {
            Clock::Real(_) => jobs::start_thread(host.clone(), job, open),
            Clock::Virtual(_) => jobs::run_here(host.clone(), job, open),
        }
    }

    /// The present host of a node.
    pub(crate) fn known(&self, node: NodeId) -> Result<Arc<Host>> {
        let known = self.shared.host(node);
        known.ok_or_else(|| Error::unreachable(format!("{node} is no node of this fabric")))
    }
}

impl DirectMemory for LocalTransport {
    #[inline]
    fn begin(&self) {
        self.link.enter();
    }

    #[inline]
    fn end(&self) {
        self.link.leave();
    }

    #[inline]
    fn prefetch(&self, at: GlobalAddr, len: u32) {
        if let Some(Some(c)) = self.connections.borrow().get(at.node()) {
            c.host.prefetch(at, len);
        }
    }

    #[inline]
    fn read(&self, at: GlobalAddr, out: &mut [u8]) -> Result<()> {
        self.reach(at.node(), |host| host.read(at, out))
    }

    #[inline]
    fn write(&self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        self.reach(at.node(), |host| host.write(at, bytes))
    }

    #[inline]
    fn write_word(&self, at: GlobalAddr, word: u64) -> Result<()> {
        self.reach(at.node(), |host| host.write_word(at, word))
    }

    #[inline]
    fn cas(&self, at: GlobalAddr, old: u64, new: u64) -> Result<u64> {
        self.reach(at.node(), |host| host.cas(at, old, new))
    }

    fn faa(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.reach(at.node(), |host| host.faa(at, add))
    }
}

impl Transport for LocalTransport {
    fn post(&self, _core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        let Some(when) = self.suspend() else { return Poll::Ready(self.execute(list)) };
        let suspended = match when {
            When::Before => (ticket, None, self.execute(list)),
            When::After => (ticket, Some(list.to_vec()), Ok(())),
            When::Around { cut } => match self.execute_torn(list, cut) {
                Ok(later) => (ticket, later.map(|wr| vec![wr]), Ok(())),
                Err(e) => (ticket, None, Err(e)),
            },
        };
        self.suspended.borrow_mut().push_back(suspended);
        Poll::Pending
    }

    fn direct(self: Rc<Self>) -> Option<Rc<LocalTransport>> {
        self.is_direct().then_some(self)
    }

    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        self.is_direct().then_some(self)
    }

    fn rpc(&self, core: &Core, ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        let c = match self.reached(call.to) {
            Ok(c) => c,
            Err(e) => return Poll::Ready(Err(e)),
        };
        if !c.host.rpc.waits(call.service) {
            return Poll::Ready(self.serve(&c, call));
        }
        match self.serve_beside((core, ticket), &c, call) {
            Ok(()) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn poll(&self, core: &Core) -> Progress {
        let Some((ticket, later, result)) = self.suspended.borrow_mut().pop_front() else {
            return Progress::Idle(None);
        };
        let result = later.map_or(result, |list| self.execute(&list));
        core.complete(ticket, result);
        Progress::Made
    }

    fn idle(&self, _core: &Core, due: Option<Nanos>, spins: u32) -> Idle {
        if let Clock::Virtual(_) = self.shared.clock {
            let Some(due) = due else { return Idle::Never };
            self.waited.set(self.waited.get() + due.saturating_sub(self.now()));
            return Idle::Again;
        }
        // Without a timer only another thread's wake (which unparks) can end the wait.
        let wait = due.map_or(LONGEST_PARK_NS, |due| due.saturating_sub(self.now()));
        let wait = wait.min(LONGEST_PARK_NS);
        if spins < 32 {
            std::hint::spin_loop();
        } else if wait < 20_000 || spins < 64 {
            std::thread::yield_now();
        } else {
            std::thread::park_timeout(std::time::Duration::from_nanos(wait));
        }
        Idle::Again
    }

    fn now(&self) -> Nanos {
        self.shared.clock.now() + self.waited.get()
    }

    fn caps(&self) -> Capabilities {
        self.shared.caps()
    }

    fn node(&self) -> NodeId {
        self.own.node
    }

    fn interleave(&self) -> bool {
        self.suspend().is_some()
    }

    fn peek(&self, offset: u64) -> Option<u64> {
        self.own.region.peek(offset)
    }
}
