//! The transport of a simulated client thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::costs::Costs;
use super::flight::{Call, Cpu};
use super::held::Inboxes;
use super::meter::Meter;
use super::{Picos, SimShared};
use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::host::{Host, Power};
use crate::jobs::{self, Begun, JOBS};
use crate::local::LocalTransport;
use crate::membership::Member;
use crate::rpc::{Charged, RpcCall, WithoutCalls, answer_data};
use crate::scope::Stage;
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest};

pub(super) struct SimTransport {
    pub shared: Arc<SimShared>,
    pub node: NodeId,
    pub thread: u32,
    pub cpu: Arc<Cpu>,
    /// Executes verbs while time stands still.
    pub local: Rc<LocalTransport>,
    /// Stages' CPU times, ps.
    pub stages: [Picos; Stage::ALL.len()],
    /// The profile has any, and they are charged.
    pub charges: bool,
    /// Measures what this thread's code takes, in place of them.
    pub meter: Option<Meter>,
    pub caps: Capabilities,
    pub bound: Cell<u64>,
    /// What data services run on, by node, while this transport drives the world.
    pub services: RefCell<BTreeMap<NodeId, ServiceCore>>,
    /// Jobs that have been started, for workers.
    begun: RefCell<Vec<(Arc<Host>, Begun)>>,
    /// What nodes are to answer, while a task of theirs does so.
    pub inboxes: RefCell<Inboxes>,
}

/// A node, an endpoint there, and what its services have charged.
type ServiceCore = (Arc<Host>, Endpoint, Rc<Charged>);

impl SimTransport {
    /// A thread of a node: a client's, or a worker for a job of this member.
    pub(super) fn new(
        shared: Arc<SimShared>,
        node: NodeId,
        job_of: Option<Member>,
    ) -> Result<Self> {
        let local = Rc::new(shared.nodes.transport(node)?);
        let mut w = shared.world();
        let cpu = match job_of {
            Some(_) => w.job_core(node),
            None => Some(Arc::default()),
        };
        let thread = cpu.and_then(|cpu| Some((w.add_thread(node, cpu.clone(), job_of)?, cpu)));
        let (thread, cpu) =
            thread.ok_or_else(|| Error::not_found(format!("{node} is no node of this fabric")))?;
        let stages = w.costs.stages(node);
        drop(w);
        let measured = shared.measured.load(Ordering::Relaxed);
        let factor = shared.profile.cpu.measured_factor;
        Ok(Self {
            caps: shared.caps,
            shared,
            node,
            thread,
            cpu,
            local,
            charges: !measured && stages.iter().any(|s| *s > 0),
            meter: measured.then(|| Meter::new(factor)),
            stages,
            bound: Cell::new(0),
            services: RefCell::default(),
            begun: RefCell::default(),
            inboxes: RefCell::default(),
        })
    }

    /// Starts workers for the jobs that calls have begun: each is a thread on one of the
    /// node's cores for jobs.
    /// Its future runs on the executor of the clients.
    fn start_jobs(&self, core: &Core) {
        for (host, job) in self.begun.take() {
            let worker = Self::new(self.shared.clone(), host.node, Some(job.caller));
            match worker {
                Ok(worker) => core.tasks.spawn(|core, slot| {
                    let ep = Endpoint::new(core, WithoutCalls::for_job(worker), slot);
                    Box::pin(jobs::run(host, ep, job))
                }),
                // The node has gone, and its jobs with it.
                Err(_) => host.jobs.cancel(|_| true),
            }
        }
    }

    /// Answers a message about jobs.
    fn answer_about_jobs(&self, from: &Host, host: &Arc<Host>, message: &[u8]) -> Result<Vec<u8>> {
        let (reply, begun) = host.jobs.answer(host, from.member(), message)?;
        self.begun.borrow_mut().extend(begun.map(|job| (host.clone(), job)));
        Ok(reply)
    }

    /// Whether its node has crashed, even if a later incarnation is up.
    fn is_dead(&self) -> bool {
        self.local.own().power() != Power::On
    }

