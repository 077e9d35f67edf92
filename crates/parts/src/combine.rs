//! Read delegation and write combining between the clients of one compute node (single-flight).
//!
//! A *batch* is a set of operations on one key that share one remote operation, that of the leader.
//! It is open until the leader closes it: a read batch when the leader posts its first verb, a
//! write batch when the value is copied into the entry's image. Later arrivals form the next batch.
//! So an operation only shares the result of a verb that was posted after it began, and a combined
//! write is ordered immediately before the write that overwrites it. The test of the key and the
//! joining are one critical section, and values are kept in the batch. Every member gets the
//! leader's outcome, its errors too.
//!
//! On memory of this process an operation is over before another one could join it: it leads
//! without a batch. Those that arrive meanwhile form one.
//!
//! Technique: SMART (OSDI'23) section 4.4, with the closing rule that its public code lacks.

use dmtree_fabric::sync::{Arc, Mutex};
use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Effect, Endpoint, Error, ErrorKind, Result, Stage, WaitReason};

use crate::contract::Outcome;
use crate::hash::KeyHash;

/// The operation that shall be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent<'a> {
    /// A read.
    Read,
    /// An unconditional write of this value.
    Put(&'a [u8]),
    /// A write of this value that finds the key present or absent, as the leader does.
    Update(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchKind {
    Read,
    Put,
    Update,
}

impl<'a> Intent<'a> {
    fn kind(&self) -> BatchKind {
        match self {
            Self::Read => BatchKind::Read,
            Self::Put(_) => BatchKind::Put,
            Self::Update(_) => BatchKind::Update,
        }
    }
    /// The value to write; empty for a read.
    pub fn value(&self) -> &'a [u8] {
        match *self {
            Self::Read => &[],
            Self::Put(v) | Self::Update(v) => v,
        }
    }
}

/// The result for the members of a batch.
#[derive(Clone, Debug)]
pub enum BatchResult {
    /// A read: whether the key was there; the value is in the batch.
    Found(bool),
    /// A write.
    Wrote(Outcome),
}

impl BatchResult {
    /// Whether a read has found its key.
    pub fn found(&self) -> bool {
        matches!(self, Self::Found(true))
    }

    /// The outcome of a write.
    pub fn wrote(self) -> Outcome {
        match self {
            Self::Wrote(outcome) => outcome,
            Self::Found(_) => unreachable!("groups of writers share writes"),
        }
    }
}

#[derive(Debug)]
enum BatchPhase {
    /// Behind another batch; its leader waits.
    Queued,
    /// Others may join.
    Open,
    /// The leader has begun; no operation may join.
    Closed,
    /// Finished, with this result.
    Done(Result<BatchResult>),
}

/// Operations that share one remote operation.
#[derive(Debug)]
pub struct Batch {
    kind: BatchKind,
    state: Mutex<BatchState>,
    changed: WaitQueue,
}

#[derive(Debug)]
struct BatchState {
    phase: BatchPhase,
    /// Writes: the value of the last arrival. Reads: the result.
    value: Vec<u8>,
    members: u32,
}

impl Batch {
    fn new(kind: BatchKind, phase: BatchPhase, value: &[u8]) -> Arc<Self> {
        let state = BatchState { phase, value: value.to_vec(), members: 1 };
        Arc::new(Self { kind, state: Mutex::new(state), changed: WaitQueue::new() })
    }

    /// Joins an open or queued batch of the same kind.
    fn join(&self, intent: &Intent<'_>, bound: u32) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        let open = matches!(state.phase, BatchPhase::Open | BatchPhase::Queued);
        if self.kind != intent.kind() || !open || state.members >= bound {
            return false;
        }
        state.members += 1;
        if self.kind != BatchKind::Read {
            state.value.clear();
            state.value.extend_from_slice(intent.value());
        }
        true
    }

    /// The result, when there is one; a read's value is copied to `out`.
    pub fn result(&self, out: &mut Vec<u8>) -> Option<Result<BatchResult>> {
        let state = self.state.lock().expect("no panic under this lock");
        let BatchPhase::Done(result) = &state.phase else { return None };
        if matches!(result, Ok(BatchResult::Found(true))) {
            out.clear();
            out.extend_from_slice(&state.value);
        }
        Some(result.clone())
    }

    /// Waits for the leader's result.
    ///
    /// # Errors
    /// The leader's; `TimedOut`, with unknown effect for writes, at the deadline of the operation.
    pub async fn share(&self, ep: &Endpoint, out: &mut Vec<u8>) -> Result<BatchResult> {
        loop {
            let listener = self.changed.listen();
            if let Some(result) = self.result(out) {
                return result;
            }
            let why = WaitReason { what: "result of a combined operation", at: 0 };
            listener.wait(ep, why).await.map_err(|e| match self.kind {
                BatchKind::Read => e,
                _ => e.effect_unknown(),
            })?;
        }
    }

    fn finish(&self, result: Result<BatchResult>, value: Option<&[u8]>) {
        let mut state = self.state.lock().expect("no panic under this lock");
        if let Some(v) = value
            && state.members > 1
        {
            state.value.clear();
            state.value.extend_from_slice(v);
        }
        state.phase = BatchPhase::Done(result);
        drop(state);
        self.changed.wake_all();
    }
}

/// Keys up to this long are kept inside their slot, so that a single operation touches two lines
/// only.
const INLINE_KEY_BYTES: usize = 48;

#[derive(Debug)]
struct BatchSlot {
    busy: bool,
    /// Length of the key; beyond [`INLINE_KEY_BYTES`] it is in `long`.
    key_len: u16,
    key: [u8; INLINE_KEY_BYTES],
    long: Vec<u8>,
    /// The batch in progress; `None` during a single read.
    current: Option<Arc<Batch>>,
    next: Option<Arc<Batch>>,
}

impl BatchSlot {
    fn new() -> Self {
        let key = [0; INLINE_KEY_BYTES];
        Self { busy: false, key_len: 0, key, long: Vec::new(), current: None, next: None }
    }

    fn key(&self) -> &[u8] {
        match usize::from(self.key_len) {
            n if n <= INLINE_KEY_BYTES => &self.key[..n],
            _ => &self.long,
        }
    }

    fn set_key(&mut self, key: &[u8]) {
        self.key_len = key.len() as u16;
        if key.len() <= INLINE_KEY_BYTES {
            self.key[..key.len()].copy_from_slice(key);
        } else {
            self.long.clear();
            self.long.extend_from_slice(key);
        }
    }
}

/// A slot on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<BatchSlot>);

/// The batches of one compute node: a fixed number of slots, found by the key's hash.
#[derive(Debug)]
pub struct Combiner {
    slots: Box<[Padded]>,
    bound: u32,
}

/// The role of an arriving operation.
#[derive(Debug)]
pub enum Arrival {
    /// Execute without sharing: another key, or another kind of operation, has the slot.
    Alone,
    /// Lead: execute the remote operation, and finish the leader guard.
    Lead(LeaderGuard),
    /// Share the result of this batch.
    Join(Arc<Batch>),
}

/// What an operation does after it has waited for its turn.
#[derive(Debug)]
pub enum Turn {
    /// It returns the result of another operation.
    Shared(Result<BatchResult>),
    /// It executes the remote operation: for a batch, or alone.
    Own(Option<LeaderGuard>),
}

/// The right, and duty, to execute the remote operation for a batch. Dropped unfinished (a caller
/// gave up), it ends the batch with an error and lets the next one begin.
#[derive(Debug)]
pub struct LeaderGuard {
    combiner: Arc<Combiner>,
    slot: usize,
    batch: Option<Arc<Batch>>,
    queued: bool,
    finished: bool,
}

impl Combiner {
    /// `slots` slots (rounded up to a power of two), batches of at most `bound` operations.
    pub fn new(slots: usize, bound: u32) -> Arc<Self> {
        let n = slots.next_power_of_two();
        let slots = (0..n).map(|_| Padded(Mutex::new(BatchSlot::new()))).collect();
        Arc::new(Self { slots, bound })
    }

    /// Announces an operation; `direct` where the operation, if it is the first, is over at once.
    pub fn arrive(
        self: &Arc<Self>,
        (key, hash): (&[u8], KeyHash),
        intent: &Intent<'_>,
        direct: bool,
    ) -> Arrival {
        let index = hash.0 as usize & (self.slots.len() - 1);
        let mut slot = self.slots[index].0.lock().expect("no panic under this lock");
        let lead_with = |batch, queued| {
            let combiner = self.clone();
            Arrival::Lead(LeaderGuard { combiner, slot: index, batch, queued, finished: false })
        };
        if !slot.busy {
            slot.busy = true;
            slot.set_key(key);
            slot.current = match intent.kind() {
                // A read posts at once: no operation could join it.
                _ if direct => None,
                BatchKind::Read => None,
                kind => Some(Batch::new(kind, BatchPhase::Open, intent.value())),
            };
            return lead_with(slot.current.clone(), false);
        }
        if slot.key() != key {
            return Arrival::Alone;
        }
        for batch in [&slot.current, &slot.next].into_iter().flatten() {
            if batch.join(intent, self.bound) {
                return Arrival::Join(batch.clone());
            }
        }
        if slot.next.is_some() {
            return Arrival::Alone;
        }
        let batch = Batch::new(intent.kind(), BatchPhase::Queued, intent.value());
        slot.next = Some(batch.clone());
        lead_with(Some(batch), true)
    }

    /// Announces an operation and waits for its turn, or for the result of the batch that it joins
    /// (the value of a read goes to `out`). `rest` is held while the operation waits.
    pub async fn turn<R>(
        self: &Arc<Self>,
        ep: &Endpoint,
        (key, hash): (&[u8], KeyHash),
        intent: &Intent<'_>,
        out: &mut Vec<u8>,
        rest: impl Fn() -> R,
    ) -> Result<Turn> {
        ep.stage_cost(Stage::LocalQueue, 1);
        let arrival = self.arrive((key, hash), intent, ep.is_direct());
        ep.point().await;
        match arrival {
            Arrival::Alone => Ok(Turn::Own(None)),
            Arrival::Join(batch) => {
                let _resting = rest();
                Ok(Turn::Shared(batch.share(ep, out).await))
            }
            Arrival::Lead(mut leader) => {
                if leader.queued {
                    let _resting = rest();
                    leader.begin(ep).await?;
                }
                Ok(Turn::Own(Some(leader)))
            }
        }
    }

    /// Ends the batch in progress and lets the next begin.
    fn advance(&self, index: usize) {
        let mut slot = self.slots[index].0.lock().expect("no panic under this lock");
        slot.current = slot.next.take();
        match &slot.current {
            None => slot.busy = false,
            Some(batch) => {
                batch.state.lock().expect("no panic under this lock").phase = BatchPhase::Open;
                let batch = batch.clone();
                drop(slot);
                batch.changed.wake_all();
            }
        }
    }
}

impl LeaderGuard {
    /// Waits until the batch in front has ended. Returns at once when there is none.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation; the batch then ends with an error.
    pub async fn begin(&mut self, ep: &Endpoint) -> Result<()> {
        while self.queued {
            let batch = self.batch.clone().expect("a queued leader guard has a batch");
            let listener = batch.changed.listen();
            if self.try_begin() {
                break;
            }
            let why = WaitReason { what: "the operation in front on the same key", at: 0 };
            listener.wait(ep, why).await?;
        }
        Ok(())
    }

    /// Whether no batch is in front any more.
    pub fn try_begin(&mut self) -> bool {
        let open = |g: &Arc<Batch>| {
            matches!(g.state.lock().expect("no panic under this lock").phase, BatchPhase::Open)
        };
        if self.queued && self.batch.as_ref().is_some_and(open) {
            self.queued = false;
        }
        !self.queued
    }

    /// Whether other operations may join.
    pub fn is_shared(&self) -> bool {
        self.batch.is_some()
    }

    /// Closes the batch to arrivals. For writes, `value` becomes the value to write: that of the
    /// last arrival, also when a leader that starts over closes it again.
    pub fn close(&mut self, value: &mut Vec<u8>) {
        if let Some(batch) = &self.batch {
            let mut state = batch.state.lock().expect("no panic under this lock");
            if matches!(state.phase, BatchPhase::Open) {
                state.phase = BatchPhase::Closed;
            }
            if batch.kind != BatchKind::Read && matches!(state.phase, BatchPhase::Closed) {
                value.clear();
                value.extend_from_slice(&state.value);
            }
        }
    }

    /// Closes the batch of a write to arrivals; whether it was open. The leader's own write comes
    /// last then.
    pub fn close_only(&mut self) -> bool {
        let Some(batch) = &self.batch else { return false };
        let mut state = batch.state.lock().expect("no panic under this lock");
        let open = matches!(state.phase, BatchPhase::Open);
        if open {
            state.phase = BatchPhase::Closed;
        }
        open
    }

    /// Ends the batch with the leader's result; `value` is the value that a read found.
    pub fn finish(mut self, result: &Result<BatchResult>, value: Option<&[u8]>) {
        self.end(|| result.clone(), value);
    }

    /// Ends a batch of reads with what the leader has found.
    pub async fn finish_read(self, ep: &Endpoint, found: Result<bool>, value: &[u8]) {
        ep.point().await;
        self.finish(&found.map(BatchResult::Found), Some(value));
    }

    /// Ends a batch of writes with the leader's outcome.
    pub async fn finish_write(self, ep: &Endpoint, outcome: Result<Outcome>) {
        ep.point().await;
        self.finish(&outcome.map(BatchResult::Wrote), None);
    }

    fn end(&mut self, result: impl FnOnce() -> Result<BatchResult>, value: Option<&[u8]>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if let Some(batch) = &self.batch {
            batch.finish(result(), value);
        }
        if self.queued {
            let mut slot =
                self.combiner.slots[self.slot].0.lock().expect("no panic under this lock");
            let own = |g: &Option<Arc<Batch>>| match (g, &self.batch) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            };
            if own(&slot.next) {
                slot.next = None;
                return;
            }
            // Promoted between the last check and now: it is in progress, and ends here.
            drop(slot);
        }
        self.combiner.advance(self.slot);
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        // A batch that was not closed was not written.
        let closed = self.batch.as_ref().is_some_and(|g| {
            let state = g.state.lock().expect("no panic under this lock");
            g.kind != BatchKind::Read && matches!(state.phase, BatchPhase::Closed)
        });
        self.end(
            || {
                let e = Error::busy("the operation that led this batch was given up; try again");
                Err(if closed { e.effect_unknown() } else { e })
            },
            None,
        );
    }
}

