//! Runs a case: a pool on the adversarial fabric, the clients, a check of what they saw, a phase without hazards in which
//! everything must end, and a walk.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dmtree_fabric::sim::{Choice, Hazards, Order, SimFabric};
use dmtree_fabric::{
    Core, Endpoint, Error, ErrorKind, Fabric, Member, NodeId, Policy, Result, Standing, State,
    Terms, Worker,
};
use dmtree_parts::{Fill, RangeIndex, Work};

use crate::bed::Bed;
use crate::case::Case;
use crate::drive::{
    Bounds, Guarded, Shared, Who, doer, droppable, excused, failed, liveness, safety,
};
use crate::fault::{Fault, Happened};
use crate::log::{Answer, Call, Log, still};
use crate::plan;
use crate::stage::{Condition, Due, wait_until};
use crate::verdict::{Finding, Judged, Verdict, panic_text};

/// Buffers of all clients together.
const SLAB_BYTES: u64 = 16 << 20;
/// Virtual time within which the phase with faults must end, ns: longer than an operation waits.
const FAULTS_NS: u64 = 30_000_000_000;
/// Bounds of the phase with hazards.
const SAFETY: Bounds = Bounds { until_ns: 120_000_000_000, steps: 20_000_000 };
/// Bounds of a small case whose verbs are ordered by a list: who waits for something that the list holds back may look for it for ever.
const LISTED: Bounds = Bounds { until_ns: 120_000_000_000, steps: 100_000 };
/// What an epoch asks of a node it does within this time of virtual time, ns: its operations may be stalled that long.
const ACKNOWLEDGE_NS: u64 = 1_000_000_000;
/// Pauses of those who wait for something to have come to pass, ns.
const LOOK_NS: u64 = 200_000;
/// Virtual time within which the phase without hazards must end, ns.
const LIVENESS_NS: u64 = 5_000_000_000;
/// The same when operations may wait until their deadline.
const LIVENESS_AFTER_LOSS_NS: u64 = 15_000_000_000;
/// Pause of a node's maintenance, ns.
const TEND_NS: u64 = 2_000_000;

/// Runs a case with an index of type `I`.
///
/// # Errors
/// A case that cannot be run. What goes wrong in a run is in the verdict.
pub fn run<I: RangeIndex>(case: &Case) -> Result<Verdict> {
    run_in::<I>(case, &case.order()).map(|(verdict, _)| verdict)
}

/// The same with verbs in another order than the case's; also the choices made on the way, when they are listed.
///
/// # Errors
/// As [`run`].
pub fn run_in<I: RangeIndex>(case: &Case, order: &Order) -> Result<(Verdict, Vec<Choice>)> {
    case.check()?;
    let options: I::Options = serde_json::from_value(case.options.clone())
        .map_err(|e| Error::invalid(format!("options of {}: {e}", case.system)))?;
    let (bed, fabric) = Bed::<I>::adversarial(
        case.hazards,
        case.grants,
        case.order,
        &case.pool.options(),
        case.pool.cache_bytes,
        &options,
    )?;
    fabric.sanitize();
    load(&bed, case)?;
    let mut choices = Vec::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let phased = Phased { bed: &bed, fabric: &fabric, case, order };
        phases(&phased, &mut choices)
    }));
    let (finding, log, happened, (excused, available)) = match caught {
        Ok(done) => {
            let Finished { finding, log, happened, excused, available, .. } = done?;
            (finding, log, happened, (excused, available))
        }
        Err(payload) => {
            let what = panic_text(&*payload);
            let nothing = (0, Judged::default());
            (Some(Finding::Panic { client: None, what }), Log::default(), Vec::new(), nothing)
        }
    };
    let trace_hash = fabric.trace_hash() ^ log.hash().rotate_left(32);
    let operations = log.records().len() as u64;
    let virtual_ns = fabric.now();
    let v =
        Verdict { finding, happened, excused, available, operations, trace_hash, virtual_ns, log };
    Ok((v, choices))
}

