//! The log that a compute node keeps for garbage collection (`gc.rs`): what it holds, and what it
//! has granted or taken back since the collection began.
//!
//! While a *window* is open, every span that crosses one of the node's lists, in either direction,
//! is appended to the log. The calls of a collector, all answered by [`GcLogService`]: *open*
//! (number), *hold*, *collect* (log, lists or both, page by page), *close*. The same service
//! answers *lend* of nodes that have no room (`lend.rs`).
//!
//! Invariants.
//!
//! - An operation that begins after the window opened logs all that it takes and gives back. Both
//!   sides have a sequentially consistent barrier between the announcement of an operation and the
//!   look at the flag, as in `epoch.rs`. The barriers of the collection wait for the operations
//!   that began before.
//! - A span is logged *before* it leaves a list, and the lists are reported before the log. So what
//!   moves from one list to another during the report shows up in the log at the latest.
//! - *Pending* spans are neither in use nor free: the index retires them later, or they are on
//!   their way to a memory node. They count as listed from [`GcLog::pend`] to [`GcLog::unpend`],
//!   and both ends are logged.
//! - One window at a time. Windows are opened at all members in the same order, so the first member
//!   decides between two collections that begin at once. A window that was held within 250 ms
//!   refuses another collection.
//!
//! Crashes. A collector that dies leaves its window open: the next collection replaces it when it
//! was not held for 250 ms, or it closes itself after 2^20 entries. A window that is gone stays
//! gone, because its log is lost: the collector that asks for it again fails and begins anew. A
//! node that restarts has no window, so the collection fails as it must.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

use dmtree_fabric::{Endpoint, Error, GlobalAddr, Nanos, NodeId, Result, Service, ServiceId};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::gc::GarbageCollection;
use crate::ids::{BlockPtr, TableId};
use crate::node::PoolNode;
use crate::pieces::{self, Piece, Wanted};
use crate::wire::{self, Half, LONGEST_CALL_NS, Word, call_within, locked};

/// Windows, on every compute node.
pub(crate) const GC_LOG_SERVICE: ServiceId = ServiceId(0x13);

/// A call of the service, most for the garbage collection of a number.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Call {
    Open(Word),
    /// A page of a report.
    Collect {
        #[serde(with = "fixint::le")]
        number: u64,
        what: Told,
        #[serde(with = "fixint::le")]
        from: u32,
    },
    Close(Word),
    /// Free memory, for a node that has none.
    Lend(Wanted),
    Hold(Word),
}

/// Spans of one reply.
pub(crate) const PAGE: usize = 3000;
/// A window closes itself after so many entries: its collector is dead.
const MAX_GC_LOG: usize = 1 << 20;

/// The part of a report that a collector asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// The spans on its lists.
    Lists,
    /// The spans that it has granted or taken back since the collection began.
    GcLog,
    /// Both.
    All,
}

/// Memory that has one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// Bytes of a memory node, from an address on.
    Bytes(u64, u64),
    /// Lines of a table partition, from a place on: partition in the upper half, line in the lower.
    Lines(u64, u64),
}

impl Span {
    /// An object.
    pub fn object(at: GlobalAddr, bytes: u64) -> Self {
        Self::Bytes(at.bits(), bytes)
    }

    /// A block.
    pub fn block(b: BlockPtr) -> Self {
        Self::Bytes(b.addr().bits(), u64::from(b.capacity()))
    }

    /// A table cell; nothing when no such cell can exist.
    pub fn table(t: TableId) -> Self {
        match t.partition() {
            Some(p) => Self::lines(p, t.first_line(), u64::from(t.lines())),
            None => Self::Lines(0, 0),
        }
    }

