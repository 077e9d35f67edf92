//! Clients of a case at work: coroutines of one executor, every operation logged, the first thing that goes wrong kept.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::{Core, Error};
use dmtree_parts::{Outcome, Page, RangeIndex, ScanRequest, Write};

use crate::case::Case;
use crate::history::ValueId;
use crate::log::{Answer, Call, Log};
use crate::plan::{self, Planned};
use crate::rng::Rng;
use crate::verdict::Finding;

/// One call of maintenance in this many operations.
const MAINTAIN_ONE_IN: u32 = 4;

/// Bounds of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Virtual time at which it must be over, ns.
    pub until_ns: u64,
    /// Steps of all clients together that must be enough.
    pub steps: u64,
}

/// What the clients of a run share.
pub(crate) struct Shared<'a> {
    pub case: &'a Case,
    pub fabric: SimFabric,
    pub core: Rc<Core>,
    pub slots: RefCell<Vec<u32>>,
    pub log: RefCell<Log>,
    pub bounds: Cell<Bounds>,
    pub phase: Cell<&'static str>,
    finding: RefCell<Option<Finding>>,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(case: &'a Case, fabric: SimFabric, core: Rc<Core>, bounds: Bounds) -> Self {
        Self {
            case,
            fabric,
            core,
            slots: RefCell::default(),
            log: RefCell::new(Log::new(case.stride(), case.numbers())),
            bounds: Cell::new(bounds),
            phase: Cell::new("safety"),
            finding: RefCell::default(),
        }
    }

    /// Keeps the first thing that went wrong, and lets every client come to its end.
    pub(crate) fn found(&self, what: Finding) {
        self.finding.borrow_mut().get_or_insert(what);
        self.slots.borrow().iter().for_each(|slot| self.core.wake(*slot));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.finding.borrow().is_some()
    }

    /// What was found.
    pub(crate) fn take(&self) -> Option<Finding> {
        self.finding.borrow_mut().take()
    }

    /// Counts a step of a client.
    fn step(&self) {
        let mut b = self.bounds.get();
        b.steps = b.steps.saturating_sub(1);
        self.bounds.set(b);
        if b.steps > 0 && self.fabric.now() <= b.until_ns {
            return;
        }
        let log = self.log.borrow();
        let open = log.records().iter().filter(|r| r.ret.is_none());
        let open = open.map(|r| format!("c{} {}", r.client, r.call)).collect::<Vec<_>>();
        drop(log);
        let phase = self.phase.get();
        self.found(Finding::Hung { phase, open });
    }
}

/// A client's future: ends at once when something was found, and turns a panic into a finding.
pub(crate) struct Guarded<'a> {
    shared: &'a Shared<'a>,
    client: u32,
    inner: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
}

impl<'a> Guarded<'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        client: u32,
        inner: impl Future<Output = ()> + 'a,
    ) -> Self {
        Self { shared, client, inner: Some(Box::pin(inner)) }
    }

    fn quit(&mut self) -> Poll<()> {
        let inner = self.inner.take();
        // What was broken by a panic may panic once more when it is dropped; the first is what counts.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(inner)));
        Poll::Ready(())
    }
}

impl Future for Guarded<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.step();
        if this.shared.is_over() {
            return this.quit();
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(()) };
        match catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll(cx))) {
            Ok(polled) => polled,
            Err(payload) => {
                let what = crate::verdict::panic_text(&*payload);
                this.shared.found(Finding::Panic { client: Some(this.client), what });
                this.quit()
            }
        }
    }
}

/// One client's operations before the liveness phase.
pub(crate) async fn safety<I: RangeIndex>(index: &mut I, shared: &Shared<'_>, client: u32) {
    let case = shared.case;
    let mut seen = None;
    for op in case.numbers_of(client) {
        let mut rng = plan::draws(case, client, op);
        let call = match plan::operation(case, I::OPS, client, op, &mut rng) {
            Planned::Call(call) => call,
            Planned::CompareAndSet { key, value } => {
                let (key, expected) = seen.unwrap_or((key, 0));
                Call::CompareAndSet(key, expected, value)
            }
        };
        let Some(answer) = perform(index, shared, client, call, &mut rng).await else { return };
        if let (Call::Get(key), Answer::Found(Some(value))) = (call, &answer) {
            seen = Some((key, *value));
        }
        if op.is_multiple_of(MAINTAIN_ONE_IN)
            && let Err(e) = index.maintain().await
        {
            shared.found(failed(client, "maintain".to_owned(), &e));
            return;
        }
        index.endpoint().yield_now().await;
    }
}

