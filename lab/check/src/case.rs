//! All inputs of a checked run, drawn from a seed and kept as JSON.

use dmtree_fabric::sim::{FabricFaults, Order};
use dmtree_fabric::{Capabilities, Error, Fifo, Mutant, Policy, Result, SeededRandom, Unfair};
use dmtree_parts::peer::Drawn;
use dmtree_pool::PoolOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::{End, NodeFault, NodeFaultSet, SPAN_NS};
use crate::log::fnv1a;
use crate::rng::Rng;

/// Version of the JSON form and of the drawing: a seed of another version is another case.
pub const CASE_VERSION: u32 = 5;
/// Fewest clients that a seed draws.
pub const LEAST_CLIENTS: u32 = 3;
/// Fewest operations that a seed draws, all clients together.
pub const LEAST_OPERATIONS: u32 = 200;
/// Most keys that operations of a seed go to.
pub const MOST_KEYS: u32 = 64;
/// Most neighbours that churn clients write.
const MOST_TENDED: u32 = 200;
/// Most keys of an index, neighbours included.
pub const MOST_NUMBERS: u64 = 1800;

/// The choices of a seed.
pub(crate) fn drawn_from(seed: u64) -> Rng {
    Rng::new(seed ^ 0x6472_6177_6e63_6173)
}

/// Refuses a value out of its range.
///
/// # Errors
/// `InvalidArgument`, with its name and the range.
pub fn range(name: &str, value: u64, low: u64, high: u64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is {value}; it must be {low} to {high}")))
}

/// The choice among the clients that can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Any, evenly.
    Uniform,
    /// Some clients are held back for long stretches.
    Unfair,
    /// The one of the highest priority, with so many changes of priorities.
    Priorities(u32),
    /// The one that became ready first.
    Fifo,
}

/// Steps of the verbs of a case, about: changes of priorities are drawn among them.
const STEPS: u64 = 8_000;

impl Schedule {
    /// The policy with its seed.
    pub fn policy(self, seed: u64) -> Box<dyn Policy> {
        match self {
            Self::Uniform => Box::new(SeededRandom::new(seed)),
            Self::Unfair => Box::new(Unfair::new(seed)),
            Self::Priorities(_) | Self::Fifo => Box::new(Fifo),
        }
    }
}

/// The place in which the texts of keys differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyForm {
    /// In their first eight bytes.
    Early,
    /// Behind them: separators are long, too.
    Late,
}

/// The pool of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolShape {
    /// Compute nodes.
    pub compute_nodes: u16,
    /// Memory nodes.
    pub memory_nodes: u16,
    /// Bytes of each memory node.
    pub memory_bytes: u64,
    /// Bits of an incarnation number.
    pub generation_bits: u8,
    /// Cache budget of each compute node.
    pub cache_bytes: u64,
}

impl PoolShape {
    /// As options of a pool.
    pub fn options(self) -> PoolOptions {
        PoolOptions {
            compute_nodes: self.compute_nodes,
            memory_nodes: self.memory_nodes,
            memory_bytes_per_node: self.memory_bytes,
            generation_bits: self.generation_bits,
            ..PoolOptions::default()
        }
    }
}

/// One run, whole: the same case gives the same run, event for event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What the case has shown, if it is kept as a regression test.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// [`CASE_VERSION`].
    pub version: u32,
    /// The system, by its name in the registry.
    pub system: String,
    /// Seed of the clients' operations.
    pub seed: u64,
    /// Seed of the order of events: policy and fabric.
    pub order: u64,
    /// The policy.
    pub schedule: Schedule,
    /// Fabric faults.
    pub fabric_faults: FabricFaults,
    /// Guarantees that the fabric grants.
    pub grants: Capabilities,
    /// Creation options of the index.
    pub options: Value,
    /// The pool.
    pub pool: PoolShape,
    /// Clients, spread over the compute nodes in turn.
    pub clients: u32,
    /// Churn clients: each removes neighbours one after the other, puts them back, and repeats, so
    /// that leaves empty, merge, and fill again.
    pub churn_clients: u32,
    /// Operations per client.
    pub ops: u32,
    /// Keys that operations go to; all absent at first.
    pub keys: u32,
    /// Keys beside each of those, loaded before; only churn clients write them.
    pub neighbours: u32,
    /// How keys are written.
    pub key_form: KeyForm,
    /// How full the load makes leaves, percent.
    pub fill_percent: u32,
    /// Lengths of values, 8 at least.
    pub value_bytes: Vec<u32>,
    /// One operation in this many is a scan; 0: none.
    pub scan_one_in: u32,
    /// Clients fill and empty the index in turns of this many operations; 0: an even mix.
    pub wave_ops: u32,
    /// Before this operation of its first client, each compute node gets a smaller cache budget; 0:
    /// never.
    #[serde(default, skip_serializing_if = "is_no_op")]
    pub shrinks_at: u32,
    /// Afterwards, without fabric faults, every client works on every key.
    pub liveness: bool,
    /// Faults of nodes, clients and links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_faults: Vec<NodeFault>,
    /// A membership rule that a mutant leaves out; not part of the JSON form.
    #[serde(skip)]
    pub mutant: Option<Mutant>,
    /// How long a lease lasts where there are faults, ns.
    #[serde(default = "usual_lease", skip_serializing_if = "is_usual_lease")]
    pub lease_ns: u64,
    /// Longest pause of a client between two operations, ns.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pace_ns: u64,
    /// The operations that run, client by client, by number; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<Vec<u32>>>,
    /// Which verb goes next, wherever there are several ([`Order::Listed`]), instead of what the
    /// schedule says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<u32>>,
}

