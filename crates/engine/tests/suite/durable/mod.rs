//! Durable indexes lose power, and are opened again: what was acknowledged is there, what was read
//! is there, and nothing is there that no client wrote.
//!
//! A run is a function of its seed. Clients on two or three compute nodes work on a few keys, with
//! fabric faults, dropped operations and a device that may fail; at a drawn time everything stops.
//! The journal is in the process of the clients or at a journal node. In half of the runs nodes are
//! lost before that, under load (`losses.rs`): compute nodes crash, hang, or lose their lease while
//! their clients go on, the others fence them and recover what they held, and go on; the journal
//! node ends and comes back. A new pool is loaded from what the journal has then, the clients go
//! on, and in the end every key is read. One history of both lives is judged: operations that had
//! not returned stay open. The journal has the records of a key in the order of the lock: none of a
//! node that is fenced comes behind one of the others (`order.rs`).
//!
//! | level | what is lost | what is judged |
//! |---|---|---|
//! | process | the process | every operation that has returned |
//! | sync | the power | every operation that has returned |
//! | process | the power | every operation that had returned when the device synced last |

mod clients;
mod journal;
mod losses;
mod nodes;
mod order;
mod plan;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_check::concurrent::seeds;
use dmtree_check::harness::Harness;
use dmtree_check::log::{Answer, Call, Log, Record, loaded};
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, Mutant, Options};
use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::{
    Capabilities, Member, MemberPhase, MemoryState, NodeId, Presence, SeededRandom,
};
use dmtree_journal::{IndexJournal, Level};
use dmtree_parts::Fill;
use dmtree_pool::PoolOptions;

use clients::{Caller, Shared};
use journal::{INDEX, SimJournal, Wrong};
use losses::Ends;
use nodes::Attached;
use plan::Plan;

const STRIDE: u64 = 2;
const CLIENTS: u32 = 6;
const SLAB_BYTES: u64 = 8 << 20;

fn key(n: u64) -> Vec<u8> {
    format!("key {n:04}").into_bytes()
}

fn number(key: &[u8]) -> u64 {
    let text = std::str::from_utf8(&key[4..]).expect("a key of the run");
    text.parse().expect("a key of the run")
}

/// A value is its number, some of them too long for an entry.
fn value(id: u64) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    if id.is_multiple_of(5) {
        bytes.resize(100, id as u8);
    }
    bytes
}

fn id(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value.first_chunk().expect("a value of the run"))
}

/// One life of the pool: a cluster on a fabric of its own, with the log of all lives, and what
/// sends to its journal node.
fn life(plan: &Plan, journal: &Arc<SimJournal>, log: Log, number: u64) -> (Rc<Harness>, Attached) {
    let whole = if plan.whole_write { u32::MAX } else { 0 };
    let grants = Capabilities { whole_write_bytes: whole, ..Capabilities::NONE };
    let fabric =
        SimFabric::adversarial(plan.faults, grants, plan.seed ^ number << 40).expect("a fabric");
    let pool = PoolOptions {
        compute_nodes: plan.compute_nodes,
        memory_bytes_per_node: 8 << 20,
        ..PoolOptions::default()
    };
    let options = Options { leaf_capacity: 32, ..Options::default() };
    let cluster = TestCluster::simulated(&fabric, &pool, 1 << 20, options).expect("a cluster");
    // As opening a pool does: the pairs come from the journal, which is attached afterwards.
    let pairs: Vec<_> = journal.contents().into_iter().collect();
    if !pairs.is_empty() {
        cluster.client(0).expect("a client").load(pairs, true, Fill::Even(1.0)).expect("loaded");
    }
    let harness = Harness::on(cluster, fabric, SLAB_BYTES).expect("a harness");
    let mut attached = Attached::default();
    match plan.is_remote {
        true => attached = nodes::attach(&harness, vec![journal.clone()], INDEX),
        false => {
            for node in &harness.test_cluster.nodes {
                let part = IndexJournal::new(journal.clone(), INDEX);
                node.typed::<DmNode>().attach_journal(part).expect("the first");
            }
        }
    }
    if plan.wrong == Some(Wrong::LeaseIgnored) {
        let nodes = harness.test_cluster.nodes.iter().map(|node| node.typed::<DmNode>());
        nodes.for_each(|node| node.set_mutants(&[Mutant::NoLease]));
    }
    harness.log.replace(log);
    (Rc::new(harness), attached)
}