/// One client's operations in the liveness phase.
pub(crate) async fn liveness<I: RangeIndex>(index: &mut I, shared: &Shared<'_>, client: u32) {
    for call in plan::liveness(shared.case, I::OPS, client) {
        let mut rng = Rng::new(0);
        if perform(index, shared, client, call, &mut rng).await.is_none() {
            return;
        }
        index.endpoint().yield_now().await;
    }
}

fn failed(client: u32, what: String, e: &Error) -> Finding {
    Finding::Failed { client, what, kind: format!("{:?}", e.kind()), why: e.to_string() }
}

/// Does one operation and logs it. Nothing when it failed, which is a finding.
async fn perform<I: RangeIndex>(
    index: &mut I,
    shared: &Shared<'_>,
    client: u32,
    call: Call,
    rng: &mut Rng,
) -> Option<Answer> {
    let record = shared.log.borrow_mut().call(client, shared.fabric.now(), call);
    let done = match call {
        Call::Scan(..) | Call::ScanDown(..) => scan(index, shared.case, call, rng).await,
        _ => point(index, shared.case, call).await,
    };
    let answer = match &done {
        Ok(answer) => answer.clone(),
        Err(e) => Answer::Failed(e.to_string()),
    };
    shared.log.borrow_mut().ret(record, shared.fabric.now(), answer.clone());
    match done {
        Ok(Answer::Torn(_)) => {
            shared.found(Finding::Torn { client, what: format!("{call} was answered {answer}") });
            None
        }
        Ok(answer) => Some(answer),
        Err(e) => {
            shared.found(failed(client, call.to_string(), &e));
            None
        }
    }
}

/// A value as an answer: its identity, when it is whole.
fn seen(v: &[u8]) -> Result<ValueId, Answer> {
    plan::identity(v).ok_or_else(|| {
        let head: String = v.iter().take(48).map(|b| format!("{b:02x}")).collect();
        Answer::Torn(format!("{} bytes, {head}", v.len()))
    })
}

async fn point<I: RangeIndex>(index: &mut I, case: &Case, call: Call) -> Result<Answer, Error> {
    let key = |n| plan::key(case.key_form, n);
    let bytes = |id: ValueId| plan::value(id, plan::length(case, id));
    let outcome = match call {
        Call::Get(k) => {
            let mut out = Vec::new();
            let found = index.get(&key(k), &mut out).await?;
            return Ok(match found.then(|| seen(&out)).transpose() {
                Ok(value) => Answer::Found(value),
                Err(torn) => torn,
            });
        }
        Call::Put(k, v) => index.write(&key(k), Write::Put(&bytes(v))).await?,
        Call::Insert(k, v) => index.write(&key(k), Write::Insert(&bytes(v))).await?,
        Call::Update(k, v) => index.write(&key(k), Write::Update(&bytes(v))).await?,
        Call::Delete(k) => index.write(&key(k), Write::Delete).await?,
        Call::CompareAndSet(k, e, v) => {
            let (expected, new) = (bytes(e), bytes(v));
            let w = Write::CompareAndSet { expected: &expected, new: Some(&new) };
            index.write(&key(k), w).await?
        }
        Call::Scan(..) | Call::ScanDown(..) => {
            return scan(index, case, call, &mut Rng::new(0)).await;
        }
    };
    Ok(match outcome {
        Outcome::Done => Answer::Done,
        Outcome::Exists => Answer::Exists,
        Outcome::NotFound => Answer::NotFound,
        Outcome::Mismatch => Answer::Mismatch,
    })
}

async fn scan<I: RangeIndex>(
    index: &mut I,
    case: &Case,
    call: Call,
    rng: &mut Rng,
) -> Result<Answer, Error> {
    let form = case.key_form;
    let (a, b, reverse) = match call {
        Call::ScanDown(a, b) => (a, b, true),
        Call::Scan(a, b) => (a, b, false),
        _ => return Err(Error::invalid("no scan")),
    };
    let (mut low, mut high) =
        (Bound::Included(plan::key(form, a)), Bound::Included(plan::key(form, b)));
    let mut page = Page::new();
    let mut pairs = Vec::new();
    loop {
        let r = ScanRequest {
            low: low.as_ref().map(Vec::as_slice),
            high: high.as_ref().map(Vec::as_slice),
            reverse,
            limit: 1 + rng.below(40) as usize,
        };
        let resume = index.scan(&r, &mut page).await?;
        for (k, v) in page.iter() {
            let Some(number) = plan::number(form, k) else {
                return Ok(Answer::Torn(format!("a key nobody wrote: {k:?}")));
            };
            match seen(v) {
                Ok(value) => pairs.push((number, value)),
                Err(torn) => return Ok(torn),
            }
        }
        match resume {
            None => return Ok(Answer::Pairs(pairs)),
            Some(next) if reverse => high = next.0,
            Some(next) => low = next.0,
        }
    }
}
