//! One measurement of a fabric: a few clients of one thread post verbs one after another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{
    Core, Endpoint, Fabric, Fifo, GlobalAddr, Nanos, NodeId, Result as FabricResult, Transport,
    Worker,
};

use crate::failure::{Failure, Result};

/// The measured verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// READs.
    Read,
    /// WRITEs.
    Write,
    /// Compare-and-swaps, each client on a word of its own.
    Cas,
    /// Fetch-and-adds of all clients on one word.
    SameWord,
}

impl Verb {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Cas => "CAS",
            Self::SameWord => "FAA, one word",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The verb.
    pub verb: Verb,
    /// Payload of a verb.
    pub bytes: u32,
    /// Clients of the thread, each with one list in flight.
    pub clients: u32,
    /// Verbs of a list, which is one doorbell.
    pub list: u32,
    /// Duration of the measurement.
    pub for_ns: Nanos,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Verbs that completed.
    pub verbs: u64,
    /// The time from the first to the last.
    pub took_ns: Nanos,
    /// Median time of a list from post to completion.
    pub median_ns: Nanos,
    /// Time that one list in a hundred exceeds.
    pub p99_ns: Nanos,
}

impl Measured {
    /// Verbs per second.
    pub fn rate(&self) -> f64 {
        self.verbs as f64 * 1e9 / self.took_ns.max(1) as f64
    }
}

/// A thread's clients between two nodes.
pub struct Bench {
    core: Rc<Core>,
    transport: Rc<dyn Transport>,
    target: NodeId,
    region_bytes: u64,
}

/// Distance of the clients' places in the target's memory, bytes.
const STRIDE: u64 = 1 << 17;

impl Bench {
    /// Clients of `from` that reach `to`.
    pub fn new(fabric: &dyn Fabric, from: NodeId, to: NodeId) -> Result<Self> {
        let transport = fabric.attach(from)?;
        let core = Core::new(transport.clone(), 64 << 20);
        let region_bytes = fabric.region_bytes(to).unwrap_or(0);
        Ok(Self { core, transport, target: to, region_bytes })
    }

    /// Runs a measurement.
    pub fn run(&self, plan: Plan) -> Result<Measured> {
        let mut worker = Worker::new(self.core.clone());
        let shared = Rc::new(Shared::default());
        for i in 0..plan.clients {
            let slot = self.core.add_slot();
            let ep = Endpoint::new(self.core.clone(), self.transport.clone(), slot);
            let at = self.place(plan, i.into());
            let shared = shared.clone();
            worker.spawn(slot, async move {
                if let Err(e) = client(&ep, plan, at, &shared).await {
                    shared.error.borrow_mut().get_or_insert(e);
                }
            });
        }
        worker.run(&mut Fifo).map_err(|s| Failure::input(s.to_string()))?;
        if let Some(e) = shared.error.take() {
            return Err(e.into());
        }
        let mut times = shared.times.take();
        times.sort_unstable();
        let share = |of: usize| times.get(times.len() * of / 100).copied().unwrap_or(0);
        let (median_ns, p99_ns) = (share(50), share(99));
        // On a fabric that executes at once, clients run one after another.
        let took_ns = shared.last_ns.get().saturating_sub(shared.first_ns.get().unwrap_or(0));
        let verbs = shared.verbs.get();
        Ok(Measured { verbs, took_ns, median_ns, p99_ns })
    }

    fn place(&self, plan: Plan, client: u64) -> GlobalAddr {
        let places = (self.region_bytes.saturating_sub(STRIDE) / STRIDE).max(1);
        let i = if plan.verb == Verb::SameWord { 0 } else { client % places };
        GlobalAddr::new(self.target, 64 + i * STRIDE)
    }
}

#[derive(Default)]
struct Shared {
    verbs: Cell<u64>,
    /// Start of the first client.
    first_ns: Cell<Option<Nanos>>,
    /// End of the last client.
    last_ns: Cell<Nanos>,
    times: RefCell<Vec<Nanos>>,
    error: RefCell<Option<dmtree_fabric::Error>>,
}

/// Most times that are kept; the first ones are enough.
const TIMES: usize = 100_000;

/// One list in this many is timed, because reading a clock can cost as much as a verb.
const TIMED_ONE_IN: u64 = 8;

async fn client(ep: &Endpoint, plan: Plan, at: GlobalAddr, shared: &Shared) -> FabricResult<()> {
    // The first list establishes connections and touches memory.
    let mut list = VerbVec::new();
    list = post(ep, plan, at, list).await?;
    let began = ep.now();
    shared.first_ns.set(shared.first_ns.get().or(Some(began)));
    loop {
        for _ in 1..TIMED_ONE_IN {
            list = post(ep, plan, at, list).await?;
        }
        let posted = ep.now();
        list = post(ep, plan, at, list).await?;
        let now = ep.now();
        shared.verbs.set(shared.verbs.get() + u64::from(plan.list) * TIMED_ONE_IN);
        shared.last_ns.set(shared.last_ns.get().max(now));
        if let mut times = shared.times.borrow_mut()
            && times.len() < TIMES
        {
            times.push(now - posted);
        }
        if now - began >= plan.for_ns {
            return Ok(());
        }
    }
}

async fn post(
    ep: &Endpoint,
    plan: Plan,
    at: GlobalAddr,
    mut list: VerbVec,
) -> FabricResult<VerbVec> {
    if plan.verb == Verb::SameWord {
        ep.faa(at, 1).await?;
        return Ok(list);
    }
    list.clear();
    for i in 0..plan.list {
        match plan.verb {
            Verb::Read => _ = list.read(at, plan.bytes),
            Verb::Write => _ = list.write(at, ep.buf(plan.bytes).await?),
            _ => _ = list.cas(at.plus(u64::from(i % 64) * 8), 0, 0),
        }
    }
    ep.batch(list).await
}
