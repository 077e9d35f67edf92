//! Read delegation and write combining between the clients of one compute node.
//!
//! A *group* is a set of operations on one key that share one remote operation, that of the leader. It is open until the leader
//! seals it: a read group when the leader posts its first verb, a write group when the value is copied into the entry's image.
//! Later arrivals form the next group. So an operation only shares the result of a verb that was posted after it began, and a
//! combined write is ordered immediately before the write that overwrites it. The test of the key and the joining are one
//! critical section, and values live in the group. Every member gets the leader's outcome, its errors too.
//!
//! Technique: SMART (OSDI'23) section 4.4, with the sealing rule that its public code lacks.

use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::sync::{Arc, Mutex};
use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Effect, Endpoint, Error, ErrorKind, Result, WaitReason};

use crate::contract::Outcome;
use crate::hash::KeyHash;

/// What an operation wants to share.
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
enum Kind {
    Read,
    Put,
    Update,
}

impl Intent<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::Read => Kind::Read,
            Self::Put(_) => Kind::Put,
            Self::Update(_) => Kind::Update,
        }
    }
    fn value(&self) -> &[u8] {
        match self {
            Self::Read => &[],
            Self::Put(v) | Self::Update(v) => v,
        }
    }
}

/// What the members of a group get.
#[derive(Clone, Debug)]
pub enum Shared {
    /// A read: whether the key was there; the value is in the group.
    Found(bool),
    /// A write.
    Wrote(Outcome),
}

#[derive(Debug)]
enum Phase {
    /// Behind another group; its leader waits.
    Queued,
    /// Others may join.
    Open,
    /// The leader has begun; nobody may join.
    Sealed,
    /// Finished, with this.
    Done(Result<Shared>),
}

/// Operations that share one remote operation.
#[derive(Debug)]
pub struct Group {
    kind: Kind,
    state: Mutex<GroupState>,
    news: WaitQueue,
}

#[derive(Debug)]
struct GroupState {
    phase: Phase,
    /// Writes: the value of the last arrival. Reads: the result.
    value: Vec<u8>,
    members: u32,
}

impl Group {
    fn new(kind: Kind, phase: Phase, value: &[u8]) -> Arc<Self> {
        let state = GroupState { phase, value: value.to_vec(), members: 1 };
        Arc::new(Self { kind, state: Mutex::new(state), news: WaitQueue::new() })
    }

    /// Joins an open or queued group of the same kind.
    fn join(&self, intent: &Intent<'_>, bound: u32) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        let open = matches!(state.phase, Phase::Open | Phase::Queued);
        if self.kind != intent.kind() || !open || state.members >= bound {
            return false;
        }
        state.members += 1;
        if self.kind != Kind::Read {
            state.value.clear();
            state.value.extend_from_slice(intent.value());
        }
        true
    }

    /// The result, when there is one; a read's value is copied to `out`.
    pub fn result(&self, out: &mut Vec<u8>) -> Option<Result<Shared>> {
        let state = self.state.lock().expect("no panic under this lock");
        let Phase::Done(result) = &state.phase else { return None };
        if matches!(result, Ok(Shared::Found(true))) {
            out.clear();
            out.extend_from_slice(&state.value);
        }
        Some(result.clone())
    }

    /// Waits for the leader's result.
    ///
    /// # Errors
    /// The leader's; `TimedOut`, with unknown effect for writes, at the deadline of the operation.
    pub async fn share(&self, ep: &Endpoint, out: &mut Vec<u8>) -> Result<Shared> {
        loop {
            let listener = self.news.listen();
            if let Some(result) = self.result(out) {
                return result;
            }
            let why = WaitReason { what: "result of a combined operation", at: 0 };
            listener.wait(ep, why).await.map_err(|e| match self.kind {
                Kind::Read => e,
                _ => e.effect_unknown(),
            })?;
        }
    }

