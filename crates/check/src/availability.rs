//! Availability while a fault lasts: an operation on a leaf that no fault touches ends within a bound that knows nothing of leases.
//!
//! A compute node that has crashed or stands still touches the leaves that its writes were on, those whose lock is in its memory, and,
//! when it was at maintenance, any. For writes it touches also the leaves where the keys of its writes are now, with those beside them: a
//! write may have gone on to another leaf after a split, and split that one itself, and the unlocking of one that has just ended may
//! not have arrived (seed 313 with crashes). What an operation needs its index says ([`RangeIndex::place_of`]).
//!
//! Judged are gets, updates and compare-and-sets: inserts and deletes may need a parent that the dead node holds. An operation that went
//! on elsewhere than it began, because the leaf has changed meanwhile, is not judged, and neither is a write beside another one of its
//! leaf or beside maintenance, which may wait for a parent themselves. Links, lost memory and dropped operations touch what nobody can
//! tell from outside: where one of them happens nothing is judged.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_fabric::sim::FabricFaults;
use dmtree_fabric::{GlobalAddr, InProcess, Member, NodeId, Standing};
use dmtree_parts::{KeyPlace, RangeIndex};

use crate::case::Case;
use crate::fault::NodeFault;
use crate::log::Call;
use crate::plan;
use crate::verdict::Judged;

/// Verbs that an operation may take one after the other without a fault, its repetitions beside others' changes included.
const VERBS: u64 = 60;

/// Who runs something: a client, or the maintenance of its node.
pub(crate) type Doing = (u32, bool);

/// A key, by its number.
type Key = u64;

/// An operation that runs.
#[derive(Clone, Copy, Debug)]
struct Open {
    cn: usize,
    writes: bool,
    key: Option<Key>,
    /// Nothing is known when it may need anything.
    place: Option<KeyPlace>,
    since_ns: u64,
    /// It began while a node was dead or stood still.
    beside: bool,
    /// Another write of its leaf ran at the same time.
    crowded: bool,
}

/// A node that has crashed or stands still, and what it touches.
#[derive(Debug)]
struct Outage {
    member: Member,
    /// Leaves of its writes; nothing when it may be any.
    leaves: Option<Vec<GlobalAddr>>,
    /// Keys of its writes and of those that had just ended; nothing when it may be any.
    keys: Option<Vec<Key>>,
    /// It goes on.
    thawed: bool,
}

/// What runs, what is out, and what was judged.
pub(crate) struct Availability {
    open: RefCell<BTreeMap<Doing, Open>>,
    /// The last write of everybody that has ended, and when: its unlocking may still be under way.
    last: RefCell<BTreeMap<Doing, (Open, u64)>>,
    outages: RefCell<Vec<Outage>>,
    judge: Option<Arc<InProcess>>,
    /// Keys have smaller numbers than this.
    numbers: u64,
    /// Nothing takes longer, ns; 0: nothing is judged.
    bound_ns: u64,
    /// No verb that is not awaited takes longer, ns.
    verb_ns: u64,
    /// Operations that were judged.
    pub judged: Cell<Judged>,
}

/// Longest time that a verb takes under some hazards, ns.
fn longest(h: &FabricFaults) -> u64 {
    let held = if h.stall_one_in > 0 { 100 } else { 1 };
    3 * h.delay_ns * held + 2 * h.stretch_ns + h.atomic_gap_ns
}

impl Availability {
    /// Of a case; `judge` says whose death has come to its end.
    pub(crate) fn new(case: &Case, judge: Option<Arc<InProcess>>) -> Self {
        let plain = |f: &NodeFault| {
            matches!(
                f,
                NodeFault::Crash { .. } | NodeFault::Freeze { .. } | NodeFault::Drift { .. }
            )
        };
        let verb_ns = longest(&case.fabric_faults);
        let bound_ns = VERBS * verb_ns + 100_000;
        // What may take as long as a lease by itself says nothing.
        let tells = case.node_faults.iter().all(plain) && bound_ns < case.lease_ns / 2;
        let bound_ns = if tells && !case.node_faults.is_empty() { bound_ns } else { 0 };
        let (open, last, outages, judged) = Default::default();
        let numbers = case.numbers();
        Self { open, last, outages, judge, numbers, bound_ns, verb_ns, judged }
    }

    /// What an operation needs, where that is asked.
    pub(crate) fn place<I: RangeIndex>(
        &self,
        index: &I,
        case: &Case,
        call: Call,
    ) -> Option<KeyPlace> {
        let key = call.key().filter(|_| self.bound_ns > 0)?;
        index.place_of(&plan::key(case.key_form, key))
    }

    /// An operation begins, or maintenance does.
    pub(crate) fn begin(
        &self,
        by: Doing,
        cn: usize,
        call: Option<Call>,
        place: Option<KeyPlace>,
        now: u64,
    ) {
        if self.bound_ns == 0 {
            return;
        }
        let writes = !matches!(call, Some(Call::Get(_) | Call::Scan(..) | Call::ScanDown(..)));
        let (key, beside) = (call.and_then(Call::key), self.is_out());
        let mut new = Open { cn, writes, key, place, since_ns: now, beside, crowded: false };
        let mut open = self.open.borrow_mut();
        let leaf = |o: &Open| o.place.map(|p| p.leaf);
        for other in open.values_mut().filter(|o| o.writes && writes) {
            let apart = leaf(other).zip(leaf(&new)).is_some_and(|(a, b)| a != b);
            other.crowded |= !apart;
            new.crowded |= !apart;
        }
        open.insert(by, new);
    }

