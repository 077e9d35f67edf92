//! The clients of a case: coroutines of one executor that log every operation and keep the first
//! failure.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::{Bound, Deref};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dmtree_fabric::{Endpoint, Error, ErrorKind};
use dmtree_parts::{AnyIndex, BatchWrite, OpSet, Outcome, Page, ScanRequest, SnapshotId, Write};
use dmtree_pool::PoolNode;

use crate::availability::Availability;
use crate::case::{Case, KeyForm};
use crate::harness::Harness;
use crate::history::ValueId;
use crate::instants::batch_keys;
use crate::log::{Answer, Call, Log, Record};
use crate::node_states::{Issuer, NodeCondition, NodeStates};
use crate::plan;
use crate::rng::Rng;
use crate::server::Server;
use crate::verdict::{Finding, Verdict, caught};

/// One call of maintenance in this many operations.
const MAINTAIN_ONE_IN: u32 = 4;
/// How long a client waits for a smaller cache where nodes fail, ns.
const SHRINK_NS: u64 = 2_000_000;
/// Pause of a task that polls a condition, ns.
pub(crate) const POLL_NS: u64 = 200_000;

/// Bounds of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Virtual time at which it must be over, ns.
    pub until_ns: u64,
    /// Steps of all clients together that must suffice.
    pub steps: u64,
}

/// The state that the tasks of a run share.
pub(crate) struct RunContext<'a> {
    harness: Harness,
    pub case: &'a Case,
    /// [`AnyOptions::carries`](dmtree_parts::AnyOptions::carries).
    pub carries: bool,
    /// The operations of the index.
    pub ops: OpSet,
    pub server: Arc<Server>,
    pub node_states: NodeStates<'a>,
    pub bounds: Cell<Bounds>,
    pub phase: Cell<&'static str>,
    /// Tasks that the phase waits for.
    pub busy: Cell<u32>,
    /// Operations that failed because of a fault.
    pub excused: Cell<u64>,
    /// The check of operations that no fault touches.
    pub availability: Availability,
}