    /// The table cell with these lines; `None` for bytes.
    pub(crate) fn as_table(self) -> Option<TableId> {
        match self {
            Self::Bytes(..) => None,
            Self::Lines(start, lines) => {
                let first = start & ((1 << 40) - 1);
                let is_cell = (1..=u64::from(u8::MAX)).contains(&lines);
                is_cell.then(|| TableId::new((start >> 40) as u16, lines as u8, first))
            }
        }
    }

    pub(crate) fn lines(partition: u16, first: u64, lines: u64) -> Self {
        Self::Lines(u64::from(partition) << 40 | first, lines)
    }

    /// A number for where it begins: bytes and lines never have the same.
    pub(crate) fn place(self) -> u64 {
        match self {
            Self::Bytes(start, _) => start,
            // No address has the highest bit: memory nodes have small numbers.
            Self::Lines(start, _) => start | 1 << 63,
        }
    }

    fn packed(self) -> (Word, Word) {
        match self {
            Self::Bytes(start, len) => (Word(start), Word(len)),
            Self::Lines(start, len) => (Word(start), Word(len | 1 << 63)),
        }
    }

    fn unpacked((Word(start), Word(len)): (Word, Word)) -> Self {
        match len >> 63 {
            0 => Self::Bytes(start, len),
            _ => Self::Lines(start, len & !(1 << 63)),
        }
    }
}

/// Time for which an open window refuses another collection, after it was last held, ns. The
/// window of a dead collector is replaced after this time.
pub(crate) const WINDOW_HELD_NS: u64 = 250_000_000;

#[derive(Debug)]
struct Window {
    number: u64,
    /// Until when no other collection may take its place, by this node's clock.
    held_until_ns: Nanos,
    gc_log: Vec<Span>,
    /// The report that is being read, page by page.
    list: Vec<Span>,
}

/// Spans that are pending together, and the index that is to retire them.
#[derive(Clone, Debug)]
struct Pending {
    index: Option<u32>,
    spans: Vec<Span>,
}

/// The log of one node.
#[derive(Debug, Default)]
pub(crate) struct GcLog {
    open: AtomicBool,
    window: Mutex<Option<Window>>,
    /// Spans that are neither in use nor on a list: the index will retire them later, or they are
    /// on their way to a memory node. By the place of the first of each group.
    pending: Mutex<BTreeMap<u64, Pending>>,
}

impl GcLog {
    /// Appends a span if a window is open. A load and a branch while none is.
    #[inline]
    pub(crate) fn add(&self, span: impl FnOnce() -> Span) {
        if self.open.load(Ordering::Relaxed) {
            self.append(span());
        }
    }

    #[cold]
    fn append(&self, span: Span) {
        let mut window = locked(&self.window);
        let Some(w) = window.as_mut() else { return };
        w.gc_log.push(span);
        if w.gc_log.len() > MAX_GC_LOG {
            self.open.store(false, Ordering::SeqCst);
            *window = None;
        }
    }

