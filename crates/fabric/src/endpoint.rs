//! An endpoint: a client's interface to remote memory.
//!
//! An endpoint is one slot of an executor ([`Core`]) over one transport. It posts verbs as futures:
//! a single verb, a chain (one node, ordered, one doorbell) or a batch (any nodes). A round trip is
//! one await. The counters record verbs, bytes, doorbells and round trips of each operation between
//! [`Endpoint::begin`] and [`OpScope::end`], so that the cost of an operation is exact on every
//! fabric.
//!
//! *Deadlines.* The deadline of an operation starts with its first wait for another client, not
//! with its begin: an operation that never waits does not read the clock. It bounds waits (locks,
//! buffers, replies, back-off), and not verbs, which the transport ends.
//!
//! *Dropped futures.* Any future of an endpoint may be dropped at an await. The verbs in flight
//! then complete by themselves, and the executor keeps their buffers until they have. An operation
//! that leaves something behind at such a point cleans up with [`Endpoint::when_quiet`], which runs
//! when none of these verbs can execute any more.
//!
//! *Interleaving points and injected failures.* [`Endpoint::point`] and [`Endpoint::check_memory`]
//! do nothing in production. In a simulator the first lets other clients of the node run, and the
//! second lets an allocation fail.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::addr::{GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::core::{Core, DetachedHook, Hooked, WaitReason};
use crate::counters::{Counters, Divided, OpCounts, Snapshot};
use crate::direct::{DirectList, OwnMemory};
use crate::direct_op::DirectOp;
use crate::error::{Error, Result};
use crate::local::LocalTransport;
use crate::pause::{Backoff, LONGEST_PAUSE_NS, Sleep, Yield};
use crate::rpc::{MAX_RPC_BYTES, RpcCall, ServiceId};
use crate::scope::{OpKind, OpOutcome, Stage, Step};
use crate::slab::{Buf, Slab};
use crate::trace::report_slow;
use crate::transport::{Nanos, Ticket, Transport};
use crate::verb::{self, Collector, List, Ordered, Stager};

/// Default time that an operation may wait for other clients: 10 s.
pub const DEFAULT_TIMEOUT_NS: Nanos = 10_000_000_000;

struct Inner {
    core: Rc<Core>,
    transport: Rc<dyn Transport>,
    /// Memory of this process, where verbs need not be posted.
    direct: Option<Rc<LocalTransport>>,
    slot: u32,
    node: NodeId,
    counters: Counters,
    timeout_ns: Cell<Nanos>,
    /// Deadline of the present operation; 0 before its first wait.
    deadline: Cell<Nanos>,
    charges: bool,
    /// The step of the verbs posted next, in a breakdown of operations.
    step: Cell<Step>,
    /// Detached lists are awaited, for the ablation switch and for fabrics without them.
    attached_only: Cell<bool>,
}

/// A client's interface to remote memory: posts verbs, counts them, and reads the fabric's clock.
/// Cheap to clone inside its thread.
#[derive(Clone)]
pub struct Endpoint(Rc<Inner>);

crate::debug_line!(Endpoint, it => "Endpoint({} slot {})", it.0.node, it.0.slot);

impl Endpoint {
    /// An endpoint of slot `slot` of an executor over a transport.
    pub fn new(core: Rc<Core>, transport: Rc<dyn Transport>, slot: u32) -> Self {
        Self::counting(core, transport, slot, Counters::new())
    }

    /// An endpoint of the only slot of an executor of its own.
    pub fn alone(transport: Rc<dyn Transport>, slab_bytes: u64) -> Self {
        let core = Core::new(transport.clone(), slab_bytes);
        let slot = core.add_slot();
        Self::new(core, transport, slot)
    }

    /// Another endpoint of the same slot, with counts and a deadline of its own.
    #[cfg(feature = "tcp")]
    pub(crate) fn beside(&self) -> Self {
        self.beside_over(self.0.transport.clone())
    }

