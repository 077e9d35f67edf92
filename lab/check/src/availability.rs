//! Availability during a fault: an operation on a leaf that no fault touches ends within a bound
//! that does not depend on leases. Where leaves share a lock, a fault that touches one of them
//! touches the writes of all.
//!
//! A compute node that has crashed or stalls touches the leaves of its running writes, the leaves
//! with a lock in its memory, and, during maintenance, any leaf. For writes it also touches the
//! leaves that now hold the keys of its writes, and their neighbours: a write may have continued on
//! another leaf after a split, and have split that one itself, and the unlock of a write that has
//! just ended may not have arrived (seed 313 with crashes). The index reports the resources that an
//! operation needs ([`RangeIndex::place_of`]).
//!
//! The check judges gets, updates and compare-and-sets: inserts and deletes may need a parent
//! that the crashed node holds. It does not judge an operation with a leaf that changes
//! meanwhile, nor a write beside another write of its leaf or beside maintenance, which may wait
//! for a parent themselves, nor a write that may need a block where memory is refused: it looks
//! for memory that others hold back, and a collection waits for a node that does not answer. Cut
//! links, lost memory and dropped operations touch leaves that are unknown from outside: where
//! one of them occurs the check judges nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_fabric::{InProcess, Member, MemberPhase, NodeId};
use dmtree_parts::KeyPlace;

use crate::case::Case;
use crate::fault::NodeFault;
use crate::log::Call;
use crate::verdict::Judged;

/// Verbs that an operation may need one after the other without a fault, including retries because
/// of concurrent changes.
const VERBS: u64 = 60;

/// The issuer of an operation: a client, or the maintenance of its node.
pub(crate) type Doing = (u32, bool);

/// A key, by its number.
type Key = u64;

/// An operation that runs.
#[derive(Clone, Copy, Debug)]
struct Open {
    cn: usize,
    writes: bool,
    key: Option<Key>,
    /// `None` when it may need any leaf.
    place: Option<KeyPlace>,
    since_ns: u64,
    /// It began while a node was down or stalled.
    beside: bool,
    /// Another write of its leaf ran at the same time.
    crowded: bool,
}

/// A node that has crashed or stalls, and the resources that it touches.
#[derive(Debug)]
struct Outage {
    member: Member,
    /// Places of its writes; `None` for any leaf.
    places: Option<Vec<KeyPlace>>,
    /// Keys of its writes and of those that had just ended; `None` for any key.
    keys: Option<Vec<Key>>,
    /// It runs again.
    thawed: bool,
}

/// Running operations, outages, and judged operations.
pub(crate) struct Availability {
    open: RefCell<BTreeMap<Doing, Open>>,
    /// The last write of every issuer that has ended, and its end: its unlock may still be in
    /// flight.
    last: RefCell<BTreeMap<Doing, (Open, u64)>>,
    outages: RefCell<Vec<Outage>>,
    judge: Arc<InProcess>,
    /// Keys have smaller numbers than this.
    numbers: u64,
    /// The bound of an operation, ns; 0: no operation is judged.
    bound_ns: u64,
    /// The longest time that a verb takes under the fabric faults, ns.
    verb_ns: u64,
    /// The fabric refuses memory now and then, and pairs may not fit into their entries.
    needs_room: bool,
    /// Operations that were judged.
    pub judged: Cell<Judged>,
}

impl Availability {
    /// For a case; `judge` reports the phase of crashed nodes.
    pub(crate) fn new(case: &Case, judge: Arc<InProcess>) -> Self {
        let plain = |f: &NodeFault| {
            matches!(
                f,
                NodeFault::Crash { .. } | NodeFault::Freeze { .. } | NodeFault::Drift { .. }
            )
        };
        let h = &case.fabric_faults;
        let held = if h.stall_one_in > 0 { 100 } else { 1 };
        let verb_ns = 3 * h.delay_ns * held + 2 * h.stretch_ns + h.atomic_gap_ns;
        let bound_ns = VERBS * verb_ns + 100_000;
        // A fault that may delay an operation for a lease by itself proves nothing.
        let tells = case.node_faults.iter().all(plain) && bound_ns < case.lease_ns / 2;
        let bound_ns = if tells && !case.node_faults.is_empty() { bound_ns } else { 0 };
        let (open, last, outages, judged) = Default::default();
        let numbers = case.numbers();
        let needs_room = case.fabric_faults.refuse_memory_one_in > 0 && case.has_blocks();
        Self { open, last, outages, judge, numbers, bound_ns, verb_ns, judged, needs_room }
    }

    /// An operation begins, or maintenance does; `place`: the place of a key as its index knows it.
    pub(crate) fn begin(
        &self,
        (by, cn): (Doing, usize),
        call: Option<Call>,
        place: impl Fn(Key) -> Option<KeyPlace>,
        now: u64,
    ) {
        if self.bound_ns == 0 {
            return;
        }
        let reads = |c: Call| matches!(c, Call::Get(_)) || c.reads_range().is_some();
        let writes = !call.is_some_and(reads);
        let (key, beside) = (call.and_then(Call::key), self.is_out());
        let place = key.and_then(place);
        let mut new = Open { cn, writes, key, place, since_ns: now, beside, crowded: false };
        let mut open = self.open.borrow_mut();
        for other in open.values_mut().filter(|o| o.writes && writes) {
            let places = other.place.zip(new.place);
            let apart = places.is_some_and(|(a, b)| !a.excludes(&b));
            other.crowded |= !apart;
            new.crowded |= !apart;
        }
        open.insert(by, new);
    }

