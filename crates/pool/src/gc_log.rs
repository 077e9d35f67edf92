//! What a node tells a census of memory (`census.rs`): what it holds, and what it has granted or taken back since the census began.
//!
//! Whatever crosses a node's lists, in either direction, is noted while a window is open. An operation that begins after the window
//! was opened notes all that it takes and gives back: both sides have a sequentially consistent fence between the announcement of an
//! operation and the look at the flag, as in `epoch.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, Nanos, NodeId, Result, RpcFuture, RpcHandler, ServiceId,
};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::ids::{BlockPtr, TableId};
use crate::membership_agent::not_now;
use crate::node::PoolNode;
use crate::pieces::{self, Piece, Wanted};
use crate::wire::{self, Half, LONGEST_CALL_NS, Word, call_within, locked};

/// Windows, on every compute node.
pub(crate) const GC_LOG_SERVICE: ServiceId = ServiceId(0x13);

/// What the service is asked for, in the name of the census of a number.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Call {
    Open(Word),
    /// A page, from a place on.
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
/// A window that nobody closes is closed after so many notes: its census is dead.
const MAX_GC_LOG: usize = 1 << 20;

/// What a census asks a node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// What lies on its lists.
    Lists,
    /// What it has granted or taken back since the census began.
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

/// Time for which an open window refuses another census, after the last sign of its own, ns. The
/// window of a census that has died without a word is replaced after this time.
pub(crate) const WINDOW_HELD_NS: u64 = 250_000_000;

#[derive(Debug)]
struct Window {
    number: u64,
    /// Until when no other census may take its place, by this node's clock.
    held_until_ns: Nanos,
    gc_log: Vec<Span>,
    /// What is being collected, page by page.
    list: Vec<Span>,
}

/// One node's notes.
#[derive(Debug, Default)]
pub(crate) struct GcLog {
    open: AtomicBool,
    window: Mutex<Option<Window>>,
    /// What is neither in use nor on a list: the index will retire it later, or it is on its way to its memory node. By its beginning.
    pending: Mutex<BTreeMap<u64, Vec<Span>>>,
}

impl GcLog {
    /// A load and a branch while no census runs.
    #[inline]
    pub(crate) fn add(&self, span: impl FnOnce() -> Span) {
        if self.open.load(Ordering::Relaxed) {
            self.write_down(span());
        }
    }