impl Deref for RunContext<'_> {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl<'a> RunContext<'a> {
    pub(crate) fn new(
        (harness, case): (Harness, &'a Case),
        server: Arc<Server>,
        bounds: Bounds,
    ) -> Result<Self, Error> {
        harness.log.replace(Log::new(case.stride(), case.numbers()));
        Ok(Self {
            carries: harness.test_cluster.options.carries()?,
            ops: harness.test_cluster.ops(),
            availability: Availability::new(case, server.judge().clone()),
            case,
            node_states: NodeStates::new(case, harness.fabric.clone(), server.clone()),
            server,
            bounds: Cell::new(bounds),
            phase: Cell::new("safety"),
            busy: Cell::new(0),
            excused: Cell::new(0),
            harness,
        })
    }

    /// An incarnation of a node has ended: wakes its clients, and the fault scheduler, which waits
    /// for the event that was next before.
    pub(crate) fn out(&self, cn: usize) {
        self.wake(|of| of.is_none_or(|of| of == cn));
    }

    /// How many operations run, of a node or of all.
    pub(crate) fn running(&self, cn: Option<usize>) -> u32 {
        let nodes = usize::from(self.case.pool.compute_nodes);
        let log = self.log.borrow();
        let open = log.records().iter().filter(|r| r.ret.is_none());
        open.filter(|r| cn.is_none_or(|cn| r.client as usize % nodes == cn)).count() as u32
    }

    /// Detects faults, and wakes the clients of the nodes that they hit.
    fn poll_faults(&self) {
        let hit = self.node_states.poll_faults(&|cn| self.running(cn));
        let is_out = |cn: &&usize| self.node_states.condition(**cn) != NodeCondition::Up;
        for &cn in hit.iter().filter(is_out) {
            self.availability.out(cn, self.node_states.incarnation(cn), self.fabric.now());
            if self.node_states.condition(cn) != NodeCondition::Frozen {
                self.availability.forget(cn);
            }
        }
        if !hit.is_empty() {
            self.wake(|cn| cn.is_none_or(|cn| hit.contains(&cn)));
        }
    }

    /// A task that the phase waits for has ended; the last one ends all others.
    fn ended(&self) {
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 {
            self.wake(|_| true);
        }
    }

    /// A phase without faults begins. No agent renewed a lease while the last verbs of the phase
    /// before ended.
    pub(crate) fn begin_phase(&self, name: &'static str, bounds: Bounds) {
        self.phase.set(name);
        self.server.judge().excuse(self.fabric.now());
        self.bounds.set(bounds);
    }

    /// The result of the phases.
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict {
            finding: self.finding(),
            happened: self.node_states.happened.take(),
            excused: self.excused.get(),
            available: self.availability.judged.get(),
            log: self.log.take(),
            ..Verdict::default()
        }
    }

    /// The operations that have not returned.
    pub(crate) fn open(&self) -> Vec<String> {
        let log = self.log.borrow();
        let open = log.records().iter().filter(|r| r.ret.is_none());
        let waits = self.core().waits();
        // Slots are created in the order of clients.
        let why = |client: u32| {
            let wait = waits.iter().find(|(slot, _)| *slot == client);
            wait.map_or(String::new(), |(_, why)| format!(" waits for {why}"))
        };
        let said = |r: &Record| {
            format!("c{} {} since {} ns{}", r.client, r.call, r.called_ns, why(r.client))
        };
        let mut all: Vec<_> = open.map(said).collect();
        // Maintenance, agents: what is no operation of a client.
        let clients: BTreeSet<u32> = log.records().iter().map(|r| r.client).collect();
        let others = waits.iter().filter(|(slot, _)| !clients.contains(slot));
        all.extend(others.map(|(slot, why)| format!("slot {slot} waits for {why}")));
        all
    }

    /// The members and their phases.
    pub(crate) fn members(&self) -> String {
        let latest = self.server.judge().latest();
        let computes = latest.members.iter().map(|m| {
            let by: Vec<_> = m.acknowledged.iter().map(|m| m.node.to_string()).collect();
            let by = if by.is_empty() { String::new() } else { format!(" by {}", by.join("+")) };
            format!("{} {:?}{by}", m.member, m.phase)
        });
        let memory = latest.memory.iter().map(|m| format!("{} {:?}", m.member, m.presence));
        let moving = latest.planned.iter().map(|p| format!("a move {:?}", p.phase));
        computes.chain(memory).chain(moving).collect::<Vec<_>>().join(", ")
    }

    /// Counts a step of a client.
    fn step(&self) {
        let mut b = self.bounds.get();
        b.steps = b.steps.saturating_sub(1);
        self.bounds.set(b);
        if b.steps > 0 && self.fabric.now() <= b.until_ns {
            return;
        }
        let mut open = self.open();
        if !self.case.node_faults.is_empty() {
            open.push(self.members());
            open.push(self.node_states.summary());
        }
        let phase = self.phase.get();
        let what = format!("the {phase} phase does not end; running: {}", open.join("; "));
        self.found(Finding::Other("hung", None, what));
    }
}

/// What a task does in one incarnation of its node; `None` when it ends early.
type Work<'a> = Pin<Box<dyn Future<Output = Option<()>> + 'a>>;

/// A task of a phase. It ends when a failure was found or its node is gone, pauses while the node
/// is frozen, and begins anew when the node restarts; a panic becomes a finding.
pub(crate) struct Guarded<'a> {
    shared: &'a RunContext<'a>,
    role: TaskRole,
    make: Box<dyn Fn() -> Work<'a> + 'a>,
    work: Option<Work<'a>>,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskRole {
    /// The compute node that it runs on; `None` for a task of a memory node or of the test.
    pub cn: Option<usize>,
    /// The client that it is, by its number.
    pub client: Option<u32>,
    /// The phase lasts until it ends.
    pub counts: bool,
}

impl TaskRole {
    /// A task that the phase does not wait for.
    pub(crate) fn beside(cn: Option<usize>) -> Self {
        Self { cn, client: None, counts: false }
    }
}

impl<'a> Guarded<'a> {
    pub(crate) fn new<F: Future<Output = Option<()>> + 'a>(
        shared: &'a RunContext<'a>,
        role: TaskRole,
        make: impl Fn() -> F + 'a,
    ) -> Self {
        if role.counts {
            shared.busy.set(shared.busy.get() + 1);
        }
        Self { shared, role, make: Box::new(move || Box::pin(make())), work: None, over: false }
    }

    fn drop_work(&mut self) {
        let work = self.work.take();
        // A future that has panicked may panic once more when it is dropped; the first panic is the
        // finding.
        let _ = caught(|| drop(work));
    }

    fn quit(&mut self) -> Poll<()> {
        self.drop_work();
        if !std::mem::replace(&mut self.over, true) && self.role.counts {
            self.shared.ended();
        }
        Poll::Ready(())
    }
}

