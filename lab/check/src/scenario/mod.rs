//! A small cluster in virtual time in which one verb goes wrong: its node crashes there
//! ([`death`]), or it is late ([`delay`]).
//!
//! A [`Script`] gives the operations. An observer judges the reads, and in the end the structure
//! and the holders of memory. Errors are those of the index, unless a function says otherwise.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Poll;

use dmtree_fabric::sim::{FabricFaults, Place, SimFabric};
use dmtree_fabric::{Capabilities, Endpoint, Error, LeaseParameters, MemberPhase, NodeId};
use dmtree_parts::{AnyIndex, AnyNode, AnyOptions, Fill, Outcome, Page, Work, Write};
use dmtree_pool::PoolOptions;

use crate::conformance::everything;
use crate::harness::{Harness, judge_memory};
use crate::instants::batch_keys;
use crate::test_cluster::TestCluster;

pub use crate::harness::{Harness as Scenario, PAUSE_NS};

pub mod death;
pub mod delay;
mod play;
pub mod small_tree;
pub mod sweeps;

/// The places in the execution of a verb where it can go wrong.
pub const PLACES: [Place; 3] = [Place::Before, Place::Inside, Place::After];
/// The leases of these clusters.
pub const LEASE_PARAMETERS: LeaseParameters = LeaseParameters {
    lease_ns: 8_000_000,
    acknowledge_ns: 60_000_000,
    drift_one_in: 16,
    mutant: None,
};
/// Bound of a read during a crash, ns.
pub const READ_BOUND_NS: u64 = 60_000_000;
/// Bound of a write, ns.
pub const WRITE_BOUND_NS: u64 = 300_000_000;

/// An operation of a client.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "they are what the index calls them")]
pub enum Op {
    Get(u64),
    Put(u64, Vec<u8>),
    Insert(u64, Vec<u8>),
    Update(u64, Vec<u8>),
    Delete(u64),
    /// Compare-and-set: the expected value, and the new one or a delete.
    Set(u64, Vec<u8>, Option<Vec<u8>>),
    /// All that is due.
    Maintain,
    Sweep,
    /// GC; it finds nothing, since no memory is lost.
    Gc,
    /// Reclaims memory that no node can reach; the caller runs it.
    Reclaim,
    /// Hands the ranges and the tables of the client's node over to others; the caller runs it.
    HandOver,
    Load(Vec<u64>),
    Many(Vec<(u64, Vec<u8>)>),
    /// An atomic batch: one value for every `step`-th key from `low` to `high`.
    Batch {
        low: u64,
        high: u64,
        step: u64,
        value: Vec<u8>,
    },
}

/// A key.
pub fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

/// A short value.
pub fn value(n: u64) -> Vec<u8> {
    format!("v{n:05}").into_bytes()
}