    fn finish(&self, result: Result<Shared>, value: Option<&[u8]>) {
        let mut state = self.state.lock().expect("no panic under this lock");
        if let Some(v) = value
            && state.members > 1
        {
            state.value.clear();
            state.value.extend_from_slice(v);
        }
        state.phase = Phase::Done(result);
        drop(state);
        self.news.wake_all();
    }
}

/// Keys up to this long are kept inside their slot, so that an operation without company touches two lines only.
const INLINE_KEY_BYTES: usize = 48;

#[derive(Debug)]
struct Slot {
    busy: bool,
    /// Length of the key; beyond [`INLINE_KEY_BYTES`] it is in `long`.
    key_len: u16,
    key: [u8; INLINE_KEY_BYTES],
    long: Vec<u8>,
    /// The group in progress; `None` while a read without company is.
    current: Option<Arc<Group>>,
    next: Option<Arc<Group>>,
}

impl Slot {
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

/// A slot on lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<Slot>);

impl Padded {
    fn lock(&self) -> std::sync::LockResult<impl std::ops::DerefMut<Target = Slot> + '_> {
        self.0.lock()
    }
}

/// The groups of one compute node: a fixed number of slots, found by the key's hash.
#[derive(Debug)]
pub struct Combiner {
    slots: Box<[Padded]>,
    bound: u32,
    shared: AtomicU64,
}

/// What an arriving operation shall do.
#[derive(Debug)]
pub enum Arrival {
    /// Go on without sharing: another key, or another kind of operation, has the slot.
    Alone,
    /// Lead: do the remote operation, and finish the lease.
    Lead(Lease),
    /// Share the result of this group.
    Join(Arc<Group>),
}

/// The right, and duty, to do the remote operation for a group. Dropped unfinished (a caller gave up), it ends the group with an
/// error and lets the next one begin.
#[derive(Debug)]
pub struct Lease {
    combiner: Arc<Combiner>,
    slot: usize,
    group: Option<Arc<Group>>,
    queued: bool,
    finished: bool,
}

impl Combiner {
    /// `slots` slots (rounded up to a power of two), groups of at most `bound` operations.
    pub fn new(slots: usize, bound: u32) -> Arc<Self> {
        let n = slots.next_power_of_two();
        let slots = (0..n).map(|_| Padded(Mutex::new(Slot::new()))).collect();
        Arc::new(Self { slots, bound, shared: AtomicU64::new(0) })
    }

    /// How many operations were served by somebody else's.
    pub fn shared(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    /// Announces an operation.
    pub fn arrive(self: &Arc<Self>, key: &[u8], hash: KeyHash, intent: &Intent<'_>) -> Arrival {
        let index = hash.0 as usize & (self.slots.len() - 1);
        let mut slot = self.slots[index].lock().expect("no panic under this lock");
        let lease = |group, queued| {
            let combiner = self.clone();
            Arrival::Lead(Lease { combiner, slot: index, group, queued, finished: false })
        };
        if !slot.busy {
            slot.busy = true;
            slot.set_key(key);
            slot.current = match intent.kind() {
                // A read posts at once: nobody could join it.
                Kind::Read => None,
                kind => Some(Group::new(kind, Phase::Open, intent.value())),
            };
            return lease(slot.current.clone(), false);
        }
        if slot.key() != key {
            return Arrival::Alone;
        }
        for group in [&slot.current, &slot.next].into_iter().flatten() {
            if group.join(intent, self.bound) {
                self.shared.fetch_add(1, Ordering::Relaxed);
                return Arrival::Join(group.clone());
            }
        }
        if slot.next.is_some() {
            return Arrival::Alone;
        }
        let group = Group::new(intent.kind(), Phase::Queued, intent.value());
        slot.next = Some(group.clone());
        lease(Some(group), true)
    }

    /// Ends the group in progress and lets the next begin.
    fn advance(&self, index: usize) {
        let mut slot = self.slots[index].lock().expect("no panic under this lock");
        slot.current = slot.next.take();
        match &slot.current {
            None => slot.busy = false,
            Some(group) => {
                group.state.lock().expect("no panic under this lock").phase = Phase::Open;
                let group = group.clone();
                drop(slot);
                group.news.wake_all();
            }
        }
    }
}

impl Lease {
    /// Waits until the group in front has ended. Returns at once when there is none.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation; the group then ends with an error.
    pub async fn begin(&mut self, ep: &Endpoint) -> Result<()> {
        while self.queued {
            let group = self.group.clone().expect("a queued lease has a group");
            let listener = group.news.listen();
            if self.try_begin() {
                break;
            }
            let why = WaitReason { what: "the operation in front on the same key", at: 0 };
            listener.wait(ep, why).await?;
        }
        Ok(())
    }

