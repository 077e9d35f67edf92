//! Checked runs of the real network code on a simulated network (`dmtree_fabric::net::virt`), each a function of its seed.
//!
//! A pool of one or two memory nodes; compute processes that live for a while, are killed, stopped, cut off, and come back, at once or
//! when none has lived for seconds; numbers that two processes want, of which one goes on when it has stood still and the other one has
//! taken over; the membership server standing still; the other memory node killed before it is ready, or later; paths that are cut,
//! resets, black holes, connections that break on one side or both, peers that connect again meanwhile, late bytes. One seed in 512 has
//! many hundreds of lives. Every client writes a word of its own and words that all share. After the faults every process must work
//! again within a time, and nothing may be left behind.
//!
//! Not in it: a pool and an index above the network (a process that joins a pool waits on its thread); a first memory node that is
//! started anew, which is another pool; RDMA; packets that are damaged (TCP has checksums).

mod agent;
mod hosts;
mod judge;
mod restarts;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use dmtree_fabric::net::virt::{self, Network, Process, Sight};
use dmtree_fabric::net::{DataPath, NetFabric, PoolConfig};
use dmtree_fabric::{
    Endpoint, Fabric, GlobalAddr, LeaseParameters, Nanos, NodeId, SeededRandom, Worker,
};

use crate::rng::Rng;
use crate::verdict::panic_text;
use judge::{Calls, OwnWord, Shared};

const MS: Nanos = 1_000_000;
/// Where the first memory node listens.
const FIRST: &str = "10.0.0.0:7000";
const PORT: u16 = 7000;
const REGION: u64 = 1 << 14;
/// Everything works again, and has ended, this long after the last fault, ns.
const HEALS_WITHIN: Nanos = 60_000 * MS;
/// Words that all write.
const SHARED_WORDS: u64 = 3;
/// One seed in this many has many hundreds of lives.
const LONG_ONE_IN: u64 = 512;
/// How long its faults go on at most, ms.
const LONG_MS: u64 = 1_500_000;
/// Ends of connections that may be left between memory nodes.
const ENDS_LEFT: usize = 8;

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Lives of compute processes.
    pub restarts: u64,
    /// What the network did besides the ordinary, and how often.
    pub seen: BTreeMap<Sight, u64>,
    /// What must not be.
    pub violations: Vec<String>,
}

/// A defect on purpose, at one of the seams that have some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Of the rules of membership.
    Membership(dmtree_fabric::Mutant),
    /// Of what lies under the links.
    Network(virt::Mutant),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Anything happens.
    Faults,
    /// Nothing does any more: all must work.
    Healed,
    /// Everybody goes.
    Leaving,
    /// It has taken too long.
    GivenUp,
}

/// What the coroutines of a run share.
struct Stage {
    network: Network,
    random: RefCell<Rng>,
    phase: Cell<Phase>,
    outcome: RefCell<Outcome>,
    own: RefCell<Vec<OwnWord>>,
    shared: RefCell<Shared>,
    calls: Arc<Mutex<Calls>>,
    /// Compute processes that live now.
    living: RefCell<Vec<Option<Process>>>,
    /// Of each number, the life that writes its word: a later one took it over.
    owners: RefCell<Vec<u32>>,
    /// Compute processes that have worked since the faults ended.
    has_worked: RefCell<Vec<bool>>,
    memory: RefCell<Vec<(Process, Option<NetFabric>)>>,
    seats: u16,
    memory_nodes: u16,
    /// Hundreds of lives, most of them short.
    is_long: bool,
    /// The second memory node's process has ended, and with it what it held.
    is_one_lost: Cell<bool>,
    /// The machines whose path was cut last.
    cut: Cell<(u16, u16)>,
    slots: RefCell<Vec<u32>>,
}

impl Stage {
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
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.slots.borrow().iter().for_each(|slot| self.network.core().wake(*slot));
    }

    /// Where the word of a compute process's own client is.
    fn own_word(&self, seat: u16) -> GlobalAddr {
        let owner = NodeId::memory(seat % self.memory_nodes);
        GlobalAddr::new(owner, 64 + 8 * u64::from(seat))
    }

    /// Where a word is that all write.
    fn shared_word(word: u64) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(0), 1024 + 8 * word)
    }
}

