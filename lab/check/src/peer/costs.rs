//! The costs of operations, one by one: verbs, bytes and round trips do not depend on the machine.
//! A [`Budget`] is a table of what they must be; [`measure`] makes the table of what they are.
//!
//! | operation | what is measured |
//! |---|---|
//! | `get`, `get absent` | by a client with everything in its cache |
//! | `get first`, `get cold` | a client's first operation; each key once, without a cache |
//! | `get newer` | a key that another compute node has inserted since |
//! | `get stale`, `update stale` | a key of a leaf that another compute node has split since |
//! | `update`, `compare-and-set`, `delete` | of a present key, when it has just been read |
//! | `insert`, `insert split` | of a key that was just found absent: without, with a split |
//! | `insert by all` | by clients of all compute nodes in turn, with warm caches |
//! | `scan of 100`, `scan` | of 100 pairs; of 1 to 100 |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Mutex;

use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{OpCounts, OpKind, OpOutcome, SideCounts};
use dmtree_parts::{AnyOptions, Fill, Outcome, Page, ScanRequest, Write};
use dmtree_pool::PoolOptions;

use super::{Peer, each, listed, named};
use crate::conformance::{Keys, above};
use crate::rng::Rng;
use crate::test_cluster::{Client, TestCluster};

/// READs, WRITEs, atomics, bytes read, bytes written.
pub type Side = [u64; 5];

/// The cost of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Round trips.
    pub trips: u64,
    /// Towards memory nodes.
    pub mn: Side,
    /// Towards compute nodes.
    pub cn: Side,
    /// Lists that are not awaited.
    pub detached: u64,
    /// Remote calls, for memory or to data services.
    pub calls: u64,
    /// Bytes of their requests, and of their replies.
    pub call_bytes: [u64; 2],
}

/// A cost towards memory nodes.
pub const fn cost(trips: u64, mn: Side) -> Cost {
    Cost { trips, mn, cn: [0; 5], detached: 0, calls: 0, call_bytes: [0; 2] }
}

impl Cost {
    /// With verbs towards compute nodes.
    #[must_use]
    pub const fn cn(self, cn: Side) -> Self {
        Self { cn, ..self }
    }

    /// With so many lists that are not awaited.
    #[must_use]
    pub const fn detached(self, detached: u64) -> Self {
        Self { detached, ..self }
    }

    /// With so many calls, and bytes of requests and replies.
    #[must_use]
    pub const fn calls(self, calls: u64, call_bytes: [u64; 2]) -> Self {
        Self { calls, call_bytes, ..self }
    }

    fn of(c: &OpCounts) -> Self {
        let side = |s: &SideCounts| [s.read, s.write, s.atomic, s.bytes_read, s.bytes_written];
        let (mn, cn, calls) = (side(&c.mn), side(&c.cn), c.mn.rpc + c.cn.rpc);
        let both = |bytes: fn(&SideCounts) -> u64| bytes(&c.mn) + bytes(&c.cn);
        let call_bytes = [both(|s| s.bytes_asked), both(|s| s.bytes_replied)];
        Self { trips: c.round_trips, mn, cn, detached: c.detached, calls, call_bytes }
    }

    fn plus(self, o: &Self) -> Self {
        let add = |a: Side, b: &Side| std::array::from_fn(|i| a[i] + b[i]);
        Self {
            trips: self.trips + o.trips,
            mn: add(self.mn, &o.mn),
            cn: add(self.cn, &o.cn),
            detached: self.detached + o.detached,
            calls: self.calls + o.calls,
            call_bytes: std::array::from_fn(|i| self.call_bytes[i] + o.call_bytes[i]),
        }
    }
}

/// A row of a table: what some operations of some systems cost.
#[derive(Clone, Debug)]
pub struct Row {
    systems: &'static str,
    operations: &'static str,
    cost: Cost,
    share: f64,
    again: Option<(Cost, Option<f64>)>,
}

/// Every such operation costs this. Names of systems and of operations stand in lists with commas;
/// `*` is every system.
pub fn row(systems: &'static str, operations: &'static str, cost: Cost) -> Row {
    Row { systems, operations, cost, share: 1.0, again: None }
}