/// The keys that are there at first.
fn load<I: RangeIndex>(bed: &Bed<I>, case: &Case) -> Result<()> {
    let there = (0..case.numbers()).filter(|n| !case.is_written(*n));
    let pair =
        |n| (plan::key(case.key_form, n), plan::value(still(n), plan::length(case, still(n))));
    let pairs: Vec<_> = there.map(pair).collect();
    if !pairs.is_empty() {
        let fill = Fill::Even(f64::from(case.fill_percent) / 100.0);
        bed.client(0)?.load(pairs, true, fill)?;
    }
    Ok(())
}

/// What the phases came to.
struct Finished<I: RangeIndex> {
    finding: Option<Finding>,
    log: Log,
    /// The index on the compute nodes that live.
    living: Vec<(usize, Arc<I::Node>)>,
    happened: Vec<Happened>,
    excused: u64,
    available: Judged,
}

/// What the phases are made of.
struct Phased<'a, I: RangeIndex> {
    bed: &'a Bed<I>,
    fabric: &'a SimFabric,
    case: &'a Case,
    order: &'a Order,
}

fn phases<I: RangeIndex>(p: &Phased<'_, I>, choices: &mut Vec<Choice>) -> Result<Finished<I>> {
    let Phased { bed, fabric, case, order } = *p;
    fabric.set_timed(true);
    fabric.set_order(order);
    let finished = clients(p, choices);
    fabric.set_timed(false);
    let mut done = finished?;
    if let Some(finding) = done.finding.take() {
        // An answer that is wrong by itself says more than what followed from it.
        done.finding = match (finding, done.log.check()) {
            (torn @ Finding::Torn { .. }, _) => Some(torn),
            (_, Err(wrong)) => Some(Finding::History(wrong)),
            (finding, Ok(())) => Some(finding),
        };
        return Ok(done);
    }
    let lost = |h: &Happened| matches!(h.fault, Fault::LoseMemory { .. });
    let whole = !done.happened.iter().any(lost);
    let mut broken = None;
    if whole {
        let (living, log) = (&done.living, &mut done.log);
        broken = match catch_unwind(AssertUnwindSafe(|| afterwards(bed, case, living, log))) {
            Ok(done) => done.err().map(|e| Finding::Structure(e.to_string())),
            Err(payload) => Some(Finding::Panic { client: None, what: panic_text(&*payload) }),
        };
    }
    let wrong = done.log.check().err().map(Finding::History);
    let touched = fabric.reports().into_iter().next().map(Finding::Access);
    done.finding = wrong.or(broken).or(touched);
    Ok(done)
}

/// A client of the run over all its node's lives.
struct Seat<I> {
    number: u32,
    cn: usize,
    slot: u32,
    /// Its next operation.
    next: Cell<usize>,
    /// The client, and the incarnation of the node to which it belongs.
    index: RefCell<Option<(u32, I)>>,
}

/// What the clients and keepers of a run are made of.
struct Cast<'a, I: RangeIndex> {
    bed: &'a Bed<I>,
    shared: &'a Shared<'a>,
    seats: Vec<Seat<I>>,
    /// A slot for the keeper of each compute node.
    keepers: Vec<u32>,
    /// A slot for the maintenance of each.
    tenders: Vec<u32>,
    nodes: RefCell<Vec<Arc<I::Node>>>,
    director: Endpoint,
    settler: Endpoint,
}