    /// The same over another transport.
    #[cfg(feature = "tcp")]
    pub(crate) fn beside_over(&self, transport: Rc<dyn Transport>) -> Self {
        Self::new(self.0.core.clone(), transport, self.0.slot)
    }

    /// Like [`Endpoint::new`], but its counts are added to the sums of another endpoint: the
    /// snapshot of either shows both. For thousands of clients on one thread: separate sums would
    /// not stay in the processor's caches.
    pub fn counting_with(
        core: Rc<Core>,
        transport: Rc<dyn Transport>,
        slot: u32,
        other: &Self,
    ) -> Self {
        let counters = Counters::into(other.0.counters.sums());
        Self::counting(core, transport, slot, counters)
    }

    fn counting(
        core: Rc<Core>,
        transport: Rc<dyn Transport>,
        slot: u32,
        counters: Counters,
    ) -> Self {
        let (node, charges) = (transport.node(), transport.charges());
        core.drive(&transport);
        let ep = Self(Rc::new(Inner {
            core,
            direct: transport.clone().direct(),
            transport,
            slot,
            node,
            counters,
            timeout_ns: Cell::new(DEFAULT_TIMEOUT_NS),
            deadline: Cell::new(0),
            charges,
            step: Cell::new(Step::Other),
            attached_only: Cell::new(false),
        }));
        ep.prefetch(&*ep.0);
        ep.prefetch(&*ep.0.transport);
        ep.0.transport.add_prefetch_hints(&ep);
        ep
    }

    /// A prefetch hint: this client uses a value, at this address, whenever it runs. A fabric that
    /// runs thousands of clients on one thread may prefetch it before it resumes the client. The
    /// value may be dropped at any time.
    pub fn prefetch<T: ?Sized>(&self, value: &T) {
        let at = std::ptr::from_ref(value).cast::<u8>().addr();
        self.0.core.add_prefetch_hint(self.0.slot, at, size_of_val(value));
    }

    /// The executor.
    pub fn core(&self) -> &Rc<Core> {
        &self.0.core
    }

