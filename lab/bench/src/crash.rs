//! Crash experiment in virtual time: a compute node dies under load. It shows the effect on the
//! other nodes, and how long recovery takes.
//!
//! Every client reads any key, and updates only keys of its own. At the end all written keys are
//! read, and the history of each must be linearizable: it has the value that its writer was
//! acknowledged last, or the value that the writer was writing when it died.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use clap::{Args, Command, FromArgMatches};
use dmtree_check::case::range;
use dmtree_check::harness::Harness;
use dmtree_check::history::{Event, Op, check_key};
use dmtree_check::log::{Answer, Call};
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::sim::{How, Profile, SimFabric};
use dmtree_fabric::{Endpoint, Fifo, MemberPhase, NodeId};
use dmtree_parts::worker;
use dmtree_parts::{AnyIndex, AnyOptions, Fill, Write};
use dmtree_pool::{PoolNode, PoolOptions};
use dmtree_workload::Seed;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::profile::DEFAULT_PROFILE;
use crate::registry;
use crate::settings::GivenOption;
use crate::system::checked;

/// Version of [`Outcome`] as JSON.
pub const CRASH_VERSION: u32 = 2;
/// Buffers of one client, bytes.
const SLAB_BYTES: u64 = 256 << 10;
/// A lease for the load and for the reads in the end, which no membership agent runs beside, ns of
/// virtual time.
const LONG_LEASE_NS: u64 = 3_600_000_000_000;

/// The parameters of the simulation.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The system, with its usual options; it must recover from crashes.
    #[arg(long, default_value = "dmtree")]
    pub system: String,
    /// Set a creation option of the system; may be given several times.
    #[arg(long = "option", value_name = "NAME.FIELD=VALUE")]
    pub options: Vec<String>,
    /// Hardware (see `fabric list`).
    #[arg(long, default_value = DEFAULT_PROFILE)]
    pub profile: String,
    /// Keys loaded.
    #[arg(long, default_value_t = 1_000_000)]
    pub keys: u64,
    /// Compute nodes; the last one dies.
    #[arg(long, default_value_t = 6)]
    pub cns: u16,
    /// Threads of each compute node.
    #[arg(long, default_value_t = 24)]
    pub threads: u32,
    /// Clients of each thread.
    #[arg(long, default_value_t = 4)]
    pub coroutines: u32,
    /// Updates among the operations, percent; the others are reads.
    #[arg(long, default_value_t = 50)]
    pub update_percent: u32,
    /// A client does one piece of maintenance after so many operations.
    #[arg(long, default_value_t = 64)]
    pub maintain_every: u64,
    /// How long a lease lasts, us.
    #[arg(long, default_value_t = 10_000)]
    pub lease_us: u64,
    /// When the node dies, us.
    #[arg(long, default_value_t = 10_000)]
    pub crash_us: u64,
    /// When the clients end, us.
    #[arg(long, default_value_t = 40_000)]
    pub until_us: u64,
    /// Width of a bucket of the curve, us.
    #[arg(long, default_value_t = 250)]
    pub bucket_us: u64,
    /// The node hangs, with a NIC that goes on serving, instead of going away.
    #[arg(long)]
    pub hung: bool,
    /// Seed of everything.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let command = Self::augment_args(Command::new("crash").no_binary_name(true));
        let nothing = command.get_matches_from([""; 0]);
        Self::from_arg_matches(&nothing).expect("every parameter has a default")
    }
}

impl Setup {
    fn clients_of_node(&self) -> u64 {
        u64::from(self.threads) * u64::from(self.coroutines)
    }

    fn clients(&self) -> u64 {
        u64::from(self.cns) * self.clients_of_node()
    }

    /// Refuses impossible parameters.
    ///
    /// # Errors
    /// The flag and its range.
    pub fn check(&self) -> Result<()> {
        let clients = self.clients();
        range("cns", self.cns.into(), 2, 64)?;
        range("threads", self.threads.into(), 1, 256)?;
        range("coroutines", self.coroutines.into(), 1, 64)?;
        range("keys", self.keys, clients.max(1000), 100_000_000)?;
        range("update-percent", self.update_percent.into(), 0, 100)?;
        range("maintain-every", self.maintain_every, 1, u64::from(u32::MAX))?;
        range("lease-us", self.lease_us, 100, 10_000_000)?;
        range("crash-us", self.crash_us, 1, 10_000_000)?;
        range("until-us", self.until_us, self.crash_us + 1, 60_000_000)?;
        range("bucket-us", self.bucket_us, 1, self.until_us)?;
        self.options().map(drop)
    }