/// Starts the clients of a life, each with so many calls; how many have not ended.
fn start_clients(
    plan: &Plan,
    harness: &Rc<Harness>,
    (life, shared): (u64, &Rc<Shared>),
    calls: u64,
) -> Rc<Cell<u32>> {
    let (is_first, busy) = (life == 0, Rc::new(Cell::new(CLIENTS)));
    let lost: Rc<[u32]> = match is_first {
        true => (0..CLIENTS).filter(|client| plan.loses(*client)).collect(),
        false => Rc::default(),
    };
    for client in 0..CLIENTS {
        let (busy, seed) = (busy.clone(), plan.seed << 8 ^ life << 4 ^ u64::from(client));
        let caller = |index| Caller {
            harness: harness.clone(),
            index,
            client,
            rng: Rng::new(seed),
            wrote: vec![0; plan.keys as usize],
            keys: plan.keys,
            shared: shared.clone(),
            // A dropped operation waits for its append, which blocks the thread of the sender.
            drops: is_first && !plan.is_remote,
            loses_nodes: is_first && plan.loses_nodes(),
            lost: lost.clone(),
        };
        harness.worker(plan.cn_of(client), |index| {
            let caller = caller(index);
            async move {
                caller.calls(calls).await;
                busy.set(busy.get() - 1);
            }
        });
    }
    busy
}

/// Starts the device; when it had everything for the last time, ns.
fn start_device(plan: &Plan, harness: &Harness, journal: &Arc<SimJournal>) -> Rc<Cell<u64>> {
    let (slot, synced_ns) = (harness.core().add_slot(), Rc::new(Cell::new(0)));
    let (device, its, last) = (harness.endpoint_beside(slot), journal.clone(), synced_ns.clone());
    let sync_ns = plan.sync_ns;
    harness.spawn_beside(slot, async move {
        loop {
            device.sleep(sync_ns).await;
            its.sync();
            if !its.has_failed() {
                last.set(device.now());
            }
        }
    });
    synced_ns
}

/// Runs a life: the first one until it dies, the second one with so many calls. Returns when the
/// device had everything for the last time, ns, and how compute nodes have ended.
fn live(
    plan: &Plan,
    journal: &Arc<SimJournal>,
    (harness, attached): &(Rc<Harness>, Attached),
    (life, shared): (u64, &Rc<Shared>),
) -> (u64, Ends) {
    let (is_first, ends) = (life == 0, Ends::default());
    match is_first && plan.loses_nodes() {
        true => losses::begin(plan, (harness, attached), journal, &ends),
        false => harness.membership_agents(),
    }
    let calls = if is_first { u64::MAX } else { 40 };
    let busy = start_clients(plan, harness, (life, shared), calls);
    let synced_ns = start_device(plan, harness, journal);
    let main = harness.own_endpoint(0);
    harness.run(&mut SeededRandom::new(plan.seed), async {
        if is_first {
            return main.sleep(plan.dies_at_ns).await;
        }
        while busy.get() > 0 && harness.trouble().is_none() {
            main.sleep(50_000).await;
        }
    });
    (synced_ns.get(), ends)
}

/// The log of the first life, as far as it counts: without what was read, and with writes open,
/// that had not returned at `until_ns`.
fn counting(log: &Log, until_ns: u64) -> Log {
    let mut events = Vec::new();
    for (i, record) in log.records().iter().enumerate() {
        let counts = record.ret.as_ref().is_some_and(|ret| ret.at_ns < until_ns);
        let reads = matches!(record.call, Call::Get(_) | Call::Scan(..));
        if counts || !reads {
            events.push((record.called, i, false));
        }
        if let Some(ret) = record.ret.as_ref().filter(|_| counts) {
            events.push((ret.at, i, true));
        }
    }
    events.sort_unstable();
    let (mut new, mut numbers) = (Log::new(log.stride, log.numbers), vec![0; log.records().len()]);
    for (_, i, returns) in events {
        let record = &log.records()[i];
        match record.ret.as_ref().filter(|_| returns) {
            Some(ret) => new.ret(numbers[i], ret.at_ns, ret.answer.clone()),
            None => numbers[i] = new.call(record.client, record.called_ns, record.call),
        }
    }
    new
}

/// What a first life has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reached {
    /// A compute node was fenced and what it held was recovered.
    recovers: bool,
    /// So, and a write was acknowledged that began when the last node had ended.
    goes_on: bool,
    /// The journal node was back in its next incarnation.
    journal_node_is_back: bool,
}

impl Reached {
    fn of(plan: &Plan, first: &Harness) -> Self {
        let state = first.test_cluster.membership().latest();
        let recovers = state.members.iter().any(|m| m.phase == MemberPhase::Gone);
        let ended_ns = plan.losses.last().map_or(0, |loss| loss.at_ns + plan.lease_ns);
        let acknowledged = |record: &Record| {
            let done = record.ret.as_ref().is_some_and(|ret| ret.answer == Answer::Done);
            done && record.called_ns > ended_ns
        };
        let goes_on = recovers && first.log.borrow().records().iter().any(acknowledged);
        let back = Member { node: NodeId::journal(0), incarnation: 2 };
        let is_present = |m: &MemoryState| m.member == back && m.presence == Presence::Present;
        Self { recovers, goes_on, journal_node_is_back: state.memory.iter().any(is_present) }
    }
}