    #[cold]
    fn write_down(&self, span: Span) {
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
    /// two censuses that begin at once: one of them comes to its end. If the later replaced the
    /// earlier, nodes that all look for room could stop each other for ever.
    fn begin(&self, number: u64, now: Nanos) -> Result<()> {
        let mut window = locked(&self.window);
        if window.as_ref().is_some_and(|w| w.number >= number || w.held_until_ns > now) {
            return Err(not_now("another census is under way".to_owned()));
        }
        let held_until_ns = now.saturating_add(WINDOW_HELD_NS);
        *window = Some(Window { number, held_until_ns, gc_log: Vec::new(), list: Vec::new() });
        self.open.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The census that has this window goes on. A window that is gone stays gone: its notes are
    /// lost, and what another census has found meanwhile must not be found again.
    fn hold(&self, number: u64, now: Nanos) -> Result<()> {
        match locked(&self.window).as_mut().filter(|w| w.number == number) {
            Some(w) => w.held_until_ns = now.saturating_add(WINDOW_HELD_NS),
            None => return Err(not_now("another census has taken its place".to_owned())),
        }
        Ok(())
    }

    fn is_held(&self, now: Nanos) -> bool {
        locked(&self.window).as_ref().is_some_and(|w| w.held_until_ns > now)
    }

    fn end(&self, number: u64) {
        let mut window = locked(&self.window);
        if window.as_ref().is_some_and(|w| w.number == number) {
            self.open.store(false, Ordering::SeqCst);
            *window = None;
        }
    }

    /// Keeps spans on this node's lists until [`GcLog::settle`].
    pub(crate) fn pend(&self, spans: &[Span]) {
        for s in spans {
            self.add(|| *s);
        }
        if let Some(first) = spans.first() {
            locked(&self.pending).insert(first.place(), spans.to_vec());
        }
    }

    /// What begins there is retired now, or is a memory node's again.
    pub(crate) fn settle(&self, at: GlobalAddr) {
        self.settle_place(at.bits());
    }

    /// The same for what begins with a span of this [`Span::place`].
    pub(crate) fn settle_place(&self, place: u64) {
        let spans = locked(&self.pending).get(&place).cloned();
        spans.iter().flatten().for_each(|s| self.add(|| *s));
        locked(&self.pending).remove(&place);
    }

    pub(crate) fn pending(&self) -> Vec<Span> {
        locked(&self.pending).values().flatten().copied().collect()
    }
}

impl PoolNode {
    /// An object and its table were unlinked as far as this node's records go, and this node is to retire them some time later: until
    /// then they are held by it.
    pub fn keep_for_later(&self, at: GlobalAddr, bytes: u64, table: Option<TableId>) {
        let object = Span::object(at, bytes);
        match table {
            Some(table) => self.gc_log.pend(&[object, Span::table(table)]),
            None => self.gc_log.pend(&[object]),
        }
    }

    /// What [`PoolNode::keep_for_later`] has named is about to be retired.
    pub fn kept_no_more(&self, at: GlobalAddr) {
        self.gc_log.settle(at);
    }

    /// Opens this node's window.
    pub(crate) fn open_window(&self, number: u64, now: Nanos) -> Result<()> {
        self.gc_log.begin(number, now)
    }

    pub(crate) fn hold_window(&self, number: u64, now: Nanos) -> Result<()> {
        self.gc_log.hold(number, now)
    }

    /// Whether this node's window is open for a census that has given a sign of itself lately.
    pub(crate) fn has_window(&self, now: Nanos) -> bool {
        self.gc_log.is_held(now)
    }

    pub(crate) fn close_window(&self, number: u64) {
        self.gc_log.end(number);
    }

    /// Lists, or notes since the window was opened. `None` when there is no such window (any more).
    pub(crate) fn look_through(&self, number: u64, what: Told) -> Option<Vec<Span>> {
        // The lists first: what leaves them meanwhile is noted.
        let mut all = if what == Told::GcLog { Vec::new() } else { self.listed() };
        let window = locked(&self.gc_log.window);
        let w = window.as_ref().filter(|w| w.number == number)?;
        if what != Told::Lists {
            all.extend(&w.gc_log);
        }
        Some(all)
    }

    /// All that lies on this node's lists. What moves from one to another meanwhile may be missed; it is noted.
    pub(crate) fn listed(&self) -> Vec<Span> {
        let mut out = self.limbo_list.spans();
        out.extend(self.gc_log.pending());
        let arenas: Vec<_> = locked(&self.arenas).values().cloned().collect();
        arenas.iter().for_each(|a| a.list(&mut out));
        let spaces: Vec<_> = locked(&self.blocks).values().cloned().collect();
        spaces.iter().for_each(|s| s.list(&mut out));
        self.tables.list(&mut out);
        out
    }

    fn page(&self, number: u64, from: usize, what: Told) -> Vec<u8> {
        if from == 0 {
            let Some(all) = self.look_through(number, what) else {
                return wire::encode(&NO_LIST);
            };
            if let Some(w) = locked(&self.gc_log.window).as_mut() {
                w.list = all;
            }
        }
        let window = locked(&self.gc_log.window);
        let Some(w) = window.as_ref().filter(|w| w.number == number) else {
            return wire::encode(&NO_LIST);
        };
        page_of(&w.list, from)
    }
}

/// In the place of a page's count.
const NO_LIST: Half = Half(u32::MAX);

/// One page of a list of spans: how many there are in all, then those from a place on.
pub(crate) fn page_of(all: &[Span], from: usize) -> Vec<u8> {
    let page = all.iter().skip(from).take(PAGE);
    wire::with_list(&Half(all.len() as u32), page.map(|s| s.packed()))
}

/// Answers a census, and nodes that have no room. Weak: a service that held its node would keep the node's fabric alive.
pub(crate) struct GcLogService(pub(crate) Weak<PoolNode>);

impl RpcHandler for GcLogService {
    fn call<'a>(&'a self, ep: &'a Endpoint, _from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let node = self.0.upgrade().ok_or_else(|| Error::invalid("the node is gone"))?;
            let mut rest = request;
            let call = wire::take_call("gc_log", &mut rest)?;
            wire::ends(rest)?;
            match call {
                Call::Lend(wanted) => return Ok(pieces::encode(&(), node.lend(wanted))),
                Call::Open(Word(number)) => node.open_window(number, ep.now())?,
                Call::Hold(Word(number)) => node.hold_window(number, ep.now())?,
                Call::Collect { number, what, from } => {
                    return Ok(node.page(number, from as usize, what));
                }
                Call::Close(Word(number)) => node.close_window(number),
            }
            Ok(Vec::new())
        })
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

pub(crate) async fn ask_open(ep: &Endpoint, to: NodeId, number: u64) -> Result<()> {
    ask(ep, to, Call::Open(Word(number))).await.map(|_| ())
}

pub(crate) async fn ask_hold(ep: &Endpoint, to: NodeId, number: u64) -> Result<()> {
    ask(ep, to, Call::Hold(Word(number))).await.map(|_| ())
}

pub(crate) async fn ask_close(ep: &Endpoint, to: NodeId, number: u64) -> Result<()> {
    ask(ep, to, Call::Close(Word(number))).await.map(|_| ())
}

/// What another node has noted, and holds; `None` when it knows of no such window.
pub(crate) async fn ask_collect(
    ep: &Endpoint,
    to: NodeId,
    number: u64,
    what: Told,
) -> Result<Option<Vec<Span>>> {
    all_pages(to, async |from: u32| ask(ep, to, Call::Collect { number, what, from }).await).await
}

/// All pages of a list of another node; `None` when it knows of no such list.
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