impl<I: RangeIndex> Cast<'_, I> {
    /// A way to memory for a slot of a node. Nothing when the node has rightly lost its membership, and has not heard of it.
    fn endpoint(&self, cn: usize, slot: u32) -> Option<Endpoint> {
        let shared = self.shared;
        match self.bed.cluster.fabric().attach(NodeId::compute(cn as u16)) {
            Err(e) if e.kind() == ErrorKind::Fenced && shared.stage.may_be_expelled(cn) => {
                shared.stage.expel(cn);
                shared.wake(|of| of == Some(cn));
                None
            }
            attached => {
                let transport = self.must("attach", attached)?;
                Some(Endpoint::new(shared.core.clone(), transport, slot))
            }
        }
    }

    /// Waits until a node is a member in its present life.
    async fn joined(&self, cn: usize, ep: &Endpoint) -> Option<()> {
        let life = self.shared.stage.incarnation(cn);
        let pool = self.must("the node", self.bed.cluster.compute_node(cn))?;
        while pool.standing(pool.cn(), life) != Some(Standing::Living) {
            ep.sleep(LOOK_NS).await;
        }
        Some(())
    }

    /// A client of the present life of its node, when the node has joined.
    async fn take_seat(&self, seat: &Seat<I>) -> Option<I> {
        let life = self.shared.stage.incarnation(seat.cn);
        let ep = self.endpoint(seat.cn, seat.slot)?;
        if !self.shared.case.faults.is_empty() {
            self.joined(seat.cn, &ep).await?;
            let pool = self.must("the node", self.bed.cluster.compute_node(seat.cn))?;
            while pool.check_lease(&ep).is_err() {
                ep.sleep(LOOK_NS).await;
            }
        }
        if let Some((_, client)) = seat.index.take().filter(|(its, _)| *its == life) {
            return Some(client);
        }
        Some(I::client(ep, self.nodes.borrow()[seat.cn].clone()))
    }

    fn must<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(out) => Some(out),
            Err(e) => {
                self.shared.found(Finding::Structure(format!("{what}: {e}")));
                None
            }
        }
    }

    /// One phase: clients, the keepers of their nodes, and what happens to them.
    fn phase<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        self.seat_clients(worker, liveness_now);
        if shared.case.faults.is_empty() {
            return;
        }
        self.keep_nodes(worker);
        if shared.case.faults.iter().any(Fault::hits_the_living) {
            for (cn, slot) in self.tenders.iter().enumerate() {
                let work = move || async move { self.tend(cn, *slot).await.unwrap_or_default() };
                worker.spawn(*slot, Guarded::new(shared, Who::Keeper(cn), work));
            }
        }
        let work = move || self.direct();
        worker.spawn(self.director.slot(), Guarded::new(shared, Who::Director, work));
    }

    /// What the maintenance of the other phases has left in its midst is brought to its end, on all nodes together: one may wait for
    /// what another has left.
    fn tidy<'w>(&'w self, worker: &mut Worker<'w>) {
        let shared = self.shared;
        self.keep_nodes(worker);
        for cn in shared.stage.living() {
            let slot = self.tenders[cn];
            let work = move || async move { self.tidy_node(cn, slot).await.unwrap_or_default() };
            worker.spawn(slot, Guarded::new(shared, Who::Tidier(cn), work));
        }
    }

    async fn tidy_node(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        // What the end of a phase has dropped in its midst leaves its locks to others when its last verb has ended.
        while !ep.is_quiet() {
            self.must("what was dropped", ep.check_deadline("verbs that were dropped", 0))?;
            ep.sleep(1_000).await;
        }
        let mut index = I::client(ep, self.nodes.borrow()[cn].clone());
        while self.must("maintenance", index.maintain().await)? != Work::None {}
        Some(())
    }

    fn keep_nodes<'w>(&'w self, worker: &mut Worker<'w>) {
        for (cn, slot) in self.keepers.iter().enumerate() {
            let work = move || self.keep(cn, *slot);
            worker.spawn(*slot, Guarded::new(self.shared, Who::Keeper(cn), work));
        }
    }

    fn seat_clients<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        for seat in &self.seats {
            let work = move || async move {
                let Some(mut client) = self.take_seat(seat).await else { return };
                match liveness_now {
                    true => liveness(&mut client, shared, seat.number).await,
                    false => safety(&mut client, shared, seat.number, &seat.next).await,
                }
                seat.index.replace(Some((shared.stage.incarnation(seat.cn), client)));
            };
            let who = Who::Client(seat.number, seat.cn);
            worker.spawn(seat.slot, Guarded::new(shared, who, work));
        }
    }

    /// What somebody has to do on every node, whether or not its clients do anything: maintenance, now and then. Operations that
    /// fail leave locks behind, and the next operation of their node may never come.
    async fn tend(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        self.joined(cn, &ep).await?;
        let mut index = I::client(ep, self.nodes.borrow()[cn].clone());
        loop {
            index.endpoint().sleep(TEND_NS).await;
            let by = doer(self.shared, cn, index.endpoint());
            match droppable(self.shared, cn, index.maintain()).await {
                Some(Err(e)) if e.kind() == ErrorKind::Fenced => return None,
                Some(Err(e)) if !excused(self.shared, &by, &e) => {
                    self.shared.found(failed(cn as u32, "maintenance of its node".to_owned(), &e));
                }
                _ => {}
            }
        }
    }

    /// The keeper of a node in one of its lives.
    async fn keep(&self, cn: usize, slot: u32) {
        let shared = self.shared;
        let Some(ep) = self.endpoint(cn, slot) else { return };
        let Some(pool) = self.must("the node", self.bed.cluster.compute_node(cn)) else { return };
        let mut heard = 0;
        loop {
            let kept = pool.keep(&ep).await;
            if kept.is_ok() {
                heard = ep.now();
            }
            match kept {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    let latest = self.bed.cluster.judge().expect("in this process").latest();
                    if latest.is_living(pool.member()) {
                        ep.sleep(shared.case.lease_ns / 16).await;
                        continue;
                    }
                    if !shared.stage.may_be_expelled(cn) {
                        let members: Vec<String> = latest
                            .members
                            .iter()
                            .map(|m| format!("{} {:?}", m.member, m.standing))
                            .collect();
                        let now = shared.fabric.now();
                        shared.found(Finding::Expelled(format!(
                            "at {now} ns: {e}; its keeper was last heard of at {heard} ns; {}; \
                             running: {}",
                            members.join(", "),
                            shared.open().join("; ")
                        )));
                    }
                    shared.stage.expel(cn);
                    shared.wake(|of| of == Some(cn));
                    return;
                }
                _ => ep.sleep(shared.case.lease_ns / 16).await,
            }
        }
    }

    /// Makes happen what is due.
    async fn direct(&self) {
        let (shared, stage) = (self.shared, &self.shared.stage);
        loop {
            let is_due = || stage.next().is_some_and(|at| at <= shared.fabric.now());
            wait_until(&self.director, is_due, || stage.next()).await;
            let Some(due) = stage.take_due() else { continue };
            let hit = match due {
                Due::Restart(cn) => {
                    let back = shared.fabric.restart(NodeId::compute(cn as u16));
                    let node = back.and_then(|()| self.bed.revive(cn));
                    let Some(node) = self.must("a restart", node) else { return };
                    self.nodes.borrow_mut()[cn] = node;
                    stage.back(cn);
                    vec![cn]
                }
                other => {
                    if let Due::Thaw(cn) = other {
                        shared.availability.thawed(cn);
                    }
                    stage.apply(other, &|cn| shared.running(cn))
                }
            };
            shared.wake(|of| of.is_some_and(|cn| hit.contains(&cn)));
        }
    }

    /// Every death has been dealt with, and every node that works knows it: what follows from a death is done by those who have
    /// heard of it.
    async fn settled(&self) {
        let (shared, ep) = (self.shared, &self.settler);
        while shared.busy.get() > 1 {
            ep.sleep(LOOK_NS).await;
        }
        let still = |s: Standing| matches!(s, Standing::Living | Standing::Gone);
        loop {
            let state = self.bed.cluster.judge().expect("in this process").latest();
            let over = state.planned.is_none()
                && state.members.iter().all(|m| still(m.standing))
                && state.living().all(|m| self.is_up(m));
            let all = shared.stage.living().next().is_none();
            if all || (over && shared.stage.living().all(|cn| self.knows(cn, &state))) {
                return;
            }
            ep.sleep(LOOK_NS).await;
        }
    }

    /// Whether a member works indeed: the lease of one that has crashed may not have ended yet.
    fn is_up(&self, m: Member) -> bool {
        let (stage, cn) = (&self.shared.stage, m.node.index());
        stage.condition(cn) == Condition::Up && stage.incarnation(cn) == m.incarnation
    }

    /// Whether a node has heard how far everybody has come.
    fn knows(&self, cn: usize, state: &State) -> bool {
        let Ok(pool) = self.bed.cluster.compute_node(cn) else { return false };
        let heard = |m: Member| pool.standing(m.node, m.incarnation);
        state.is_living(pool.member())
            && state.members.iter().all(|m| heard(m.member) == Some(m.standing))
    }
}

