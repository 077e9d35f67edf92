//! The processes of a run: what they do from their starts to their ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dmtree_fabric::net::virt::Process;
use dmtree_fabric::net::{Equipment, Joining, NetFabric};
use dmtree_fabric::{
    Effect, Endpoint, ErrorKind, GlobalAddr, Member, NodeId, Result, Role, RpcFuture, RpcHandler,
    ServiceId, Standing,
};

use super::agent::Agent;
use super::judge::Calls;
use super::{FIRST, MS, Phase, REGION, SHARED_WORDS, Stage, rest};

/// The first memory node acts for the membership to the end of the run.
pub(super) async fn first_memory_node(stage: Rc<Stage>, slot: u32) {
    let (process, fabric) = stage.memory.borrow()[0].clone();
    let Some(fabric) = fabric else { return };
    let acting = process.run(async {
        let ep = process.client(&fabric, slot)?;
        fabric.act(&ep).await
    });
    if let Some(Err(e)) = acting.await {
        stage.violation(format!("the first memory node cannot act: {e}"));
    }
}

/// It answers calls, to the end of the run.
pub(super) async fn services(stage: Rc<Stage>, slot: u32) {
    let (process, fabric) = stage.memory.borrow()[0].clone();
    let Some(fabric) = fabric else { return };
    let answering = process.run(async {
        if let Ok(ep) = process.client(&fabric, slot) {
            fabric.answer(&ep).await;
        }
    });
    answering.await;
}

/// The service of the first memory node.
pub(super) const COUNT: ServiceId = ServiceId(9);

/// Notes which calls are executed.
pub(super) struct Count(pub(super) Arc<Mutex<Calls>>);

impl RpcHandler for Count {
    fn call<'a>(&'a self, ep: &'a Endpoint, _: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        let number = request.first_chunk::<8>().map_or(0, |n| u64::from_le_bytes(*n));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begin(number);
        Box::pin(async move {
            // Some take longer than others wait.
            rest(ep, if number.is_multiple_of(50) { 400 * MS } else { MS / 10 }).await;
            Ok(request.to_vec())
        })
    }
}

/// Another memory node.
pub(super) async fn memory_node(stage: Rc<Stage>, number: u16, slot: u32) {
    let process = stage.network.start(number);
    stage.memory.borrow_mut().push((process.clone(), None));
    let acting = process.run(async {
        let fabric = join(&stage, &process, Role::Memory, Some(number), slot).await?;
        let ep = process.client(&fabric, slot)?;
        if let Some(place) = stage.memory.borrow_mut().get_mut(usize::from(number)) {
            place.1 = Some(fabric.clone());
        }
        fabric.act(&ep).await
    });
    if let Some(Err(e)) = acting.await
        && stage.phase.get() < Phase::Leaving
    {
        // It has to be started again by hand, as its first step failed: what waits for it waits in vain.
        stage.violation(format!("memory node {number} cannot act: {e}"));
    }
}

async fn join(
    stage: &Stage,
    process: &Process,
    role: Role,
    wanted: Option<u16>,
    slot: u32,
) -> Result<NetFabric> {
    let equipment = &Equipment::default();
    let (listen, within) = ("0.0.0.0:0", Duration::from_secs(60));
    let how = Joining { first: FIRST, listen, role, wanted, within, carrier: None, equipment };
    process.join(&how, REGION, &stage.network.clock(slot)).await
}

/// What the coroutines of a life share.
#[derive(Clone)]
struct Life {
    process: Process,
    fabric: NetFabric,
    /// The former lives' words are this one's.
    has_inherited: Rc<Cell<bool>>,
    is_over: Rc<Cell<bool>>,
}

/// A compute node: one process after the other.
pub(super) struct Seat {
    stage: Rc<Stage>,
    number: u16,
    life: RefCell<Option<Life>>,
}

impl Seat {
    pub(super) fn new(stage: Rc<Stage>, number: u16) -> Self {
        Self { stage, number, life: RefCell::default() }
    }

    fn set_living(&self, process: Option<Process>) {
        self.stage.living.borrow_mut()[usize::from(self.number)] = process;
    }

