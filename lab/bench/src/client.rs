//! The loop of one client: draws operations, executes, measures and checks them.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dmtree_check::conformance::{above, everything};
use dmtree_fabric::{Effect, Error, ErrorKind, Snapshot, Stage};
use dmtree_parts::{AnyIndex, Outcome, Page, Resume, Write};
use dmtree_workload::{Op, OpKind, Phase, Plan, Seed};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::config::Measure;
use crate::instructions::Instructions;
use crate::latency::ByKind;
use crate::offered::Arrivals;
use crate::opened::PlacedClient;
use crate::oracle::{Oracle, shown};
use crate::phases::{Written, settle};
use crate::series::Recorder;
use crate::window::{Ending, Window};

/// Errors that a client keeps as text.
const SAMPLES: usize = 5;
/// A client stops after this many errors.
const MAX_ERRORS: u64 = 1000;
/// Operations between two checks of the stop flag, and between two yields.
const STEP: u64 = 16;
/// How long a cell continues after its time to reach the minimum number of operations.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The orders that all clients of a cell share.
#[derive(Debug)]
pub struct Orders {
    /// The workload.
    pub plan: Arc<Plan>,
    /// The loaded keys in order, to check scans.
    pub oracle: Option<Arc<Oracle>>,
    /// Number of the first client's stream.
    pub first_stream: u32,
    /// Length of the measured phase.
    pub time: Option<Duration>,
    /// Minimum number of operations of a client, also beyond the time.
    pub min_ops: u64,
    /// Operations left for all clients, if they are limited.
    pub left: Option<AtomicI64>,
    /// Number of inserts that fit into memory, or that the index was told of.
    pub insert_room: u64,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Operations done so far, for progress.
    pub done: AtomicU64,
    /// Start of the phase, ns of the fabric's clock.
    pub start: OnceLock<u64>,
    /// Clients start within this time, ns.
    pub spread_ns: u64,
    /// Seed of the start times.
    pub seed: Seed,
    /// When operations fall due; `None` for a closed load.
    pub arrivals: Option<Arrivals>,
    /// The measuring window; simulated fabric only.
    pub window: Option<Window>,
    /// Counts of the window, once it has closed.
    pub counted: OnceLock<Snapshot>,
    /// Operations of a client between two calls of maintenance.
    pub maintain_every: u64,
    /// Records the cell over time.
    pub series: Option<Recorder>,
    /// Client threads of a compute node.
    pub threads: u32,
    /// The numbers that phases have put, if this is one.
    pub written: Option<Arc<Written>>,
    /// Which operations the figures cover, if there is a window.
    pub measure: Measure,
    /// Whether the time of operations is measured step by step.
    pub steps: bool,
    /// What operations are charged for, where CPU is counted.
    pub instructions: Option<Instructions>,
}

/// Why a client stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Its time was over.
    #[default]
    Duration,
    /// All operations were done.
    Operations,
    /// The workload has no more operations.
    #[serde(rename = "used up")]
    UsedUp,
    /// The memory is full.
    Memory,
    /// Too many errors.
    Errors,
    /// The user stopped it.
    Interrupted,
}

/// The result of one client.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations that are measured: acknowledged, and in the measuring window if there is one.
    pub ops: u64,
    /// Operations that the verb counters cover.
    pub counted: u64,
    /// Acknowledged operations, including those of ramps.
    pub all_ops: u64,
    /// Keys inserted.
    pub inserted: u64,
    /// Keys deleted.
    pub deleted: u64,
    /// Number of scans, and of pairs that they returned.
    pub scans: (u64, u64),
    /// Wrong results and failed operations.
    pub errors: u64,
    /// Writes with unknown effect.
    pub unknown: u64,
    /// The first errors, as text.
    pub samples: Vec<String>,
    /// Latencies.
    pub latency: ByKind,
    /// Time from the start of the phase to its end.
    pub elapsed: Duration,
    /// The same to the end of the background work that was due then.
    pub settled: Duration,
    /// Why the client stopped.
    pub ended: Ended,
}