    /// Runs a data service, and notes what it has charged.
    fn call_data(&self, from: &Arc<Host>, host: &Arc<Host>, call: &mut Call) -> Result<Vec<u8>> {
        if let Some(refused) = host.refusal(from) {
            return Err(refused);
        }
        if call.service == JOBS {
            call.charged = 0;
            return self.answer_about_jobs(from, host, &call.request);
        }
        let mut services = self.services.borrow_mut();
        let known = services.get(&call.to).is_some_and(|(of, ..)| Arc::ptr_eq(of, host));
        if !known {
            let prices = Costs::new(&self.shared.profile).stages(call.to);
            let charged = Rc::new(Charged { prices, sum: Cell::new(0) });
            let ep = self.local.service_on(host, Some(charged.clone()));
            services.insert(call.to, (host.clone(), ep, charged));
        }
        let (_, ep, charged) = &services[&call.to];
        let handler = host.rpc.handler(call.to, call.service)?;
        charged.sum.set(0);
        let reply = answer_data(&*handler, ep, (from.node, &call.request));
        call.charged = charged.sum.get();
        reply
    }

    /// The code of the index has run until here: its thread works for that time.
    fn charge_measured(&self) -> bool {
        let Some(time) = self.meter.as_ref().and_then(Meter::end) else { return false };
        self.cpu.work(self.shared.now.load(Ordering::Relaxed), time);
        true
    }

    /// Executes what is the simulator's own work inside the code of an index: it is not measured.
    fn unmeasured<T>(&self, work: impl FnOnce() -> T) -> T {
        let ran = self.charge_measured();
        let out = work();
        if let (true, Some(meter)) = (ran, &self.meter) {
            meter.begin();
        }
        out
    }

    /// One executor at a time drives a world: another one may take over when nothing is in flight.
    fn bind(&self, core: &Core) -> Result<()> {
        if self.bound.get() == core.client()
            && self.shared.driver.load(Ordering::Relaxed) == core.client()
        {
            return Ok(());
        }
        let mut w = self.shared.world();
        if w.driver != core.client() {
            if w.live > 0 {
                return Err(Error::unsupported(
                    "another executor's verbs are in flight: one executor at a time drives a simulated fabric",
                ));
            }
            w.driver = core.client();
            self.shared.driver.store(core.client(), Ordering::Relaxed);
        }
        self.bound.set(core.client());
        Ok(())
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        self.shared.world().drop_thread(self.thread);
    }
}