    /// An operation has ended; `done`: it took effect as asked; `place`: the place of a key as its
    /// index knows it. Returns a description of an operation that took too long.
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
        // Other operations may change the tree around themselves, and then need resources of the
        // crashed node.
        let plain = matches!(call, Call::Get(_) | Call::Update(..) | Call::CompareAndSet(..));
        if !plain || !done || !o.beside || o.crowded || (o.writes && self.needs_room) {
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
                "{call} took {took} ns beside a fault that does not touch its leaf {}; {} are enough; nodes that are down: {}",
                at.leaf,
                self.bound_ns,
                self.outages_in_words(&place)
            )
        })
    }

    /// The clients of a node have ended without returns.
    pub(crate) fn forget(&self, cn: usize) {
        self.open.borrow_mut().retain(|_, o| o.cn != cn);
        self.last.borrow_mut().retain(|_, (o, _)| o.cn != cn);
    }

    /// A compute node has crashed or stalls.
    pub(crate) fn out(&self, cn: usize, incarnation: u32, now: u64) {
        let (open, last) = (self.open.borrow(), self.last.borrow());
        let late = last.values().filter(|(_, at)| now - at <= 2 * self.verb_ns).map(|(o, _)| o);
        let its = |o: &&Open| o.cn == cn && o.writes;
        let places = open.values().filter(its).map(|o| o.place).collect();
        let keys = open.values().chain(late).filter(its).map(|o| o.key).collect();
        let member = Member { node: NodeId::compute(cn as u16), incarnation };
        self.outages.borrow_mut().push(Outage { member, places, keys, thawed: false });
    }

    /// A stalled node runs again.
    pub(crate) fn thawed(&self, cn: usize) {
        let its = |o: &&mut Outage| o.member.node == NodeId::compute(cn as u16);
        self.outages.borrow_mut().iter_mut().filter(its).for_each(|o| o.thawed = true);
    }

    /// Whether a crash is not recovered yet, or a stall lasts.
    fn is_out(&self) -> bool {
        let state = self.judge.latest();
        let over = |m: Member| state.phase(m).is_none_or(|s| s == MemberPhase::Gone);
        self.outages.borrow().iter().any(|o| !o.thawed && !over(o.member))
    }

    /// The nodes that are down, with the leaves and keys of their writes.
    fn outages_in_words(&self, place: impl Fn(Key) -> Option<KeyPlace>) -> String {
        let leaf = |key: Key| place(key).map_or("?".to_owned(), |p| p.leaf.to_string());
        let said = |out: &Outage| {
            let began: Vec<_> = out.places.iter().flatten().map(|p| p.leaf.to_string()).collect();
            let now: Vec<_> =
                out.keys.iter().flatten().map(|k| format!("k{k} now at {}", leaf(*k))).collect();
            format!("{}, writes began at [{}], {}", out.member, began.join(", "), now.join(", "))
        };
        let all: Vec<_> = self.outages.borrow().iter().map(said).collect();
        all.join("; ")
    }

    /// Whether writes of a leaf exclude neither those of the leaf of a key nor those of its
    /// neighbours.
    fn is_apart(&self, key: Key, at: KeyPlace, place: impl Fn(Key) -> Option<KeyPlace>) -> bool {
        let Some(its) = place(key) else { return false };
        let beside = |keys: &mut dyn Iterator<Item = Key>| {
            let other = keys.map(&place).find(|p| p.is_none_or(|p| p.leaf != its.leaf));
            other.is_none_or(|p| p.is_some_and(|p| !p.excludes(&at)))
        };
        !its.excludes(&at) && beside(&mut (0..key).rev()) && beside(&mut (key + 1..self.numbers))
    }

    fn touches(&self, o: &Open, at: KeyPlace, place: impl Fn(Key) -> Option<KeyPlace>) -> bool {
        let own = NodeId::compute(o.cn as u16);
        let touches = |out: &Outage| {
            let node = out.member.node;
            let meets = |p: &KeyPlace| p.leaf == at.leaf || (o.writes && p.excludes(&at));
            let its = |places: &Vec<KeyPlace>| places.iter().any(meets);
            let apart = |key: &Key| self.is_apart(*key, at, &place);
            let all_apart = |keys: &Vec<Key>| keys.iter().all(apart);
            // A get takes no lock.
            let locked = o.writes && !out.keys.as_ref().is_some_and(all_apart);
            let began = out.places.as_ref().is_none_or(its);
            node == own || at.owner == Some(node) || began || locked
        };
        self.outages.borrow().iter().any(touches)
    }
}