impl Tally {
    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(what());
        }
    }

    /// Something is wrong beside operations.
    pub(crate) fn found(&mut self, what: String) {
        self.errors += 1;
        self.samples.push(what);
    }

    /// Counts an acknowledged operation.
    fn acknowledged(&mut self, op: &Op<'_>, b: &Buffers) {
        self.all_ops += b.counts(op);
        match op.kind {
            OpKind::Insert => self.inserted += 1,
            OpKind::Delete => self.deleted += 1,
            OpKind::Scan | OpKind::Pass => {
                self.scans.0 += 1;
                self.scans.1 += b.found().map(Page::len).sum::<usize>() as u64;
            }
            _ => {}
        }
    }

    fn failed(&mut self, e: &Error, what: impl FnOnce() -> String) {
        self.unknown += u64::from(e.effect() == Effect::Unknown);
        self.wrong(|| format!("{}: {e}", what()));
    }

    /// Adds the tally of another client.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.counted += other.counted;
        self.all_ops += other.all_ops;
        self.inserted += other.inserted;
        self.deleted += other.deleted;
        self.scans.0 += other.scans.0;
        self.scans.1 += other.scans.1;
        self.errors += other.errors;
        self.unknown += other.unknown;
        let room = SAMPLES.saturating_sub(self.samples.len());
        self.samples.extend(other.samples.iter().take(room).cloned());
        self.latency.add(&other.latency);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.settled = self.settled.max(other.settled);
        self.ended = self.ended.max(other.ended);
    }
}

/// Buffers that a client reuses.
#[derive(Default)]
struct Buffers {
    value: Vec<u8>,
    /// Pages of the last scan.
    pages: Vec<Page>,
    /// Number of pages in use.
    used: usize,
    /// Whether the index has reported that nothing follows.
    exhausted: bool,
    /// Where a pass goes on.
    resume: Option<Resume>,
    /// Whether entries count, not operations that read them.
    entries_count: bool,
}

impl Buffers {
    /// As how many operations the last one counts.
    fn counts(&self, op: &Op<'_>) -> u64 {
        match op.kind {
            OpKind::Scan | OpKind::Pass if self.entries_count => {
                self.found().map(Page::len).sum::<usize>() as u64
            }
            _ => 1,
        }
    }

    /// The pages of the last scan.
    fn found(&self) -> impl Iterator<Item = &Page> {
        self.pages[..self.used].iter()
    }
}