    /// Opens a window.
    ///
    /// Windows are opened at all members in the same order, so the first member decides between
    /// two collections that begin at once, and one of them completes. If the later replaced the
    /// earlier, nodes that all look for room could stop each other for ever.
    pub(crate) fn begin(&self, number: u64, now: Nanos) -> Result<()> {
        let mut window = locked(&self.window);
        if window.as_ref().is_some_and(|w| w.number >= number || w.held_until_ns > now) {
            return Err(Error::busy("another garbage collection is under way"));
        }
        let held_until_ns = now.saturating_add(WINDOW_HELD_NS);
        *window = Some(Window { number, held_until_ns, gc_log: Vec::new(), list: Vec::new() });
        self.open.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The collection that has this window goes on. A window that is gone stays gone: its log is
    /// lost, and memory that another collection has found meanwhile must not be found again.
    pub(crate) fn hold(&self, number: u64, now: Nanos) -> Result<()> {
        match locked(&self.window).as_mut().filter(|w| w.number == number) {
            Some(w) => w.held_until_ns = now.saturating_add(WINDOW_HELD_NS),
            None => {
                return Err(Error::busy("another garbage collection has taken its place"));
            }
        }
        Ok(())
    }

    /// Whether a window is open for a collection that has held it lately.
    pub(crate) fn is_held(&self, now: Nanos) -> bool {
        locked(&self.window).as_ref().is_some_and(|w| w.held_until_ns > now)
    }

    pub(crate) fn end(&self, number: u64) {
        let mut window = locked(&self.window);
        if window.as_ref().is_some_and(|w| w.number == number) {
            self.open.store(false, Ordering::SeqCst);
            *window = None;
        }
    }

    /// Lists spans as pending until [`GcLog::unpend`].
    pub(crate) fn pend(&self, index: Option<u32>, spans: &[Span]) {
        for s in spans {
            self.add(|| *s);
        }
        if let Some(first) = spans.first() {
            let pending = Pending { index, spans: spans.to_vec() };
            locked(&self.pending).insert(first.place(), pending);
        }
    }

    /// The spans pended there are retired now, or belong to a memory node again.
    pub(crate) fn unpend(&self, at: GlobalAddr) {
        self.unpend_place(at.bits());
    }

    /// The same for the group that begins at this [`Span::place`].
    pub(crate) fn unpend_place(&self, place: u64) {
        let pending = locked(&self.pending).get(&place).cloned();
        pending.iter().flat_map(|p| &p.spans).for_each(|s| self.add(|| *s));
        locked(&self.pending).remove(&place);
    }

    pub(crate) fn pending(&self) -> Vec<Span> {
        locked(&self.pending).values().flat_map(|p| &p.spans).copied().collect()
    }

    /// Those that an index is to retire.
    pub(crate) fn pending_of(&self, index: u32) -> Vec<Span> {
        let pending = locked(&self.pending);
        let of = pending.values().filter(|p| p.index == Some(index));
        of.flat_map(|p| &p.spans).copied().collect()
    }

    /// The index retires nothing any more.
    pub(crate) fn unpend_index(&self, index: u32) {
        locked(&self.pending).retain(|_, pending| pending.index != Some(index));
    }
}

impl GarbageCollection<'_> {
    /// An object and its table were unlinked, and this node is to retire them some time later:
    /// until then it holds them.
    pub fn log_pending(self, index: u32, (at, bytes): (GlobalAddr, u64), table: Option<TableId>) {
        let object = Span::object(at, bytes);
        match table {
            Some(table) => self.0.gc_log.pend(Some(index), &[object, Span::table(table)]),
            None => self.0.gc_log.pend(Some(index), &[object]),
        }
    }

    /// An object and its table are about to leave the index, and others may still lead to them. A
    /// collection that runs may not meet the object any more, where its place is another one's:
    /// logged, it is left to the next one, whatever becomes of the client that unlinks it.
    pub fn log_leaving(self, (at, bytes): (GlobalAddr, u64), table: Option<TableId>) {
        self.0.gc_log.add(|| Span::object(at, bytes));
        if let Some(table) = table {
            self.0.gc_log.add(|| Span::table(table));
        }
    }

    /// The spans of [`GarbageCollection::log_pending`] are about to be retired.
    pub fn log_retired(self, at: GlobalAddr) {
        self.0.gc_log.unpend(at);
    }

    /// The lists, or the log since the window was opened, or both. `None` when there is no such
    /// window (any more).
    pub(crate) fn report(self, number: u64, what: Told) -> Option<Vec<Span>> {
        // The lists first: what leaves them meanwhile is logged.
        let mut all = if what == Told::GcLog { Vec::new() } else { self.listed() };
        let window = locked(&self.0.gc_log.window);
        let w = window.as_ref().filter(|w| w.number == number)?;
        if what != Told::Lists {
            all.extend(&w.gc_log);
        }
        Some(all)
    }