impl Future for Guarded<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.step();
        this.shared.poll_faults();
        if this.shared.is_over() || (!this.role.counts && this.shared.busy.get() == 0) {
            return this.quit();
        }
        match this.role.cn.map(|cn| this.shared.node_states.condition(cn)) {
            None | Some(NodeCondition::Up) => {}
            Some(NodeCondition::Frozen) => return Poll::Pending,
            Some(NodeCondition::Gone) => return this.quit(),
            Some(NodeCondition::Restarting) => {
                this.drop_work();
                return Poll::Pending;
            }
        }
        let make = &this.make;
        let work = this.work.get_or_insert_with(|| make());
        let polled = caught(|| work.as_mut().poll(cx));
        this.shared.poll_faults();
        let restarting = |cn| this.shared.node_states.condition(cn) == NodeCondition::Restarting;
        match polled {
            // It has ended with its node's incarnation, and begins anew with the next one.
            Ok(Poll::Ready(_)) if this.role.cn.is_some_and(restarting) => {
                this.drop_work();
                Poll::Pending
            }
            Ok(Poll::Ready(_)) => this.quit(),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => {
                this.shared.found(Finding::panic(this.role.client, &panic));
                this.quit()
            }
        }
    }
}

/// One client's operations before the liveness phase.
pub(crate) async fn safety(
    index: &mut AnyIndex,
    shared: &RunContext<'_>,
    (client, pool): (u32, &PoolNode),
    next: &Cell<usize>,
) {
    let case = shared.case;
    let mut seen = None;
    let ops = case.numbers_of(client);
    while let Some(&op) = ops.get(next.get()) {
        pause(index.endpoint(), shared, (client, pool), op).await;
        // The next incarnation of its node continues after this operation.
        next.set(next.get() + 1);
        let is_first = client < u32::from(case.pool.compute_nodes);
        if is_first && op > 0 && op == case.shrinks_at && !shrunk(index, shared, client).await {
            return;
        }
        let mut rng = plan::draws(case, client, op);
        let call = plan::operation(case, shared.ops, (client, op), &mut rng, seen);
        let Some(answer) = perform(index, shared, client, call, &mut rng).await else {
            return;
        };
        if let (Call::Get(key), Answer::Found(Some(value))) = (call, &answer) {
            seen = Some((key, *value));
        }
        if op.is_multiple_of(MAINTAIN_ONE_IN) && !maintained(index, shared, client).await {
            return;
        }
        index.endpoint().yield_now().await;
    }
}

/// The pause before an operation: by the case's pace, until the lease holds again, and as long as
/// the node is leaving.
async fn pause(ep: &Endpoint, shared: &RunContext<'_>, (client, pool): (u32, &PoolNode), op: u32) {
    let case = shared.case;
    if case.pace_ns == 0 {
        return;
    }
    let mut draws =
        Rng::new(case.seed ^ u64::from(client) << 40 ^ u64::from(op) << 8 ^ 0x7265_7374);
    ep.sleep(draws.below(case.pace_ns)).await;
    let waits = || {
        let leaving = shared.node_states.is_leaving(cn_of(shared, client));
        leaving || (pool.check_lease(ep).is_err() && !shared.node_states.membership_lost.get())
    };
    while waits() {
        ep.sleep(POLL_NS).await;
    }
}

/// A call of maintenance between two operations; false when it fails without a fault that explains
/// it.
async fn maintained(index: &mut AnyIndex, shared: &RunContext<'_>, client: u32) -> bool {
    shared.availability.begin(
        ((client, true), cn_of(shared, client)),
        None,
        |_| None,
        shared.fabric.now(),
    );
    let by = issuer(shared, cn_of(shared, client), index.endpoint());
    let done = between(shared, (client, "maintain"), by, index.maintain()).await;
    shared.availability.end((client, true), None, true, |_| None, shared.fabric.now());
    done
}

/// The node of a client gets a smaller cache budget. Where nodes fail the caller waits for it only
/// for a while, and drops the call then: maintenance goes on.
async fn shrunk(index: &mut AnyIndex, shared: &RunContext<'_>, client: u32) -> bool {
    let (case, ep) = (shared.case, index.endpoint().clone());
    let by = issuer(shared, cn_of(shared, client), &ep);
    let mut change = std::pin::pin!(index.set_cache_bytes(case.smaller_cache_bytes()));
    let mut limit = std::pin::pin!(ep.sleep(SHRINK_NS));
    let has_faults = !case.node_faults.is_empty();
    let change = std::future::poll_fn(|cx| match change.as_mut().poll(cx) {
        Poll::Pending if has_faults => limit.as_mut().poll(cx).map(|()| Ok(())),
        polled => polled,
    });
    between(shared, (client, "set_cache_bytes"), by, change).await
}