/// The measured phase of a client.
pub async fn work(mut placed: PlacedClient, o: Arc<Orders>) -> Tally {
    let mut t = Tally::default();
    let entries_count = o.written.is_some();
    let mut b = Buffers { entries_count, ..Buffers::default() };
    let number = o.first_stream.wrapping_add(placed.number);
    let mut stream = o.plan.stream_of(number, placed.cn as u32);
    placed.ep.reset_counters();
    placed.ep.set_timed_steps(o.steps);
    let mut turns = Turns::new(&o, *o.start.get_or_init(|| placed.ep.now()));
    if o.spread_ns > 0 {
        let mut rng = o.seed.numbered("start", u64::from(placed.number)).rng();
        placed.ep.sleep(rng.below(o.spread_ns)).await;
    }
    t.ended = loop {
        let due = match turns.next(&mut placed, &t).await {
            Ok(due) => due,
            Err(ended) => break ended,
        };
        let Some(op) = stream.next() else { break Ended::UsedUp };
        if op.kind == OpKind::Insert && op.record >= o.plan.spec.records + o.insert_room {
            break Ended::Memory;
        }
        if let Some(w) = &o.window {
            w.begin(placed.ep.now());
        }
        let began = due.unwrap_or_else(|| placed.ep.now());
        if let Some(counts) = &o.instructions {
            placed.ep.stage_cost(Stage::Operation, counts.executes(&op));
        }
        let result = one(&mut placed.client, &o, &op, &mut b).await;
        let ended = placed.ep.now();
        let counts = b.counts(&op);
        let inside = turns.end(&placed, ended, counts);
        t.counted += if inside { counts } else { 0 };
        match result {
            Ok(checked) => {
                t.acknowledged(&op, &b);
                let took = ended.saturating_sub(began);
                if let Some(series) = &o.series {
                    series.ended(&placed.ep, ended.saturating_sub(turns.start), op.kind, took);
                }
                if inside {
                    t.ops += counts;
                    placed.latency.borrow_mut().record(op.kind, took);
                }
                if let Err(wrong) = checked.and_then(|()| check_scan(&o, &op, &b)) {
                    t.wrong(|| format!("{} of {}: {wrong}", op.kind, shown(op.key)));
                }
            }
            Err(e) if e.kind() == ErrorKind::Full && turns.writes => break Ended::Memory,
            Err(e) => {
                t.failed(&e, || format!("{} of {}", op.kind, shown(op.key)));
                if t.errors > MAX_ERRORS {
                    break Ended::Errors;
                }
            }
        }
        if turns.late(ended, t.ops) {
            break Ended::Duration;
        }
        if op.kind == OpKind::Pass && b.exhausted {
            break Ended::Operations;
        }
    };
    turns.run_dry(&placed);
    t.elapsed = Duration::from_nanos(placed.ep.now().saturating_sub(turns.start));
    if o.plan.spec.workload.phase.is_some_and(Phase::writes) {
        if let Err(why) = settle(&mut placed.client, &placed.ep).await {
            t.wrong(|| why);
        }
        t.settled = Duration::from_nanos(placed.ep.now().saturating_sub(turns.start));
    }
    stream.acknowledge();
    turns.report(&t);
    if let Err(e) = placed.ep.drain().await {
        t.wrong(|| format!("finishing detached verbs: {e}"));
    }
    // The last client of the executor takes the latencies that all of them have recorded.
    if Rc::strong_count(&placed.latency) == 1 {
        t.latency = placed.latency.take();
    }
    t
}

/// Decides when a client begins its operations, and when it stops.
struct Turns<'o> {
    o: &'o Orders,
    /// Start of the phase, ns.
    start: u64,
    /// End of the phase, ns, if no window determines it.
    deadline: Option<u64>,
    /// Only operations that end in the window count. The verb counters, which all clients share,
    /// start with the window and are read at its end.
    windowed: bool,
    /// Whether the workload changes the set of keys.
    writes: bool,
    turn: u64,
    /// Operations that progress reports include.
    reported: u64,
}

impl<'o> Turns<'o> {
    fn new(o: &'o Orders, start: u64) -> Self {
        let mix = o.plan.spec.workload.mix();
        Self {
            o,
            start,
            deadline: o.time.map(|d| start + clock::nanos(d)).filter(|_| o.window.is_none()),
            windowed: o.window.is_some() && o.measure == Measure::Window,
            writes: [OpKind::Insert, OpKind::Delete, OpKind::Put]
                .into_iter()
                .any(|kind| mix.weight(kind) > 0),
            turn: 0,
            reported: 0,
        }
    }

    /// Waits until the next operation may begin. Returns when it fell due (open load), or why the
    /// client stops.
    async fn next(&mut self, placed: &mut PlacedClient, t: &Tally) -> Result<Option<u64>, Ended> {
        if self.turn.is_multiple_of(STEP) {
            self.report(t);
            if self.o.stop.load(Ordering::Relaxed) {
                return Err(Ended::Interrupted);
            }
            if placed.shares_thread {
                placed.ep.yield_now().await;
            }
        }
        let is_due = self.turn.is_multiple_of(self.o.maintain_every) && self.turn > 0;
        if is_due && (self.writes || placed.client.has_read_work()) {
            // The checks report what maintenance finds broken.
            let _ = placed.client.maintain().await;
        }
        if self.o.written.is_some() && self.o.window.is_some() {
            // An operation without verbs takes its thread's time alone: the clock of the fabric
            // must follow before the next one, or other clients would not begin.
            placed.ep.sleep(0).await;
        }
        self.turn += 1;
        let closed = || self.o.window.as_ref().is_some_and(Window::closed);
        match &self.o.left {
            None if closed() => return Err(Ended::Operations),
            Some(left) if left.fetch_sub(1, Ordering::Relaxed) <= 0 => {
                return Err(Ended::Operations);
            }
            _ => {}
        }
        let Some(arrivals) = &self.o.arrivals else { return Ok(None) };
        let due = self.start + arrivals.take(placed.cn);
        let now = placed.ep.now();
        if due > now {
            placed.ep.sleep(due - now).await;
            if closed() || self.deadline.is_some_and(|d| due >= d) {
                return Err(Ended::Duration);
            }
        }
        Ok(Some(due))
    }