    /// All that lies on this node's lists. A span that moves from one to another meanwhile may be
    /// missed here; it is logged.
    pub(crate) fn listed(self) -> Vec<Span> {
        let mut out = self.0.limbo_list.spans();
        out.extend(self.0.gc_log.pending());
        let arenas: Vec<_> = locked(&self.0.arenas).values().cloned().collect();
        arenas.iter().for_each(|a| a.list(&mut out));
        let spaces: Vec<_> = locked(&self.0.blocks).values().cloned().collect();
        spaces.iter().for_each(|s| s.list(&mut out));
        self.0.tables.list(&mut out);
        self.0.owners.images().list(&mut out);
        out
    }

    fn page(self, number: u64, from: usize, what: Told) -> Vec<u8> {
        if from == 0 {
            let Some(all) = self.report(number, what) else {
                return wire::encode(&NO_LIST);
            };
            if let Some(w) = locked(&self.0.gc_log.window).as_mut() {
                w.list = all;
            }
        }
        let window = locked(&self.0.gc_log.window);
        let Some(w) = window.as_ref().filter(|w| w.number == number) else {
            return wire::encode(&NO_LIST);
        };
        page_of(&w.list, from)
    }
}

/// Instead of the number of spans of a report: there is no such report.
const NO_LIST: Half = Half(u32::MAX);

/// One page of a list of spans: how many there are in all, then those from a place on.
pub(crate) fn page_of(all: &[Span], from: usize) -> Vec<u8> {
    let page = all.iter().skip(from).take(PAGE);
    wire::with_list(&Half(all.len() as u32), page.map(|s| s.packed()))
}

/// Answers collectors, and nodes that have no room. Weak: a service that held its node would keep
/// the node's fabric alive.
pub(crate) struct GcLogService(pub(crate) Weak<PoolNode>);

impl Service for GcLogService {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let node = self.0.upgrade().ok_or_else(|| Error::invalid("the node is gone"))?;
        let mut rest = request;
        let call = wire::take_call("the log of a node", &mut rest)?;
        wire::ends(rest)?;
        match call {
            Call::Lend(wanted) => return Ok(pieces::encode(&(), node.supply().lend(wanted))),
            Call::Open(Word(number)) => node.gc_log.begin(number, ep.now())?,
            Call::Hold(Word(number)) => node.gc_log.hold(number, ep.now())?,
            Call::Collect { number, what, from } => {
                return Ok(node.collection().page(number, from as usize, what));
            }
            Call::Close(Word(number)) => node.gc_log.end(number),
        }
        Ok(Vec::new())
    }
}

async fn ask(ep: &Endpoint, to: NodeId, call: Call) -> Result<Vec<u8>> {
    call_within(ep, LONGEST_CALL_NS, to, GC_LOG_SERVICE, &wire::encode(&call)).await
}

/// Asks a node for free memory.
pub(crate) async fn ask_lend(
    ep: &Endpoint,
    to: NodeId,
    wanted: Wanted,
) -> Result<Vec<(Piece, bool)>> {
    pieces::decode(&ask(ep, to, Call::Lend(wanted)).await?)
}

/// Opens, holds or closes the window of another node.
pub(crate) async fn tell(
    ep: &Endpoint,
    to: NodeId,
    call: fn(Word) -> Call,
    number: u64,
) -> Result<()> {
    ask(ep, to, call(Word(number))).await.map(drop)
}

/// The log and lists of another node; `None` when it has no such window.
pub(crate) async fn ask_collect(
    ep: &Endpoint,
    to: NodeId,
    number: u64,
    what: Told,
) -> Result<Option<Vec<Span>>> {
    all_pages(to, async |from: u32| ask(ep, to, Call::Collect { number, what, from }).await).await
}