    /// Runs a future of this client on the present thread, to its end.
    ///
    /// # Errors
    /// Those of the future; `TimedOut` as from [`Core::block_on`].
    pub fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.core.block_on(self.0.slot, future)
    }

    /// A number that identifies the thread of this client.
    pub fn thread(&self) -> usize {
        Rc::as_ptr(&self.0.transport).cast::<()>() as usize
    }

    /// The executor slot of this client.
    pub fn slot(&self) -> u32 {
        self.0.slot
    }

    /// The node that this client belongs to.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// The capabilities of the fabric.
    pub fn caps(&self) -> Capabilities {
        self.0.transport.caps()
    }

    /// Reads a word of this node's own region without a verb. A hint: it is ordered with nothing.
    pub fn peek(&self, offset: u64) -> Option<u64> {
        self.0.transport.peek(offset)
    }

    // ---- verbs ----------------------------------------

    /// READ of `len` bytes: one round trip.
    pub fn read(&self, at: GlobalAddr, len: u32) -> Post<'_, verb::Read> {
        self.post(verb::read(at, len), true)
    }

    /// Whether verbs execute on the posting thread: no operation waits for them, and another client
    /// of the thread runs only where an operation waits for it.
    pub fn is_direct(&self) -> bool {
        self.0.direct.is_some()
    }

    /// READ of memory that may have been freed ([`verb::read_unvalidated`]): one round trip.
    pub fn read_unvalidated(&self, at: GlobalAddr, len: u32) -> Post<'_, verb::Read> {
        self.post(verb::read_unvalidated(at, len), true)
    }

    /// WRITE of a buffer: one round trip.
    pub fn write(&self, at: GlobalAddr, buf: Buf) -> Post<'_, verb::Write> {
        self.post(verb::write(at, buf), true)
    }

    /// WRITE of these bytes: one round trip.
    pub async fn write_bytes(&self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        let mut buf = self.buf(bytes.len() as u32).await?;
        buf.copy_from_slice(bytes);
        self.write(at, buf).await.map(drop)
    }

    /// WRITE of one word: one round trip.
    pub fn write_word(&self, at: GlobalAddr, word: u64) -> Post<'_, verb::WriteWord> {
        self.post(verb::write_word(at, word), true)
    }

    /// Compare-and-swap; the previous word.
    pub fn cas(&self, at: GlobalAddr, old: u64, new: u64) -> Post<'_, verb::Atomic> {
        self.post(verb::cas(at, old, new), true)
    }

    /// Fetch-and-add; the previous word.
    pub fn faa(&self, at: GlobalAddr, add: u64) -> Post<'_, verb::Atomic> {
        self.post(verb::faa(at, add), true)
    }

    /// Verbs to one node with one doorbell, in order: one round trip.
    pub fn chain<L: Ordered>(&self, list: L) -> Post<'_, L> {
        self.post(list, true)
    }

    /// Independent verbs (or chains) to any nodes, posted together: one round trip.
    pub fn batch<L: List>(&self, list: L) -> Post<'_, L> {
        self.post(list, false)
    }

    fn post<L: List>(&self, list: L, chained: bool) -> Post<'_, L> {
        Post { ep: self, list: Some(list), chained, ticket: None, began: (Step::Other, 0) }
    }

    /// Posts a detached chain, such as an unlock: no future waits for it. The endpoint keeps the
    /// buffers and finishes it; then `hook` runs. An error surfaces at the end of the operation, or
    /// of the next one.
    pub fn detach<L: Ordered>(&self, list: L, hook: Option<(Rc<dyn DetachedHook>, u64)>) {
        let core = &self.0.core;
        if let Some(memory) = &self.0.direct {
            let result = self.directly((memory, true, true), |d| list.execute(d)).map(|_| ());
            if let Some((hook, arg)) = hook {
                hook.ended(arg, &result);
                hook.finished(arg);
            }
            return result.unwrap_or_else(|e| core.detached_failed(e));
        }
        let (ticket, _) = self.stage(list, true, true);
        let now = hook.clone().filter(|_| !core.is_driven());
        let is_finished = now.is_some();
        core.mark_detached(ticket, hook.map(|(hook, arg)| Hooked { hook, arg, is_finished }));
        let posted = core.post_on(&*self.0.transport, ticket);
        if let Some((hook, arg)) = now {
            hook.finished(arg);
        }
        if let Poll::Ready(result) = posted {
            core.finish_detached(ticket, result);
        }
    }

    /// Whether detached lists shall be awaited instead.
    pub fn set_attached_only(&self, on: bool) {
        self.0.attached_only.set(on);
    }

    /// Posts an unlock or a similar list: detached, or awaited where detaching is switched off.
    ///
    /// # Errors
    /// Those of the verbs, where they are awaited.
    pub async fn release<L: Ordered>(
        &self,
        list: L,
        hook: Option<(Rc<dyn DetachedHook>, u64)>,
    ) -> Result<()> {
        if !self.0.attached_only.get() {
            self.detach(list, hook);
            return Ok(());
        }
        let mut attached = Attached { post: self.chain(list), hook };
        let result = (&mut attached.post).await.map(|_| ());
        if let Some((hook, arg)) = attached.hook.take() {
            hook.ended(arg, &result);
            hook.finished(arg);
        }
        result
    }

    /// Whether no verb of a dropped future of this endpoint can execute any more.
    pub fn is_quiet(&self) -> bool {
        self.0.core.is_quiet(self.0.slot)
    }

    /// Runs a closure once [`Endpoint::is_quiet`]: at once, or from the executor. It cleans up
    /// after an operation with a future that was dropped in the middle of a verb.
    pub fn when_quiet(&self, then: impl FnOnce() + 'static) {
        self.0.core.when_quiet(self.0.slot, Box::new(then));
    }

    /// Waits until no detached list of this executor is in flight.
    ///
    /// # Errors
    /// The first error of one of them; `TimedOut` at the deadline.
    pub async fn drain(&self) -> Result<()> {
        while self.0.core.detached_in_flight() > 0 {
            self.check_deadline("detached verbs", 0)?;
            self.sleep(1_000).await;
        }
        self.0.core.take_detached_error().map_or(Ok(()), Err)
    }

    fn stage<L: List>(&self, mut list: L, chained: bool, detached: bool) -> (Ticket, L) {
        let core = &self.0.core;
        let ticket = core.open_posting(self.0.slot);
        core.with_posting(ticket, |p| {
            let mut stager = Stager::new(p, core.slab(), chained, list.atomics());
            list.stage(&mut stager);
            if let Some(last) = p.requests.last_mut() {
                last.chained = false;
            }
            self.0.counters.posted(&p.requests, detached);
        });
        (ticket, list)
    }

    /// Executes a list on memory of this process: `chained`, and `detached`, as a posted one.
    #[inline]
    fn directly<T>(
        &self,
        (memory, chained, detached): (&LocalTransport, bool, bool),
        list: impl FnOnce(&mut DirectList<'_>) -> Result<T>,
    ) -> Result<T> {
        let began = self.step_began();
        let with = (self.0.core.slab(), &self.0.counters);
        let done = DirectList::run(memory, with, chained, list);
        self.0.counters.list(detached);
        if !detached {
            self.spent(self.0.step.get(), began);
        }
        done
    }

    /// A registered buffer of `len` bytes, contents undefined. Waits while the slab is dry.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    #[inline]
    pub fn buf(&self, len: u32) -> BufWait<'_> {
        BufWait { ep: self, len }
    }

    /// The slab is dry: the client looks again after a while, up to its deadline.
    #[cold]
    fn wait_for_room<T>(&self, len: u32) -> Poll<Result<T>> {
        if let Err(e) = self.check_deadline("a registered buffer", u64::from(len)) {
            return Poll::Ready(Err(e));
        }
        self.0.core.wake_at(self.0.slot, self.now() + 2_000);
        Poll::Pending
    }

    /// A remote call: one round trip. The reply is written over `reply`.
    ///
    /// # Errors
    /// Those of the service; `InvalidArgument` for a request over 64 KiB; `Unreachable`,
    /// `Unsupported` from the fabric; `TimedOut` at the deadline of the operation, without an
    /// answer.
    pub async fn rpc(
        &self,
        to: NodeId,
        service: ServiceId,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<()> {
        if request.len() > MAX_RPC_BYTES {
            return Err(Error::invalid(format!(
                "a remote call carries at most {MAX_RPC_BYTES} bytes, not {}",
                request.len()
            )));
        }
        self.0.counters.called(to, request.len());
        let core = &self.0.core;
        let ticket = core.open_posting(self.0.slot);
        core.mark_in_flight(ticket);
        let mut waiting = InFlight { ep: self, ticket: Some(ticket) };
        match self.0.transport.rpc(core, ticket, RpcCall { to, service, request }) {
            Poll::Ready(result) => {
                waiting.close();
                *reply = result?;
            }
            Poll::Pending => {
                let why = WaitReason { what: "reply of a remote call", at: u64::from(to.bits()) };
                core.waiting(self.0.slot, Some(why));
                if self.now() >= self.deadline() {
                    // Between operations: the deadline of the last one has passed.
                    self.renew_deadline();
                }
                let deadline = self.deadline();
                let done = std::future::poll_fn(|_| match core.take_done(ticket) {
                    Some(result) => Poll::Ready(result),
                    None => match self.check_deadline(why.what, why.at) {
                        Ok(()) => {
                            core.arm(self.0.slot, deadline);
                            Poll::Pending
                        }
                        Err(e) => Poll::Ready(Err(e.effect_unknown())),
                    },
                });
                let began = self.step_began();
                let result = done.await;
                self.spent(Step::Call, began);
                core.waiting(self.0.slot, None);
                if core.is_in_flight(ticket) {
                    // The deadline passed; a late answer is dropped.
                    drop(waiting);
                    return result;
                }
                core.with_posting(ticket, |p| std::mem::swap(&mut p.reply, reply));
                waiting.close();
                result?;
            }
        }
        self.0.counters.replied(to, reply.len());
        Ok(())
    }

    /// The memory of this node, for a service that runs on its processor; `None` where no processor
    /// reaches it.
    pub fn own_memory(&self) -> Option<OwnMemory<'_>> {
        self.0.transport.own_memory().map(|memory| OwnMemory::begin(memory, self.node()))
    }

    // ---- time ----------------------------------------

    /// The fabric's clock, ns.
    pub fn now(&self) -> Nanos {
        self.0.transport.now()
    }

    /// Waits for `ns` of the fabric's clock.
    pub fn sleep(&self, ns: Nanos) -> Sleep<'_> {
        Sleep { ep: self, until: None, ns }
    }

    /// Lets the other clients of this executor run.
    pub fn yield_now(&self) -> Yield<'_> {
        Yield { ep: self, yielded: false }
    }

    /// An interleaving point in code shared by the clients of a compute node: nothing in
    /// production, a scheduling choice in a simulator.
    pub async fn point(&self) {
        if self.0.transport.interleave() {
            self.yield_now().await;
        }
    }

    /// Fails as if no memory were left, where a simulator injects it: allocators call this first.
    ///
    /// # Errors
    /// `Full`.
    pub fn check_memory(&self) -> Result<()> {
        match self.0.transport.is_scarce() {
            true => Err(Error::full("no memory is left (refused for a test)")),
            false => Ok(()),
        }
    }

    /// Charges CPU time for a step.
    #[inline]
    pub fn stage_cost(&self, stage: Stage, units: u32) {
        if self.0.charges {
            self.charge(stage, units);
        }
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    fn charge(&self, stage: Stage, units: u32) {
        let began = if self.0.counters.is_timed() { self.now() } else { 0 };
        self.0.transport.charge(stage, units);
        self.0.counters.charged(stage, units);
        if began > 0 {
            self.spent(Step::of(stage), began);
        }
    }

    /// Counts a leaf that was divided.
    pub fn count_divided(&self, leaf: Divided) {
        self.0.counters.divided(leaf);
    }

    /// Sets the step of the verbs posted next, in a breakdown of operations.
    #[inline]
    pub fn step(&self, step: Step) {
        self.0.step.set(step);
    }

    /// Measures the time of operations by step; off by default, because it reads the clock twice a
    /// round.
    pub fn set_timed_steps(&self, on: bool) {
        self.0.counters.set_timed(on);
    }

    /// The clock, where times by step are measured; 0 elsewhere.
    #[inline]
    pub(crate) fn step_began(&self) -> Nanos {
        if self.0.counters.is_timed() { self.now().max(1) } else { 0 }
    }

    /// The time since `began` went into a step.
    #[inline]
    pub(crate) fn spent(&self, step: Step, began: Nanos) {
        if began > 0 {
            self.0.counters.spent(step, self.now().saturating_sub(began));
        }
    }

    /// How long operations may wait for others, ns.
    pub fn set_timeout(&self, ns: Nanos) {
        self.0.timeout_ns.set(ns);
    }

    /// When the present operation must end. The clock is read when an operation waits for the first
    /// time, not before.
    pub fn deadline(&self) -> Nanos {
        if self.0.deadline.get() == 0 {
            self.0.deadline.set((self.now() + self.0.timeout_ns.get()).max(1));
        }
        self.0.deadline.get()
    }

    /// The next piece of a long operation begins: its deadline starts with its first wait, as an
    /// operation's does.
    pub fn renew_deadline(&self) {
        self.0.deadline.set(0);
    }

    /// Sets the deadline of the present operation.
    pub fn set_deadline(&self, at: Nanos) {
        self.0.deadline.set(at.max(1));
    }

    /// Fails when the deadline of the operation has passed.
    ///
    /// # Errors
    /// `TimedOut`, naming the wait reason.
    pub fn check_deadline(&self, what: &'static str, at: u64) -> Result<()> {
        let deadline = self.deadline();
        if self.now() >= deadline {
            return Err(Error::timed_out(format!(
                "gave up after {} ms waiting for {what} ({at:#x}); try again, or raise the operation timeout",
                self.0.timeout_ns.get() / 1_000_000
            )));
        }
        Ok(())
    }

    /// Bounded, growing pauses for waits without a wake-up: for a remote lock holder, or a writer
    /// in the middle of an image.
    pub fn backoff(&self, what: &'static str, at: GlobalAddr) -> Backoff<'_> {
        self.backoff_within(what, at, LONGEST_PAUSE_NS)
    }

    /// The same with pauses of `longest` ns at most: for locks with short hold times and little
    /// contention. 0 retries without a pause.
    pub fn backoff_within(
        &self,
        what: &'static str,
        at: GlobalAddr,
        longest: Nanos,
    ) -> Backoff<'_> {
        Backoff { ep: self, what, at, step: 0, longest }
    }

    // ---- counting ----------------------------------------

    /// Begins an operation: round trips and verbs from here to [`OpScope::end`] count for it, and
    /// its deadline starts with its first wait.
    pub fn begin(&self, kind: OpKind) -> OpScope<'_> {
        self.0.counters.begin();
        self.0.step.set(Step::Other);
        self.0.deadline.set(0);
        self.stage_cost(Stage::Operation, 1);
        OpScope { ep: self, kind, outcome: OpOutcome::Failed }
    }

    /// Begins an operation on memory of this process ([`DirectOp`]). `None` where verbs are posted,
    /// and where an operation charges, measures or awaits more than its verbs.
    #[inline]
    pub fn begin_direct(&self, kind: OpKind) -> Option<DirectOp<'_>> {
        let inner = &*self.0;
        let plain = !inner.charges && !inner.counters.is_timed() && !inner.attached_only.get();
        let memory = inner.direct.as_deref().filter(|_| plain)?;
        Some(DirectOp::new(self, memory, (kind, inner.counters.is_in_op())))
    }

    /// Whether an operation has begun, and has not ended.
    pub fn is_in_operation(&self) -> bool {
        self.0.counters.is_in_op()
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// The counts of this endpoint.
    pub fn snapshot(&self) -> Snapshot {
        self.0.counters.snapshot()
    }

    /// Resets its counts.
    pub fn reset_counters(&self) {
        self.0.counters.reset();
    }
}