impl Row {
    /// Not every operation does, but this share of them at least.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        Self { share, ..self }
    }

    /// Plus this cost any number of times, and how often on average.
    #[must_use]
    pub fn again(self, cost: Cost, times: Option<f64>) -> Self {
        Self { again: Some((cost, times)), ..self }
    }

    /// How often the additional cost is in a cost; `None` if it is another cost.
    fn times(&self, found: &Cost) -> Option<u64> {
        let (mut at, mut times) = (self.cost, 0);
        while at.trips < found.trips
            && let Some((again, _)) = &self.again
        {
            (at, times) = (at.plus(again), times + 1);
        }
        (at == *found).then_some(times)
    }
}

/// A part of a cost.
pub type Part = fn(&Cost) -> u64;
/// Round trips.
pub const TRIPS: Part = |c| c.trips;
/// Verbs towards memory nodes.
pub const VERBS: Part = |c| c.mn[..3].iter().sum();
/// READs, WRITEs and atomics alone.
pub const KINDS: [Part; 3] = [|c| c.mn[0], |c| c.mn[1], |c| c.mn[2]];
/// Bytes read from memory nodes, and written there.
pub const BYTES: [Part; 2] = [|c| c.mn[3], |c| c.mn[4]];

/// A mean that is stated, within 3 %: of a system, an operation, and a part of its cost.
pub type Mean = (&'static str, &'static str, Part, f64);

/// Means of an operation.
pub fn means(system: &'static str, operation: &'static str, parts: &[(Part, f64)]) -> Vec<Mean> {
    parts.iter().map(|(part, wanted)| (system, operation, *part, *wanted)).collect()
}

