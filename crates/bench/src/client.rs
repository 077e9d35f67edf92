//! One client's loop: draws operations, measures and checks them.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dmtree_fabric::{ErrorKind, Snapshot};
use dmtree_parts::{Outcome, Page, RangeIndex, Resume, ScanRequest, Write};
use dmtree_workload::{Op, OpKind, Plan, Seed};

use crate::clock;
use crate::config::Measure;
use crate::latency::ByKind;
use crate::offered::Arrivals;
use crate::opened::Seat;
use crate::oracle::{Oracle, shown};
use crate::window::{Ending, Window};

/// Errors that are kept in words, per client.
const SAMPLES: usize = 5;
/// A client gives up after this many errors.
const MAX_ERRORS: u64 = 1000;
/// Operations between two looks at the stop flag, and two yields.
const STEP: u64 = 16;
/// How long a cell goes on after its time to reach the least number of operations.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Operations between two pieces of maintenance.
const MAINTAIN_EVERY: u64 = 1024;

/// What all clients of a cell work by.
#[derive(Debug)]
pub struct Orders {
    /// The workload.
    pub plan: Arc<Plan>,
    /// What scans must return.
    pub oracle: Option<Arc<Oracle>>,
    /// Number of the first client's stream.
    pub first_stream: u32,
    /// Length of the measured phase.
    pub time: Option<Duration>,
    /// Operations of a client, at least, whatever the time.
    pub min_ops: u64,
    /// Operations left for all, when they are limited.
    pub left: Option<AtomicI64>,
    /// Inserts that there is room for.
    pub insert_room: u64,
    /// The user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Operations done so far, for progress.
    pub done: AtomicU64,
    /// When the phase began, ns of the fabric's clock.
    pub start: OnceLock<u64>,
    /// Clients begin within this time, ns.
    pub spread_ns: u64,
    /// Seed of where in that time.
    pub seed: Seed,
    /// When operations fall due; nothing when the load is closed.
    pub arrivals: Option<Arrivals>,
    /// The measuring window; simulated fabric only.
    pub window: Option<Window>,
    /// What was counted in the window, once it has closed.
    pub counted: OnceLock<Snapshot>,
    /// Which operations the figures are of, where there is a window.
    pub measure: Measure,
    /// Whether the time of operations is measured step by step.
    pub steps: bool,
}

/// Why a client ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// Its time was up.
    #[default]
    Duration,
    /// The operations were done.
    Operations,
    /// The workload has nothing more to do.
    UsedUp,
    /// The memory is full.
    Memory,
    /// Too many errors.
    Errors,
    /// The user stopped it.
    Interrupted,
}

impl Ended {
    /// As in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::Operations => "operations",
            Self::UsedUp => "used up",
            Self::Memory => "memory",
            Self::Errors => "errors",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What a client did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations that are measured: acknowledged, and in the measuring window if there is one.
    pub ops: u64,
    /// Operations that the counters are of.
    pub counted: u64,
    /// Operations acknowledged, those of ramps too.
    pub all_ops: u64,
    /// Keys inserted.
    pub inserted: u64,
    /// Keys deleted.
    pub deleted: u64,
    /// Scans, and pairs that they returned.
    pub scans: (u64, u64),
    /// Wrong results and failed operations.
    pub errors: u64,
    /// Writes whose effect is unknown.
    pub unknown: u64,
    /// The first errors in words.
    pub samples: Vec<String>,
    /// Latencies.
    pub latency: ByKind,
    /// From the start of the phase to its end.
    pub elapsed: Duration,
    /// Why it ended.
    pub ended: Ended,
}

impl Tally {
    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(what());
        }
    }

    fn failed(&mut self, bad: &Bad, what: impl FnOnce() -> String) {
        let why = match bad {
            Bad::Wrong(w) => w.clone(),
            Bad::Failed(e) => e.to_string(),
        };
        if let Bad::Failed(e) = bad
            && e.effect() == dmtree_fabric::Effect::Unknown
        {
            self.unknown += 1;
        }
        self.wrong(|| format!("{}: {why}", what()));
    }

    /// Takes over another's.
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
        self.ended = self.ended.max(other.ended);
    }
}

/// Buffers that a client reuses.
#[derive(Default)]
struct Buffers {
    value: Vec<u8>,
    /// Pages of the last scan.
    pages: Vec<Page>,
    /// How many of them.
    used: usize,
    /// Whether the index said that nothing follows.
    exhausted: bool,
}

/// What an operation came to, for the tally.
enum Done {
    Fine,
    Inserted,
    Deleted,
    Scanned(u64),
}

/// Why an operation does not count.
enum Bad {
    Wrong(String),
    Failed(dmtree_fabric::Error),
}

impl From<dmtree_fabric::Error> for Bad {
    fn from(e: dmtree_fabric::Error) -> Self {
        Self::Failed(e)
    }
}