/// See [`Endpoint::buf`].
#[derive(Debug)]
pub struct BufWait<'e> {
    ep: &'e Endpoint,
    len: u32,
}

impl Future for BufWait<'_> {
    type Output = Result<Buf>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slab = self.ep.0.core.slab();
        match slab.has_room(Slab::cost(self.len)) {
            true => Poll::Ready(Ok(slab.alloc(self.len))),
            false => self.ep.wait_for_room(self.len),
        }
    }
}

/// A list in flight. Dropping it leaves the buffers to the endpoint until the verbs have completed.
#[derive(Debug)]
pub struct Post<'e, L: List> {
    ep: &'e Endpoint,
    list: Option<L>,
    chained: bool,
    ticket: Option<Ticket>,
    /// Step and time of the post, where times are measured.
    began: (Step, Nanos),
}

impl<L: List> Unpin for Post<'_, L> {}

impl<L: List> Post<'_, L> {
    fn finish(&mut self, ticket: Ticket, result: Result<()>) -> Result<L::Out> {
        let core = &self.ep.0.core;
        self.ticket = None;
        if self.began.1 > 0 {
            self.ep.spent(self.began.0, self.began.1);
        }
        let list = self.list.take().expect("a list is collected once");
        let out =
            result.map(|()| core.with_posting(ticket, |p| list.collect(&mut Collector::new(p))));
        core.close_posting(ticket);
        out
    }
}

