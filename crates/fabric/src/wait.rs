//! Waits between the clients of one compute node: a fair turn ([`FifoMutex`]) and a place to wait
//! for news ([`WaitQueue`]).
//!
//! They wake clients of this compute node only; a client that waits for a remote holder backs off
//! instead. A mutex is held for a few instructions and never over an await. Every wait has a
//! deadline and a reason.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use crate::core::WaitReason;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::pause::Wait;
use crate::sync::{Arc, AtomicBool, Mutex};

/// One client in a queue.
#[derive(Debug)]
struct Waiter {
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(Option<Waker>),
    Granted,
    Gone,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(WaiterState::Waiting(None)) })
    }

    /// Grants; false when the waiter has gone.
    fn grant(&self) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        match &mut *state {
            WaiterState::Gone => false,
            WaiterState::Granted => true,
            WaiterState::Waiting(waker) => {
                let waker = waker.take();
                *state = WaiterState::Granted;
                drop(state);
                if let Some(w) = waker {
                    w.wake();
                }
                true
            }
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.state.lock().expect("no panic under this lock");
        match &mut *state {
            WaiterState::Granted => Poll::Ready(()),
            WaiterState::Waiting(slot) => {
                *slot = Some(waker.clone());
                Poll::Pending
            }
            WaiterState::Gone => unreachable!("only its owner leaves"),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(*self.state.lock().expect("no panic under this lock"), WaiterState::Gone)
    }

    /// Leaves the queue; true when the grant had come already.
    fn leave(&self) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        let granted = matches!(*state, WaiterState::Granted);
        *state = WaiterState::Gone;
        granted
    }
}

/// A fair lock between clients of one compute node: first come, first served; the turn is handed
/// over, never raced for.
#[derive(Debug, Default)]
pub struct FifoMutex {
    inner: Mutex<TurnState>,
    /// A hint: a client has the turn.
    busy: AtomicBool,
}

#[derive(Debug, Default)]
struct TurnState {
    held: bool,
    /// What each client waits for, and the client.
    queue: VecDeque<(u64, Arc<Waiter>)>,
    /// Threads with clients that poll for the turn, with the number of those clients.
    threads: Vec<(usize, u32)>,
}

impl TurnState {
    fn queues(&mut self, thread: usize) {
        match self.threads.iter_mut().find(|(t, _)| *t == thread) {
            Some((_, clients)) => *clients += 1,
            None => self.threads.push((thread, 1)),
        }
    }

    fn queues_no_more(&mut self, thread: usize) {
        if let Some(i) = self.threads.iter().position(|(t, _)| *t == thread) {
            self.threads[i].1 -= 1;
            if self.threads[i].1 == 0 {
                self.threads.swap_remove(i);
            }
        }
    }
}

/// A client of a thread that queues, until it is dropped.
struct Queueing<'t>(&'t FifoMutex, usize);

impl Drop for Queueing<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().expect("no panic under this lock").queues_no_more(self.1);
    }
}

/// What clients queue at.
pub trait Queue {
    /// Grants to the next client what the one before it has got and did not take.
    fn pass_on(&self);
}

impl Queue for FifoMutex {
    fn pass_on(&self) {
        self.release();
    }
}

impl Queue for WaitQueue {
    fn pass_on(&self) {
        self.wake_one();
    }
}

/// A place in a queue. Dropped after the grant, but before its holder noticed, it passes the grant
/// on.
#[derive(Debug)]
pub struct Place<'q, Q: Queue> {
    queue: &'q Q,
    waiter: Arc<Waiter>,
    done: bool,
}

/// A place in the queue of a [`FifoMutex`].
pub type QueuePlace<'q> = Place<'q, FifoMutex>;
/// A place in a [`WaitQueue`].
pub type Listener<'q> = Place<'q, WaitQueue>;

impl<'q, Q: Queue> Place<'q, Q> {
    fn new(queue: &'q Q, waiter: Arc<Waiter>) -> Self {
        Self { queue, waiter, done: false }
    }

    /// Ready once granted. From then the caller holds a turn and must [`FifoMutex::release`] it.
    pub fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let polled = self.waiter.poll(waker);
        self.done |= polled.is_ready();
        polled
    }

    /// Waits for the grant.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn wait(mut self, ep: &Endpoint, why: WaitReason) -> Result<()> {
        let deadline = ep.deadline();
        let wait = Wait::begin(ep, why);
        let outcome = poll_fn(|cx| match self.poll(cx.waker()) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => match ep.check_deadline(why.what, why.at) {
                Ok(()) => {
                    ep.core().arm(ep.slot(), deadline);
                    Poll::Pending
                }
                Err(e) => Poll::Ready(Err(e)),
            },
        })
        .await;
        wait.end(ep);
        outcome
    }
}

impl<Q: Queue> Drop for Place<'_, Q> {
    fn drop(&mut self) {
        if !self.done && self.waiter.leave() {
            self.queue.pass_on();
        }
    }
}

impl FifoMutex {
    /// A free one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the turn if it is free.
    pub fn try_acquire(&self) -> bool {
        let mut inner = self.inner.lock().expect("no panic under this lock");
        self.busy.store(true, Relaxed);
        !std::mem::replace(&mut inner.held, true)
    }