/// What operations of some systems must cost.
pub struct Budget {
    /// The systems with their options.
    pub systems: Vec<(&'static str, AnyOptions)>,
    /// The pool.
    pub pool: PoolOptions,
    /// On-chip memory of memory nodes.
    pub chip_bytes: u32,
    /// The cache of a compute node.
    pub cache_bytes: u64,
    /// How many keys are loaded: 24 bytes each, with values of 8.
    pub keys: u64,
    /// How they are loaded.
    pub fill: Fill,
    /// What each operation costs.
    pub rows: Vec<Row>,
    /// What operations cost on average.
    pub means: Vec<Mean>,
    /// Measures operations in situations that the kit does not have.
    pub more: fn(&mut Sheet<'_>),
}

impl Budget {
    /// A table over 20 000 keys on six compute nodes, with room for everything in caches and chips.
    pub fn new<O: Into<AnyOptions>>(systems: Vec<(&'static str, O)>, rows: Vec<Row>) -> Self {
        let systems = systems.into_iter().map(|(name, o)| (name, o.into())).collect();
        let pool = PoolOptions {
            compute_nodes: 6,
            memory_bytes_per_node: 512 << 20,
            ..PoolOptions::default()
        };
        let fill = Fill::Even(0.7);
        let (chip_bytes, cache_bytes, keys) = (128 << 10, 1 << 30, 20_000);
        let (means, more) = (Vec::new(), |_: &mut Sheet<'_>| {});
        Self { systems, pool, chip_bytes, cache_bytes, keys, fill, rows, means, more }
    }

    /// The operations that the table names for a system.
    fn operations(&self, system: &str) -> BTreeSet<&'static str> {
        let rows = self.rows.iter().filter(|r| listed(r.systems, system));
        let means = self.means.iter().filter(|m| m.0 == system);
        rows.flat_map(|r| r.operations.split(", ")).chain(means.map(|m| m.1)).collect()
    }
}

/// How many operations of a system had each cost, by operation.
type Costs = BTreeMap<String, BTreeMap<Cost, u64>>;

/// What was measured.
pub struct Table(Vec<(&'static str, Costs)>);

/// The measurements of one system.
pub struct Sheet<'a> {
    budget: &'a Budget,
    /// The system.
    pub system: &'static str,
    /// Its options.
    pub options: AnyOptions,
    costs: Costs,
}

/// The outcome and the cost of a client's only operation since the last call.
fn taken(c: &mut Client) -> (OpOutcome, Cost) {
    let counts = c.take_counts();
    let mut ops = counts.ops.iter().filter(|(kind, ..)| OpKind::FOREGROUND.contains(kind));
    let (_, outcome, totals) = ops.next().expect("an operation");
    assert!(totals.ops == 1 && ops.next().is_none(), "one operation at a time");
    (*outcome, Cost::of(&totals.counts))
}

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

impl<'a> Sheet<'a> {
    /// A pool without keys.
    pub fn empty(&self) -> TestCluster {
        let Budget { pool, chip_bytes, cache_bytes, .. } = self.budget;
        let fabric = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, *chip_bytes);
        TestCluster::on_local(fabric, pool, *cache_bytes, &self.options).expect("an index")
    }

    /// A loaded index.
    pub fn loaded(&self) -> TestCluster {
        self.loaded_before(0)
    }

    /// A loaded index before so many further keys are inserted, which are foretold.
    fn loaded_before(&self, inserts: u64) -> TestCluster {
        let test_cluster = self.empty();
        let mut c = test_cluster.client(0).expect("attach");
        let told = self.budget.keys..self.budget.keys + inserts;
        c.foretell(told.map(key)).expect("foretell");
        let pairs = (0..self.budget.keys).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
        c.load(pairs, false, self.budget.fill).expect("load");
        test_cluster
    }

    /// A client with everything in its cache: it has read all keys, and written one.
    fn warm(&self, test_cluster: &TestCluster, cn: usize) -> Client {
        let mut c = test_cluster.client(cn).expect("attach");
        (0..self.budget.keys).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
        let last = self.budget.keys - 1;
        c.write(&key(last), Write::Update(&last.to_le_bytes())).expect("update");
        c.get(&key(last)).expect("get");
        c.take_counts();
        c
    }

    /// Counts a client's last operation.
    pub fn note(&mut self, operation: &str, c: &mut Client) {
        let (_, cost) = taken(c);
        *self.costs.entry(operation.to_owned()).or_default().entry(cost).or_default() += 1;
    }

    fn get(&mut self, operation: &str, c: &mut Client, n: u64) {
        assert_eq!(c.get(&key(n)).expect("get").is_some(), operation != "get absent", "key {n}");
        self.note(operation, c);
    }

    fn write(&mut self, operation: &str, c: &mut Client, n: u64, w: Write<'_>) {
        c.get(&key(n)).expect("get");
        c.take_counts();
        assert_eq!(c.write(&key(n), w).expect("write"), Outcome::Done, "{operation} of key {n}");
        self.note(operation, c);
    }

    /// Inserts a key; the outcome is part of the operation's name.
    fn insert(&mut self, operation: &str, c: &mut Client, n: u64) -> bool {
        c.take_counts();
        assert_eq!(c.write(&key(n), Write::Insert(&[8; 8])).expect("insert"), Outcome::Done);
        let (outcome, cost) = taken(c);
        let split = outcome == OpOutcome::InsertSplit;
        let operation = if split && operation == "insert" { "insert split" } else { operation };
        *self.costs.entry(operation.to_owned()).or_default().entry(cost).or_default() += 1;
        split
    }

    fn reads(&mut self, wanted: &BTreeSet<&str>) {
        let test_cluster = self.loaded();
        let (n, mut page, mut rng) = (self.budget.keys, Page::new(), Rng::new(1));
        if wanted.contains("get first") {
            let mut c = test_cluster.client(test_cluster.places() - 1).expect("attach");
            self.get("get first", &mut c, 0);
        }
        if wanted.contains("get cold") {
            let mut c = test_cluster.client(1).expect("attach");
            (0..n).for_each(|i| self.get("get cold", &mut c, i));
        }
        let mut c = self.warm(&test_cluster, 0);
        (0..n).for_each(|i| self.get("get", &mut c, i));
        (n..n + n / 4).for_each(|i| self.get("get absent", &mut c, i));
        for i in 0..n / 20 {
            let limit = 1 + i as usize % 100;
            c.scan(&above(&key(rng.below(n)), limit), &mut page).expect("scan");
            self.note("scan", &mut c);
        }
        let mut keys: Vec<_> = (0..n).map(key).collect();
        keys.sort();
        for from in (0..10).map(|i| i * (n as usize - 100) / 10) {
            c.scan(&above(&keys[from], 100), &mut page).expect("scan");
            self.note("scan of 100", &mut c);
            assert!(page.iter().map(|(k, _)| k).eq(keys[from..from + 100].iter()), "from {from}");
        }
    }

    fn writes(&mut self, wanted: &BTreeSet<&str>) {
        let test_cluster = self.loaded();
        let mut c = self.warm(&test_cluster, 0);
        (0..1_000).for_each(|i| self.write("update", &mut c, i, Write::Update(&[9; 8])));
        for i in (0..1_000).filter(|_| wanted.contains("compare-and-set")) {
            let w = Write::CompareAndSet { expected: &[9; 8], new: Some(&[8; 8]) };
            self.write("compare-and-set", &mut c, i, w);
        }
        for i in (0..1_000).filter(|_| wanted.contains("delete")) {
            self.write("delete", &mut c, i, Write::Delete);
        }
    }

    fn inserts(&mut self, _: &BTreeSet<&str>) {
        let more = self.budget.keys * 3 / 5;
        let test_cluster = self.loaded_before(more);
        let mut c = self.warm(&test_cluster, 0);
        for n in self.budget.keys..self.budget.keys + more {
            assert_eq!(c.get(&key(n)).expect("get"), None);
            self.insert("insert", &mut c, n);
        }
        c.walk().expect("every invariant holds");
    }

    /// What another compute node inserts, and then what it splits.
    fn beside_another(&mut self, _: &BTreeSet<&str>) {
        let test_cluster = self.loaded_before(self.budget.keys / 5);
        let mut reader = self.warm(&test_cluster, 0);
        let mut updater = self.warm(&test_cluster, 1);
        let (mut writer, mut page) = (test_cluster.client(2).expect("attach"), Page::new());
        for n in self.budget.keys..self.budget.keys * 6 / 5 {
            if !self.insert("insert beside", &mut writer, n) {
                self.get("get newer", &mut reader, n);
                continue;
            }
            let low = key(n);
            let r = ScanRequest { low: Bound::Excluded(&low), ..above(&low, 1) };
            writer.scan(&r, &mut page).expect("scan");
            let old = page.get(0).expect("a pair").0.to_vec();
            assert!(reader.get(&old).expect("get").is_some());
            self.note("get stale", &mut reader);
            let updated = updater.write(&old, Write::Update(&[9; 8])).expect("update");
            assert_eq!(updated, Outcome::Done);
            self.note("update stale", &mut updater);
        }
    }

    fn by_all(&mut self, _: &BTreeSet<&str>) {
        let test_cluster = self.loaded_before(self.budget.keys / 10);
        let mut clients: Vec<_> =
            (0..test_cluster.places()).map(|cn| self.warm(&test_cluster, cn)).collect();
        for n in self.budget.keys..self.budget.keys * 11 / 10 {
            let next = n as usize % clients.len();
            self.insert("insert by all", &mut clients[next], n);
        }
    }

    fn measured(budget: &'a Budget, system: &'static str, options: AnyOptions) -> Costs {
        let wanted = budget.operations(system);
        let mut sheet = Self { budget, system, options, costs: Costs::new() };
        type Part<'a> = fn(&mut Sheet<'a>, &BTreeSet<&str>);
        let parts: [(&[&str], Part<'a>); 5] = [
            (&["get", "get absent", "get first", "get cold", "scan", "scan of 100"], Self::reads),
            (&["update", "compare-and-set", "delete"], Self::writes),
            (&["insert", "insert split"], Self::inserts),
            (&["get newer", "get stale", "update stale"], Self::beside_another),
            (&["insert by all"], Self::by_all),
        ];
        for (operations, part) in parts {
            if operations.iter().any(|o| wanted.contains(o)) {
                part(&mut sheet, &wanted);
            }
        }
        (budget.more)(&mut sheet);
        sheet.costs
    }
}

/// Measures what a budget names.
pub fn measure(budget: &Budget) -> Table {
    let table = Mutex::new(Vec::new());
    let failed = each(&budget.systems, |(system, options)| {
        named(system, || {
            let costs = Sheet::measured(budget, system, options.clone());
            table.lock().expect("no panic under this lock").push((*system, costs));
        })
    });
    super::passes(&failed);
    let mut rows = table.into_inner().expect("no panic under this lock");
    rows.sort_by_key(|(system, _)| budget.systems.iter().position(|(s, _)| s == system));
    Table(rows)
}

/// Measures all budgets of a peer. Returns the rows that are not kept.
pub fn check(peer: &Peer) -> Vec<String> {
    peer.budgets.iter().flat_map(broken).collect()
}

/// Measures a budget. Returns the rows that are not kept.
pub fn broken(budget: &Budget) -> Vec<String> {
    let table = measure(budget);
    let rows = budget.rows.iter().flat_map(|row| table.broken(row));
    rows.chain(budget.means.iter().filter_map(|mean| table.off(mean))).collect()
}

impl Table {
    fn of(&self, system: &str, operation: &str) -> Option<&BTreeMap<Cost, u64>> {
        self.0.iter().find(|(s, _)| *s == system)?.1.get(operation)
    }

    /// The cells of a row that cost something else.
    fn broken(&self, row: &Row) -> Vec<String> {
        let systems: Vec<&str> = match row.systems {
            "*" => self.0.iter().map(|(system, _)| *system).collect(),
            list => list.split(", ").collect(),
        };
        let of = |s| row.operations.split(", ").filter_map(move |o| self.wrong(row, s, o));
        systems.into_iter().flat_map(of).collect()
    }

    fn wrong(&self, row: &Row, system: &str, operation: &str) -> Option<String> {
        let name = format!("{system}: {operation}");
        let Some(costs) = self.of(system, operation) else {
            return Some(format!("{name}: was not measured"));
        };
        let fits = costs.iter().filter_map(|(cost, n)| Some((row.times(cost)?, *n)));
        let (mut ops, mut times) = (0, 0);
        fits.for_each(|(again, n)| (ops, times) = (ops + n, times + again * n));
        let share = ops as f64 / costs.values().sum::<u64>() as f64;
        if share < row.share {
            return Some(format!(
                "{name}: {share:.3} cost {:?}, wanted {}; usual: {:?}",
                row.cost,
                row.share,
                usual(costs)
            ));
        }
        let (_, wanted) = row.again?;
        far(&name, times as f64 / ops as f64, wanted?)
    }

    /// A mean that is another one.
    fn off(&self, (system, operation, part, wanted): &Mean) -> Option<String> {
        let name = format!("{system}: {operation}, mean");
        match self.of(system, operation) {
            None => Some(format!("{name}: was not measured")),
            Some(costs) => far(&name, average(costs, part), *wanted),
        }
    }

    /// The usual cost of each operation, and how many have it; towards compute nodes behind the
    /// plus sign.
    pub fn markdown(&self) -> String {
        let mut out =
            "| system | operation | round trips | READs | WRITEs | atomics | bytes read | \
                       bytes written | calls | bytes asked | bytes replied | share | \
                       mean round trips | mean verbs |\n\
                       |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
                .to_owned();
        for (system, costs) in &self.0 {
            for (operation, costs) in costs {
                let (n, cost) = usual(costs)[0];
                let all = costs.values().sum::<u64>();
                let sides: Vec<String> = (cost.mn.iter().zip(cost.cn))
                    .map(|(m, c)| if c == 0 { m.to_string() } else { format!("{m} + {c}") })
                    .collect();
                out += &format!(
                    "| {system} | {operation} | {} | {} | {} | {} | {} | {:.3} | {:.2} | {:.2} |\n",
                    cost.trips,
                    sides.join(" | "),
                    cost.calls,
                    cost.call_bytes[0],
                    cost.call_bytes[1],
                    *n as f64 / all as f64,
                    average(costs, TRIPS),
                    average(costs, VERBS),
                );
            }
        }
        out
    }
}

/// The difference of a mean to what is stated, if it is over 3 %.
fn far(name: &str, found: f64, wanted: f64) -> Option<String> {
    let off = (found / wanted - 1.0) * 100.0;
    (off.abs() > 3.0).then(|| format!("{name}: {found:.4}, wanted {wanted:.4}: {off:+.1} %"))
}

fn average(costs: &BTreeMap<Cost, u64>, part: impl Fn(&Cost) -> u64) -> f64 {
    let sum: u64 = costs.iter().map(|(cost, n)| part(cost) * n).sum();
    sum as f64 / costs.values().sum::<u64>() as f64
}

/// The four most frequent costs.
fn usual(costs: &BTreeMap<Cost, u64>) -> Vec<(&u64, &Cost)> {
    let mut all: Vec<_> = costs.iter().map(|(cost, n)| (n, cost)).collect();
    all.sort_by_key(|(n, _)| std::cmp::Reverse(**n));
    all.truncate(4);
    all
}