impl<L: List> Future for Post<'_, L> {
    type Output = Result<L::Out>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ep = self.ep;
        let core = &ep.0.core;
        if let Some(ticket) = self.ticket {
            return match core.take_done(ticket) {
                Some(result) => Poll::Ready(self.finish(ticket, result)),
                None => Poll::Pending,
            };
        }
        let list = self.list.take().expect("not polled after completion");
        if !core.slab().has_room(list.room()) {
            self.list = Some(list);
            return ep.wait_for_room(0);
        }
        if let Some(memory) = &ep.0.direct {
            let chained = self.chained;
            return Poll::Ready(ep.directly((memory, chained, false), |d| list.execute(d)));
        }
        if ep.0.counters.is_timed() {
            self.began = (ep.0.step.get(), ep.now().max(1));
        }
        let (ticket, list) = ep.stage(list, self.chained, false);
        self.list = Some(list);
        self.ticket = Some(ticket);
        core.mark_in_flight(ticket);
        match core.post_on(&*ep.0.transport, ticket) {
            Poll::Ready(result) => Poll::Ready(self.finish(ticket, result)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<L: List> Drop for Post<'_, L> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.ep.0.core.abandon(ticket, None);
        }
    }
}

/// An awaited list with a hook, which runs when the list has ended, whether or not its future is
/// dropped before.
struct Attached<'e, L: List> {
    post: Post<'e, L>,
    hook: Option<(Rc<dyn DetachedHook>, u64)>,
}