/// Runs a seed; a panic is a violation.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None)
}

/// The same with a defect on purpose.
pub fn run_with(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let ran = std::panic::catch_unwind(|| script(seed, mutant));
    ran.unwrap_or_else(|panic| Outcome {
        violations: vec![format!("a panic: {}", panic_text(&*panic))],
        ..Outcome::default()
    })
}

fn script(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let mut random = Rng::new(seed);
    let network = Network::new(random.next_u64());
    let (seats, memory_nodes) = (1 + random.below(3) as u16, 1 + random.below(2) as u16);
    let stage = Rc::new(Stage {
        network: network.clone(),
        phase: Cell::new(Phase::Faults),
        outcome: RefCell::default(),
        own: RefCell::new(vec![OwnWord::new(); usize::from(seats)]),
        shared: RefCell::new(Shared::new()),
        calls: Arc::default(),
        living: RefCell::default(),
        owners: RefCell::new(vec![0; usize::from(seats)]),
        is_long: seed % LONG_ONE_IN == LONG_ONE_IN - 1,
        has_worked: RefCell::new(vec![false; usize::from(seats)]),
        memory: RefCell::default(),
        seats,
        memory_nodes,
        is_one_lost: Cell::new(false),
        cut: Cell::default(),
        slots: RefCell::default(),
        random: RefCell::new(random),
    });
    let mut worker = Worker::new(network.core().clone());
    let slot = || {
        let slot = network.core().add_slot();
        stage.slots.borrow_mut().push(slot);
        slot
    };
    let first = network.start(0);
    let spare = stage.below(2) as u16;
    let pool_config = PoolConfig {
        memory_nodes,
        compute_nodes: seats + spare,
        data_path: DataPath::Frames,
        lease_parameters: Vec::new(),
    };
    let mut lease_parameters =
        LeaseParameters { acknowledge_ns: 3_000 * MS, ..LeaseParameters::default() };
    match mutant {
        Some(Mutant::Membership(of)) => lease_parameters.mutant = Some(of),
        Some(Mutant::Network(of)) => network.set_mutant(of),
        None => {}
    }
    let founded = match first.found(PORT, REGION, pool_config, lease_parameters) {
        Ok(founded) => founded,
        Err(e) => {
            stage.violation(format!("the pool is not founded: {e}"));
            return stage.outcome.take();
        }
    };
    let service = Arc::new(hosts::Count(stage.calls.clone()));
    if let Err(e) = founded.serve(founded.me().node, hosts::COUNT, service) {
        stage.violation(format!("the first memory node has no services: {e}"));
    }
    stage.memory.borrow_mut().push((first.clone(), Some(founded)));
    let (agent, services) = (slot(), slot());
    worker.spawn(agent, hosts::first_memory_node(stage.clone(), agent));
    worker.spawn(services, hosts::services(stage.clone(), services));
    for m in 1..memory_nodes {
        let slot = slot();
        stage.memory.borrow_mut().push((first.clone(), None));
        worker.spawn(slot, hosts::memory_node(stage.clone(), m, slot));
    }
    // Some numbers are wanted by two.
    let rivals: Vec<u16> = (0..seats).filter(|_| stage.below(3) == 0).collect();
    for seat in (0..seats).chain(rivals) {
        let (agent, client) = (slot(), slot());
        let seat = Rc::new(restarts::Seat::new(stage.clone(), seat));
        worker.spawn(agent, seat.clone().live(agent));
        worker.spawn(client, seat.work(client));
    }
    let fault_scheduler = slot();
    worker.spawn(fault_scheduler, direct(stage.clone(), fault_scheduler));
    if let Err(e) = worker.run(&mut SeededRandom::new(seed)) {
        stage.violation(format!("no process can go on: {e}"));
    }
    drop(worker);
    if let Err(e) = stage.shared.borrow().check() {
        stage.violation(e);
    }
    if let Some(e) = stage.calls().wrong.take() {
        stage.violation(e);
    }
    stage.memory.borrow_mut().clear();
    stage.outcome.borrow_mut().seen = network.seen();
    stage.outcome.take()
}

