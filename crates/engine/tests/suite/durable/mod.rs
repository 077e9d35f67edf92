//! Durable indexes lose power, and are opened again: what was acknowledged is there, what was read
//! is there, and nothing is there that no client wrote.
//!
//! A run is a function of its seed. Clients on two compute nodes work on a few keys, with fabric
//! faults, dropped operations and a device that may fail; at a drawn time everything stops. The
//! journal is in the process of the clients or at a journal node. A new
//! pool is loaded from what the journal has then, the clients go on, and in the end every key is
//! read. One history of both lives is judged: operations that had not returned stay open.
//!
//! | level | what is lost | what is judged |
//! |---|---|---|
//! | process | the process | every operation that has returned |
//! | sync | the power | every operation that has returned |
//! | process | the power | every operation that had returned when the device synced last |

mod journal;
mod nodes;

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_check::harness::Harness;
use dmtree_check::log::{Answer, Call, Log, loaded};
use dmtree_check::rng::Rng;
use dmtree_check::scenario::dropped_after;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, Options};
use dmtree_fabric::sim::{FabricFaults, SimFabric};
use dmtree_fabric::{Capabilities, Error, ErrorKind, SeededRandom};
use dmtree_journal::{IndexJournal, Level};
use dmtree_parts::{AnyIndex, Fill, Page, Resume, ScanRequest, Write};
use dmtree_pool::PoolOptions;

use journal::{INDEX, SimJournal, Wrong};

/// Keys of a run: two leaves of 32 slots, or some. Every second key is there from the beginning, in
/// leaves that are full: inserts split them.
const KEYS: [u64; 3] = [40, 40, 600];
const STRIDE: u64 = 2;
const CLIENTS: u32 = 6;
const NODES: u16 = 2;
const SLAB_BYTES: u64 = 8 << 20;

/// What a seed draws.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    keys: u64,
    level: Level,
    /// The process alone is gone, not the power.
    process_dies: bool,
    faults: FabricFaults,
    whole_write: bool,
    fail_one_in: u64,
    /// When everything stops, and how often the device syncs, ns.
    dies_at_ns: u64,
    sync_ns: u64,
    wrong: Option<Wrong>,
    /// The journal is that of a journal node, and records reach it in calls.
    is_remote: bool,
}

impl Plan {
    fn of(seed: u64, wrong: Option<Wrong>) -> Self {
        let mut rng = Rng::new(seed ^ 0x7077_7233);
        let process = Level::Process { sync_every: None };
        let (level, process_dies) =
            rng.of(&[(process, true), (process, false), (Level::Sync, false), (Level::Sync, true)]);
        let faults =
            if rng.below(2) == 0 { FabricFaults::NONE } else { FabricFaults::of_seed(seed) };
        Self {
            seed,
            keys: rng.of(&KEYS),
            level,
            process_dies,
            faults: FabricFaults { refuse_memory_one_in: 0, ..faults },
            whole_write: rng.below(2) == 0,
            fail_one_in: rng.of(&[0, 0, 60, 400]),
            dies_at_ns: 20_000 + rng.below(2_000_000),
            sync_ns: rng.of(&[3_000, 30_000, 200_000]),
            wrong,
            // A simulated call ends at once: it waits for no device.
            is_remote: level != Level::Sync && rng.below(2) == 0,
        }
    }

    /// Acknowledged writes may be missing: those behind the last sync.
    fn loses_acknowledged(&self) -> bool {
        self.level != Level::Sync && !self.process_dies
    }
}

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