impl<L: List> Drop for Attached<'_, L> {
    fn drop(&mut self) {
        let Some((hook, arg)) = self.hook.take() else { return };
        match self.post.ticket.take() {
            Some(ticket) => {
                let hooked = Hooked { hook, arg, is_finished: false };
                self.post.ep.0.core.abandon(ticket, Some(hooked));
            }
            None => {
                // It was never posted.
                hook.ended(arg, &Err(Error::busy("given up before it was posted")));
                hook.finished(arg);
            }
        }
    }
}

/// Abandons a posting when a future is dropped in the middle.
struct InFlight<'e> {
    ep: &'e Endpoint,
    ticket: Option<Ticket>,
}

impl InFlight<'_> {
    fn close(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.ep.0.core.close_posting(ticket);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.ep.0.core.abandon(ticket, None);
        }
    }
}

/// An operation in progress, for the counters. Dropped without [`OpScope::end`], it counts as
/// failed.
#[derive(Debug)]
pub struct OpScope<'e> {
    ep: &'e Endpoint,
    kind: OpKind,
    /// That of an operation that is dropped, until it ends.
    outcome: OpOutcome,
}

impl OpScope<'_> {
    /// The cost of the operation so far.
    pub fn counts(&self) -> OpCounts {
        self.ep.0.counters.current()
    }

    /// Ends the operation.
    pub fn end(mut self, outcome: OpOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for OpScope<'_> {
    fn drop(&mut self) {
        let inner = &*self.ep.0;
        inner.counters.end(self.kind, self.outcome);
        let deadline = inner.deadline.get();
        if cfg!(feature = "tracing") && deadline > 0 {
            let ns = (self.ep.now() + inner.timeout_ns.get()).saturating_sub(deadline);
            let what = self.kind.name();
            report_slow(ns, |ms| format!("{what}: {ms} ms from its first wait to its end"));
        }
    }
}
