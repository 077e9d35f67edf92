//! Histories of point operations, and whether each key's history is linearizable.
//!
//! The check is that of Wing and Gong with Lowe's memoisation, run forward: it keeps every
//! configuration (present value, and the running operations that have taken effect already) that
//! explains the events so far. Keys are independent, so each is checked alone. An operation with
//! unknown outcome stays open to the end: it may have taken effect, or not. A cut link leaves
//! dozens of those on one key, so the check merges configurations that differ only in them as far
//! as it can.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

/// A value's identity. Tests write each value once.
pub type ValueId = u64;

/// An operation and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A read and what it found.
    Get(Option<ValueId>),
    /// An unconditional write.
    Put(ValueId),
    /// A write of an absent key; false: it existed.
    Insert(ValueId, bool),
    /// A write of a present key; false: it did not exist.
    Update(ValueId, bool),
    /// A removal; false: it did not exist.
    Delete(bool),
    /// A conditional write.
    CompareAndSet(ValueId, ValueId, Swap),
    /// An unconditional write that has failed: it took effect before its end, or never will.
    Tried(ValueId),
}

/// How a conditional write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Swap {
    /// It took effect.
    Done,
    /// The value differed.
    Mismatch,
    /// The key was absent.
    NotFound,
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// When it was called.
    pub call: u64,
    /// When it returned; `None` when its outcome is unknown.
    pub ret: Option<u64>,
    /// Its kind and its answer.
    pub event: Event,
}

impl Event {
    /// The value after the operation, when its answer is right for `now`.
    fn apply(self, now: Option<ValueId>) -> Option<Option<ValueId>> {
        let ok = |right: bool, next| right.then_some(next);
        match self {
            Self::Get(found) => ok(found == now, now),
            Self::Put(v) | Self::Tried(v) => Some(Some(v)),
            Self::Insert(v, true) => ok(now.is_none(), Some(v)),
            Self::Insert(_, false) => ok(now.is_some(), now),
            Self::Update(v, true) => ok(now.is_some(), Some(v)),
            Self::Update(_, false) => ok(now.is_none(), now),
            Self::Delete(true) => ok(now.is_some(), None),
            Self::Delete(false) => ok(now.is_none(), now),
            Self::CompareAndSet(e, v, Swap::Done) => ok(now == Some(e), Some(v)),
            Self::CompareAndSet(e, _, Swap::Mismatch) => ok(now.is_some() && now != Some(e), now),
            Self::CompareAndSet(_, _, Swap::NotFound) => ok(now.is_none(), now),
        }
    }

    /// Whether the operation, by its answer, has changed nothing.
    fn only_reads(self) -> bool {
        match self {
            Self::Get(_) => true,
            Self::Insert(_, done) | Self::Update(_, done) | Self::Delete(done) => !done,
            Self::CompareAndSet(.., swap) => swap != Swap::Done,
            Self::Put(_) | Self::Tried(_) => false,
        }
    }

    /// An operation of unknown outcome, as it would have to be explained if it took effect.
    fn effect(self) -> Option<Self> {
        match self {
            Self::Get(_) => None,
            Self::Put(_) | Self::Tried(_) => Some(self),
            Self::Insert(v, _) => Some(Self::Insert(v, true)),
            Self::Update(v, _) => Some(Self::Update(v, true)),
            Self::Delete(_) => Some(Self::Delete(true)),
            Self::CompareAndSet(e, v, _) => Some(Self::CompareAndSet(e, v, Swap::Done)),
        }
    }
}

/// Why a history cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The operation that returns where no explanation is left.
    pub op: Op,
    /// The operations that were running then.
    pub running: Vec<Op>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no order of operations explains {:?}; running with it:", self.op)?;
        self.running.iter().try_for_each(|op| write!(f, " {op:?};"))
    }
}

/// Checks the operations of one key, which begins with value `initial`.
///
/// # Errors
/// The first operation that cannot be explained.
pub fn check_key(ops: &[Op], initial: Option<ValueId>) -> Result<(), Violation> {
    // A key without a write keeps its value.
    if ops.iter().all(|op| op.event == Event::Get(initial)) {
        return Ok(());
    }
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * ops.len());
    for (i, op) in ops.iter().enumerate() {
        events.push((op.call, false, i));
        if let Some(ret) = op.ret {
            events.push((ret, true, i));
        }
    }
    // At one instant calls come before returns: the operations overlap.
    events.sort_unstable();
    let alike = alike(ops, initial);
    // The place of each running operation.
    let mut running: BTreeMap<usize, usize> = BTreeMap::new();
    let mut configs = Configs::default();
    configs.insert(Config { value: initial, done: Places::default(), tried: Places::default() });
    for (_, is_return, i) in events {
        if !is_return {
            let free = (0..).find(|place| !running.values().any(|taken| taken == place));
            running.extend(free.map(|place| (i, place)));
            continue;
        }
        configs = explain(&alike, &running, configs, i);
        if configs.0.is_empty() {
            let running = running.keys().filter(|r| **r != i).map(|r| ops[*r]).collect();
            return Err(Violation { op: ops[i], running });
        }
        running.remove(&i);
    }
    Ok(())
}

