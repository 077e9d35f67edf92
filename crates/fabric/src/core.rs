//! The executor's shared part: postings in flight, ready slots, timers, and the mailbox through
//! which other threads wake slots. The same code runs in production and in simulation; only the
//! policy and the source of completions differ.
//!
//! *Postings.* A list of verbs lives in a posting from staging to collection. The posting owns the
//! buffers while the verbs are in flight. A future that is dropped in that time only marks its
//! posting: the completion frees the buffers, because a NIC may write to them until then. A ticket
//! carries the generation of its posting, so that a stale completion is ignored.
//!
//! *Detached lists.* An unlock is posted without a waiting future. Its error is kept and surfaces
//! at the end of an operation. Its hook passes the local turn on; with a worker it runs at the
//! completion, and without one at the post, because a blocking caller may not poll again for long.
//! Dropping the executor drains detached lists first: an unlock must not be lost.
//!
//! *Quiescence.* A slot is quiet when no verb of a dropped future of it is in flight. Work that
//! must not overlap with such verbs (releasing an object that they may still access, for example)
//! runs when the slot is quiet.
//!
//! *Waking.* Wakers push into a mailbox, which is the only part that other threads touch, and
//! unpark the executor. Timers wake slots at times of the first driver's clock. A slot has at most
//! one deadline timer, however often it waits. In a simulator an executor without ready slots,
//! timers and events is stalled: it reports the wait reason of every slot instead of a hang.

#[cfg(feature = "sim")]
mod lost;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::error::{Error, Result};
use crate::prefetch::PrefetchHints;
use crate::rng::{golden_hash, xorshift64};
use crate::slab::{Buf, Slab};
use crate::tasks::Tasks;
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest};

/// The reason for a client's wait, for stall reports and error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// In words: "leaf lock", "turn for a table", ...
    pub what: &'static str,
    /// The object: an address or a number.
    pub at: u64,
}

impl std::fmt::Display for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#x})", self.what, self.at)
    }
}

/// Called when a detached list has finished, successfully or not; it passes a local turn on, for
/// example.
pub trait DetachedHook {
    /// The local turn of the list with this argument may go on: the list has ended, or, when its
    /// caller blocks, it was posted.
    fn finished(&self, arg: u64);

    /// The list has ended with this result: none of its verbs executes any more. With a worker this
    /// comes before `finished`.
    fn ended(&self, arg: u64, result: &Result<()>) {
        let _ = (arg, result);
    }
}

/// The hook of a detached list, and its argument.
pub(crate) struct Hooked {
    pub hook: Rc<dyn DetachedHook>,
    pub arg: u64,
    /// `finished` has been called.
    pub is_finished: bool,
}

/// A list of verbs from staging to collection.
#[derive(Default)]
pub(crate) struct Posting {
    generation: u32,
    state: PostingState,
    slot: u32,
    /// The awaiting future is gone; the completion frees the buffers.
    dropped: bool,
    /// So, with verbs in flight: its slot is not quiet before they have ended.
    counted: bool,
    hook: Option<Hooked>,
    pub(crate) requests: Vec<WorkRequest>,
    pub(crate) bufs: Vec<Option<Buf>>,
    pub(crate) words: Option<Buf>,
    pub(crate) reply: Vec<u8>,
}

#[derive(Default)]
enum PostingState {
    #[default]
    Free,
    InFlight,
    Detached,
    Done(Result<()>),
    /// Its client's node has crashed: it never completes.
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "only the simulator makes it"))]
    Lost,
}

struct Mailbox {
    flag: AtomicBool,
    slots: std::sync::Mutex<Vec<u32>>,
    thread: std::thread::Thread,
}

struct SlotWaker {
    mailbox: Arc<Mailbox>,
    slot: u32,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.mailbox.slots.lock().expect("no panic under this lock").push(self.slot);
        self.mailbox.flag.store(true, Ordering::SeqCst);
        self.mailbox.thread.unpark();
    }
}