/// Makes faults, ends them, and sees to it that everything ends.
async fn direct(stage: Rc<Stage>, slot: u32) {
    let clock = &stage.network.clock(slot);
    let most = if stage.is_long { LONG_MS } else { 9_000 };
    let until = clock.now() + (3_000 + stage.below(most)) * MS;
    if stage.below(2) == 0 {
        stage.network.set_late(20 + stage.below(400));
    }
    while clock.now() < until {
        clock.sleep(stage.below(600) * MS + 1).await;
        fault(&stage);
    }
    stage.network.heal();
    stage.set_phase(Phase::Healed);
    let until = clock.now() + HEALS_WITHIN;
    while stage.has_worked.borrow().iter().any(|w| !w) && clock.now() < until {
        clock.sleep(20 * MS).await;
    }
    for (seat, _) in stage.has_worked.borrow().iter().enumerate().filter(|(_, w)| !**w) {
        stage.violation(format!("process {seat} does not work after the faults"));
    }
    stage.set_phase(Phase::Leaving);
    let until = clock.now() + HEALS_WITHIN;
    let is_over = || {
        let left = stage.living.borrow().iter().flatten().count();
        left == 0 && stage.network.ends() <= ENDS_LEFT
    };
    while !is_over() && clock.now() < until {
        clock.sleep(20 * MS).await;
        stage.network.heal();
    }
    if !is_over() {
        let ends = stage.network.ends();
        stage.violation(format!("{ends} ends of connections are left when all have gone"));
    }
    stage.set_phase(Phase::GivenUp);
    for (process, _) in stage.memory.borrow().iter() {
        process.kill(None);
    }
}

fn fault(stage: &Stage) {
    let network = &stage.network;
    let some_ns = |most: u64| 1 + stage.below(most) * MS;
    let living: Vec<Process> = stage.living.borrow().iter().flatten().cloned().collect();
    let machine = |stage: &Stage| stage.below(4) as u16;
    match stage.below(17) {
        0..=2 => {
            for _ in 0..=stage.below(4) {
                network.break_one(stage.below(2) == 0);
            }
        }
        3 | 4 => {
            let a = stage.below(u64::from(stage.memory_nodes)) as u16;
            let b = 4 + stage.below(u64::from(stage.seats)) as u16;
            network.cut(a, b, some_ns(3_000));
            stage.cut.set((a, b));
        }
        5 => network.cut(machine(stage), machine(stage), some_ns(3_000)),
        6 => {
            for process in stage.memory.borrow().iter().map(|(p, _)| p) {
                if stage.below(2) == 0 {
                    process.pause(some_ns(2_500));
                }
            }
        }
        7 => living.iter().for_each(|p| p.pause(some_ns(3_000))),
        8 | 9 if !living.is_empty() => {
            let process = &living[stage.below(living.len() as u64) as usize];
            match stage.below(3) {
                0 => process.pause(some_ns(4_000)),
                1 => process.kill(Some(some_ns(4_000))),
                _ => process.kill(None),
            }
        }
        10 => living.iter().for_each(|p| p.kill(None)),
        11 if stage.memory_nodes > 1 && stage.below(4) == 0 => {
            stage.is_one_lost.set(true);
            stage.memory.borrow()[1].0.kill(None);
        }
        14 => {
            // Resets, and a black hole at the same address from then on.
            let a = stage.below(u64::from(stage.memory_nodes)) as u16;
            let b = 4 + stage.below(u64::from(stage.seats)) as u16;
            network.break_between(b, a, false);
            network.cut(a, b, some_ns(30_000));
        }
        15 if stage.below(4) == 0 => {
            // The membership server stands still for long.
            stage.memory.borrow()[0].0.pause(some_ns(12_000));
        }
        16 if stage.is_long => living.iter().for_each(|p| {
            if stage.below(2) == 0 {
                p.kill(None);
            }
        }),
        12 | 13 => {
            // What is on the path that was cut arrives when its sender has given the connection up.
            let (a, b) = stage.cut.get();
            network.break_between(b, a, stage.below(2) == 0);
        }
        _ => {}
    }
}

/// Pauses.
async fn rest(ep: &Endpoint, ns: Nanos) {
    ep.sleep(ns.max(1)).await;
}

#[cfg(test)]
mod tests;