    /// Whether nobody is in front any more.
    pub fn try_begin(&mut self) -> bool {
        let open = |g: &Arc<Group>| {
            matches!(g.state.lock().expect("no panic under this lock").phase, Phase::Open)
        };
        if self.queued && self.group.as_ref().is_some_and(open) {
            self.queued = false;
        }
        !self.queued
    }

    /// Closes the group to arrivals. For writes, `value` becomes what shall be written: that of the last arrival.
    pub fn seal(&mut self, value: &mut Vec<u8>) {
        if let Some(group) = &self.group {
            let mut state = group.state.lock().expect("no panic under this lock");
            if matches!(state.phase, Phase::Open) {
                state.phase = Phase::Sealed;
                if group.kind != Kind::Read {
                    value.clear();
                    value.extend_from_slice(&state.value);
                }
            }
        }
    }

    /// Closes the group of a write to arrivals; whether it was open. What the leader writes comes last then.
    pub fn seal_only(&mut self) -> bool {
        let Some(group) = &self.group else { return false };
        let mut state = group.state.lock().expect("no panic under this lock");
        let open = matches!(state.phase, Phase::Open);
        if open {
            state.phase = Phase::Sealed;
        }
        open
    }

    /// Ends the group with the leader's result; `value` is what a read found.
    pub fn finish(mut self, result: &Result<Shared>, value: Option<&[u8]>) {
        self.end(|| result.clone(), value);
    }

    fn end(&mut self, result: impl FnOnce() -> Result<Shared>, value: Option<&[u8]>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if let Some(group) = &self.group {
            group.finish(result(), value);
        }
        if self.queued {
            let mut slot = self.combiner.slots[self.slot].lock().expect("no panic under this lock");
            let own = |g: &Option<Arc<Group>>| match (g, &self.group) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            };
            if own(&slot.next) {
                slot.next = None;
                return;
            }
            // Promoted between the last look and now: it is in progress, and ends here.
            drop(slot);
        }
        self.combiner.advance(self.slot);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What was not sealed was not written.
        let sealed = self.group.as_ref().is_some_and(|g| {
            let state = g.state.lock().expect("no panic under this lock");
            g.kind != Kind::Read && matches!(state.phase, Phase::Sealed)
        });
        self.end(
            || {
                let e = Error::new(
                    ErrorKind::Busy,
                    "the operation that led this group was given up; try again",
                );
                Err(if sealed { e.effect_unknown() } else { e })
            },
            None,
        );
    }
}

