//! Checked runs of the real network code on a simulated network (`dmtree_fabric::net::virt`), each
//! a function of its seed.
//!
//! A pool of one or two memory nodes; compute processes that run for a while, are killed, stopped,
//! cut off, and restart, at once or when none has run for seconds; numbers that two processes want,
//! of which one continues after a stall while the other one has taken over; stalls of the
//! membership server; the other memory node killed before it is ready, or later; paths that are
//! cut, resets, black holes, connections that break on one side or both, peers that reconnect
//! meanwhile, late bytes. One seed in 512 has many hundreds of incarnations. Every client writes a
//! word of its own and words that all share, calls the first memory node, and has jobs there that
//! it asks about, cancels and forgets. A job that was started runs once, ends in time, and does
//! nothing after its end or after its caller has lost its access. After the faults every process
//! must work again within a time, and no connection may be left behind.
//!
//! Not covered: a pool and an index above the network (a process that joins a pool blocks its
//! thread); a restarted first memory node, which is another pool; RDMA; damaged packets (TCP has
//! checksums).

mod hosts;
mod judge;
mod restarts;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use dmtree_fabric::net::virt::{self, Network, Process, Sight};
use dmtree_fabric::net::{DataPath, NetFabric, PoolConfig};
use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Endpoint, Fabric, GlobalAddr, LeaseParameters, Nanos, NodeId, SeededRandom, Worker,
};

use crate::log::{Answer, Call, Log};
use crate::rng::Rng;
use crate::verdict::caught;
use judge::Calls;

pub use judge::JobEnd;

const MS: Nanos = 1_000_000;
/// Where the first memory node listens.
const FIRST: &str = "10.0.0.0:7000";
const PORT: u16 = 7000;
const REGION: u64 = 1 << 14;
/// Every process works again, and has ended, this long after the last fault, ns.
const RECOVERY_BOUND: Nanos = 60_000 * MS;
/// Words that all write.
const SHARED_WORDS: u64 = 3;
/// Their keys in the history begin here.
const SHARED_KEYS: u64 = 1000;
/// One seed in this many has many hundreds of incarnations.
const LONG_ONE_IN: u64 = 512;
/// How long its faults go on at most, ms.
const LONG_MS: u64 = 1_500_000;
/// Ends of connections that may be left between memory nodes.
const ENDS_LEFT: usize = 8;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Incarnations of compute processes.
    pub restarts: u64,
    /// Network events out of the ordinary, by kind.
    pub seen: BTreeMap<Sight, u64>,
    /// What jobs came to.
    pub job_ends: BTreeSet<JobEnd>,
    /// Violations.
    pub violations: Vec<String>,
}

/// Mutants of the membership rules, and below the links.
pub type Mutants = (Option<dmtree_fabric::Mutant>, Option<virt::Mutant>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Faults occur.
    Faults,
    /// No fault occurs any more: all processes must work.
    Recovering,
    /// All processes leave.
    Leaving,
    /// The run has taken too long.
    GivenUp,
}

/// The state that the coroutines of a run share.
struct NetworkRun {
    network: Network,
    random: RefCell<Rng>,
    phase: Cell<Phase>,
    outcome: RefCell<Outcome>,
    /// What clients wrote and read: of the word of each process under its number, and of the words
    /// that all share under numbers from [`SHARED_KEYS`] on. All are absent at first.
    log: RefCell<Log>,
    /// The last value that was written. No other write has it.
    last: Cell<u64>,
    calls: Arc<Mutex<Calls>>,
    /// Compute processes that run now.
    living: RefCell<Vec<Option<Process>>>,
    /// Of each number, the incarnation that writes its word: a later one took it over.
    owners: RefCell<Vec<u32>>,
    /// Compute processes that have worked since the faults ended.
    has_worked: RefCell<Vec<bool>>,
    memory: RefCell<Vec<(Process, Option<NetFabric>)>>,
    compute_nodes: u16,
    memory_nodes: u16,
    /// Hundreds of incarnations, most of them short.
    is_long: bool,
    /// The process of the second memory node has ended, and its memory with it.
    is_one_lost: Cell<bool>,
    /// The ends of the path that was cut last.
    cut: Cell<(u16, u16)>,
    slots: RefCell<Vec<u32>>,
}

impl NetworkRun {
    fn below(&self, n: u64) -> u64 {
        self.random.borrow_mut().below(n)
    }

    fn violation(&self, what: String) {
        let mut outcome = self.outcome.borrow_mut();
        if outcome.violations.len() < 8 {
            let at = self.network.now() / MS;
            outcome.violations.push(format!("{what} (at {at} ms)"));
        }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        locked(&self.calls)
    }