    /// It has ended; `done` says that it did what it was asked to, `place` where a key is as far as its index knows. What is to be said
    /// when that took too long.
    pub(crate) fn end(
        &self,
        by: Doing,
        call: Option<Call>,
        done: bool,
        place: impl Fn(Key) -> Option<KeyPlace>,
        now: u64,
    ) -> Option<String> {
        let o = self.open.borrow_mut().remove(&by)?;
        if o.writes {
            self.last.borrow_mut().insert(by, (o, now));
        }
        let (call, at) = (call?, o.place?);
        // Others may change the tree around themselves, and then need what a dead node holds of it.
        let plain = matches!(call, Call::Get(_) | Call::Update(..) | Call::CompareAndSet(..));
        if !plain || !done || !o.beside || o.crowded {
            return None;
        }
        if o.key.and_then(&place) != o.place || self.touches(&o, at, &place) {
            return None;
        }
        let mut judged = self.judged.get();
        *(if o.writes { &mut judged.writes } else { &mut judged.gets }) += 1;
        self.judged.set(judged);
        let took = now - o.since_ns;
        (took > self.bound_ns).then(|| {
            format!(
                "{call} took {took} ns beside a fault that does not touch its leaf {}; {} are enough; out of work: {}",
                at.leaf,
                self.bound_ns,
                self.whats_out(&place)
            )
        })
    }

    /// A node's clients have gone without a word.
    pub(crate) fn forget(&self, cn: usize) {
        self.open.borrow_mut().retain(|_, o| o.cn != cn);
        self.last.borrow_mut().retain(|_, (o, _)| o.cn != cn);
    }

    /// A compute node has crashed, or stands still.
    pub(crate) fn out(&self, cn: usize, incarnation: u32, now: u64) {
        let (open, last) = (self.open.borrow(), self.last.borrow());
        let late = last.values().filter(|(_, at)| now - at <= 2 * self.verb_ns).map(|(o, _)| o);
        let its = |o: &&Open| o.cn == cn && o.writes;
        let leaves = open.values().filter(its).map(|o| o.place.map(|p| p.leaf)).collect();
        let keys = open.values().chain(late).filter(its).map(|o| o.key).collect();
        let member = Member { node: NodeId::compute(cn as u16), incarnation };
        self.outages.borrow_mut().push(Outage { member, leaves, keys, thawed: false });
    }

    /// A node that stood still goes on.
    pub(crate) fn thawed(&self, cn: usize) {
        let its = |o: &&mut Outage| o.member.node == NodeId::compute(cn as u16);
        self.outages.borrow_mut().iter_mut().filter(its).for_each(|o| o.thawed = true);
    }

    /// Whether somebody's death, or pause, has not come to its end.
    fn is_out(&self) -> bool {
        let Some(judge) = &self.judge else { return false };
        let state = judge.latest();
        let over = |m: Member| state.standing(m).is_none_or(|s| s == Standing::Gone);
        self.outages.borrow().iter().any(|o| !o.thawed && !over(o.member))
    }

    /// The nodes that are out, with what their writes were on.
    fn whats_out(&self, place: impl Fn(Key) -> Option<KeyPlace>) -> String {
        let leaf = |key: Key| place(key).map_or("?".to_owned(), |p| p.leaf.to_string());
        let said = |out: &Outage| {
            let began: Vec<_> = out.leaves.iter().flatten().map(ToString::to_string).collect();
            let now: Vec<_> =
                out.keys.iter().flatten().map(|k| format!("k{k} now at {}", leaf(*k))).collect();
            format!("{}, writes began at [{}], {}", out.member, began.join(", "), now.join(", "))
        };
        let all: Vec<_> = self.outages.borrow().iter().map(said).collect();
        all.join("; ")
    }

    /// Whether a leaf is neither that of a key nor one beside it.
    fn is_apart(
        &self,
        key: Key,
        leaf: GlobalAddr,
        place: impl Fn(Key) -> Option<KeyPlace>,
    ) -> bool {
        let leaf_of = |key| place(key).map(|p| p.leaf);
        let Some(its) = leaf_of(key) else { return false };
        let beside = |keys: &mut dyn Iterator<Item = Key>| {
            let other = keys.map(leaf_of).find(|l| *l != Some(its));
            other.is_none_or(|l| l.is_some_and(|l| l != leaf))
        };
        its != leaf && beside(&mut (0..key).rev()) && beside(&mut (key + 1..self.numbers))
    }

    fn touches(&self, o: &Open, at: KeyPlace, place: impl Fn(Key) -> Option<KeyPlace>) -> bool {
        let own = NodeId::compute(o.cn as u16);
        let touches = |out: &Outage| {
            let node = out.member.node;
            let its = |leaves: &Vec<GlobalAddr>| leaves.contains(&at.leaf);
            let apart = |key: &Key| self.is_apart(*key, at.leaf, &place);
            let all_apart = |keys: &Vec<Key>| keys.iter().all(apart);
            // A get asks for no lock.
            let locked = o.writes && !out.keys.as_ref().is_some_and(all_apart);
            let began = out.leaves.as_ref().is_none_or(its);
            node == own || at.owner == Some(node) || began || locked
        };
        self.outages.borrow().iter().any(touches)
    }
}