    /// Starts processes, one after the other, and keeps the membership of each.
    pub(super) async fn live(self: Rc<Self>, slot: u32) {
        let clock = self.stage.network.clock(slot);
        while self.stage.phase.get() < Phase::Leaving {
            rest(&clock, self.stage.below(400) * MS).await;
            let process = self.stage.network.start(4 + self.number);
            self.set_living(Some(process.clone()));
            self.stage.outcome.borrow_mut().lives += 1;
            let ended = process.run(self.keep(&process, slot)).await;
            if let Some(Err(e)) = &ended
                && self.stage.phase.get() == Phase::Healed
                && !e.is_retryable()
                && e.kind() != dmtree_fabric::ErrorKind::Fenced
            {
                self.stage.violation(format!("process {} ends: {e}", self.number));
            }
            if let Some(life) = self.life.borrow_mut().take() {
                life.is_over.set(true);
            }
            // What has not ended by itself ends like a process.
            process.kill(None);
            self.set_living(None);
        }
    }

    async fn keep(&self, process: &Process, slot: u32) -> Result<()> {
        let stage = &self.stage;
        let fabric = join(stage, process, Role::Compute, Some(self.number), slot).await?;
        let ep = process.client(&fabric, slot)?;
        let mut agent = Agent::new(&fabric);
        let former = agent.join(&ep).await?;
        let life = Life {
            process: process.clone(),
            fabric: fabric.clone(),
            has_inherited: Rc::default(),
            is_over: Rc::default(),
        };
        *self.life.borrow_mut() = Some(life.clone());
        let until = ep.now() + (100 + stage.below(4_000)) * MS;
        let is_short = stage.below(3) == 0;
        loop {
            let kept = agent.step(&ep).await;
            if kept.as_ref().is_err_and(|e| e.kind() == dmtree_fabric::ErrorKind::Fenced) {
                return kept;
            }
            let over = |m: Member| agent.standing(m).is_none_or(|s| s >= Standing::Draining);
            if former.is_none_or(over) {
                life.has_inherited.set(true);
            }
            let leaves = match stage.phase.get() {
                Phase::Faults => is_short && ep.now() > until,
                Phase::Healed => false,
                _ => true,
            };
            if leaves {
                life.is_over.set(true);
                return agent.leave(&ep).await;
            }
            rest(&ep, agent.pause_ns()).await;
        }
    }

    /// The client of each process.
    pub(super) async fn work(self: Rc<Self>, slot: u32) {
        let clock = self.stage.network.clock(slot);
        while self.stage.phase.get() < Phase::Leaving {
            let life = self.life.borrow().clone();
            let Some(life) = life.filter(|l| l.has_inherited.get() && !l.is_over.get()) else {
                rest(&clock, 5 * MS).await;
                continue;
            };
            let work = life.process.run(async {
                let ep = life.process.client(&life.fabric, slot)?;
                while !life.is_over.get() && self.stage.phase.get() < Phase::Leaving {
                    self.operate(&ep, &life).await;
                    rest(&ep, self.stage.below(20) * MS / 4).await;
                }
                Ok::<_, dmtree_fabric::Error>(())
            });
            work.await;
            rest(&clock, MS).await;
        }
    }

    async fn operate(&self, ep: &Endpoint, life: &Life) {
        let stage = &self.stage;
        let (began, stood) = (ep.now(), life.process.stood_still());
        let is_healed = stage.phase.get() == Phase::Healed;
        let done = match stage.below(6) {
            0 => Some(self.write_own(ep).await),
            1 => Some(self.read_own(ep).await),
            2 => Some(self.read_shared(ep).await.map(|_| ())),
            3 => Some(self.swap_shared(ep).await),
            4 => Some(self.call(ep).await),
            _ => self.reach_a_peer(ep).await,
        };
        let took = (ep.now() - began).saturating_sub(life.process.stood_still() - stood);
        let Some(done) = done else {
            // A peer: it may be another life by now, or none.
            if took > 5_000 * MS {
                stage.violation(format!("a verb of process {} took {took} ns", self.number));
            }
            return;
        };
        let mut outcome = stage.outcome.borrow_mut();
        match &done {
            Ok(()) => outcome.operations += 1,
            Err(_) => outcome.failed += 1,
        }
        drop(outcome);
        if took > 11_000 * MS && !life.is_over.get() {
            stage.violation(format!("an operation of process {} took {took} ns", self.number));
        }
        if let Err(e) = &done
            && is_healed
            && e.kind() == ErrorKind::Unreachable
            && e.to_string().contains("is lost")
            && !stage.is_one_lost.get()
        {
            stage.violation(format!("process {} hears that {e}", self.number));
        }
        if done.is_ok() && is_healed {
            stage.has_worked.borrow_mut()[usize::from(self.number)] = true;
        }
    }

