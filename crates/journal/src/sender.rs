//! The sender of a compute node to one journal node: a queue, and a thread or a simulated client
//! that works it off.
//!
//! The records that wait at a moment go in one call. A call that fails may have been executed: it
//! is made again, with its number and with the records that are still waited for, until the journal
//! node answers or no caller waits.
//!
//! *A record is appended while its caller holds the lock, or never.* A caller that gives up takes
//! its records out of the queue, and waits for the attempt that is under way, if they are part of
//! it. An attempt ends with the answer, or when its call cannot be begun any more ([`Line::call`]).
//! It is not repeated with records that were given up. Calls of one journal node run one at a time
//! in the order of their arrival: so an append of the lock's next holder, wherever it comes from,
//! is behind.
//!
//! In a pool that goes on without a journal node, an attempt that has failed is the last one of its
//! records when the membership says that the part has a gap.

use std::collections::VecDeque;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Effect, Error, ErrorKind, Failure, Result};

use crate::IndexNumber;
use crate::appends::Appends;
use crate::protocol::{Answer, Ask, BODY_BYTES, Request, decode, encode};

/// Longest wait for a call that is no append.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// What a line does. On a thread it is done when it is first polled.
pub(crate) type LineFuture<'l, T> = Pin<Box<dyn Future<Output = T> + 'l>>;

/// The way to a journal node.
pub(crate) trait Line {
    /// Makes a call. When this is done the call is answered, or it is not begun later than now: an
    /// attempt takes longer than a host may take to begin a call.
    fn call<'l>(&'l mut self, request: &'l [u8]) -> LineFuture<'l, Result<Vec<u8>>>;

    /// Waits until there is work, or for a while.
    fn rest<'l>(&'l mut self, queue: &'l Queue) -> LineFuture<'l, ()> {
        queue.wait();
        Box::pin(std::future::ready(()))
    }

    /// The time between two attempts.
    fn pause(&mut self) -> LineFuture<'_, ()> {
        std::thread::park_timeout(PAUSE);
        Box::pin(std::future::ready(()))
    }

    /// Whether the pool goes on without the journal node, as the membership knows: records for it
    /// count as accepted, and it is refilled later.
    fn is_skipped(&self) -> bool {
        false
    }
}

/// Makes the way, on the thread that uses it.
pub(crate) type Dial = Box<dyn FnOnce() -> Result<Box<dyn Line>> + Send>;

/// A record in the queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub ticket: u64,
    pub index: IndexNumber,
    /// As it is sent.
    pub bytes: Vec<u8>,
}

/// A call that is no append.
struct Call {
    ask: Ask<'static>,
    is_given_up: Arc<AtomicBool>,
    answer: SyncSender<Result<Answer>>,
}

enum Work {
    Records(Vec<Entry>),
    Call(Call),
    /// Nothing is there.
    None,
    /// The sender ends.
    End,
}

/// A sender. Dropped, it ends when its attempt has ended.
pub(crate) struct Sender {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Queue {
    /// The name of the journal node.
    to: String,
    appends: Arc<Appends>,
    jobs: Mutex<Jobs>,
    rung: Condvar,
    /// The same for a sender that is no thread.
    pub(crate) work: WaitQueue,
    /// Why the last attempt has failed.
    trouble: Mutex<Option<Error>>,
}

#[derive(Default)]
struct Jobs {
    records: VecDeque<Entry>,
    /// They come first: one may end a standstill for which records wait.
    calls: VecDeque<Call>,
    closes: bool,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({})", self.queue.to)
    }
}