    /// Whether a client has the turn: a load, and a hint.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// Takes the turn or queues for it, on behalf of the object number `at`.
    pub fn enter(&self, at: u64) -> Option<QueuePlace<'_>> {
        let mut inner = self.inner.lock().expect("no panic under this lock");
        self.busy.store(true, Relaxed);
        if !std::mem::replace(&mut inner.held, true) {
            return None;
        }
        let waiter = Waiter::new();
        inner.queue.push_back((at, waiter.clone()));
        Some(Place::new(self, waiter))
    }

    /// Passes the turn to the oldest client that still waits; whether there was one.
    pub fn release(&self) -> bool {
        loop {
            let next = {
                let mut inner = self.inner.lock().expect("no panic under this lock");
                match inner.queue.pop_front() {
                    Some((_, w)) => w,
                    None => {
                        inner.held = false;
                        self.busy.store(false, Relaxed);
                        return false;
                    }
                }
            };
            if next.grant() {
                return true;
            }
        }
    }

    /// Whether any client queues for the turn, or did and has given up.
    pub fn is_awaited(&self) -> bool {
        !self.inner.lock().expect("no panic under this lock").queue.is_empty()
    }

    /// Whether the next client in the queue, which may have given up, waits for object number `at`.
    pub fn is_next(&self, at: u64) -> bool {
        let inner = self.inner.lock().expect("no panic under this lock");
        inner.queue.front().is_some_and(|(next, _)| *next == at)
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn acquire(&self, ep: &Endpoint, why: WaitReason) -> Result<()> {
        match self.enter(why.at) {
            None => Ok(()),
            Some(place) => place.wait(ep, why).await,
        }
    }

    /// The same for a turn that threads poll: [`FifoMutex::threads_waiting`] counts them.
    pub async fn acquire_polled(&self, ep: &Endpoint, why: WaitReason) -> Result<()> {
        match self.enter(why.at) {
            None => Ok(()),
            Some(place) => {
                let thread = ep.thread();
                self.inner.lock().expect("no panic under this lock").queues(thread);
                let _queueing = Queueing(self, thread);
                place.wait(ep, why).await
            }
        }
    }

    /// How many threads have clients that poll for the turn.
    pub fn threads_waiting(&self) -> usize {
        self.inner.lock().expect("no panic under this lock").threads.len()
    }
}

/// A place to wait for news. Listening begins before the condition is tested, so that no news is
/// missed.
#[derive(Debug, Default)]
pub struct WaitQueue {
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

impl WaitQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a place now; test the condition after this, then wait.
    pub fn listen(&self) -> Listener<'_> {
        let waiter = Waiter::new();
        let mut queue = self.queue.lock().expect("no panic under this lock");
        // Without news nothing else takes out those that have left.
        while queue.front().is_some_and(|first| first.is_gone()) {
            queue.pop_front();
        }
        queue.push_back(waiter.clone());
        drop(queue);
        Place::new(self, waiter)
    }

    /// Wakes the oldest listener.
    pub fn wake_one(&self) {
        loop {
            let next = self.queue.lock().expect("no panic under this lock").pop_front();
            match next {
                Some(w) if !w.grant() => {}
                _ => return,
            }
        }
    }

    /// Wakes all present listeners.
    pub fn wake_all(&self) {
        let all = std::mem::take(&mut *self.queue.lock().expect("no panic under this lock"));
        for w in all {
            w.grant();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn waker() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicU32::new(0)));
        (count.clone(), Waker::from(count))
    }

    #[test]
    fn turns_are_handed_over_in_order() {
        let t = FifoMutex::new();
        let (count, w) = waker();
        assert!(t.enter(0).is_none());
        let mut first = t.enter(0).expect("held");
        let mut second = t.enter(0).expect("held");
        assert!(first.poll(&w).is_pending() && second.poll(&w).is_pending());
        t.release();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(first.poll(&w).is_ready() && second.poll(&w).is_pending());
        assert!(!t.try_acquire(), "handed over, not free");
        t.release();
        assert!(second.poll(&w).is_ready());
        t.release();
        assert!(t.try_acquire());
    }

    #[test]
    fn a_dropped_waiter_passes_its_turn_on() {
        let t = FifoMutex::new();
        let (_, w) = waker();
        assert!(t.enter(0).is_none());
        let mut first = t.enter(0).expect("held");
        let mut second = t.enter(0).expect("held");
        assert!(first.poll(&w).is_pending() && second.poll(&w).is_pending());
        t.release();
        drop(first);
        assert!(second.poll(&w).is_ready(), "the grant of a dropped waiter is not lost");
        let third = t.enter(0).expect("held");
        drop(third);
        t.release();
        assert!(t.try_acquire(), "a waiter that left before its grant is skipped");
    }

    #[test]
    fn a_queue_without_news_does_not_grow() {
        let q = WaitQueue::new();
        let stays = q.listen();
        (0..9).for_each(|_| drop(q.listen()));
        drop(stays);
        (0..1000).for_each(|_| drop(q.listen()));
        assert!(q.queue.lock().expect("no panic under this lock").len() <= 1);
    }

    #[test]
    fn news_between_listening_and_waiting_are_not_missed() {
        let q = WaitQueue::new();
        let (_, w) = waker();
        let mut l = q.listen();
        q.wake_all();
        assert!(l.poll(&w).is_ready());
        let mut a = q.listen();
        let mut b = q.listen();
        q.wake_one();
        assert!(a.poll(&w).is_ready());
        assert!(b.poll(&w).is_pending());
        let mut c = q.listen();
        q.wake_one();
        drop(b);
        assert!(c.poll(&w).is_ready(), "a wake of a dropped listener goes to the next");
    }
}