/// All clients on one executor, first with hazards and faults and then without.
fn clients<I: RangeIndex>(p: &Phased<'_, I>, choices: &mut Vec<Choice>) -> Result<Finished<I>> {
    let Phased { bed, fabric, case, order } = *p;
    let neutral = fabric.attach(NodeId::memory(0))?;
    let core = Core::new(neutral.clone(), SLAB_BYTES);
    let until_ns = if case.faults.is_empty() { SAFETY.until_ns } else { FAULTS_NS };
    let bounds = match order {
        Order::Listed { .. } => LISTED,
        _ => Bounds { until_ns, ..SAFETY },
    };
    let judge = bed.cluster.judge().cloned();
    let shared = Shared::new(case, (fabric.clone(), judge), core.clone(), bounds);
    let slot_of = |cn: Option<usize>| {
        let slot = core.add_slot();
        shared.slots.borrow_mut().push((slot, cn));
        slot
    };
    let mut seats = Vec::new();
    for number in 0..case.total() {
        let cn = number as usize % bed.nodes.len();
        let slot = slot_of(Some(cn));
        if !case.numbers_of(number).is_empty() {
            let (next, index) = (Cell::new(0), RefCell::new(None));
            seats.push(Seat { number, cn, slot, next, index });
        }
    }
    let keepers = (0..bed.nodes.len()).map(|cn| slot_of(Some(cn))).collect();
    let tenders = (0..bed.nodes.len()).map(|cn| slot_of(Some(cn))).collect();
    let director = Endpoint::new(core.clone(), neutral.clone(), slot_of(None));
    let settler = Endpoint::new(core.clone(), neutral, slot_of(None));
    let nodes = RefCell::new(bed.nodes.clone());
    let cast = Cast { bed, shared: &shared, seats, keepers, tenders, nodes, director, settler };
    bed.cluster.judge().expect("in this process").set_terms(Terms {
        lease_ns: case.lease_ns,
        acknowledge_ns: ACKNOWLEDGE_NS,
        ..Terms::default()
    });
    for fault in &case.faults {
        match *fault {
            Fault::Drift { cn, ppm } => bed.cluster.compute_node(cn.into())?.set_clock_drift(ppm),
            Fault::News { cn, late_ns } => {
                bed.cluster
                    .judge()
                    .expect("in this process")
                    .delay_news(NodeId::compute(cn), late_ns);
            }
            _ => {}
        }
    }
    let mut policy = case.schedule.policy(case.order);
    let mut worker = Worker::new(core);
    shared.stage.begin()?;
    cast.phase(&mut worker, false);
    work(&mut worker, &mut *policy, &shared);
    *choices = fabric.choices();
    fabric.set_order(&Order::Drawn);
    shared.stage.calm();
    if case.liveness && !shared.is_over() {
        fabric.set_hazards(Hazards::NONE);
        shared.phase.set("liveness");
        // While the last verbs of the other phase came to their ends nobody kept anything.
        bed.cluster.judge().expect("in this process").excuse(fabric.now());
        let lasts = if shared.stage.has_lost() { LIVENESS_AFTER_LOSS_NS } else { LIVENESS_NS };
        shared.bounds.set(Bounds { until_ns: fabric.now() + lasts, ..SAFETY });
        cast.phase(&mut worker, true);
        if !case.faults.is_empty() {
            let work = || cast.settled();
            worker.spawn(cast.settler.slot(), Guarded::new(&shared, Who::Settler, work));
        }
        work(&mut worker, &mut *policy, &shared);
        if !case.faults.is_empty() && !shared.is_over() && !shared.stage.has_lost() {
            shared.phase.set("maintenance");
            shared.stage.heal();
            bed.cluster.judge().expect("in this process").excuse(fabric.now());
            shared.bounds.set(Bounds { until_ns: fabric.now() + LIVENESS_NS, ..SAFETY });
            cast.tidy(&mut worker);
            work(&mut worker, &mut *policy, &shared);
        }
    }
    drop(worker);
    let nodes = cast.nodes.take();
    drop(cast);
    let finding = shared.take();
    Ok(Finished {
        finding,
        log: shared.log.take(),
        living: shared.stage.living().map(|cn| (cn, nodes[cn].clone())).collect(),
        happened: shared.stage.happened.take(),
        excused: shared.excused.get(),
        available: shared.availability.judged.get(),
    })
}