const USUAL_LEASE_NS: u64 = 20_000_000;

fn usual_lease() -> u64 {
    USUAL_LEASE_NS
}

fn is_usual_lease(ns: &u64) -> bool {
    *ns == USUAL_LEASE_NS
}

fn is_no_op(n: &u32) -> bool {
    *n == 0
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

impl Case {
    /// Draws the case of a seed: geometry of pool and index, fabric faults, schedule, clients and
    /// their operations.
    pub fn of_seed(
        system: &str,
        seed: u64,
        (grants, node_faults): (Capabilities, NodeFaultSet),
        index: &dyn Fn(&mut Rng) -> Drawn,
    ) -> Self {
        let mut d = drawn_from(seed);
        let drawn = index(&mut d);
        let least = drawn.least_cache_bytes;
        let value_bytes = match drawn.value_bytes {
            Some(fixed) => vec![fixed],
            None => {
                d.of(&[&[8][..], &[8], &[60], &[200], &[5000], &[8, 60, 200], &[8, 5000]]).to_vec()
            }
        };
        let clients = d.of(&[LEAST_CLIENTS, 4, 6, 9]);
        let mut case = Self {
            about: String::new(),
            version: CASE_VERSION,
            mutant: None,
            system: system.to_owned(),
            seed,
            order: seed,
            schedule: d.of(&[
                Schedule::Uniform,
                Schedule::Unfair,
                Schedule::Uniform,
                Schedule::Unfair,
                Schedule::Priorities(1),
                Schedule::Priorities(3),
            ]),
            fabric_faults: FabricFaults::of_seed(seed),
            grants,
            options: drawn.options,
            pool: PoolShape {
                compute_nodes: d.of(&[2, 3]),
                memory_nodes: d.of(&[1, 2]),
                memory_bytes: 32 << 20,
                generation_bits: d.of(&[PoolOptions::default().generation_bits, 2]),
                cache_bytes: d.of(&[4 << 20, 3 * least]),
            },
            clients,
            churn_clients: d.of(&[0, 1, 1, 2]),
            ops: d.of(&[100, 120]).max(LEAST_OPERATIONS.div_ceil(clients)),
            keys: d.of(&[6, 24, MOST_KEYS]),
            neighbours: d.of(&[0, 3, 7, 15]),
            key_form: d.of(&[KeyForm::Early, KeyForm::Late]),
            fill_percent: d.of(&[50, 70, 100]),
            value_bytes,
            scan_one_in: d.of(&[0, 20, 60]),
            wave_ops: d.of(&[0, 0, 40]),
            shrinks_at: 0,
            liveness: true,
            node_faults: Vec::new(),
            lease_ns: USUAL_LEASE_NS,
            pace_ns: 0,
            kept: None,
            choices: None,
        };
        if node_faults != NodeFaultSet::None {
            let mut d = drawn_from(seed ^ 0x6c65_6173_6573);
            if let Schedule::Priorities(_) = case.schedule {
                // Time hardly passes under a priority schedule, and leases never end.
                case.schedule = Schedule::Unfair;
            }
            case.pool.compute_nodes = d.of(&[2, 3, 4]);
            case.lease_ns = d.of(&[USUAL_LEASE_NS, 5 * USUAL_LEASE_NS]);
            if node_faults == NodeFaultSet::Restarts {
                case.spread_out(&mut d);
            }
            case.node_faults = NodeFault::draw(node_faults, seed, &case);
        }
        let images = case.options.get("images").and_then(Value::as_f64);
        if images.is_some_and(|share| share > 0.0) {
            let mut d = drawn_from(seed ^ 0x7368_7269_6e6b);
            case.shrinks_at = d.of(&[0, 0, case.ops / 4, case.ops / 2]);
        }
        case
    }

    /// Whether a pair may not fit into its entry, in an index with such areas.
    pub(crate) fn has_blocks(&self) -> bool {
        let area = |name| self.options.get(name).and_then(Value::as_u64);
        let values = self.value_bytes.iter().map(|bytes| u64::from(*bytes)).max();
        let keys =
            (0..self.numbers()).map(|n| crate::plan::key(self.key_form, n).len() as u64).max();
        let over =
            |area: Option<u64>, longest: Option<u64>| area.zip(longest).is_some_and(|(a, l)| l > a);
        over(area("value_inline_bytes"), values) || over(area("key_inline_bytes"), keys)
    }

    /// The cache budget of a compute node from [`Case::shrinks_at`] on: half of the images stay, or
    /// none.
    pub fn smaller_cache_bytes(&self) -> u64 {
        let (all, images) = (self.pool.cache_bytes, self.options.get("images"));
        let images = images.and_then(Value::as_f64).unwrap_or(0.0) * all as f64;
        let part = if self.seed.is_multiple_of(2) { 0.5 } else { 1.0 };
        all - (images * part).ceil() as u64
    }

    /// The case of a seed, of no system.
    pub fn of_any_system(seed: u64, value_bytes: Option<u32>) -> Self {
        let none = |_: &mut Rng| Drawn { options: Value::Null, least_cache_bytes: 1, value_bytes };
        Self::of_seed("", seed, (Capabilities::NONE, NodeFaultSet::None), &none)
    }

    /// Few operations over a long time, with many faults.
    fn spread_out(&mut self, d: &mut Rng) {
        self.ops = d.of(&[20, 30, 50]);
        self.neighbours = self.neighbours.min(d.of(&[3, 7]));
        self.churn_clients = self.churn_clients.min(1);
        self.pace_ns = 2 * SPAN_NS / u64::from(self.ops);
    }

    /// Whether a node that has lost its membership comes back as a new incarnation.
    pub fn rejoins(&self) -> bool {
        self.pace_ns > 0
    }

    /// A case small enough that every order of its verbs can be tried: two or three clients with an
    /// operation or two each, on one or two keys of leaves that are full or nearly so; the fabric
    /// only orders verbs.
    pub fn tiny(
        system: &str,
        seed: u64,
        grants: Capabilities,
        index: &dyn Fn(&mut Rng) -> Drawn,
    ) -> Self {
        let mut d = drawn_from(seed ^ 0x7469_6e79);
        let (clients, ops) = d.of(&[(2, 1), (2, 1), (2, 2), (3, 1)]);
        let whole = Self::of_seed(system, seed, (grants, NodeFaultSet::None), index);
        Self {
            schedule: Schedule::Fifo,
            fabric_faults: FabricFaults::NONE,
            clients,
            churn_clients: 0,
            ops,
            keys: d.of(&[1, 2]),
            neighbours: d.of(&[1, 31, 63]),
            fill_percent: 100,
            value_bytes: whole.value_bytes[..1].to_vec(),
            scan_one_in: d.of(&[0, 4]),
            wave_ops: 0,
            liveness: false,
            ..whole
        }
    }

    /// Checks that the nodes that a fault names exist.
    fn check_faults(&self) -> Result<()> {
        let (c, m) = (self.pool.compute_nodes, self.pool.memory_nodes);
        for fault in &self.node_faults {
            let fits = match *fault {
                NodeFault::Crash { cn, .. }
                | NodeFault::Freeze { cn, .. }
                | NodeFault::Drift { cn, .. }
                | NodeFault::LateMembership { cn, .. }
                | NodeFault::Drop { cn, .. } => cn < c,
                NodeFault::Cut { cn, to: End::Compute(to), .. } => cn < c && to < c,
                NodeFault::Cut { cn, to: End::Memory(to), .. } => cn < c && to < m,
                NodeFault::LoseMemory { mn, cn, .. } => cn < c && mn < m,
                NodeFault::Outage { back, .. } => (1..=c).contains(&back),
                NodeFault::RestartLoop { cn, .. } => cn < c,
                NodeFault::Stall { mn, .. } => mn < m,
                NodeFault::StallAll { .. } | NodeFault::Jump { .. } => true,
            };
            if !fits {
                return Err(Error::invalid(format!("faults: no such node: {fault:?}")));
            }
        }
        Ok(())
    }

    /// Reads the JSON form; the message about another version names it.
    pub fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("a case is not JSON: {e}")))?;
        match value["version"].as_u64() {
            Some(v) if v == u64::from(CASE_VERSION) => {}
            Some(v) => {
                return Err(Error::invalid(format!(
                    "a case of version {v}; this program runs version {CASE_VERSION}: use the one that wrote it"
                )));
            }
            None => return Err(Error::invalid("no case: it has no version")),
        }
        let case: Self = serde_json::from_value(value)
            .map_err(|e| Error::invalid(format!("a case that cannot be read: {e}")))?;
        case.check()?;
        Ok(case)
    }

    /// The JSON form, one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A short name of the whole case: other settings, another name.
    pub fn fingerprint(&self) -> u32 {
        let hash = fnv1a(&self.to_json());
        (hash ^ hash >> 32) as u32
    }

    /// Refuses a case that cannot be run.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the field.
    pub fn check(&self) -> Result<()> {
        range("clients", self.clients.into(), 1, 1000)?;
        range("churn_clients", self.churn_clients.into(), 0, 1000)?;
        range("ops", self.ops.into(), 0, 1 << 20)?;
        range("keys", self.keys.into(), 1, MOST_NUMBERS)?;
        range("keys with neighbours", self.numbers(), 1, MOST_NUMBERS)?;
        range("fill_percent", self.fill_percent.into(), 1, 100)?;
        range("value_bytes", self.value_bytes.len() as u64, 1, 100)?;
        for bytes in &self.value_bytes {
            range("value_bytes", u64::from(*bytes), 8, 1 << 20)?;
        }
        range("pool.compute_nodes", self.pool.compute_nodes.into(), 1, 64)?;
        range("pool.memory_nodes", self.pool.memory_nodes.into(), 1, 64)?;
        if let Some(kept) = &self.kept {
            range("kept", kept.len() as u64, 0, self.total().into())?;
        }
        self.check_faults()?;
        self.pool.options().validate()
    }

    /// Number of clients, churn clients included.
    pub fn total(&self) -> u32 {
        self.clients.saturating_add(self.churn_clients)
    }

    /// Number of neighbours that churn clients write.
    pub fn garden(&self) -> u32 {
        (self.numbers() as u32 - self.keys).min(MOST_TENDED)
    }

    /// The number of neighbour number `i`.
    pub fn neighbour(&self, i: u64) -> u64 {
        let each = u64::from(self.neighbours.max(1));
        i / each * self.stride() + 1 + i % each
    }

    /// Which verb goes next.
    pub fn order(&self) -> Order {
        match (&self.choices, self.schedule) {
            (Some(choices), _) => Order::Listed { choices: choices.clone(), switches: u32::MAX },
            (None, Schedule::Priorities(changes)) => {
                Order::Priorities { seed: self.order, changes, steps: STEPS }
            }
            (None, _) => Order::Drawn,
        }
    }

    /// The numbers of the operations that client `c` runs; churn clients come last.
    pub fn numbers_of(&self, c: u32) -> Vec<u32> {
        match &self.kept {
            None if c < self.clients => (0..self.ops).collect(),
            None => (0..3 * self.garden()).collect(),
            Some(kept) => kept.get(c as usize).cloned().unwrap_or_default(),
        }
    }

    /// Number of operations of the clients before the liveness phase.
    pub fn operations(&self) -> u64 {
        (0..self.total()).map(|c| self.numbers_of(c).len() as u64).sum()
    }

    /// How far apart the numbers of keys are that operations go to.
    pub fn stride(&self) -> u64 {
        u64::from(self.neighbours) + 1
    }

    /// How many keys there can be, neighbours included.
    pub fn numbers(&self) -> u64 {
        u64::from(self.keys) * self.stride()
    }

    /// Whether a key is one that all clients write; the others are present at first.
    pub fn is_written(&self, number: u64) -> bool {
        number.is_multiple_of(self.stride())
    }
}