/// One life of the pool: a cluster on a fabric of its own, with the log of all lives.
fn life(plan: &Plan, journal: &Arc<SimJournal>, log: Log, number: u64) -> Harness {
    let whole = if plan.whole_write { u32::MAX } else { 0 };
    let grants = Capabilities { whole_write_bytes: whole, ..Capabilities::NONE };
    let fabric =
        SimFabric::adversarial(plan.faults, grants, plan.seed ^ number << 40).expect("a fabric");
    let pool = PoolOptions {
        compute_nodes: NODES,
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
    match plan.is_remote {
        true => _ = nodes::attach(&harness, vec![journal.clone()], INDEX),
        false => {
            for node in &harness.test_cluster.nodes {
                let part = IndexJournal::new(journal.clone(), INDEX);
                node.typed::<DmNode>().attach_journal(part).expect("the first");
            }
        }
    }
    harness.log.replace(log);
    harness
}

/// What the clients of a run share.
#[derive(Debug, Default)]
struct Shared {
    /// The last identity of a value.
    last_id: Cell<u64>,
    /// The key that was written last: reads go there, to see effects as early as they show.
    written: Cell<u64>,
}

/// Makes calls until the run is over, or so many.
struct Caller {
    harness: Rc<Harness>,
    index: AnyIndex,
    client: u32,
    rng: Rng,
    /// The last value that it wrote to each key.
    wrote: Vec<u64>,
    keys: u64,
    shared: Rc<Shared>,
    /// Some operations are dropped.
    drops: bool,
}

impl Caller {
    fn new_id(&mut self) -> u64 {
        let id = self.shared.last_id.get() + 1;
        self.shared.last_id.set(id);
        id
    }

    async fn calls(mut self, calls: u64) {
        for _ in 0..calls {
            match self.rng.below(16) {
                0..3 => self.get().await,
                3 => self.scan().await,
                4 => self.batch().await,
                5 => _ = self.index.maintain().await,
                _ => self.write().await,
            }
        }
    }

    async fn get(&mut self) {
        let n = match self.rng.below(2) {
            0 => self.shared.written.get(),
            _ => self.rng.below(self.keys),
        };
        let record = self.harness.call(self.client, Call::Get(n));
        let mut out = Vec::new();
        match self.index.get(&key(n), &mut out).await {
            Ok(found) => self.harness.ret(record, Answer::Found(found.then(|| id(&out)))),
            Err(e) => self.harness.complain()(format!("get k{n}: {e}")),
        }
    }

    async fn scan(&mut self) {
        let record = self.harness.call(self.client, Call::Scan(0, self.keys - 1));
        let (mut low, mut page, mut pairs) = (Bound::Unbounded, Page::new(), Vec::new());
        loop {
            let low_ref = low.as_ref().map(|key: &Vec<u8>| &key[..]);
            let (high, reverse, limit) = (Bound::Unbounded, false, 1_000);
            let request = ScanRequest { low: low_ref, high, reverse, limit };
            match self.index.scan(&request, &mut page).await {
                Ok(resume) => {
                    pairs.extend(page.iter().map(|(k, v)| (number(k), id(v))));
                    let Some(Resume(next)) = resume else { break };
                    low = next;
                }
                Err(e) => return self.harness.complain()(format!("a scan: {e}")),
            }
        }
        self.harness.ret(record, Answer::Pairs(pairs));
    }

    async fn write(&mut self) {
        let (n, new) = (self.rng.below(self.keys), self.new_id());
        self.shared.written.set(n);
        let was = std::mem::replace(&mut self.wrote[n as usize], new);
        let (bytes, expected) = (value(new), value(was));
        let set = Write::CompareAndSet { expected: &expected, new: Some(&bytes) };
        let (call, w) = match self.rng.below(8) {
            0 => (Call::Insert(n, new), Write::Insert(&bytes)),
            1 => (Call::Update(n, new), Write::Update(&bytes)),
            2 | 3 => (Call::Delete(n), Write::Delete),
            4 | 5 if was > 0 => (Call::CompareAndSet(n, was, new), set),
            _ => (Call::Put(n, new), Write::Put(&bytes)),
        };
        let record = self.harness.call(self.client, call);
        let polls = (self.drops && self.rng.below(16) == 0).then(|| 1 + self.rng.below(12));
        match dropped_after(polls.unwrap_or(u64::MAX), self.index.write(&key(n), w)).await {
            Some(Ok(outcome)) => self.harness.ret(record, outcome.into()),
            Some(Err(e)) => self.failed(record, &e),
            // It may take effect, now or later.
            None => {}
        }
    }

    /// Each of them is a call of its own.
    async fn batch(&mut self) {
        let mut numbers: Vec<u64> =
            (0..2 + self.rng.below(6)).map(|_| self.rng.below(self.keys)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.shared.written.set(numbers[0]);
        let new: Vec<(u64, u64)> = numbers.into_iter().map(|n| (n, self.new_id())).collect();
        let pairs: Vec<_> = new.iter().map(|(n, id)| (key(*n), value(*id))).collect();
        let writes: Vec<_> = pairs.iter().map(|(k, v)| (&k[..], Write::Put(v))).collect();
        let call = |(n, id): &(u64, u64)| self.harness.call(self.client, Call::Put(*n, *id));
        let records: Vec<usize> = new.iter().map(call).collect();
        let mut outcomes = Vec::new();
        if let Err(e) = self.index.write_many(&writes, &mut outcomes).await {
            return records.into_iter().for_each(|record| self.failed(record, &e));
        }
        for (record, outcome) in records.into_iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => self.harness.ret(record, outcome.into()),
                Err(e) => self.failed(record, &e),
            }
        }
    }

    fn failed(&self, record: usize, e: &Error) {
        // The device has failed, or the client that led a group has dropped its operation.
        match e.kind() == ErrorKind::Closed || self.drops && e.kind() == ErrorKind::Busy {
            true => self.harness.ret(record, Answer::from(e)),
            false => self.harness.complain()(format!("a write: {e}")),
        }
    }
}