    /// Records the end of an operation; returns whether it counts.
    fn end(&self, placed: &PlacedClient, now: u64, counts: u64) -> bool {
        let window = self.o.window.as_ref();
        let ending = window.map_or(Ending::Inside, |w| w.end(self.start, now, counts));
        match (self.windowed, ending) {
            (true, Ending::Opens) => {
                if let Some(series) = &self.o.series {
                    series.before_reset(&placed.ep);
                }
                placed.ep.reset_counters();
            }
            (true, Ending::Closes) => self.read_counters(placed),
            _ => {}
        }
        !self.windowed || matches!(ending, Ending::Inside | Ending::Closes)
    }

    /// Records that this client stops. A window that is still open ends here, before clients stop
    /// one by one.
    fn run_dry(&self, placed: &PlacedClient) {
        if let Some(w) = &self.o.window
            && w.run_dry(placed.ep.now())
            && self.windowed
        {
            self.read_counters(placed);
        }
    }

    fn read_counters(&self, placed: &PlacedClient) {
        let _ = self.o.counted.set(placed.ep.snapshot());
    }

    /// Whether the time is over.
    fn late(&self, now: u64, ops: u64) -> bool {
        self.deadline.is_some_and(|d| now >= d && (ops >= self.o.min_ops || now >= d + PATIENCE_NS))
    }

    fn report(&mut self, t: &Tally) {
        self.o.done.fetch_add(t.all_ops - self.reported, Ordering::Relaxed);
        self.reported = t.all_ops;
    }
}

type Checked = Result<(), String>;

/// Whether a stored key may be absent.
fn deletes(o: &Orders) -> bool {
    o.plan.spec.workload.mix().weight(OpKind::Delete) > 0
}

/// Checks the read of a stored key.
fn read(o: &Orders, key: &[u8], found: bool, value: &[u8]) -> Checked {
    if found {
        return o.plan.check_value(key, value).map_err(|m| m.to_string());
    }
    if deletes(o) { Ok(()) } else { Err("a stored key is reported absent".to_owned()) }
}

/// Executes one operation. Long checks that need no index are left to the caller, outside of the
/// measured time.
///
/// # Errors
/// Those of the index, and an outcome that makes the operation count for nothing.
async fn one(
    client: &mut AnyIndex,
    o: &Orders,
    op: &Op<'_>,
    b: &mut Buffers,
) -> Result<Checked, Error> {
    let other = |what: &str, outcome| Err(Error::corrupt(format!("{what} gives {outcome:?}")));
    let Op { key, value, .. } = *op;
    Ok(match op.kind {
        OpKind::Read => {
            let found = client.get(key, &mut b.value).await?;
            read(o, key, found, &b.value)
        }
        OpKind::ReadAbsent => match client.get(key, &mut b.value).await? {
            true => Err("a key that was never stored is found".to_owned()),
            false => Ok(()),
        },
        OpKind::Insert => match client.write(key, Write::Insert(value)).await? {
            Outcome::Done => Ok(()),
            outcome => return other("the insert of a new key", outcome),
        },
        OpKind::Update => updated(client.write(key, Write::Update(value)).await?, deletes(o)),
        OpKind::ReadModifyWrite => {
            let found = client.get(key, &mut b.value).await?;
            let read = read(o, key, found, &b.value);
            let outcome = client.write(key, Write::Update(value)).await?;
            read.and_then(|()| updated(outcome, deletes(o)))
        }
        OpKind::Delete => match client.write(key, Write::Delete).await? {
            Outcome::Done => Ok(()),
            outcome => return other("the delete of a stored key", outcome),
        },
        OpKind::Scan => scan(client, key, op.len as usize, b).await.map(Ok)?,
        OpKind::Pass => pass(client, op.len as usize, b).await.map(Ok)?,
        OpKind::Get => {
            let was = o.written.as_ref().is_some_and(|w| w.has(op.record));
            let found = client.get(key, &mut b.value).await?;
            let value = if found { o.plan.check_value(key, &b.value) } else { Ok(()) };
            let writes = o.plan.spec.workload.mix().weight(OpKind::Put) > 0;
            let known =
                o.written.as_ref().map_or(Ok(()), |w| w.check(op.record, was, found, writes));
            value.map_err(|m| m.to_string()).and(known)
        }
        OpKind::Put => match client.write(key, Write::Put(value)).await {
            Ok(Outcome::Done) => {
                o.written.iter().for_each(|w| w.add(op.record));
                Ok(())
            }
            Ok(outcome) => return other("a put", outcome),
            Err(e) => {
                o.written.iter().for_each(|w| w.failed());
                return Err(e);
            }
        },
    })
}