    fn options(&self) -> Result<AnyOptions> {
        let system = registry::find(&self.system)?;
        if !system.recovers {
            return Err(Failure::input(format!(
                "{} does not recover from crashes; dmtree, dmtree-log, dlsm and sherman do",
                system.name
            )));
        }
        let mut options = (*system.options).clone();
        for text in &self.options {
            let given: GivenOption = text.parse().map_err(Failure::input)?;
            if given.system != system.name {
                let (of, name) = (given.system, system.name);
                return Err(Failure::input(format!("--option {text}: {of} is not {name}")));
            }
            options[given.field] = given.value;
        }
        checked(&system, system.options.with(options))
    }
}

/// Operations that ended in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Reads.
    pub reads: u64,
    /// Updates.
    pub updates: u64,
}

/// An event of the recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEvent {
    /// The event.
    pub what: String,
    /// Its time, ns of virtual time after the start of the clients.
    pub at_ns: u64,
}

/// The result of the simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`CRASH_VERSION`].
    pub version: u32,
    /// The parameters of the simulation.
    pub setup: Setup,
    /// Operations of the survivors, bucket by bucket.
    pub survivors: Vec<Bucket>,
    /// Operations of the dead node.
    pub dead: Vec<Bucket>,
    /// Stages of the recovery.
    pub moments: Vec<TimelineEvent>,
    /// Throughput of the survivors before the crash, millions of operations per second.
    pub before_mops: f64,
    /// Their throughput after the recovery.
    pub after_mops: f64,
    /// The lowest throughput in a bucket between the two.
    pub least_mops: f64,
    /// The longest read of a survivor that was in progress at the crash, or began later, ns.
    pub longest_read_ns: u64,
    /// The longest update of such a survivor, ns.
    pub longest_update_ns: u64,
    /// Operations of survivors that failed.
    pub errors: u64,
    /// The first of these errors, as text.
    pub samples: Vec<String>,
    /// Keys that were updated and checked at the end.
    pub keys_checked: u64,
    /// Checked keys that had a wrong value.
    pub keys_wrong: u64,
    /// Keys that clients of the dead node were writing and that have the unacknowledged value.
    pub taken_effect: u64,
    /// Hash of all events, hexadecimal.
    pub trace_hash: String,
}