impl Transport for SimTransport {
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        if self.is_dead() {
            core.lose(ticket);
            return Poll::Pending;
        }
        if !self.shared.is_timed() {
            if self.shared.watched.load(Ordering::Relaxed)
                && let Some(s) = &mut self.shared.world().sanitizer
            {
                list.iter().for_each(|wr| s.wrote(wr));
            }
            return self.local.post(core, ticket, list);
        }
        if let Err(e) = self.bind(core) {
            return Poll::Ready(Err(e));
        }
        self.unmeasured(|| self.shared.world().post(core, self.thread, ticket, list));
        Poll::Pending
    }

    fn rpc(&self, core: &Core, ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        if self.is_dead() {
            core.lose(ticket);
            return Poll::Pending;
        }
        if !self.shared.is_timed() {
            return self.local.rpc(core, ticket, call);
        }
        if let Err(e) = self.bind(core) {
            return Poll::Ready(Err(e));
        }
        let RpcCall { to, service, request } = call;
        let call = Call {
            to,
            service,
            request: request.to_vec(),
            reply: Vec::new(),
            answered: false,
            charged: 0,
        };
        self.unmeasured(|| self.shared.world().post_call(self.thread, ticket, call));
        Poll::Pending
    }

    fn poll(&self, core: &Core) -> Progress {
        if self.shared.driver.load(Ordering::Relaxed) != core.client() {
            return Progress::Idle(None);
        }
        let run = |now: Picos, from: &Arc<Host>, call: &mut Call| -> Result<()> {
            self.shared.now.store(now, Ordering::Relaxed);
            let host = self.local.known(call.to)?;
            call.reply = match host.rpc.is_data(call.service) {
                true => self.call_data(from, &host, call)?,
                false => self.shared.call(from, call)?,
            };
            Ok(())
        };
        let mut w = self.shared.world();
        let mut made = false;
        loop {
            // Time passes only while no client is ready. Where steps are chosen, slots that are not
            // polled any more do not stop it.
            let idle = w.step_time() > 0 && !core.is_driven();
            let until = if core.has_ready() && !idle {
                w.now
            } else {
                // A timer that is overdue (none fires while lists are only reaped) does not delay
                // events that are due.
                let due = w.now + w.step_time();
                core.next_timer().map_or(Picos::MAX, |at| at.saturating_mul(1000).max(due))
            };
            let step = w.step(core, until, &run);
            self.shared.now.store(w.now, Ordering::Relaxed);
            match step {
                Some(completed) => made |= completed,
                None => break,
            }
            if !self.begun.borrow().is_empty() {
                drop(w);
                self.start_jobs(core);
                return Progress::Made;
            }
            if w.has_arrived() {
                let calls = w.take_arrived();
                drop(w);
                self.answer_held(core, calls);
                return Progress::Made;
            }
        }
        if made { Progress::Made } else { Progress::Idle(w.next_at().map(|at| at.div_ceil(1000))) }
    }

    fn idle(&self, core: &Core, due: Option<Nanos>, _spins: u32) -> Idle {
        let Some(due) = due else { return Idle::Never };
        let mut w = self.shared.world();
        // Verbs of another executor are in flight. Time that stands still passes without them: a
        // node that has died may have left some.
        if self.shared.is_timed() && w.driver != core.client() && w.live > 0 {
            return Idle::Never;
        }
        w.now = w.now.max(due.saturating_mul(1000));
        self.shared.now.store(w.now, Ordering::Relaxed);
        Idle::Again
    }

    fn now(&self) -> Nanos {
        // A client's time is its thread's: the fabric's clock plus the charged work.
        let now = self.shared.now.load(Ordering::Relaxed);
        now.max(self.cpu.free.load(Ordering::Relaxed)) / 1000
    }

    fn clock(&self) -> Nanos {
        self.shared.now.load(Ordering::Relaxed) / 1000
    }

    fn driver(&self) -> u64 {
        self.shared.number
    }

    fn caps(&self) -> Capabilities {
        self.caps
    }

    fn node(&self) -> NodeId {
        self.node
    }

    fn charge(&self, stage: Stage, units: u32) {
        if self.shared.is_timed() {
            let now = self.shared.now.load(Ordering::Relaxed);
            let time = self.stages[stage as usize] * u64::from(units);
            let time = if stage == Stage::PolledLine { self.cpu.polls(now, time) } else { time };
            self.cpu.work(now, time);
        }
    }

    fn charges(&self) -> bool {
        self.charges
    }

    fn measures_work(&self) -> bool {
        self.meter.is_some()
    }

    fn work_begins(&self) {
        if let Some(meter) = self.meter.as_ref().filter(|_| self.shared.is_timed()) {
            meter.begin();
        }
    }

    fn work_ends(&self) {
        self.charge_measured();
    }

    fn interleave(&self) -> bool {
        self.shared.draw(&self.shared.points)
    }

    fn is_scarce(&self) -> bool {
        self.shared.draw(&self.shared.scarce)
    }

    fn add_prefetch_hints(&self, ep: &Endpoint) {
        ep.prefetch(&*self.cpu);
        ep.prefetch(&*self.local);
    }

    /// None of a crashed node: its clients get no answer any more, not an error.
    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        (!self.is_dead()).then_some(&*self.local)
    }

    fn peek(&self, offset: u64) -> Option<u64> {
        self.local.peek(offset)
    }
}