/// A client's measured phase.
pub async fn work<I: RangeIndex>(mut seat: Seat<I>, o: Arc<Orders>) -> Tally {
    let mut t = Tally::default();
    let mut b = Buffers::default();
    let mut stream = o.plan.stream(o.first_stream.wrapping_add(seat.number));
    let writes = {
        let mix = o.plan.workload().mix();
        mix.weight(OpKind::Insert) > 0 || mix.weight(OpKind::Delete) > 0
    };
    let first_new = o.plan.records();
    seat.ep.reset_counters();
    let start = *o.start.get_or_init(|| seat.ep.now());
    if o.spread_ns > 0 {
        let mut rng = o.seed.numbered("start", u64::from(seat.number)).rng();
        seat.ep.sleep(rng.below(o.spread_ns)).await;
    }
    let deadline = o.time.map(|d| start + clock::nanos(d)).filter(|_| o.window.is_none());
    // Counters that all clients share start with the window, and are read at its end.
    let windowed = o.window.is_some() && o.measure == Measure::Window;
    seat.ep.set_timed_steps(o.steps);
    let mut reported = 0;
    let mut turn = 0u64;
    t.ended = loop {
        if turn.is_multiple_of(STEP) {
            o.done.fetch_add(t.all_ops - reported, Ordering::Relaxed);
            reported = t.all_ops;
            if o.stop.load(Ordering::Relaxed) {
                break Ended::Interrupted;
            }
            if seat.shares_thread {
                seat.ep.yield_now().await;
            }
            if writes && turn.is_multiple_of(MAINTAIN_EVERY) && turn > 0 {
                // What it finds broken shows in the checks.
                let _ = seat.client.maintain().await;
            }
        }
        turn += 1;
        if o.left.is_none() && o.window.as_ref().is_some_and(Window::closed) {
            break Ended::Operations;
        }
        if let Some(left) = &o.left
            && left.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            run_dry(&o, &seat);
            break Ended::Operations;
        }
        let due = o.arrivals.as_ref().map(|arrivals| start + arrivals.take(seat.cn));
        if let Some(due) = due {
            let now = seat.ep.now();
            if due > now {
                seat.ep.sleep(due - now).await;
                if o.window.as_ref().is_some_and(Window::closed)
                    || deadline.is_some_and(|d| due >= d)
                {
                    break Ended::Duration;
                }
            }
        }
        let Some(op) = stream.next() else {
            run_dry(&o, &seat);
            break Ended::UsedUp;
        };
        if let Op::Insert { record, .. } = op
            && record >= first_new + o.insert_room
        {
            run_dry(&o, &seat);
            break Ended::Memory;
        }
        if let Some(w) = &o.window {
            w.begin();
        }
        let began = due.unwrap_or_else(|| seat.ep.now());
        let kind = op.kind();
        let result = one(&mut seat.client, &o, &op, &mut b).await;
        let ended = seat.ep.now();
        let ending = o.window.as_ref().map_or(Ending::Inside, |w| w.end(start, ended));
        match (windowed, ending) {
            (true, Ending::Opens) => seat.ep.reset_counters(),
            (true, Ending::Closes) => {
                let _ = o.counted.set(seat.ep.snapshot());
            }
            _ => {}
        }
        let inside = !windowed || matches!(ending, Ending::Inside | Ending::Closes);
        t.counted += u64::from(inside);
        match result {
            Ok((done, checked)) => {
                t.all_ops += 1;
                if inside {
                    t.ops += 1;
                    t.latency.record(kind, ended.saturating_sub(began));
                }
                match done {
                    Done::Fine => {}
                    Done::Inserted => t.inserted += 1,
                    Done::Deleted => t.deleted += 1,
                    Done::Scanned(pairs) => {
                        t.scans.0 += 1;
                        t.scans.1 += pairs;
                    }
                }
                if let Err(wrong) = checked.and_then(|()| check_scan(&o, &op, &b)) {
                    t.wrong(|| format!("{kind} of {}: {wrong}", shown(op.key())));
                }
            }
            Err(Bad::Failed(e)) if e.kind() == ErrorKind::Full && writes => {
                run_dry(&o, &seat);
                break Ended::Memory;
            }
            Err(bad) => {
                t.failed(&bad, || format!("{kind} of {}", shown(op.key())));
                if t.errors > MAX_ERRORS {
                    run_dry(&o, &seat);
                    break Ended::Errors;
                }
            }
        }
        if let Some(deadline) = deadline
            && ended >= deadline
            && (t.ops >= o.min_ops || ended >= deadline + PATIENCE_NS)
        {
            break Ended::Duration;
        }
    };
    t.elapsed = Duration::from_nanos(seat.ep.now().saturating_sub(start));
    stream.acknowledge();
    o.done.fetch_add(t.all_ops - reported, Ordering::Relaxed);
    if let Err(e) = seat.ep.drain().await {
        t.wrong(|| format!("finishing detached verbs: {e}"));
    }
    t
}