/// Key number `i` of 24 bytes.
fn key(i: u64) -> [u8; 24] {
    let mut out = *b"user00000000000000000000";
    let mut rest = dmtree_workload::mix64(i);
    for place in out[4..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out
}

/// The value of these bytes.
fn id(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// The state that the clients share.
struct Board {
    harness: Rc<Harness>,
    start_ns: u64,
    victim: NodeId,
    /// Number of survivors' clients that still run.
    running: Cell<u64>,
    outcome: RefCell<Outcome>,
}

impl Board {
    fn since(&self, now: u64) -> u64 {
        now.saturating_sub(self.start_ns)
    }

    fn done(&self, node: NodeId, update: bool, began: u64, now: u64) {
        let (ended, o) = (self.since(now), &mut *self.outcome.borrow_mut());
        let survives = node != self.victim;
        let of = if survives { &mut o.survivors } else { &mut o.dead };
        if let Some(b) = of.get_mut((ended / (o.setup.bucket_us * 1000)) as usize) {
            if update { b.updates += 1 } else { b.reads += 1 }
        }
        if survives && ended > o.setup.crash_us * 1000 {
            let longest = if update { &mut o.longest_update_ns } else { &mut o.longest_read_ns };
            *longest = (*longest).max(now.saturating_sub(began));
        }
    }

    fn failed(&self, what: String) {
        let o = &mut *self.outcome.borrow_mut();
        o.errors += 1;
        if o.samples.len() < 5 {
            o.samples.push(what);
        }
    }

    fn moment(&self, what: &str, now: u64) {
        let (what, at_ns) = (what.to_owned(), self.since(now));
        self.outcome.borrow_mut().moments.push(TimelineEvent { what, at_ns });
    }
}

async fn client(mut index: AnyIndex, number: u64, s: Setup, b: Rc<Board>) {
    let (ep, clients) = (index.endpoint().clone(), s.clients());
    let node = ep.node();
    let mut rng = Seed(s.seed).numbered("crash", number).rng();
    ep.sleep(rng.below(200_000)).await;
    let mut value = Vec::new();
    let (mut count, mut ended) = (0u64, 0u64);
    while b.since(ep.now()) < s.until_us * 1000 {
        let (began, update) = (ep.now(), rng.below(100) < u64::from(s.update_percent));
        let record;
        let result = if update {
            let k = rng.below(s.keys / clients) * clients + number;
            count += 1;
            let new = number << 32 | count;
            record = b.harness.call(number as u32, Call::Update(k, new));
            let r = index.write(&key(k), Write::Update(&new.to_le_bytes())).await;
            r.map(Answer::from)
        } else {
            let k = rng.below(s.keys);
            record = b.harness.call(number as u32, Call::Get(k));
            let r = index.get(&key(k), &mut value).await;
            r.map(|found| Answer::Found(found.then(|| id(&value)).flatten()))
        };
        b.harness.ret(record, result.as_ref().map_or_else(Answer::from, Answer::clone));
        match result {
            Ok(_) => b.done(node, update, began, ep.now()),
            Err(e) => b.failed(format!("client {number}: {e}")),
        }
        ended += 1;
        if ended.is_multiple_of(s.maintain_every)
            && let Err(e) = index.maintain().await
        {
            b.failed(format!("client {number}, maintenance: {e}"));
        }
    }
    b.running.set(b.running.get() - 1);
}

/// A worker of the index, until the clients of the survivors have ended.
async fn background(mut index: AnyIndex, b: Rc<Board>) {
    let node = index.endpoint().node();
    if let Err(e) = worker::run(&mut index, || b.running.get() == 0).await {
        b.failed(format!("a worker of {node}: {e}"));
    }
}

/// Records the stages of the victim's death.
async fn watch(ep: Endpoint, pool: Arc<PoolNode>, b: Rc<Board>) {
    let mut seen = None;
    loop {
        let now = pool.membership().phase(b.victim, 1);
        if now != seen {
            seen = now;
            let what = match now {
                Some(MemberPhase::Revoking) => "its lease has ended: its access is being revoked",
                Some(MemberPhase::Draining) => "revoked everywhere: its locks may be taken over",
                Some(MemberPhase::Reassigning) => "its tables are used no more",
                Some(MemberPhase::Gone) => "its tables have new owners",
                _ => "",
            };
            if !what.is_empty() {
                b.moment(what, ep.now());
            }
        }
        ep.sleep(20_000).await;
    }
}

/// A simulated cluster with a loaded index and warm caches.
fn make(s: &Setup) -> Result<Harness> {
    let profile = Profile::named(&s.profile)?;
    let pool = PoolOptions {
        memory_nodes: 1,
        compute_nodes: s.cns,
        memory_bytes_per_node: 256 * s.keys + (256 << 20),
        ..PoolOptions::default()
    };
    let cache_bytes = 12 * s.keys + (16 << 20);
    let fabric = SimFabric::new(&profile, s.seed);
    let test_cluster = TestCluster::simulated(&fabric, &pool, cache_bytes, s.options()?)?;
    test_cluster.grant(0..s.cns.into(), LONG_LEASE_NS)?;
    let ep = test_cluster.cluster.compute_node(0)?.endpoint(1 << 30)?;
    let mut loader = test_cluster.nodes[0].client(ep.clone());
    let mut pairs = (0..s.keys).map(|i| (key(i).to_vec(), 0u64.to_le_bytes().to_vec()));
    let fill = Fill::RandomInserts { seed: s.seed };
    ep.core().block_on(ep.slot(), loader.load(&mut pairs, false, fill))?;
    for (cn, node) in test_cluster.nodes.iter().enumerate() {
        let own = test_cluster.cluster.compute_node(cn)?.endpoint(SLAB_BYTES)?;
        let mut c = Client::from(node.client(own));
        (0..s.keys).step_by(8).try_for_each(|i| c.get(&key(i)).map(drop))?;
    }
    test_cluster.grant(0..s.cns.into(), s.lease_us * 1000)?;
    let harness = Harness::on(test_cluster, fabric, SLAB_BYTES * s.clients())?;
    harness.core().seed(s.seed);
    Ok(harness)
}

/// Simulates a crash.
///
/// # Errors
/// Those of [`Setup::check`] and of the simulated operations.
pub fn run(setup: &Setup) -> Result<Outcome> {
    setup.check()?;
    let harness = Rc::new(make(setup)?);
    let victim = NodeId::compute(setup.cns - 1);
    let buckets = (setup.until_us / setup.bucket_us) as usize;
    let curve = vec![Bucket::default(); buckets];
    let outcome = Outcome {
        version: CRASH_VERSION,
        setup: setup.clone(),
        survivors: curve.clone(),
        dead: curve,
        ..Outcome::default()
    };
    let board = Rc::new(Board {
        harness: harness.clone(),
        start_ns: harness.fabric.now(),
        victim,
        running: Cell::new(setup.clients() - setup.clients_of_node()),
        outcome: RefCell::new(outcome),
    });
    live(&harness, setup, &board)?;
    harness.test_cluster.grant(0..usize::from(setup.cns) - 1, LONG_LEASE_NS)?;
    look(&harness, setup, &board)?;
    let mut outcome = board.outcome.take();
    outcome.trace_hash = format!("{:016x}", harness.fabric.trace_hash());
    outcome.summarize();
    Ok(outcome)
}

/// Runs the clients, the membership agents and the watcher; the last node crashes meanwhile.
fn live(harness: &Harness, s: &Setup, b: &Rc<Board>) -> Result<()> {
    let (fabric, cluster) = (&harness.fabric, &harness.test_cluster.cluster);
    let core = harness.core();
    let (index, mut first, mut number) = (&harness.test_cluster, None, 0);
    for cn in 0..s.cns {
        for _ in 0..s.threads {
            let transport = index.attach(cn.into())?;
            for _ in 0..s.coroutines {
                let place = (cn.into(), transport.clone());
                let its = index.placed(core, place, first.as_ref());
                first.get_or_insert(its.endpoint().clone());
                let slot = its.endpoint().slot();
                harness.spawn(cn, slot, client(its, number, s.clone(), b.clone()));
                number += 1;
            }
        }
        for _ in 0..index.options.workers()? {
            let place = (cn.into(), index.attach(cn.into())?);
            let its = index.placed(core, place, first.as_ref());
            let slot = its.endpoint().slot();
            harness.spawn(cn, slot, background(its, b.clone()));
        }
        harness.membership_agent(cn, s.lease_us * 1000 / 16);
    }
    let slot = core.add_slot();
    let ep = harness.endpoint(0, slot);
    harness.spawn(0, slot, watch(ep, cluster.compute_node(0)?, b.clone()));
    let ep = harness.own_endpoint(0);
    harness.run(&mut Fifo, async {
        ep.sleep(s.crash_us * 1000).await;
        let how = if s.hung { How::Hung } else { How::Machine };
        if let Err(e) = fabric.crash(b.victim, how) {
            b.failed(e.to_string());
        }
        b.moment("the node dies", ep.now());
        while b.running.get() > 0 {
            ep.sleep(20_000).await;
        }
    });
    harness.trouble().map_or(Ok(()), |stalled| Err(Failure::violation(stalled)))
}

/// Reads every written key, and judges the history of each.
fn look(harness: &Harness, s: &Setup, b: &Board) -> Result<()> {
    let mut index = harness.test_cluster.client(0)?;
    let of_victim = |id| (id >> 32) / s.clients_of_node() == b.victim.index() as u64;
    let o = &mut *b.outcome.borrow_mut();
    let keys = harness.log.take().per_key().map_err(|e| Failure::violation(e.to_string()))?;
    for (k, mut ops) in keys {
        if ops.iter().any(|op| matches!(op.event, Event::Update(..))) {
            o.keys_checked += 1;
            let held = index.get(&key(k))?.and_then(|value| id(&value));
            let made = held.map(|v| Event::Update(v, true)).filter(|_| held.is_some_and(of_victim));
            let open = |op: &Op| op.ret.is_none() && Some(op.event) == made;
            o.taken_effect += u64::from(ops.iter().any(open));
            ops.push(Op { call: u64::MAX, ret: Some(u64::MAX), event: Event::Get(held) });
        }
        o.keys_wrong += u64::from(check_key(&ops, Some(0)).is_err());
    }
    Ok(())
}

impl Outcome {
    /// Computes the throughput before, during and after the recovery from the buckets.
    fn summarize(&mut self) {
        let s = &self.setup;
        let mops = |buckets: &[Bucket]| {
            let ops: u64 = buckets.iter().map(|x| x.reads + x.updates).sum();
            ops as f64 / (buckets.len().max(1) as u64 * s.bucket_us) as f64
        };
        let between = |from_us: u64, to_us: u64| {
            let range = (from_us / s.bucket_us) as usize..(to_us / s.bucket_us) as usize;
            mops(self.survivors.get(range).unwrap_or(&[]))
        };
        self.before_mops = between((s.crash_us / 4).max(1), s.crash_us);
        let over = self.moments.last().map_or(s.crash_us, |m| m.at_ns / 1000 + s.bucket_us);
        self.after_mops = between(over.min(s.until_us), s.until_us);
        let first = (s.crash_us / s.bucket_us) as usize;
        let each = self.survivors.get(first..).unwrap_or(&[]).chunks(1);
        let each: Vec<f64> = each.map(mops).collect();
        // In the last buckets clients stop, so these are left out.
        let least_mops = each.iter().rev().skip(1).copied().fold(f64::INFINITY, f64::min);
        self.least_mops = if least_mops.is_finite() { least_mops } else { 0.0 };
        let least = each.iter().position(|m| *m == least_mops).unwrap_or(0);
        let back = each.iter().skip(least).position(|m| *m >= 0.95 * self.before_mops);
        if let Some(back) = back {
            let at_ns = (first + least + back) as u64 * s.bucket_us * 1000;
            let what = "the survivors are as fast as before".to_owned();
            self.moments.push(TimelineEvent { what, at_ns });
        }
        self.moments.sort_by_key(|m| m.at_ns);
    }

    /// Whether nothing acknowledged was lost and no survivor's operation failed.
    pub fn is_fine(&self) -> bool {
        self.keys_wrong == 0 && self.errors == 0
    }

    /// The report.
    pub fn text(&self) -> String {
        let Setup { system, profile, seed, cns, threads, coroutines, keys, update_percent, .. } =
            &self.setup;
        let ms = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
        let (lease, last) = (ms(self.setup.lease_us * 1000), cns - 1);
        let dies = if self.setup.hung { "hangs; its NIC goes on serving" } else { "dies" };
        let mut t = format!(
            "{system} on a simulated cluster, profile {profile}, seed {seed}: {cns} compute nodes of {threads} threads with {coroutines} clients each; cn{last} {dies}\n{keys} keys, {update_percent} % updates; lease {lease}\n\n"
        );
        for TimelineEvent { what, at_ns } in &self.moments {
            let after = *at_ns as f64 / 1e6 - self.setup.crash_us as f64 / 1e3;
            t += &format!("{:>10}  {after:+8.2} ms  {what}\n", ms(*at_ns));
        }
        let Self { before_mops, least_mops, after_mops, .. } = self;
        t += &format!(
            "\nsurvivors: {before_mops:.2} Mops before, {least_mops:.2} at least meanwhile, {after_mops:.2} afterwards (virtual time)\n"
        );
        let (read, update) = (ms(self.longest_read_ns), ms(self.longest_update_ns));
        t += &format!(
            "longest operation of a survivor from the crash on: read {read}, update {update}\n"
        );
        let Self { keys_checked, keys_wrong, taken_effect, errors, .. } = self;
        t += &format!(
            "{keys_checked} written keys looked up in the end: {keys_wrong} lost or wrong; {taken_effect} unacknowledged updates of the dead node took effect\n{errors} operations of survivors failed\n"
        );
        self.samples.iter().for_each(|e| t += &format!("  {e}\n"));
        t
    }
}