struct SlotState {
    queued: bool,
    waiting: Option<WaitReason>,
    /// When the slot's deadline timer fires; 0 while none is set.
    armed: Nanos,
    waker: Rc<Waker>,
    /// Lists in flight with dropped futures, and the work to be done when all of them have ended.
    abandoned: u32,
    when_quiet: Vec<Box<dyn FnOnce()>>,
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// One executor's state; it stays on one thread.
pub struct Core {
    pub(crate) tasks: Tasks,
    slab: Slab,
    postings: RefCell<Vec<Posting>>,
    free: RefCell<Vec<u32>>,
    slots: RefCell<Vec<SlotState>>,
    /// Prefetch hints: the addresses of each slot's client state.
    prefetch_hints: RefCell<Vec<PrefetchHints>>,
    ready: RefCell<VecDeque<u32>>,
    timers: RefCell<BinaryHeap<Reverse<(Nanos, u64, u32)>>>,
    timer_sequence: Cell<u64>,
    detached: Cell<u32>,
    /// A worker keeps polling: completions of detached lists are noticed when they come.
    driven: Cell<bool>,
    detached_error: RefCell<Option<Error>>,
    mailbox: Arc<Mailbox>,
    /// Sources of completions; the first is also the clock.
    drivers: RefCell<Vec<Rc<dyn Transport>>>,
    clock: Rc<dyn Transport>,
    client: u64,
    rng: Cell<u64>,
}

impl Core {
    /// An executor driven by `driver`, with at most `slab_bytes` of buffers in use at a time.
    pub fn new(driver: Rc<dyn Transport>, slab_bytes: u64) -> Rc<Self> {
        let client = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed);
        Rc::new_cyclic(|me| Self {
            tasks: Tasks::of(me),
            slab: Slab::new(slab_bytes),
            postings: RefCell::default(),
            free: RefCell::default(),
            slots: RefCell::default(),
            prefetch_hints: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            timer_sequence: Cell::new(0),
            detached: Cell::new(0),
            driven: Cell::new(false),
            detached_error: RefCell::default(),
            mailbox: Arc::new(Mailbox {
                flag: AtomicBool::new(false),
                slots: std::sync::Mutex::default(),
                thread: std::thread::current(),
            }),
            drivers: RefCell::new(vec![driver.clone()]),
            clock: driver,
            client,
            rng: Cell::new(golden_hash(1)),
        })
    }

    /// Seeds the generator that spreads back-off. It influences timing only; simulators seed it
    /// from their own seed.
    pub fn seed(&self, seed: u64) {
        self.rng.set(seed | 1);
    }

    /// A draw for back-off.
    pub(crate) fn draw(&self) -> u64 {
        self.rng.set(xorshift64(self.rng.get()));
        self.rng.get()
    }

    /// The registered buffers.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// This executor as a client of remote calls; unique in the process.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The clock.
    pub fn now(&self) -> Nanos {
        self.clock.clock()
    }

    /// Adds a source of completions, once.
    pub(crate) fn drive(&self, transport: &Rc<dyn Transport>) {
        let mut drivers = self.drivers.borrow_mut();
        let number = transport.driver();
        let same = |d: &Rc<dyn Transport>| {
            Rc::ptr_eq(d, transport) || (number != 0 && d.driver() == number)
        };
        if !drivers.iter().any(same) {
            drivers.push(transport.clone());
        }
    }

    /// Delivers completions that are there.
    pub(crate) fn poll_drivers(&self) -> Progress {
        let mut progress = Progress::Idle(None);
        for i in 0.. {
            let Some(driver) = self.drivers.borrow().get(i).cloned() else { break };
            progress = match (progress, driver.poll(self)) {
                (Progress::Made, _) | (_, Progress::Made) => Progress::Made,
                (Progress::Idle(a), Progress::Idle(b)) => Progress::Idle(earlier(a, b)),
            };
        }
        progress
    }

    /// A new slot for one client.
    pub fn add_slot(&self) -> u32 {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.len() as u32;
        let waker = Arc::new(SlotWaker { mailbox: self.mailbox.clone(), slot });
        let waker = Rc::new(Waker::from(waker));
        self.prefetch_hints.borrow_mut().push(PrefetchHints::default());
        slots.push(SlotState {
            queued: false,
            waiting: None,
            armed: 0,
            waker,
            abandoned: 0,
            when_quiet: Vec::new(),
        });
        slot
    }

    /// Puts a slot on the ready ring, once.
    pub fn wake(&self, slot: u32) {
        self.wake_slot(slot, &mut self.slots.borrow_mut()[slot as usize]);
    }