/// One run: the first thing that is wrong.
fn run(plan: &Plan) -> Result<Reached, String> {
    let present = (0..plan.keys).filter(|n| !n.is_multiple_of(STRIDE));
    let present = present.map(|n| (key(n), Some(value(loaded(n))))).collect();
    let journal = SimJournal::new(plan.level, plan.wrong, plan.seed, plan.fail_one_in, present);
    let journal = Arc::new(journal);
    let shared = Rc::new(Shared::default());
    let first = life(plan, &journal, Log::new(STRIDE, plan.keys), 0);
    let (synced_ns, ends) = live(plan, &journal, &first, (0, &shared));
    let first = first.0;
    first.trouble().map_or(Ok(()), Err)?;
    let reached = Reached::of(plan, &first);
    let log = first.log.take();
    // Before it is lost, the first life is judged by itself.
    log.check().map_err(|wrong| format!("in the first life: {wrong}"))?;
    order::check(&log, &journal.appends(), &ends.borrow(), |client| plan.cn_of(client))?;
    let log = if plan.loses_acknowledged() { counting(&log, synced_ns) } else { log };
    journal.dies(plan.process_dies);
    journal.is_repaired();
    let second = life(plan, &journal, log, 1);
    live(plan, &journal, &second, (1, &shared));
    let second = second.0;
    second.trouble().map_or(Ok(()), Err)?;
    let mut memory = BTreeMap::new();
    for n in 0..plan.keys {
        let record = second.call(CLIENTS, Call::Get(n));
        let (mut client, mut out) = (second.client(1), Vec::new());
        let is_there = second.now(client.get(&key(n), &mut out)).map_err(|e| e.to_string())?;
        second.ret(record, Answer::Found(is_there.then(|| id(&out))));
        if is_there {
            memory.insert(key(n), out);
        }
    }
    journal.sync();
    second.log.borrow().check().map_err(|wrong| wrong.to_string())?;
    match journal.contents() == memory {
        true => Ok(reached),
        false => Err("in the end the journal has other pairs than the memory".to_owned()),
    }
}

/// What the runs of one place and level have reached.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    runs: u64,
    recover: u64,
    go_on: u64,
    journal_nodes_back: u64,
}

#[test]
#[expect(clippy::disallowed_macros, reason = "what the seeds have reached")]
fn adversarial_lives_keep_what_was_promised() {
    let mut sums: BTreeMap<(bool, bool), Sums> = BTreeMap::new();
    let seeds = seeds(0, 300);
    for seed in seeds.clone() {
        let plan = Plan::of(seed, None);
        let reached = run(&plan).unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}"));
        let sum = sums.entry((plan.level == Level::Sync, plan.is_remote)).or_default();
        sum.runs += 1;
        sum.recover += u64::from(reached.recovers);
        sum.go_on += u64::from(reached.goes_on);
        sum.journal_nodes_back += u64::from(reached.journal_node_is_back);
    }
    for ((is_sync, is_remote), sum) in &sums {
        let level = if *is_sync { "sync" } else { "process" };
        let place = if *is_remote { "at a journal node" } else { "in the process" };
        eprintln!("{level}, {place}: {sum:?}");
        // Some hundred seeds reach everything.
        let is_reached = sum.go_on > 0 && (!is_remote || sum.journal_nodes_back > 0);
        assert!(is_reached || seeds.end < 300, "{level}, {place}: {sum:?}");
    }
}

/// Each rule that a writer, a journal node or a survivor could break is seen by one of these seeds.
/// Where hundreds see nothing, the range begins behind them.
#[test]
#[expect(clippy::disallowed_macros, reason = "the seed that finds each")]
fn broken_rules_are_found() {
    let within = [
        (Wrong::AcceptedEarly, 0..100),
        (Wrong::AppendedLate, 0..100),
        (Wrong::FailureIgnored, 0..100),
        (Wrong::OutOfOrder, 0..100),
        (Wrong::RoundCut, 0..100),
        (Wrong::FencedAccepted, 360..1_000),
        (Wrong::LeaseIgnored, 230..1_000),
    ];
    for (wrong, seeds) in within {
        let plans = seeds.clone().map(|seed| Plan::of(seed, Some(wrong)));
        let found = plans.filter(|plan| wrong.shows_in(plan)).find_map(|plan| {
            let what = run(&plan).err()?;
            Some((plan.seed, what))
        });
        eprintln!("{wrong:?}: {found:?}");
        assert!(found.is_some(), "{wrong:?} is not found by seeds {seeds:?}");
    }
}