/// Whether the leader of a batch was dropped before it executed anything for the batch: the members
/// execute their operations themselves.
pub fn is_given_up(e: &Error) -> bool {
    e.kind() == ErrorKind::Busy && e.effect() == Effect::None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn lead(a: Arrival) -> LeaderGuard {
        match a {
            Arrival::Lead(l) => l,
            other => panic!("expected to lead, got {other:?}"),
        }
    }

    fn arrive(c: &Arc<Combiner>, key: &[u8], intent: Intent<'_>) -> Arrival {
        c.arrive((key, KeyHash::of(key)), &intent, false)
    }

    /// Digest 8.1 #1, a lost acknowledged write: a writer that arrives after the leader took its
    /// value must not be acknowledged as combined.
    #[test]
    fn a_write_after_the_close_is_not_combined() {
        let c = Combiner::new(1, 8);
        let mut first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let joined = arrive(&c, b"k", Intent::Put(b"2"));
        let mut value = Vec::new();
        first.close(&mut value);
        assert_eq!(value, b"2", "the last arrival's value is what is written");
        let late = arrive(&c, b"k", Intent::Put(b"3"));
        let Arrival::Lead(mut late) = late else { panic!("a new batch") };
        first.finish(&Ok(BatchResult::Wrote(Outcome::Done)), None);
        let Arrival::Join(batch) = joined else { panic!("joined") };
        assert!(matches!(batch.result(&mut value), Some(Ok(BatchResult::Wrote(Outcome::Done)))));
        late.queued = false;
        late.close(&mut value);
        assert_eq!(value, b"3");
    }

    /// Digest 8.1 #1b, a value written under a foreign key: two keys of one slot never share.
    #[test]
    fn another_key_in_the_same_slot_goes_alone() {
        let c = Combiner::new(1, 8);
        let _first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        assert!(matches!(arrive(&c, b"other", Intent::Put(b"2")), Arrival::Alone));
    }

    /// Digest 8.1 #2, a stale delegated read: a reader never gets the result of a READ that was
    /// posted before it began.
    #[test]
    fn a_read_in_flight_is_not_joined() {
        let c = Combiner::new(1, 8);
        let first = lead(arrive(&c, b"k", Intent::Read));
        let second = lead(arrive(&c, b"k", Intent::Read));
        assert!(second.queued, "posted already: the second waits for its own READ");
        let Arrival::Join(batch) = arrive(&c, b"k", Intent::Read) else { panic!("joins the next") };
        first.finish(&Ok(BatchResult::Found(true)), Some(b"old"));
        let mut out = Vec::new();
        assert!(batch.result(&mut out).is_none());
        second.finish(&Ok(BatchResult::Found(true)), Some(b"new"));
        assert!(matches!(batch.result(&mut out), Some(Ok(BatchResult::Found(true)))));
        assert_eq!(out, b"new");
    }

    #[test]
    fn kinds_do_not_mix_and_batches_are_bounded() {
        let c = Combiner::new(1, 2);
        let _lead = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let next = lead(arrive(&c, b"k", Intent::Update(b"2")));
        assert!(matches!(arrive(&c, b"k", Intent::Read), Arrival::Alone));
        assert!(matches!(arrive(&c, b"k", Intent::Update(b"3")), Arrival::Join(_)));
        assert!(matches!(arrive(&c, b"k", Intent::Update(b"4")), Arrival::Alone), "bound 2");
        drop(next);
    }

    #[test]
    fn a_leader_that_gives_up_strands_no_member() {
        let c = Combiner::new(1, 8);
        let first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let Arrival::Join(batch) = arrive(&c, b"k", Intent::Put(b"2")) else { panic!("joins") };
        drop(first);
        let result = batch.result(&mut Vec::new()).expect("ended");
        assert!(is_given_up(&result.expect_err("an error")), "nothing was closed, nothing written");
        let mut first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let Arrival::Join(batch) = arrive(&c, b"k", Intent::Put(b"2")) else { panic!("joins") };
        first.close(&mut Vec::new());
        drop(first);
        let result = batch.result(&mut Vec::new()).expect("ended");
        assert_eq!(result.expect_err("an error").effect(), Effect::Unknown);
        let again = lead(arrive(&c, b"k", Intent::Put(b"3")));
        let queued = lead(arrive(&c, b"k", Intent::Read));
        drop(queued);
        drop(again);
        assert!(!lead(arrive(&c, b"k", Intent::Read)).queued, "the slot is free again");
    }
}