    /// A verb to another compute process, whatever comes of it.
    async fn reach_a_peer(&self, ep: &Endpoint) -> Option<Result<()>> {
        let peer = NodeId::compute(self.stage.below(u64::from(self.stage.seats)) as u16);
        let _ = ep.faa(GlobalAddr::new(peer, 64), 1).await;
        None
    }

    async fn write_own(&self, ep: &Endpoint) -> Result<()> {
        let (seat, at) = (usize::from(self.number), self.stage.own_word(self.number));
        let value = self.stage.own.borrow_mut()[seat].begin();
        let done = ep.write_word(at, value).await;
        let word = &mut self.stage.own.borrow_mut()[seat];
        match &done {
            Ok(()) => word.written(value),
            Err(e) if e.effect() == Effect::None => word.not_written(value),
            Err(_) => {}
        }
        done
    }

    async fn call(&self, ep: &Endpoint) -> Result<()> {
        let number = self.stage.calls().number();
        let mut reply = Vec::new();
        ep.renew_deadline();
        let done = ep.rpc(NodeId::memory(0), COUNT, &number.to_le_bytes(), &mut reply).await;
        match &done {
            Ok(()) => self.stage.calls().answered(number),
            Err(e) if e.effect() == Effect::None => self.stage.calls().refused(number),
            Err(_) => {}
        }
        done
    }

    async fn read_own(&self, ep: &Endpoint) -> Result<()> {
        let value = ep.read(self.stage.own_word(self.number), 8).await?.word(0);
        let found = self.stage.own.borrow_mut()[usize::from(self.number)].found(value);
        if let Err(e) = found {
            self.stage.violation(format!("the word of process {}: {e}", self.number));
        }
        Ok(())
    }

    async fn read_shared(&self, ep: &Endpoint) -> Result<(u64, u64)> {
        let word = self.stage.below(SHARED_WORDS);
        let call = ep.now();
        let value = ep.read(Stage::shared_word(word), 8).await?.word(0);
        self.stage.shared.borrow_mut().found(word, call, ep.now(), value);
        Ok((word, value))
    }

    async fn swap_shared(&self, ep: &Endpoint) -> Result<()> {
        let (word, old) = self.read_shared(ep).await?;
        let new = self.stage.shared.borrow_mut().value();
        let call = ep.now();
        let at = Stage::shared_word(word);
        // A process that is killed meanwhile has a write of unknown outcome, too.
        let mut open = Open { seat: self, word, call, old, new, is_open: true };
        let done = ep.cas(at, old, new).await;
        open.is_open = false;
        let mut shared = self.stage.shared.borrow_mut();
        match &done {
            Ok(was) => shared.swapped(word, (call, ep.now()), (old, new), Some(*was)),
            Err(e) if e.effect() == Effect::None => {}
            Err(_) => shared.swapped(word, (call, ep.now()), (old, new), None),
        }
        drop(shared);
        done.map(|_| ())
    }
}

/// A write whose outcome becomes unknown when it is dropped.
struct Open<'s> {
    seat: &'s Seat,
    word: u64,
    call: u64,
    old: u64,
    new: u64,
    is_open: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let mut shared = self.seat.stage.shared.borrow_mut();
            shared.swapped(self.word, (self.call, self.call), (self.old, self.new), None);
        }
    }
}