impl Sender {
    /// Starts the thread. Its calls are told apart by `incarnation`.
    pub(crate) fn start(
        to: String,
        incarnation: u32,
        appends: Arc<Appends>,
        dial: Dial,
    ) -> Result<Self> {
        let queue = Arc::new(Queue::new(to, appends));
        let its = queue.clone();
        let run = move || match dial() {
            Ok(line) => at_once(Sending { queue: its, line, incarnation, number: 0 }.run()),
            Err(e) => its.refuse_all(&e),
        };
        let thread = std::thread::Builder::new()
            .name("dmtree appends".to_owned())
            .spawn(run)
            .map_err(|e| Error::full(format!("no thread for appends: {e}")))?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// A sender without a thread: the future works its queue off until the sender is dropped.
    pub(crate) fn driven(
        to: String,
        incarnation: u32,
        appends: Arc<Appends>,
        line: Box<dyn Line>,
    ) -> (Self, impl Future<Output = ()>) {
        let queue = Arc::new(Queue::new(to, appends));
        let sending = Sending { queue: queue.clone(), line, incarnation, number: 0 };
        (Self { queue, thread: None }, sending.run())
    }

    /// Adds records at the end of the queue.
    pub(crate) fn send(&self, entries: impl Iterator<Item = Entry>) {
        self.queue.jobs().records.extend(entries);
        self.queue.ring();
    }

    /// Makes a call. It has ended when this returns, also in an error.
    pub(crate) fn call(&self, ask: Ask<'static>) -> Result<Answer> {
        let (answer, answered) = sync_channel(1);
        let is_given_up = Arc::new(AtomicBool::new(false));
        let call = Call { ask, is_given_up: is_given_up.clone(), answer };
        self.queue.jobs().calls.push_back(call);
        self.queue.ring();
        let answer = match answered.recv_timeout(CALL_WITHIN) {
            Err(RecvTimeoutError::Timeout) => {
                is_given_up.store(true, SeqCst);
                answered.recv().ok()
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Ok(answer) => Some(answer),
        };
        answer.unwrap_or_else(|| Err(Error::closed("the journal is closed")))
    }

    /// Why the last attempt has failed; `None` when it has not.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.queue.trouble().clone()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue.jobs().closes = true;
        self.queue.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn new(to: String, appends: Arc<Appends>) -> Self {
        let (jobs, trouble) = Default::default();
        Self { to, appends, jobs, rung: Condvar::new(), work: WaitQueue::new(), trouble }
    }

    fn ring(&self) {
        self.rung.notify_one();
        self.work.wake_all();
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs().is_idle()
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let jobs = self.jobs();
        let waited = self.rung.wait_while(jobs, |jobs| jobs.is_idle());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The next thing to do.
    fn next(&self) -> Work {
        let mut jobs = self.jobs();
        if jobs.closes {
            return Work::End;
        }
        if jobs.is_idle() {
            return Work::None;
        }
        if let Some(call) = jobs.calls.pop_front() {
            return Work::Call(call);
        }
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.bytes.len();
            bytes <= BODY_BYTES
        };
        // One that exceeds a call is alone.
        let count = jobs.records.iter().take_while(fits).count().max(1);
        Work::Records(jobs.records.drain(..count).collect())
    }

    /// A call that waits.
    fn next_call(&self) -> Option<Call> {
        self.jobs().calls.pop_front()
    }

    fn closes(&self) -> bool {
        self.jobs().closes
    }

    /// There is no way: whatever comes is refused, until the sender ends.
    fn refuse_all(&self, why: &Error) {
        loop {
            match self.next() {
                Work::Records(mut batch) => {
                    self.appends.depart(&mut batch);
                    self.appends.end(batch, |_| Some(why.clone()));
                }
                Work::Call(call) => _ = call.answer.send(Err(why.clone())),
                Work::None => self.wait(),
                Work::End => return,
            }
        }
    }
}

impl Jobs {
    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.calls.is_empty() && !self.closes
    }
}

/// Runs what waits nowhere: the line of a thread blocks it.
fn at_once(future: impl Future<Output = ()>) {
    let done = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    debug_assert!(done.is_ready(), "a line of a thread waits by itself");
}

/// The thread's own part.
struct Sending {
    queue: Arc<Queue>,
    line: Box<dyn Line>,
    incarnation: u32,
    number: u64,
}

impl Sending {
    async fn run(mut self) {
        loop {
            match self.queue.next() {
                Work::Records(batch) => self.send(batch).await,
                Work::Call(call) => self.call(&call).await,
                Work::None => self.line.rest(&self.queue).await,
                Work::End => return,
            }
        }
    }