/// Scans from a key on, page by page; the pages stay in the buffers.
async fn scan(client: &mut AnyIndex, key: &[u8], len: usize, b: &mut Buffers) -> Result<(), Error> {
    let (mut resume, mut pairs) = (None, 0usize);
    b.used = 0;
    b.exhausted = false;
    while pairs < len && !b.exhausted {
        if b.pages.len() == b.used {
            b.pages.push(Page::new());
        }
        let page = &mut b.pages[b.used];
        page.clear();
        let r = above(key, len - pairs);
        resume = client.scan(&r.after(resume.as_ref()), page).await?;
        pairs += page.len();
        b.used += 1;
        b.exhausted = resume.is_none();
    }
    Ok(())
}

/// The next entries of a pass.
async fn pass(client: &mut AnyIndex, len: usize, b: &mut Buffers) -> Result<(), Error> {
    if b.pages.is_empty() {
        b.pages.push(Page::new());
    }
    b.used = 1;
    b.pages[0].clear();
    let all = everything(len);
    let next = client.scan(&all.after(b.resume.as_ref()), &mut b.pages[0]).await?;
    b.exhausted = next.is_none();
    b.resume = next;
    Ok(())
}

fn updated(outcome: Outcome, deletes: bool) -> Checked {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::NotFound if deletes => Ok(()),
        other => Err(format!("the update of a stored key gives {other:?}")),
    }
}

/// Checks the result of a scan: order, range, values, number, and that no stored key was passed
/// over.
fn check_scan(o: &Orders, op: &Op<'_>, b: &Buffers) -> Checked {
    if !matches!(op.kind, OpKind::Scan | OpKind::Pass) {
        return Ok(());
    }
    let Op { record, key: from, len, .. } = *op;
    let mix = o.plan.spec.workload.mix();
    let (grows, shrinks) = (mix.weight(OpKind::Insert) > 0, mix.weight(OpKind::Delete) > 0);
    let oracle = o.oracle.as_deref().filter(|_| !shrinks);
    let mut check = oracle.and_then(|or| or.check(record, grows));
    let mut before: Option<&[u8]> = None;
    let mut pairs = 0u32;
    for (key, value) in b.found().flat_map(Page::iter) {
        pairs += 1;
        if key < from {
            return Err(format!("{} lies before the range", shown(key)));
        }
        if let Some(before) = before.filter(|b| *b >= key) {
            return Err(format!("{} comes after {}", shown(key), shown(before)));
        }
        o.plan.check_value(key, value).map_err(|m| format!("at {}: {m}", shown(key)))?;
        if let Some(c) = &mut check {
            c.key(key)?;
        }
        before = Some(key);
    }
    if pairs > len {
        return Err(format!("{pairs} pairs where {len} were asked for"));
    }
    if pairs == 0 && !shrinks && o.written.is_none() {
        return Err("a scan that starts at a stored key returns nothing".to_owned());
    }
    check.map_or(Ok(()), |c| c.end(&o.plan, before, b.exhausted && pairs < len))
}