/// Inserts of these keys.
pub fn inserts(keys: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Op> {
    keys.into_iter().map(|n| Op::Insert(n, value(n)))
}

/// Updates of these keys.
pub fn updates(keys: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Op> {
    keys.into_iter().map(|n| Op::Update(n, value(n + 5_000)))
}

/// Deletes of these keys.
pub fn deletes(keys: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Op> {
    keys.into_iter().map(Op::Delete)
}

/// Every operation on one key, of the keys 0, 10, ... 90.
pub fn changes() -> Vec<Op> {
    vec![
        Op::Insert(55, value(1)),
        Op::Update(50, value(2)),
        Op::Put(60, value(3)),
        Op::Delete(70),
        Op::Set(80, value(80), Some(value(4))),
        Op::Set(90, value(90), None),
        Op::Insert(70, value(5)),
    ]
}

/// Waits for `work`, and drops it instead of polling it more than `polls` times.
pub async fn dropped_after<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut left) = (std::pin::pin!(work), polls);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The initial state of a run, and the operations of the victim.
#[derive(Clone)]
pub struct Script {
    /// Its name.
    pub name: &'static str,
    /// The index's options.
    pub options: AnyOptions,
    /// Bytes of cache per compute node.
    pub cache_bytes: u64,
    /// Loaded first, with leaves as full as this.
    pub load: (Vec<u64>, f64),
    /// Run by the victim before time begins.
    pub before: Vec<Op>,
    /// Run then by a client of another node, before time begins, too: what the victim's node knows
    /// is old.
    pub elsewhere: Vec<Op>,
    /// Run by the victim in time.
    pub ops: Vec<Op>,
    /// Run by a survivor meanwhile.
    pub beside: Vec<Op>,
    /// Number of compute nodes.
    pub compute_nodes: u16,
    /// What the fabric grants.
    pub grants: Capabilities,
    /// The mutant, enabled on every node.
    pub enable: Option<Enable>,
    /// Survivors sweep in the end. Otherwise they recover only locks that they meet.
    pub swept: bool,
    /// An error of the walk that is allowed without a sweep, because no operation needed the
    /// recovery.
    pub unmet: Option<&'static str>,
    /// Bound of a read during a crash, ns.
    pub read_bound_ns: u64,
}

/// Enables a mutant on a node.
pub type Enable = Rc<dyn Fn(&AnyNode)>;

impl Script {
    /// A script without load and operations.
    pub fn new(name: &'static str, options: impl Into<AnyOptions>) -> Self {
        Self {
            name,
            options: options.into(),
            cache_bytes: 1 << 20,
            load: (Vec::new(), 1.0),
            before: Vec::new(),
            elsewhere: Vec::new(),
            ops: Vec::new(),
            beside: Vec::new(),
            compute_nodes: 3,
            grants: Capabilities::NONE,
            enable: None,
            swept: true,
            unmet: None,
            read_bound_ns: READ_BOUND_NS,
        }
    }

    /// The same with a mutant, which `enable` enables on a node of type `N`.
    #[must_use]
    pub fn enabling<N: Send + Sync + 'static>(self, enable: impl Fn(&N) + 'static) -> Self {
        let enable = move |node: &AnyNode| enable(&node.typed::<N>());
        Self { enable: Some(Rc::new(enable)), ..self }
    }
}

/// Values by key.
pub type Values = BTreeMap<u64, Vec<u8>>;

/// The effect of an operation on the keys.
pub fn effect(op: &Op) -> Vec<(u64, Option<Vec<u8>>)> {
    match op {
        Op::Put(k, v) | Op::Insert(k, v) | Op::Update(k, v) => vec![(*k, Some(v.clone()))],
        Op::Set(k, _, v) => vec![(*k, v.clone())],
        Op::Delete(k) => vec![(*k, None)],
        Op::Get(_) | Op::Maintain | Op::Sweep | Op::Gc | Op::Reclaim | Op::HandOver => Vec::new(),
        Op::Load(keys) => keys.iter().map(|k| (*k, Some(value(*k)))).collect(),
        Op::Many(pairs) => pairs.iter().map(|(k, v)| (*k, Some(v.clone()))).collect(),
        Op::Batch { low, high, step, value } => {
            batch_keys(*low, *high, *step).map(|k| (k, Some(value.clone()))).collect()
        }
    }
}

impl Harness {
    /// A cluster with an empty index.
    pub fn new(script: &Script, whole_write: bool, seed: u64) -> Self {
        let pool = PoolOptions {
            memory_nodes: 2,
            compute_nodes: script.compute_nodes,
            memory_bytes_per_node: 3 << 20,
            compute_bytes_per_node: 256 << 10,
            chunk_bytes: Some(64 << 10),
            ..PoolOptions::default()
        };
        let fabric_faults = FabricFaults {
            words: true,
            stretch_ns: 2_000,
            delay_ns: 500,
            atomic_gap_ns: 1_000,
            garbage: true,
            ..FabricFaults::NONE
        };
        let grants = match whole_write {
            true => Capabilities { whole_write_bytes: 4096, ..script.grants },
            false => script.grants,
        };
        let (cache_bytes, options) = (script.cache_bytes, &script.options);
        let fabric = SimFabric::adversarial(fabric_faults, grants, seed).expect("a fabric");
        let test_cluster =
            TestCluster::simulated(&fabric, &pool, cache_bytes, options).expect("a cluster");
        if let Some(enable) = &script.enable {
            test_cluster.nodes.iter().for_each(|n| enable(n));
        }
        test_cluster.membership().set_lease_parameters(LEASE_PARAMETERS);
        Self::on(test_cluster, fabric, 16 << 20).expect("a member")
    }

    /// Loads what a script says, and runs its first operations by a client of a node and then by
    /// one of the next node, while time stands still. Returns the values in the index.
    pub fn prepare(&self, script: &Script, first: u16) -> Result<Values, Error> {
        let (keys, fill) = &script.load;
        let mut c = self.client(first);
        let mut values: Values = keys.iter().map(|k| (*k, value(*k))).collect();
        if !keys.is_empty() {
            let mut pairs = keys.iter().map(|k| (key(*k), value(*k)));
            self.now(c.load(&mut pairs, true, (*fill).into()))?;
        }
        let mut do_all = |c: &mut AnyIndex, ops: &[Op]| {
            for op in ops {
                self.now(perform(c, op))?;
                for (k, v) in effect(op) {
                    match v {
                        Some(v) => _ = values.insert(k, v),
                        None => _ = values.remove(&k),
                    }
                }
            }
            Ok::<_, Error>(())
        };
        do_all(&mut c, &script.before)?;
        if !script.elsewhere.is_empty() {
            let mut other = self.client((first + 1) % script.compute_nodes);
            do_all(&mut other, &script.elsewhere)?;
        }
        Ok(values)
    }

    /// Waits until this node knows of no unfinished recovery of the crashed nodes.
    pub async fn settled(&self, ep: &Endpoint, cn: u16, dead: &[u16]) {
        let began = ep.now();
        loop {
            let node = self.pool(cn);
            let gone = |n: &u16| {
                node.membership().phase(NodeId::compute(*n), 1) == Some(MemberPhase::Gone)
            };
            if node.membership().has_settled_membership() && dead.iter().all(gone) {
                return;
            }
            if ep.now() > began + 3_000_000_000 {
                return self.complain()(format!(
                    "not settled: {:?}",
                    self.test_cluster.membership()
                ));
            }
            ep.sleep(PAUSE_NS).await;
        }
    }
}

/// Does an operation; any other outcome than success is an error.
pub async fn perform(c: &mut AnyIndex, op: &Op) -> Result<(), Error> {
    match attempt(c, op).await? {
        Outcome::Done => Ok(()),
        other => Err(Error::corrupt(format!("{op:?} was answered {other:?}"))),
    }
}

async fn attempt(c: &mut AnyIndex, op: &Op) -> Result<Outcome, Error> {
    match op {
        Op::Get(k) => _ = get(c, *k).await?,
        Op::Put(k, v) => return c.write(&key(*k), Write::Put(v)).await,
        Op::Insert(k, v) => return c.write(&key(*k), Write::Insert(v)).await,
        Op::Update(k, v) => return c.write(&key(*k), Write::Update(v)).await,
        Op::Delete(k) => return c.write(&key(*k), Write::Delete).await,
        Op::Set(k, expected, new) => {
            let new = new.as_deref();
            return c.write(&key(*k), Write::CompareAndSet { expected, new }).await;
        }
        Op::Maintain => while c.maintain().await? == Work::Some {},
        Op::Sweep => c.sweep().await?,
        Op::Gc => match c.gc().await? {
            // An object that changes its owner meanwhile may be counted twice.
            found if (found.objects, found.space_bytes, found.cells) == (0, 0, 0) => {}
            found => return Err(Error::corrupt(format!("gc has found {found:?}"))),
        },
        Op::Reclaim | Op::HandOver => {}
        Op::Load(keys) => {
            let mut pairs = keys.iter().map(|k| (key(*k), value(*k)));
            c.load(&mut pairs, true, Fill::Even(0.7)).await?;
        }
        Op::Many(pairs) => {
            let keys: Vec<_> = pairs.iter().map(|(k, _)| key(*k)).collect();
            let writes: Vec<_> =
                keys.iter().zip(pairs).map(|(k, (_, v))| (&k[..], Write::Put(&v[..]))).collect();
            let mut outcomes = Vec::new();
            c.write_many(&writes, &mut outcomes).await?;
            for o in outcomes {
                assert_eq!(o?, Outcome::Done);
            }
        }
        Op::Batch { low, high, step, value } => {
            let keys: Vec<_> = batch_keys(*low, *high, *step).map(key).collect();
            let batch: Vec<_> = keys.iter().map(|k| (&k[..], Some(&value[..]))).collect();
            c.write_batch(&batch).await?;
        }
    }
    Ok(Outcome::Done)
}

/// Reads a key.
pub async fn get(c: &mut AnyIndex, k: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut out = Vec::new();
    Ok(c.get(&key(k), &mut out).await?.then_some(out))
}

/// Reads everything; keys without a write, or twice, are an error.
pub async fn scan(c: &mut AnyIndex) -> Result<Values, Error> {
    let mut out = Values::new();
    let (mut page, mut resume) = (Page::new(), None);
    loop {
        resume = c.scan(&everything(500).after(resume.as_ref()), &mut page).await?;
        for (k, v) in page.iter() {
            let n = std::str::from_utf8(&k[1..]).ok().and_then(|n| n.parse().ok());
            let n =
                n.ok_or_else(|| Error::corrupt(format!("a key that no write stored: {k:?}")))?;
            if out.insert(n, v.to_vec()).is_some() {
                return Err(Error::corrupt(format!("key {n} twice")));
            }
        }
        if resume.is_none() {
            return Ok(out);
        }
    }
}

/// Leaked memory is found by one GC, and every piece of memory has one holder then.
///
/// # Errors
/// The leaked or doubly owned memory.
pub fn one_holder(scenario: &Scenario, c: &mut AnyIndex) -> Result<(), String> {
    judge_memory(|| scenario.now(c.gc()), true).map(drop).map_err(|e| e.to_string())
}