/// Runs a life: clients until it `dies_at_ns`, or each with so many calls. Returns when the device
/// had everything for the last time, ns.
fn live(
    plan: &Plan,
    journal: &Arc<SimJournal>,
    harness: &Rc<Harness>,
    (life, shared): (u64, &Rc<Shared>),
    dies_at_ns: Option<u64>,
) -> u64 {
    let calls = if dies_at_ns.is_some() { u64::MAX } else { 40 };
    let (busy, synced_ns) = (Rc::new(Cell::new(CLIENTS)), Rc::new(Cell::new(0)));
    harness.membership_agents();
    for client in 0..CLIENTS {
        let (shared, busy, of) = (shared.clone(), busy.clone(), harness.clone());
        let keys = plan.keys;
        let seed = plan.seed << 8 ^ life << 4 ^ u64::from(client);
        harness.worker(client as u16 % NODES, |index| {
            let (rng, wrote) = (Rng::new(seed), vec![0; keys as usize]);
            // A dropped operation waits for its append, which blocks the thread of the sender.
            let drops = dies_at_ns.is_some() && !plan.is_remote;
            let caller = Caller { harness: of, index, client, rng, wrote, keys, shared, drops };
            async move {
                caller.calls(calls).await;
                busy.set(busy.get() - 1);
            }
        });
    }
    let slot = harness.core().add_slot();
    let device = harness.endpoint(0, slot);
    let (its, last, sync_ns) = (journal.clone(), synced_ns.clone(), plan.sync_ns);
    harness.spawn(0, slot, async move {
        loop {
            device.sleep(sync_ns).await;
            its.sync();
            if !its.has_failed() {
                last.set(device.now());
            }
        }
    });
    let main = harness.own_endpoint(0);
    harness.run(&mut SeededRandom::new(plan.seed), async {
        match dies_at_ns {
            Some(time) => main.sleep(time).await,
            None => {
                while busy.get() > 0 && harness.trouble().is_none() {
                    main.sleep(50_000).await;
                }
            }
        }
    });
    synced_ns.get()
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

/// One run: the first thing that is wrong.
fn run(plan: &Plan) -> Result<(), String> {
    let present = (0..plan.keys).filter(|n| !n.is_multiple_of(STRIDE));
    let present = present.map(|n| (key(n), Some(value(loaded(n))))).collect();
    let journal = SimJournal::new(plan.level, plan.wrong, plan.seed, plan.fail_one_in, present);
    let journal = Arc::new(journal);
    let shared = Rc::new(Shared::default());
    let first = Rc::new(life(plan, &journal, Log::new(STRIDE, plan.keys), 0));
    let synced_ns = live(plan, &journal, &first, (0, &shared), Some(plan.dies_at_ns));
    first.trouble().map_or(Ok(()), Err)?;
    let log = first.log.take();
    // Before it is lost, the first life is judged by itself.
    log.check().map_err(|wrong| format!("in the first life: {wrong}"))?;
    let log = if plan.loses_acknowledged() { counting(&log, synced_ns) } else { log };
    let found = Arc::new(journal.after_death(plan.process_dies));
    let second = Rc::new(life(plan, &found, log, 1));
    live(plan, &found, &second, (1, &shared), None);
    second.trouble().map_or(Ok(()), Err)?;
    let mut memory = std::collections::BTreeMap::new();
    for n in 0..plan.keys {
        let record = second.call(CLIENTS, Call::Get(n));
        let (mut client, mut out) = (second.client(1), Vec::new());
        let is_there = second.now(client.get(&key(n), &mut out)).map_err(|e| e.to_string())?;
        second.ret(record, Answer::Found(is_there.then(|| id(&out))));
        if is_there {
            memory.insert(key(n), out);
        }
    }
    found.sync();
    second.log.borrow().check().map_err(|wrong| wrong.to_string())?;
    match found.contents() == memory {
        true => Ok(()),
        false => Err("in the end the journal has other pairs than the memory".to_owned()),
    }
}

fn seeds() -> u64 {
    std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

#[test]
fn adversarial_lives_keep_what_was_promised() {
    for seed in 0..seeds() {
        let plan = Plan::of(seed, None);
        run(&plan).unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}"));
    }
}

/// Each rule that a writer could break is seen.
#[test]
fn broken_rules_are_found() {
    use Wrong::{AcceptedEarly, AppendedLate, FailureIgnored, OutOfOrder, RoundCut};
    for wrong in [AcceptedEarly, AppendedLate, FailureIgnored, OutOfOrder, RoundCut] {
        let is_found = (0..100).any(|seed| run(&Plan::of(seed, Some(wrong))).is_err());
        assert!(is_found, "{wrong:?} is not found");
    }
}