fn work(worker: &mut Worker<'_>, policy: &mut dyn Policy, shared: &Shared<'_>) {
    if let Err(stalled) = worker.run(policy) {
        shared.found(Finding::Stalled(stalled.to_string()));
    }
}

/// When nobody works any more: every key is read once more, a scan agrees, and the structure is whole.
fn afterwards<I: RangeIndex>(
    bed: &Bed<I>,
    case: &Case,
    living: &[(usize, Arc<I::Node>)],
    log: &mut Log,
) -> Result<()> {
    let client = |(cn, node): &(usize, Arc<I::Node>)| bed.client_of(*cn, node.clone());
    for node in living {
        client(node)?.maintain().map_err(|e| e.context("maintenance"))?;
    }
    let Some(mut c) = living.first().map(client).transpose()? else { return Ok(()) };
    let mut keys = 0;
    for n in 0..case.numbers() {
        let record = log.call(case.total(), 0, Call::Get(n));
        let value = c.get(&plan::key(case.key_form, n)).map_err(|e| e.context("a last get"))?;
        keys += u64::from(value.is_some());
        let answer = match value.as_ref().map(|v| plan::identity(v)) {
            None => Answer::Found(None),
            Some(Some(id)) => Answer::Found(Some(id)),
            Some(None) => Answer::Torn(format!("{value:02x?}")),
        };
        log.ret(record, 0, answer);
    }
    // What dead nodes held, and what dropped operations had taken, is found; then everything has one holder.
    let found = c.census().map_err(|e| e.context("a census"))?;
    let again = c.census().map_err(|e| e.context("a second census"))?;
    if found.doubly > 0 || !again.is_nothing() {
        return Err(Error::corrupt(format!(
            "lost or doubly owned memory: {found:?}, then {again:?}"
        )));
    }
    if case.faults.is_empty() && case.hazards.refuse_memory_one_in == 0 && !found.is_nothing() {
        return Err(Error::corrupt(format!("memory is lost though nothing happened: {found:?}")));
    }
    let shape = c.walk()?;
    if shape.keys != keys {
        let found = shape.keys;
        return Err(Error::corrupt(format!("the walk finds {found} keys, and gets find {keys}")));
    }
    Ok(())
}