/// A call between two operations of a client; false when it fails without a fault that explains it.
async fn between<T>(
    shared: &RunContext<'_>,
    (client, what): (u32, &str),
    by: Issuer,
    call: impl Future<Output = Result<T, Error>>,
) -> bool {
    let _inside = shared.node_states.enter(by.cn);
    match droppable(shared, by.cn, call).await {
        Some(Err(e)) if !excused(shared, &by, &e) => {
            shared.found(failed(client, what.to_owned(), &e));
            false
        }
        _ => true,
    }
}

/// One client's operations in the liveness phase.
pub(crate) async fn liveness(index: &mut AnyIndex, shared: &RunContext<'_>, client: u32) {
    for call in plan::liveness(shared.case, shared.ops, client) {
        let mut rng = Rng::new(0);
        if perform(index, shared, client, call, &mut rng).await.is_none() {
            return;
        }
        index.endpoint().yield_now().await;
    }
}

/// Runs a future until its caller drops it; `None` then.
pub(crate) async fn droppable<T>(
    shared: &RunContext<'_>,
    cn: usize,
    work: impl Future<Output = T>,
) -> Option<T> {
    let before = shared.node_states.drops(cn);
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match shared.node_states.drops(cn) == before {
        true => work.as_mut().poll(cx).map(Some),
        false => Poll::Ready(None),
    })
    .await
}

fn cn_of(shared: &RunContext<'_>, client: u32) -> usize {
    client as usize % usize::from(shared.case.pool.compute_nodes)
}

pub(crate) fn failed(client: u32, what: String, e: &Error) -> Finding {
    Finding::Other("failed", Some(client), format!("{what} failed ({:?}): {e}", e.kind()))
}

/// The issuer of an operation that begins now.
pub(crate) fn issuer(shared: &RunContext<'_>, cn: usize, ep: &Endpoint) -> Issuer {
    let (slot, since_ns) = (ep.slot(), shared.fabric.now());
    Issuer { cn, slot, carried: shared.carries, since_ns }
}

/// Whether a fault explains this error of an operation.
pub(crate) fn excused(shared: &RunContext<'_>, by: &Issuer, e: &Error) -> bool {
    let scarce = shared.case.fabric_faults.refuse_memory_one_in > 0 && e.kind() == ErrorKind::Full;
    let yes = scarce || shared.node_states.excuses(by, e);
    shared.excused.set(shared.excused.get() + u64::from(yes));
    yes
}