    fn wake_slot(&self, slot: u32, s: &mut SlotState) {
        if !s.queued {
            s.queued = true;
            self.ready.borrow_mut().push_back(slot);
        }
    }

    /// Wakes a slot at a time of the fabric's clock.
    pub fn wake_at(&self, slot: u32, at: Nanos) {
        let sequence = self.timer_sequence.get();
        self.timer_sequence.set(sequence + 1);
        self.timers.borrow_mut().push(Reverse((at, sequence, slot)));
    }

    /// Whether some slot is ready to be polled.
    #[cfg(feature = "sim")]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// When the next timer fires.
    #[cfg(feature = "sim")]
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.timers.borrow().peek().map(|Reverse((at, _, _))| *at)
    }

    /// Whether a list is detached, and its slot.
    #[cfg(feature = "sim")]
    pub(crate) fn about(&self, t: Ticket) -> (bool, u32) {
        self.with_posting(t, |p| (matches!(p.state, PostingState::Detached), p.slot))
    }

    /// Prefetches a posting.
    #[cfg(feature = "sim")]
    pub(crate) fn prefetch(&self, t: Ticket) {
        if let Some(p) = self.postings.borrow().get(t.posting as usize) {
            crate::cpu::prefetch_at(std::ptr::from_ref(p).addr(), size_of::<Posting>());
        }
    }

    /// Records that the client of a slot uses some memory whenever it runs.
    pub(crate) fn add_prefetch_hint(&self, slot: u32, at: usize, bytes: usize) {
        if let Some(hints) = self.prefetch_hints.borrow_mut().get_mut(slot as usize) {
            hints.add(at, bytes);
        }
    }

    /// Prefetches the memory that the client of a slot uses.
    #[cfg(feature = "sim")]
    pub(crate) fn prefetch_client(&self, slot: u32) {
        if let Some(hints) = self.prefetch_hints.borrow().get(slot as usize) {
            hints.prefetch();
        }
        if let Some(s) = self.slots.borrow().get(slot as usize) {
            crate::cpu::prefetch_at(std::ptr::from_ref(s).addr(), size_of::<SlotState>());
        }
    }

    /// The requests of a list in flight.
    #[cfg(any(feature = "sim", feature = "verbs"))]
    pub(crate) fn with_requests<R>(&self, t: Ticket, f: impl FnOnce(&[WorkRequest]) -> R) -> R {
        let postings = self.postings.borrow();
        f(&postings[t.posting as usize].requests)
    }

    /// Timers that have not fired yet.
    pub fn timers(&self) -> usize {
        self.timers.borrow().len()
    }

    /// Makes sure that a waiting slot is woken to look at its deadline: at `at`, or earlier when an
    /// older timer of the slot still runs (it then calls this again). So a slot has one such timer
    /// at most, however often it waits.
    pub(crate) fn arm(&self, slot: u32, at: Nanos) {
        let s = &mut self.slots.borrow_mut()[slot as usize];
        if s.armed == 0 || at < s.armed {
            s.armed = at;
            self.wake_at(slot, at);
        }
    }

    /// Records the wait reason of a slot.
    pub(crate) fn waiting(&self, slot: u32, reason: Option<WaitReason>) {
        self.slots.borrow_mut()[slot as usize].waiting = reason;
    }

    // ---- postings
    // ---------------------------------------------------------------------------------

    pub(crate) fn open_posting(&self, slot: u32) -> Ticket {
        let mut postings = self.postings.borrow_mut();
        let posting = self.free.borrow_mut().pop().unwrap_or_else(|| {
            postings.push(Posting::default());
            postings.len() as u32 - 1
        });
        let p = &mut postings[posting as usize];
        p.slot = slot;
        (p.dropped, p.counted) = (false, false);
        Ticket { posting, generation: p.generation }
    }

    pub(crate) fn with_posting<R>(&self, t: Ticket, f: impl FnOnce(&mut Posting) -> R) -> R {
        f(&mut self.postings.borrow_mut()[t.posting as usize])
    }

    pub(crate) fn mark_in_flight(&self, t: Ticket) {
        self.with_posting(t, |p| p.state = PostingState::InFlight);
    }

    pub(crate) fn mark_detached(&self, t: Ticket, hook: Option<Hooked>) {
        self.detached.set(self.detached.get() + 1);
        self.with_posting(t, |p| {
            p.state = PostingState::Detached;
            p.hook = hook;
        });
    }

    pub(crate) fn is_in_flight(&self, t: Ticket) -> bool {
        self.with_posting(t, |p| matches!(p.state, PostingState::InFlight | PostingState::Lost))
    }

    /// The outcome of a posting that has completed.
    pub(crate) fn take_done(&self, t: Ticket) -> Option<Result<()>> {
        self.with_posting(t, |p| match std::mem::take(&mut p.state) {
            PostingState::Done(result) => Some(result),
            other => {
                p.state = other;
                None
            }
        })
    }

    /// Frees a posting and the buffers that it still owns.
    pub(crate) fn close_posting(&self, t: Ticket) {
        let mut postings = self.postings.borrow_mut();
        let p = &mut postings[t.posting as usize];
        p.generation = p.generation.wrapping_add(1);
        p.state = PostingState::Free;
        p.requests.clear();
        p.bufs.clear();
        p.words = None;
        p.reply.clear();
        self.free.borrow_mut().push(t.posting);
    }

    /// The awaiting future was dropped: a posting in flight keeps its buffers until it completes,
    /// and its hook runs then. (A remote call has no verbs: quiescence does not wait for its end.)
    pub(crate) fn abandon(&self, t: Ticket, hook: Option<Hooked>) {
        let (in_flight, slot, verbs) = self.with_posting(t, |p| {
            p.dropped = true;
            let in_flight = matches!(p.state, PostingState::InFlight);
            p.counted = in_flight && !p.requests.is_empty();
            (in_flight, p.slot, p.counted)
        });
        if verbs {
            self.slots.borrow_mut()[slot as usize].abandoned += 1;
        }
        if in_flight {
            self.with_posting(t, |p| p.hook = hook);
            return;
        }
        let result = self.take_done(t).unwrap_or(Ok(()));
        self.close_posting(t);
        run_hook(hook, &result);
    }

    /// A list with a dropped future has ended.
    fn end_abandoned(&self, t: Ticket, result: &Result<()>) {
        let (hook, slot, counted) = self.with_posting(t, |p| (p.hook.take(), p.slot, p.counted));
        self.close_posting(t);
        run_hook(hook, result);
        if counted {
            let quiet = {
                let s = &mut self.slots.borrow_mut()[slot as usize];
                s.abandoned -= 1;
                if s.abandoned == 0 { std::mem::take(&mut s.when_quiet) } else { Vec::new() }
            };
            quiet.into_iter().for_each(|then| then());
        }
    }

    /// Whether the slot is quiet: no verb with a dropped future is in flight.
    pub(crate) fn is_quiet(&self, slot: u32) -> bool {
        self.slots.borrow()[slot as usize].abandoned == 0
    }

    /// Does something when the slot is quiet: now, or with the end of the last such verb.
    pub(crate) fn when_quiet(&self, slot: u32, then: Box<dyn FnOnce()>) {
        // No borrow is held while it runs.
        if self.is_quiet(slot) {
            return then();
        }
        self.slots.borrow_mut()[slot as usize].when_quiet.push(then);
    }

    /// A transport reports the completion of a list. Stale tickets are ignored.
    pub fn complete(&self, t: Ticket, result: Result<()>) {
        let (dropped, detached, slot) = {
            let mut postings = self.postings.borrow_mut();
            let p = &mut postings[t.posting as usize];
            let over =
                matches!(p.state, PostingState::Free | PostingState::Done(_) | PostingState::Lost);
            if p.generation != t.generation || over {
                return;
            }
            let detached = matches!(p.state, PostingState::Detached);
            if !detached && !p.dropped {
                p.state = PostingState::Done(result.clone());
            }
            (p.dropped, detached, p.slot)
        };
        if detached {
            self.finish_detached(t, result);
            self.wake(slot);
        } else if dropped {
            self.end_abandoned(t, &result);
        } else {
            self.wake(slot);
        }
    }

    /// A detached list has finished: its hook runs, its error is kept for the next
    /// [`Core::take_detached_error`].
    pub(crate) fn finish_detached(&self, t: Ticket, result: Result<()>) {
        self.detached.set(self.detached.get() - 1);
        let hook = self.with_posting(t, |p| p.hook.take());
        self.close_posting(t);
        run_hook(hook, &result);
        if let Err(e) = result {
            self.detached_failed(e);
        }
    }

    /// Whether a [`crate::Worker`] keeps polling, so that a hook of a detached list runs when it
    /// has finished. A blocking caller may not poll for long after its call: its hooks run at the
    /// post.
    pub(crate) fn is_driven(&self) -> bool {
        self.driven.get()
    }

    pub(crate) fn set_driven(&self, on: bool) {
        self.driven.set(on);
    }

    /// Reaps detached lists.
    pub(crate) fn drain_detached(&self) {
        self.reap_while(|| self.detached.get() > 0);
    }

    /// Reaps completions while `waits` says so, as long as the fabric makes progress (1 s at most).
    pub(crate) fn reap_while(&self, mut waits: impl FnMut() -> bool) {
        let until = self.now() + 1_000_000_000;
        let mut spins = 0;
        while waits() && self.now() < until {
            if self.poll_drivers() != Progress::Made {
                spins += 1;
                if self.clock.idle(self, Some(self.now() + 1_000), spins) == Idle::Never {
                    return;
                }
            }
        }
    }

    /// A detached list has failed: the error is kept for the next [`Core::take_detached_error`].
    pub(crate) fn detached_failed(&self, e: Error) {
        self.detached_error.borrow_mut().get_or_insert(e);
    }

    /// Posts the requests of a staged list after the checks that all transports share.
    pub(crate) fn post_on(&self, transport: &dyn Transport, t: Ticket) -> Poll<Result<()>> {
        let requests = self.with_posting(t, |p| std::mem::take(&mut p.requests));
        let posted =
            match requests.windows(2).find(|w| w[0].chained && w[0].at.node() != w[1].at.node()) {
                Some(w) => Poll::Ready(Err(Error::invalid(format!(
                    "a chain goes to one node, not to {} and {}",
                    w[0].at.node(),
                    w[1].at.node()
                )))),
                None => transport.post(self, t, &requests),
            };
        self.with_posting(t, |p| {
            // A list of a crashed node may be gone already.
            if p.generation == t.generation {
                p.requests = requests;
            }
        });
        posted
    }

    /// The reply of a remote call; [`Core::complete`] follows.
    pub fn complete_rpc(&self, t: Ticket, reply: Vec<u8>) {
        self.with_posting(t, |p| {
            if p.generation == t.generation {
                p.reply = reply;
            }
        });
    }

    /// Whether no future waits for a posting in flight any more.
    #[cfg(feature = "sim")]
    pub(crate) fn is_given_up(&self, t: Ticket) -> bool {
        self.with_posting(t, |p| p.generation != t.generation || p.dropped)
    }

    /// Detached lists still in flight.
    pub fn detached_in_flight(&self) -> u32 {
        self.detached.get()
    }

    /// The first error of a detached list since the last call.
    pub fn take_detached_error(&self) -> Option<Error> {
        self.detached_error.borrow_mut().take()
    }

    // ---- the loop
    // ---------------------------------------------------------------------------------

    fn drain_mailbox(&self) {
        if self.mailbox.flag.swap(false, Ordering::SeqCst) {
            let woken =
                std::mem::take(&mut *self.mailbox.slots.lock().expect("no panic under this lock"));
            woken.into_iter().for_each(|slot| self.wake(slot));
        }
    }

    /// Moves due timers to the ready ring; returns when the next one is due.
    fn fire_timers(&self) -> Option<Nanos> {
        if self.timers.borrow().is_empty() {
            return None;
        }
        let now = self.clock.clock();
        loop {
            let next = self.timers.borrow().peek().map(|Reverse((at, _, slot))| (*at, *slot));
            match next {
                Some((at, slot)) if at <= now => {
                    self.timers.borrow_mut().pop();
                    let s = &mut self.slots.borrow_mut()[slot as usize];
                    if s.armed == at {
                        s.armed = 0;
                    }
                    self.wake_slot(slot, s);
                }
                Some((at, _)) => return Some(at),
                None => return None,
            }
        }
    }

    /// Waits until some slot is ready.
    fn gather(&self, spins: &mut u32) -> Result<(), Stalled> {
        loop {
            self.drain_mailbox();
            if self.poll_drivers() == Progress::Made {
                *spins = 0;
            }
            if !self.ready.borrow().is_empty() {
                return Ok(());
            }
            let timer = self.fire_timers();
            if !self.ready.borrow().is_empty() {
                return Ok(());
            }
            let event = match self.poll_drivers() {
                Progress::Made => continue,
                Progress::Idle(next) => next,
            };
            if self.clock.idle(self, earlier(timer, event), *spins) == Idle::Never {
                return Err(Stalled { waiting: self.waits() });
            }
            *spins = spins.saturating_add(1);
        }
    }

    /// The slots that wait, and their wait reasons.
    pub fn waits(&self) -> Vec<(u32, WaitReason)> {
        let slots = self.slots.borrow();
        let waiting = slots.iter().enumerate();
        waiting.filter_map(|(i, s)| Some((i as u32, s.waiting?))).collect()
    }

    pub(crate) fn pop_ready(&self, policy: &mut dyn crate::exec::Policy) -> Option<u32> {
        let mut ready = self.ready.borrow_mut();
        if ready.is_empty() {
            return None;
        }
        let slot = if policy.is_fifo() {
            ready.pop_front()?
        } else {
            let pick = policy.pick(ready.make_contiguous()).min(ready.len() - 1);
            ready.remove(pick)?
        };
        self.slots.borrow_mut()[slot as usize].queued = false;
        Some(slot)
    }

    /// The next slot to poll; waits for one.
    pub(crate) fn next_ready(
        &self,
        policy: &mut dyn crate::exec::Policy,
        spins: &mut u32,
    ) -> Result<u32, Stalled> {
        self.drain_mailbox();
        loop {
            if let Some(slot) = self.pop_ready(policy) {
                *spins = 0;
                if self.tasks.poll(self, slot) {
                    self.pump();
                    self.drain_mailbox();
                    continue;
                }
                return Ok(slot);
            }
            self.gather(spins)?;
        }
    }

    /// Delivers completions and timers between two polls of a busy executor.
    pub(crate) fn pump(&self) {
        self.poll_drivers();
        self.fire_timers();
    }

    pub(crate) fn waker(&self, slot: u32) -> Rc<Waker> {
        self.slots.borrow()[slot as usize].waker.clone()
    }

    /// Runs one future of `slot` to its end on this thread. The call moves the future: pin a large
    /// one before.
    ///
    /// # Errors
    /// `TimedOut` when nothing can ever wake it (simulators only), naming the wait reasons of all
    /// slots.
    pub fn block_on<T>(&self, slot: u32, future: impl Future<Output = Result<T>>) -> Result<T> {
        let mut future = pin!(future);
        let waker = self.waker(slot);
        let mut cx = Context::from_waker(&waker);
        let mut spins = 0;
        loop {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                // Detached lists execute by themselves; reap the completions that are there.
                while self.detached.get() > 0 && self.poll_drivers() == Progress::Made {}
                return out;
            }
            loop {
                match self.next_ready(&mut crate::exec::Fifo, &mut spins) {
                    Ok(woken) if woken == slot => break,
                    Ok(_) => {}
                    Err(stalled) => return Err(stalled.into()),
                }
            }
        }
    }
}

/// The earlier of two times, where there are any.
fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    a.into_iter().chain(b).min()
}

/// A list with a hook has ended.
fn run_hook(hook: Option<Hooked>, result: &Result<()>) {
    if let Some(Hooked { hook, arg, is_finished }) = hook {
        hook.ended(arg, result);
        if !is_finished {
            hook.finished(arg);
        }
    }
}

impl Drop for Core {
    /// Detached lists are finished even when their executor goes: an unlock must not be lost.
    fn drop(&mut self) {
        while self.poll_drivers() == Progress::Made {}
        for i in 0.. {
            let Some(driver) = self.drivers.borrow().get(i).cloned() else { break };
            driver.drain_detached(self);
        }
    }
}

/// No client can make progress any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Slots and their wait reasons.
    pub waiting: Vec<(u32, WaitReason)>,
}

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no client can make progress;")?;
        for (slot, reason) in &self.waiting {
            write!(f, " client {slot} waits for {reason};")?;
        }
        Ok(())
    }
}

impl std::error::Error for Stalled {}

impl From<Stalled> for Error {
    fn from(s: Stalled) -> Self {
        Self::timed_out(s.to_string()).effect_unknown()
    }
}