    /// A value that no other write has.
    fn value(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    fn call(&self, call: Call) -> usize {
        self.log.borrow_mut().call(0, self.network.now(), call)
    }

    fn ret(&self, record: usize, answer: Answer) {
        self.log.borrow_mut().ret(record, self.network.now(), answer);
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.slots.borrow().iter().for_each(|slot| self.network.core().wake(*slot));
    }

    /// The word of a compute process's own client.
    fn own_word(&self, number: u16) -> GlobalAddr {
        let owner = NodeId::memory(number % self.memory_nodes);
        GlobalAddr::new(owner, 64 + 8 * u64::from(number))
    }

    /// A word that all clients write.
    fn shared_word(word: u64) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(0), 1024 + 8 * word)
    }
}

/// Runs a seed; a panic is a violation.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, (None, None))
}

/// The same with mutants.
pub fn run_with(seed: u64, mutants: Mutants) -> Outcome {
    caught(|| script(seed, mutants)).unwrap_or_else(|panic| Outcome {
        violations: vec![format!("a panic: {panic}")],
        ..Outcome::default()
    })
}

fn script(seed: u64, (mutant, below): Mutants) -> Outcome {
    let mut random = Rng::new(seed);
    let network = Network::new(random.next_u64());
    let (compute_nodes, memory_nodes) = (1 + random.below(3) as u16, 1 + random.below(2) as u16);
    let run = Rc::new(NetworkRun {
        network: network.clone(),
        phase: Cell::new(Phase::Faults),
        outcome: RefCell::default(),
        log: RefCell::default(),
        last: Cell::default(),
        calls: Arc::default(),
        living: RefCell::default(),
        owners: RefCell::new(vec![0; usize::from(compute_nodes)]),
        is_long: seed % LONG_ONE_IN == LONG_ONE_IN - 1,
        has_worked: RefCell::new(vec![false; usize::from(compute_nodes)]),
        memory: RefCell::default(),
        compute_nodes,
        memory_nodes,
        is_one_lost: Cell::new(false),
        cut: Cell::default(),
        slots: RefCell::default(),
        random: RefCell::new(random),
    });
    let mut worker = Worker::new(network.core().clone());
    let slot = || {
        let slot = network.core().add_slot();
        run.slots.borrow_mut().push(slot);
        slot
    };
    let first = network.start(0);
    let spare = run.below(2) as u16;
    let pool_config = PoolConfig {
        memory_nodes,
        compute_nodes: compute_nodes + spare,
        journal_nodes: 0,
        skips_journal: false,
        data_path: DataPath::Frames,
        options: Vec::new(),
    };
    let acknowledge_ns = 3_000 * MS;
    let lease_parameters = LeaseParameters { acknowledge_ns, mutant, ..LeaseParameters::default() };
    below.into_iter().for_each(|of| network.set_mutant(of));
    let founded = match first.found(PORT, REGION, pool_config, lease_parameters) {
        Ok(founded) => founded,
        Err(e) => {
            run.violation(format!("the pool is not founded: {e}"));
            return run.outcome.take();
        }
    };
    let service = Arc::new(hosts::Count(run.calls.clone()));
    if let Err(e) = founded.serve(founded.me().node, hosts::COUNT, service) {
        run.violation(format!("the first memory node has no services: {e}"));
    }
    run.memory.borrow_mut().push((first.clone(), Some(founded)));
    for (slot, answers) in [(slot(), false), (slot(), true)] {
        worker.spawn(slot, hosts::first_memory_node(run.clone(), slot, answers));
    }
    for m in 1..memory_nodes {
        let slot = slot();
        run.memory.borrow_mut().push((first.clone(), None));
        worker.spawn(slot, hosts::memory_node(run.clone(), m, slot));
    }
    // Two processes want some of the numbers.
    let second_slots: Vec<u16> = (0..compute_nodes).filter(|_| run.below(3) == 0).collect();
    for number in (0..compute_nodes).chain(second_slots) {
        let (agent, client) = (slot(), slot());
        let process_slot = Rc::new(restarts::ProcessSlot::new(run.clone(), number));
        worker.spawn(agent, process_slot.clone().run_processes(agent));
        worker.spawn(client, process_slot.work(client));
    }
    let fault_scheduler = slot();
    worker.spawn(fault_scheduler, schedule_faults(run.clone(), fault_scheduler));
    if let Err(e) = worker.run(&mut SeededRandom::new(seed)) {
        run.violation(format!("no process can go on: {e}"));
    }
    drop(worker);
    if let Err(e) = run.log.borrow().check() {
        run.violation(e.to_string());
    }
    if let Some(e) = run.calls().wrong.take() {
        run.violation(e);
    }
    run.memory.borrow_mut().clear();
    run.outcome.borrow_mut().seen = network.seen();
    run.outcome.borrow_mut().job_ends = std::mem::take(&mut run.calls().ends);
    run.outcome.take()
}