    fn noted(n: &GcLog) -> Option<Vec<Span>> {
        locked(&n.window).as_ref().map(|w| w.gc_log.clone())
    }

    fn span(start: u64) -> Span {
        Span::Bytes(start, 64)
    }

    #[test]
    fn a_window_gc_log_what_crosses_lists_while_it_is_open() {
        let n = GcLog::default();
        n.add(|| unreachable!("nothing is made up while no window is open"));
        n.begin(7, 0).expect("the first");
        n.add(|| span(64));
        n.begin(6, 0).expect_err("an older one");
        assert_eq!(noted(&n), Some(vec![span(64)]));
        n.end(6);
        n.add(|| span(128));
        assert_eq!(noted(&n), Some(vec![span(64), span(128)]));
        n.end(7);
        assert_eq!(noted(&n), None);
        n.add(|| unreachable!("closed"));
    }

    #[test]
    fn a_window_refuses_other_censuses_while_its_own_gives_signs() {
        let n = GcLog::default();
        n.begin(7, 0).expect("the first");
        n.add(|| span(64));
        let held = WINDOW_HELD_NS;
        assert_eq!(n.begin(8, held - 1).map_err(|e| e.kind()), Err(ErrorKind::Busy));
        n.hold(7, held - 1).expect("a sign");
        n.begin(8, 2 * held - 2).expect_err("held longer");
        assert_eq!(noted(&n), Some(vec![span(64)]));
        n.begin(8, 2 * held).expect("the earlier has died");
        assert_eq!(noted(&n), Some(Vec::new()), "the later begins anew");
        n.begin(7, 4 * held).expect_err("its place is taken");
        n.end(7);
        assert!(n.is_held(2 * held));
        n.end(8);
        n.hold(7, 2 * held).expect_err("its notes are lost");
        assert_eq!(noted(&n), None);
    }

    #[test]
    fn a_window_that_nobody_closes_closes_itself() {
        let n = GcLog::default();
        n.begin(1, 0).expect("the first");
        for i in 0..=MAX_GC_LOG as u64 {
            n.add(|| span(i * 64));
        }
        assert_eq!(noted(&n), None);
        n.begin(2, 0).expect("none is open");
        assert_eq!(noted(&n), Some(Vec::new()));
    }

    #[test]
    fn what_is_kept_for_later_is_listed_and_noted_twice() {
        let n = GcLog::default();
        let at = GlobalAddr::new(NodeId::memory(0), 4096);
        let (object, table) = (Span::object(at, 64), Span::lines(3, 5, 1));
        n.pend(&[object, table]);
        assert_eq!(n.pending(), [object, table]);
        n.begin(1, 0).expect("the first");
        n.settle(at);
        assert!(n.pending().is_empty());
        assert_eq!(noted(&n), Some(vec![object, table]), "on its way to another list");
        n.settle(at);
        assert_eq!(noted(&n).map(|s| s.len()), Some(2), "it is there once");
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