/// Runs one operation and logs it. `None` when the client cannot continue: the operation failed,
/// which is a finding, or the node has lost its membership or a memory node.
async fn perform(
    index: &mut AnyIndex,
    shared: &RunContext<'_>,
    client: u32,
    call: Call,
    rng: &mut Rng,
) -> Option<Answer> {
    let cn = cn_of(shared, client);
    let _inside = shared.node_states.enter(cn);
    let record = shared.call(client, call);
    let by = issuer(shared, cn, index.endpoint());
    let place = |key| index.place_of(&plan::key(shared.case.key_form, key));
    let (doing, now) = ((client, false), shared.fabric.now());
    shared.availability.begin((doing, cn), Some(call), place, now);
    let work = operate(index, shared.case, call, rng);
    let done = droppable(shared, cn, work).await;
    let fine = matches!(done, Some(Ok(_)));
    let place = |key| index.place_of(&plan::key(shared.case.key_form, key));
    let now = shared.fabric.now();
    if let Some(what) = shared.availability.end(doing, Some(call), fine, place, now) {
        shared.found(Finding::Other("slow", Some(client), what));
        return None;
    }
    // A dropped operation stays open: it may take effect at any later time.
    let Some(done) = done else { return Some(Answer::Failed("dropped".to_owned())) };
    let answer = match &done {
        Ok(answer) => answer.clone(),
        Err(e) => e.into(),
    };
    shared.ret(record, answer.clone());
    match done {
        Ok(Answer::Torn(_)) => {
            let what = format!("{call} was answered {answer}");
            shared.found(Finding::Other("torn", Some(client), what));
            None
        }
        Ok(answer) => Some(answer),
        Err(e) if excused(shared, &by, &e) => {
            // A node without membership never works again. A lock stays held for good if its
            // recovery needs lost memory: one time-out shows it.
            let stuck = e.kind() == ErrorKind::TimedOut && shared.node_states.has_lost();
            let revoked = e.kind() == ErrorKind::Revoked && !shared.case.rejoins();
            (!revoked && !stuck && !shared.node_states.membership_lost.get()).then_some(answer)
        }
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

/// The answer of a get that has found this.
pub(crate) fn found_as(value: Option<&Vec<u8>>) -> Answer {
    value.map(|v| seen(v)).transpose().map_or_else(|torn| torn, Answer::Found)
}

/// Runs one operation.
pub(crate) async fn operate(
    index: &mut AnyIndex,
    case: &Case,
    call: Call,
    rng: &mut Rng,
) -> Result<Answer, Error> {
    let key = |n| plan::key(case.key_form, n);
    let bytes = |id: ValueId| plan::value(id, plan::length(case, id));
    let outcome = match call {
        Call::Get(k) => {
            let mut out = Vec::new();
            let found = index.get(&key(k), &mut out).await?;
            return Ok(found_as(found.then_some(&out)));
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
        Call::Scan(a, b) => return scan(index, None, case.key_form, (a, b, false), rng).await,
        Call::ScanDown(a, b) => return scan(index, None, case.key_form, (a, b, true), rng).await,
        Call::Snapshot(a, b) => {
            let s = index.take_snapshot().await?;
            let answer = snapshot(index, s, case.key_form, (a, b), rng).await;
            index.release_snapshot(s).await?;
            return answer;
        }
        Call::Batch(low, high, step, v) => {
            let value = bytes(v);
            let keys: Vec<Vec<u8>> = batch_keys(low, high, step).map(key).collect();
            let batch: Vec<BatchWrite<'_>> =
                keys.iter().map(|k| (&k[..], Some(&value[..]))).collect();
            index.write_batch(&batch).await?;
            Outcome::Done
        }
    };
    Ok(outcome.into())
}

/// What a snapshot shows, read twice: page by page, and later some keys one by one.
async fn snapshot(
    index: &mut AnyIndex,
    s: SnapshotId,
    form: KeyForm,
    (a, b): (u64, u64),
    rng: &mut Rng,
) -> Result<Answer, Error> {
    let shown = scan(index, Some(s), form, (a, b, false), rng).await?;
    let Answer::Pairs(pairs) = &shown else { return Ok(shown) };
    let (pairs, mut out): (BTreeMap<u64, ValueId>, _) =
        (pairs.iter().copied().collect(), Vec::new());
    for _ in 0..3 {
        index.endpoint().yield_now().await;
        let k = a + rng.below(b - a + 1);
        let found = index.get_at(s, &plan::key(form, k), &mut out).await?;
        let (found, wanted) = (found_as(found.then_some(&out)), pairs.get(&k).copied());
        if found != Answer::Found(wanted) {
            let wanted = Answer::Found(wanted);
            return Ok(Answer::Torn(format!("a snapshot's k{k} was {wanted}, then {found}")));
        }
    }
    Ok(shown)
}

async fn scan(
    index: &mut AnyIndex,
    at: Option<SnapshotId>,
    form: KeyForm,
    (a, b, reverse): (u64, u64, bool),
    rng: &mut Rng,
) -> Result<Answer, Error> {
    let (low, high) = (plan::key(form, a), plan::key(form, b));
    let (low, high) = (Bound::Included(&low[..]), Bound::Included(&high[..]));
    let (mut page, mut pairs, mut resume) = (Page::new(), Vec::new(), None);
    loop {
        let r = ScanRequest { low, high, reverse, limit: 1 + rng.below(40) as usize };
        let rest = r.after(resume.as_ref());
        resume = match at {
            None => index.scan(&rest, &mut page).await?,
            Some(s) => index.scan_at(s, &rest, &mut page).await?,
        };
        for (k, v) in page.iter() {
            let Some(number) = plan::number(form, k) else {
                return Ok(Answer::Torn(format!("a key that no write stored: {k:?}")));
            };
            match seen(v) {
                Ok(value) => pairs.push((number, value)),
                Err(torn) => return Ok(torn),
            }
        }
        if resume.is_none() {
            return Ok(Answer::Pairs(pairs));
        }
    }
}