/// Injects faults, ends them, and waits until every process has ended.
async fn schedule_faults(run: Rc<NetworkRun>, slot: u32) {
    let clock = &run.network.clock(slot);
    let most = if run.is_long { LONG_MS } else { 9_000 };
    let until = clock.now() + (3_000 + run.below(most)) * MS;
    if run.below(2) == 0 {
        run.network.set_late(20 + run.below(400));
    }
    while clock.now() < until {
        clock.sleep(run.below(600) * MS + 1).await;
        fault(&run);
    }
    run.network.heal();
    run.set_phase(Phase::Recovering);
    let until = clock.now() + RECOVERY_BOUND;
    while run.has_worked.borrow().iter().any(|w| !w) && clock.now() < until {
        clock.sleep(20 * MS).await;
    }
    for (number, _) in run.has_worked.borrow().iter().enumerate().filter(|(_, w)| !**w) {
        run.violation(format!("process {number} does not work after the faults"));
    }
    run.set_phase(Phase::Leaving);
    let until = clock.now() + RECOVERY_BOUND;
    let is_over = || {
        let left = run.living.borrow().iter().flatten().count();
        left == 0 && run.network.ends() <= ENDS_LEFT
    };
    while !is_over() && clock.now() < until {
        clock.sleep(20 * MS).await;
        run.network.heal();
    }
    if !is_over() {
        let ends = run.network.ends();
        run.violation(format!("{ends} ends of connections are left when all have gone"));
    }
    run.set_phase(Phase::GivenUp);
    for (process, _) in run.memory.borrow().iter() {
        process.kill(None);
    }
}

fn fault(run: &NetworkRun) {
    let network = &run.network;
    let some_ns = |most: u64| 1 + run.below(most) * MS;
    let living: Vec<Process> = run.living.borrow().iter().flatten().cloned().collect();
    let machine = |run: &NetworkRun| run.below(4) as u16;
    match run.below(17) {
        0..=2 => {
            for _ in 0..=run.below(4) {
                network.break_one(run.below(2) == 0);
            }
        }
        3 | 4 => {
            let a = run.below(u64::from(run.memory_nodes)) as u16;
            let b = 4 + run.below(u64::from(run.compute_nodes)) as u16;
            network.cut(a, b, some_ns(3_000));
            run.cut.set((a, b));
        }
        5 => network.cut(machine(run), machine(run), some_ns(3_000)),
        6 => {
            for process in run.memory.borrow().iter().map(|(p, _)| p) {
                if run.below(2) == 0 {
                    process.pause(some_ns(2_500));
                }
            }
        }
        7 => living.iter().for_each(|p| p.pause(some_ns(3_000))),
        8 | 9 if !living.is_empty() => {
            let process = &living[run.below(living.len() as u64) as usize];
            match run.below(3) {
                0 => process.pause(some_ns(4_000)),
                1 => process.kill(Some(some_ns(4_000))),
                _ => process.kill(None),
            }
        }
        10 => living.iter().for_each(|p| p.kill(None)),
        11 if run.memory_nodes > 1 && run.below(4) == 0 => {
            run.is_one_lost.set(true);
            run.memory.borrow()[1].0.kill(None);
        }
        14 => {
            // Resets, and a black hole at the same address from then on.
            let a = run.below(u64::from(run.memory_nodes)) as u16;
            let b = 4 + run.below(u64::from(run.compute_nodes)) as u16;
            network.break_between(b, a, false);
            network.cut(a, b, some_ns(30_000));
        }
        15 if run.below(4) == 0 => {
            // The membership server stalls for long.
            run.memory.borrow()[0].0.pause(some_ns(12_000));
        }
        16 if run.is_long => living.iter().for_each(|p| {
            if run.below(2) == 0 {
                p.kill(None);
            }
        }),
        12 | 13 => {
            // Bytes on the path that was cut arrive after the sender has closed the connection.
            let (a, b) = run.cut.get();
            network.break_between(b, a, run.below(2) == 0);
        }
        _ => {}
    }
}

async fn pause(ep: &Endpoint, ns: Nanos) {
    ep.sleep(ns.max(1)).await;
}