/// There is nothing more to begin: a window ends here, before clients stop one by one.
fn run_dry<I>(o: &Orders, seat: &Seat<I>) {
    if let Some(w) = &o.window
        && w.run_dry(seat.ep.now())
        && o.measure == Measure::Window
    {
        let _ = o.counted.set(seat.ep.snapshot());
    }
}

type Checked = Result<(), String>;

/// Does one operation. The checks that need no index are left to the caller, outside of the measured time, where they are long.
async fn one<I: RangeIndex>(
    client: &mut I,
    o: &Orders,
    op: &Op<'_>,
    b: &mut Buffers,
) -> Result<(Done, Checked), Bad> {
    let deletes = o.plan.workload().mix().weight(OpKind::Delete) > 0;
    match *op {
        Op::Read { key, .. } => {
            let found = client.get(key, &mut b.value).await?;
            let checked = if found {
                o.plan.check_value(key, &b.value).map_err(|m| m.to_string())
            } else if deletes {
                Ok(())
            } else {
                Err("a stored key is reported absent".to_owned())
            };
            Ok((Done::Fine, checked))
        }
        Op::ReadAbsent { key, .. } => {
            let found = client.get(key, &mut b.value).await?;
            let checked =
                if found { Err("a key that was never stored is found".to_owned()) } else { Ok(()) };
            Ok((Done::Fine, checked))
        }
        Op::Insert { key, value, .. } => match client.write(key, Write::Insert(value)).await? {
            Outcome::Done => Ok((Done::Inserted, Ok(()))),
            other => Err(Bad::Wrong(format!("the insert of a new key gives {other:?}"))),
        },
        Op::Update { key, value, .. } => {
            let outcome = client.write(key, Write::Update(value)).await?;
            Ok((Done::Fine, updated(outcome, deletes)))
        }
        Op::ReadModifyWrite { key, value, .. } => {
            let found = client.get(key, &mut b.value).await?;
            let read = if found {
                o.plan.check_value(key, &b.value).map_err(|m| m.to_string())
            } else if deletes {
                Ok(())
            } else {
                Err("a stored key is reported absent".to_owned())
            };
            let outcome = client.write(key, Write::Update(value)).await?;
            Ok((Done::Fine, read.and_then(|()| updated(outcome, deletes))))
        }
        Op::Delete { key, .. } => match client.write(key, Write::Delete).await? {
            Outcome::Done => Ok((Done::Deleted, Ok(()))),
            other => Err(Bad::Wrong(format!("the delete of a stored key gives {other:?}"))),
        },
        Op::Scan { key, len, .. } => {
            let pairs = scan(client, key, len as usize, b).await?;
            Ok((Done::Scanned(pairs), Ok(())))
        }
    }
}

/// Scans from a key on, page by page; the pages stay in the buffers.
async fn scan<I: RangeIndex>(
    client: &mut I,
    key: &[u8],
    len: usize,
    b: &mut Buffers,
) -> Result<u64, dmtree_fabric::Error> {
    let mut low: Option<Bound<Vec<u8>>> = None;
    let mut pairs = 0usize;
    b.used = 0;
    b.exhausted = false;
    while pairs < len {
        if b.pages.len() == b.used {
            b.pages.push(Page::new());
        }
        let page = &mut b.pages[b.used];
        page.clear();
        let from = match &low {
            None => Bound::Included(key),
            Some(Bound::Included(k)) => Bound::Included(k.as_slice()),
            Some(Bound::Excluded(k)) => Bound::Excluded(k.as_slice()),
            Some(Bound::Unbounded) => Bound::Unbounded,
        };
        let r =
            ScanRequest { low: from, high: Bound::Unbounded, reverse: false, limit: len - pairs };
        let next = client.scan(&r, page).await?;
        pairs += page.len();
        b.used += 1;
        match next {
            Some(Resume(at)) => low = Some(at),
            None => {
                b.exhausted = true;
                break;
            }
        }
    }
    Ok(pairs as u64)
}

fn updated(outcome: Outcome, deletes: bool) -> Checked {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::NotFound if deletes => Ok(()),
        other => Err(format!("the update of a stored key gives {other:?}")),
    }
}

/// Checks what a scan returned: order, range, values, number, and that no stored key is passed over.
fn check_scan(o: &Orders, op: &Op<'_>, b: &Buffers) -> Checked {
    let Op::Scan { record, key: from, len } = *op else { return Ok(()) };
    let mix = o.plan.workload().mix();
    let (grows, shrinks) = (mix.weight(OpKind::Insert) > 0, mix.weight(OpKind::Delete) > 0);
    let oracle = o.oracle.as_deref().filter(|_| !shrinks);
    let mut check = oracle.and_then(|or| or.check(record, grows));
    let mut before: Option<&[u8]> = None;
    let mut pairs = 0u32;
    for (key, value) in b.pages[..b.used].iter().flat_map(Page::iter) {
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
    if pairs == 0 && !shrinks {
        return Err("a scan that starts at a stored key returns nothing".to_owned());
    }
    check.map_or(Ok(()), |c| c.end(&o.plan, before, b.exhausted && pairs < len))
}