/// Whether the leader of a group was dropped before it did anything for the group: its members do it themselves.
pub fn is_given_up(e: &Error) -> bool {
    e.kind() == ErrorKind::Busy && e.effect() == Effect::None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn lead(a: Arrival) -> Lease {
        match a {
            Arrival::Lead(l) => l,
            other => panic!("expected to lead, got {other:?}"),
        }
    }

    fn arrive(c: &Arc<Combiner>, key: &[u8], intent: Intent<'_>) -> Arrival {
        c.arrive(key, KeyHash::of(key), &intent)
    }

    /// Digest 8.1 #1, a lost acknowledged write: a writer that arrives after the leader took its value must not be told that it
    /// was combined.
    #[test]
    fn a_write_after_the_seal_is_not_combined() {
        let c = Combiner::new(1, 8);
        let mut first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let joined = arrive(&c, b"k", Intent::Put(b"2"));
        let mut value = Vec::new();
        first.seal(&mut value);
        assert_eq!(value, b"2", "the last arrival's value is what is written");
        let late = arrive(&c, b"k", Intent::Put(b"3"));
        let Arrival::Lead(mut late) = late else { panic!("a new group") };
        first.finish(&Ok(Shared::Wrote(Outcome::Done)), None);
        let Arrival::Join(group) = joined else { panic!("joined") };
        assert!(matches!(group.result(&mut value), Some(Ok(Shared::Wrote(Outcome::Done)))));
        late.queued = false;
        late.seal(&mut value);
        assert_eq!(value, b"3");
    }

    /// Digest 8.1 #1b, a value written under a foreign key: two keys of one slot never share.
    #[test]
    fn another_key_in_the_same_slot_goes_alone() {
        let c = Combiner::new(1, 8);
        let _first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        assert!(matches!(arrive(&c, b"other", Intent::Put(b"2")), Arrival::Alone));
    }

    /// Digest 8.1 #2, a stale delegated read: a reader never gets the result of a READ that was posted before it began.
    #[test]
    fn a_read_in_flight_is_not_joined() {
        let c = Combiner::new(1, 8);
        let first = lead(arrive(&c, b"k", Intent::Read));
        let second = lead(arrive(&c, b"k", Intent::Read));
        assert!(second.queued, "posted already: the second waits for its own READ");
        let Arrival::Join(group) = arrive(&c, b"k", Intent::Read) else { panic!("joins the next") };
        first.finish(&Ok(Shared::Found(true)), Some(b"old"));
        let mut out = Vec::new();
        assert!(group.result(&mut out).is_none());
        second.finish(&Ok(Shared::Found(true)), Some(b"new"));
        assert!(matches!(group.result(&mut out), Some(Ok(Shared::Found(true)))));
        assert_eq!(out, b"new");
    }

    #[test]
    fn kinds_do_not_mix_and_groups_are_bounded() {
        let c = Combiner::new(1, 2);
        let _lead = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let next = lead(arrive(&c, b"k", Intent::Update(b"2")));
        assert!(matches!(arrive(&c, b"k", Intent::Read), Arrival::Alone));
        assert!(matches!(arrive(&c, b"k", Intent::Update(b"3")), Arrival::Join(_)));
        assert!(matches!(arrive(&c, b"k", Intent::Update(b"4")), Arrival::Alone), "bound 2");
        drop(next);
    }

    #[test]
    fn a_leader_that_gives_up_strands_nobody() {
        let c = Combiner::new(1, 8);
        let first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let Arrival::Join(group) = arrive(&c, b"k", Intent::Put(b"2")) else { panic!("joins") };
        drop(first);
        let result = group.result(&mut Vec::new()).expect("ended");
        assert!(is_given_up(&result.expect_err("an error")), "nothing was sealed, nothing written");
        let mut first = lead(arrive(&c, b"k", Intent::Put(b"1")));
        let Arrival::Join(group) = arrive(&c, b"k", Intent::Put(b"2")) else { panic!("joins") };
        first.seal(&mut Vec::new());
        drop(first);
        let result = group.result(&mut Vec::new()).expect("ended");
        assert_eq!(result.expect_err("an error").effect(), Effect::Unknown);
        let again = lead(arrive(&c, b"k", Intent::Put(b"3")));
        let queued = lead(arrive(&c, b"k", Intent::Read));
        drop(queued);
        drop(again);
        assert!(!lead(arrive(&c, b"k", Intent::Read)).queued, "the slot is free again");
    }
}