/// A set of places of running operations. Words at the end that are zero are left out, so that
/// equal sets are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Places(SmallVec<[u64; 2]>);

impl Places {
    fn contains(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn insert(&mut self, place: usize) {
        let words = self.0.len().max(place / 64 + 1);
        self.0.resize(words, 0);
        self.0[place / 64] |= 1 << (place % 64);
    }

    fn remove(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        let beyond = |(i, word): (usize, &u64)| word & !other.0.get(i).copied().unwrap_or(0) != 0;
        !self.0.iter().enumerate().any(beyond)
    }
}

/// Gives one value to all operations with unknown outcome that no read has found: the choice among
/// them makes no difference.
fn alike(ops: &[Op], initial: Option<ValueId>) -> Vec<Op> {
    let mut named: BTreeSet<ValueId> = initial.into_iter().collect();
    for op in ops {
        match op.event {
            Event::Get(Some(v)) if op.ret.is_some() => _ = named.insert(v),
            Event::CompareAndSet(expected, ..) => _ = named.insert(expected),
            _ => {}
        }
    }
    let Some(any) = (0..).find(|v| !named.contains(v)) else { return ops.to_vec() };
    let of = |v| if named.contains(&v) { v } else { any };
    let event = |e| match e {
        Event::Put(v) => Event::Put(of(v)),
        Event::Tried(v) => Event::Tried(of(v)),
        Event::Insert(v, done) => Event::Insert(of(v), done),
        Event::Update(v, done) => Event::Update(of(v), done),
        Event::CompareAndSet(e, v, swap) => Event::CompareAndSet(e, of(v), swap),
        Event::Get(_) | Event::Delete(_) => e,
    };
    ops.iter().map(|op| Op { event: event(op.event), ..*op }).collect()
}

/// One explanation of the events so far.
#[derive(Clone)]
struct Config {
    value: Option<ValueId>,
    /// Running operations that have taken effect.
    done: Places,
    /// Operations of unknown outcome that have.
    tried: Places,
}

/// Keeps the explanations that no other one dominates: an explanation that has used fewer
/// operations of unknown outcome allows everything that one with more of them allows.
#[derive(Default)]
struct Configs(BTreeMap<(Option<ValueId>, Places), Vec<Places>>);

impl Configs {
    /// False: it adds nothing.
    fn insert(&mut self, c: Config) -> bool {
        let tried = self.0.entry((c.value, c.done)).or_default();
        if tried.iter().any(|t| t.is_within(&c.tried)) {
            return false;
        }
        tried.retain(|t| !c.tried.is_within(t));
        tried.push(c.tried);
        true
    }

    fn into_list(self) -> Vec<Config> {
        let each = self.0.into_iter().flat_map(|((value, done), tried)| {
            tried.into_iter().map(move |tried| Config { value, done: done.clone(), tried })
        });
        each.collect()
    }
}

/// All configurations in which operation `i` has taken effect, without it.
fn explain(ops: &[Op], running: &BTreeMap<usize, usize>, configs: Configs, i: usize) -> Configs {
    let (mut out, mut seen) = (Configs::default(), Configs::default());
    let (mut work, returns) = (configs.into_list(), running[&i]);
    // A read takes effect as soon as it can: whatever explains the events without it does with it.
    let read = |c: &mut Config| {
        for (r, place) in running {
            let Op { event, ret, .. } = ops[*r];
            if ret.is_some() && event.only_reads() && event.apply(c.value).is_some() {
                c.done.insert(*place);
            }
        }
    };
    for c in &mut work {
        read(c);
        seen.insert(c.clone());
        if matches!(ops[i].event, Event::Tried(_)) && !c.done.contains(returns) {
            out.insert(c.clone());
        }
    }
    while let Some(mut c) = work.pop() {
        if c.done.contains(returns) {
            c.done.remove(returns);
            out.insert(c);
            continue;
        }
        // Of operations with unknown outcome and the same effect, the first.
        let mut same = BTreeSet::new();
        for (r, place) in running {
            let known = ops[*r].ret.is_some();
            let list = if known { &c.done } else { &c.tried };
            if list.contains(*place) || known && ops[*r].event.only_reads() {
                continue;
            }
            let event = if known { Some(ops[*r].event) } else { ops[*r].event.effect() };
            let Some(event) = event.filter(|e| known || same.insert(*e)) else { continue };
            let Some(value) = event.apply(c.value) else { continue };
            let mut next = Config { value, ..c.clone() };
            let list = if known { &mut next.done } else { &mut next.tried };
            list.insert(*place);
            read(&mut next);
            if seen.insert(next.clone()) {
                work.push(next);
            }
        }
    }
    out
}