/// All pages of a report of another node; `None` when it has no such report.
pub(crate) async fn all_pages(
    of: NodeId,
    page: impl AsyncFn(u32) -> Result<Vec<u8>>,
) -> Result<Option<Vec<Span>>> {
    let mut out = Vec::new();
    loop {
        let reply = page(out.len() as u32).await?;
        let mut rest = &reply[..];
        let count: Half = wire::take(&mut rest)?;
        if count == NO_LIST {
            return Ok(None);
        }
        let (total, before) = (count.0, out.len());
        out.extend(wire::decode_list(rest)?.into_iter().map(Span::unpacked));
        if out.len() >= total as usize {
            return Ok(Some(out));
        }
        if out.len() == before {
            return Err(Error::corrupt(format!("{of} lists {total} spans and shows {before}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use dmtree_fabric::ErrorKind;

    use super::*;

    fn logged(n: &GcLog) -> Option<Vec<Span>> {
        locked(&n.window).as_ref().map(|w| w.gc_log.clone())
    }

    fn span(start: u64) -> Span {
        Span::Bytes(start, 64)
    }

    #[test]
    fn an_open_window_logs_what_crosses_the_lists() {
        let n = GcLog::default();
        n.add(|| unreachable!("no span is made while no window is open"));
        n.begin(7, 0).expect("the first");
        n.add(|| span(64));
        n.begin(6, 0).expect_err("an older one");
        assert_eq!(logged(&n), Some(vec![span(64)]));
        n.end(6);
        n.add(|| span(128));
        assert_eq!(logged(&n), Some(vec![span(64), span(128)]));
        n.end(7);
        assert_eq!(logged(&n), None);
        n.add(|| unreachable!("closed"));
    }

    #[test]
    fn a_held_window_refuses_other_collections() {
        let n = GcLog::default();
        n.begin(7, 0).expect("the first");
        n.add(|| span(64));
        let held = WINDOW_HELD_NS;
        assert_eq!(n.begin(8, held - 1).map_err(|e| e.kind()), Err(ErrorKind::Busy));
        n.hold(7, held - 1).expect("held");
        n.begin(8, 2 * held - 2).expect_err("held longer");
        assert_eq!(logged(&n), Some(vec![span(64)]));
        n.begin(8, 2 * held).expect("the earlier is dead");
        assert_eq!(logged(&n), Some(Vec::new()), "the later begins anew");
        n.begin(7, 4 * held).expect_err("its place is taken");
        n.end(7);
        assert!(n.is_held(2 * held));
        n.end(8);
        n.hold(7, 2 * held).expect_err("its log is lost");
        assert_eq!(logged(&n), None);
    }

    #[test]
    fn an_abandoned_window_closes_itself() {
        let n = GcLog::default();
        n.begin(1, 0).expect("the first");
        for i in 0..=MAX_GC_LOG as u64 {
            n.add(|| span(i * 64));
        }
        assert_eq!(logged(&n), None);
        n.begin(2, 0).expect("none is open");
        assert_eq!(logged(&n), Some(Vec::new()));
    }

    #[test]
    fn deferred_retirement_is_listed_and_logged_twice() {
        let n = GcLog::default();
        let at = GlobalAddr::new(NodeId::memory(0), 4096);
        let (object, table) = (Span::object(at, 64), Span::lines(3, 5, 1));
        n.pend(None, &[object, table]);
        assert_eq!(n.pending(), [object, table]);
        n.begin(1, 0).expect("the first");
        n.unpend(at);
        assert!(n.pending().is_empty());
        assert_eq!(logged(&n), Some(vec![object, table]), "on its way to another list");
        n.unpend(at);
        assert_eq!(logged(&n).map(|s| s.len()), Some(2), "it is there once");
    }

    #[test]
    fn spans_survive_the_wire() {
        for s in [Span::Bytes(1 << 50, 1 << 20), Span::lines(4095, 70, 3)] {
            let bytes = wire::encode(&s.packed());
            assert_eq!(bytes.len(), 16);
            assert_eq!(wire::decode(&bytes).map(Span::unpacked).expect("whole"), s);
        }
    }
}