    /// Sends records until they are accepted, refused, or given up.
    async fn send(&mut self, mut batch: Vec<Entry>) {
        let appends = self.queue.appends.clone();
        let mut at = 0;
        self.number += 1;
        loop {
            appends.depart(&mut batch);
            if batch.is_empty() {
                return;
            }
            // What exceeds a call is one record: it stays as it is, or goes.
            let body: Vec<u8> = batch.iter().flat_map(|entry| &entry.bytes).copied().collect();
            let end = body.len().min(at + BODY_BYTES);
            let (is_last, bytes, from) = (end == body.len(), &body[at..end], at as u64);
            let ask = match is_last {
                true => Ask::Append { at: from, bytes },
                false => Ask::Part { at: from, bytes },
            };
            match self.attempt(&ask).await {
                Ok(Answer::Appended(refused)) => {
                    return appends.end(batch, |of| failure(&refused, of));
                }
                Ok(Answer::Done) => at = end,
                Ok(Answer::BeginAgain) => at = 0,
                Ok(other) => {
                    let e = unexpected(&other);
                    return appends.end(batch, |_| Some(e.clone()));
                }
                // The attempt has ended: nothing of it is appended later.
                Err(e) if is_transient(&e) && self.line.is_skipped() => {
                    return appends.end(batch, |_| None);
                }
                Err(e) if is_transient(&e) && !self.queue.closes() => {
                    appends.stay(&batch);
                    // One without an effect may come behind others, and is another one then.
                    while e.effect() == Effect::None
                        && let Some(call) = self.queue.next_call()
                    {
                        self.call(&call).await;
                        (at, self.number) = (0, self.number + 1);
                    }
                    self.line.pause().await;
                    continue;
                }
                Err(e) => return appends.end(batch, |_| Some(e.clone())),
            }
            appends.stay(&batch);
            self.number += 1;
        }
    }

    async fn call(&mut self, call: &Call) {
        self.number += 1;
        loop {
            if call.is_given_up.load(SeqCst) {
                let why = self.queue.trouble().clone();
                let why = why.unwrap_or_else(|| Error::timed_out("no answer for 10 s"));
                let _ = call.answer.send(Err(why.effect_unknown()));
                return;
            }
            match self.attempt(&call.ask).await {
                Err(e) if is_transient(&e) && !self.queue.closes() => {
                    self.line.pause().await;
                }
                done => {
                    let _ = call.answer.send(done);
                    return;
                }
            }
        }
    }

    async fn attempt(&mut self, ask: &Ask<'_>) -> Result<Answer> {
        let ask = Request { sender: self.incarnation, number: self.number, ask: ask.clone() };
        let answered = self.line.call(&encode(&ask)?).await;
        let answered = answered.map_err(|e| e.context(format!("journal node {}", self.queue.to)));
        *self.queue.trouble() = answered.as_ref().err().cloned();
        decode(&answered?)
    }
}

/// Whether another attempt may succeed: the node restarts, or is not reached.
fn is_transient(e: &Error) -> bool {
    use ErrorKind::{Busy, Contended, Incompatible, TimedOut, Unreachable};
    matches!(e.kind(), Busy | Contended | Incompatible | TimedOut | Unreachable)
}

fn failure(refused: &[(u32, Failure)], of: &Entry) -> Option<Error> {
    let found = refused.iter().find(|(index, _)| *index == of.index.0);
    found.map(|(_, failure)| failure.clone().into())
}

pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::corrupt(format!("an answer of a journal node that does not fit: {answer:?}"))
}
