//! The conformance suite on the systems of a peer: a row is one check in one geometry.

use dmtree_fabric::Snapshot;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_parts::naming::Creates as _;
use dmtree_parts::options::Range;
use dmtree_parts::peer::typed;
use dmtree_parts::{AnyOptions, NodeContext, Page, Write};
use dmtree_pool::{Cluster, PoolOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::workloads::scans_over_splits;
use super::{Peer, each, listed, named};
use crate::conformance::{self, EmptyLeaves, Keys, above, scaled};
use crate::test_cluster::{Client, TestCluster};

type Change<T> = Box<dyn Fn(T) -> T + Send + Sync>;
type Look = Box<dyn Fn(&TestCluster, &AnyOptions) + Send + Sync>;
type Check = Box<dyn Fn(&Site<'_>) + Send + Sync>;

/// A check in one geometry. It runs on every system, or on some.
pub struct Row {
    name: String,
    seed: u64,
    systems: &'static str,
    options: Change<AnyOptions>,
    pool: PoolOptions,
    /// Bytes, or as many times the smallest cache.
    cache: (u64, u64),
    chip_bytes: u32,
    then: Option<Look>,
    check: Check,
}

/// Where a check runs: a system with the options and in the pool of a row.
pub struct Site<'a> {
    row: &'a Row,
    /// The seed of this system.
    pub seed: u64,
    /// The options.
    pub options: AnyOptions,
    cache_bytes: u64,
}

impl Site<'_> {
    /// A new pool with an empty index.
    pub fn cluster(&self) -> TestCluster {
        let Row { pool, chip_bytes, .. } = self.row;
        if *chip_bytes == 0 {
            return TestCluster::new(pool, self.cache_bytes, &self.options).expect("an index");
        }
        let fabric = LocalFabric::with_chips(pool.knobs, Tearing::AnyOrder, *chip_bytes);
        TestCluster::on_local(fabric, pool, self.cache_bytes, &self.options).expect("an index")
    }
}

impl Row {
    /// A check of its own, in the usual pool: one memory node, three compute nodes, with a cache
    /// for every node of a small tree.
    pub fn of(name: &str, check: impl Fn(&Site<'_>) + Send + Sync + 'static) -> Self {
        let pool = PoolOptions {
            compute_nodes: 3,
            memory_bytes_per_node: 64 << 20,
            ..PoolOptions::default()
        };
        Self {
            name: name.to_owned(),
            seed: 0,
            systems: "*",
            options: Box::new(|o| o),
            pool,
            cache: (8 << 20, 0),
            chip_bytes: 0,
            then: None,
            check: Box::new(check),
        }
    }

    /// With the seed of the first system; each further one has the next.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// On these systems only: a list with commas.
    #[must_use]
    pub fn on(self, systems: &'static str) -> Self {
        Self { systems, ..self }
    }

    /// With other options.
    #[must_use]
    pub fn options<O: Serialize + DeserializeOwned>(
        self,
        change: impl Fn(O) -> O + Send + Sync + 'static,
    ) -> Self {
        Self { options: Box::new(move |o: AnyOptions| o.changed(&change)), ..self }
    }

    /// With options that are changed once more.
    #[must_use]
    pub fn and<O: Serialize + DeserializeOwned + 'static>(self, change: fn(O) -> O) -> Self {
        let first = self.options;
        Self { options: Box::new(move |o| first(o).changed(change)), ..self }
    }

    /// In another pool.
    #[must_use]
    pub fn pool(self, change: impl Fn(&mut PoolOptions)) -> Self {
        let mut pool = self.pool.clone();
        change(&mut pool);
        Self { pool, ..self }
    }

    /// With a cache of so many bytes, or of so many times the smallest, whichever is more.
    #[must_use]
    pub fn cache(self, bytes: u64, least: u64) -> Self {
        Self { cache: (bytes, least), ..self }
    }

    /// A model, and a look at what it leaves.
    #[must_use]
    pub fn then<O: DeserializeOwned + 'static>(self, then: fn(&TestCluster, &O)) -> Self {
        let then = move |test_cluster: &TestCluster, o: &AnyOptions| then(test_cluster, &typed(o));
        Self { then: Some(Box::new(then)), ..self }
    }

    /// With clients suspended at one verb of so many.
    #[must_use]
    pub fn suspended(self, suspend_one_in: u32) -> Self {
        let seed = self.seed;
        self.pool(|p| p.knobs = Knobs { suspend_one_in, seed })
    }

    fn run(&self, peer: &Peer, number: usize) -> Result<(), String> {
        let (system, options) = &peer.systems[number];
        let options = (self.options)(options.clone());
        let cache_bytes = self.cache.0.max(self.cache.1 * peer.least_cache(&options));
        let site = Site { row: self, seed: self.seed + number as u64, options, cache_bytes };
        named(&format!("{system}: {}", self.name), || (self.check)(&site))
    }
}

/// The empty index, and every outcome of every operation.
pub fn basics() -> Row {
    Row::of("basics", |site| conformance::basics(&site.cluster()))
}

/// [`conformance::model`].
pub fn model(name: &str, keys: Keys, space: u64, steps: u64) -> Row {
    Row::of(name, move |site| {
        let test_cluster = site.cluster();
        // What is judged at the end takes a while to come about.
        let weight = if site.row.then.is_some() { 6 } else { 1 };
        let [space, steps] = [space, steps].map(|n| n.min(scaled(weight * n)));
        conformance::model(&test_cluster, site.seed, keys, space, steps);
        if let Some(then) = &site.row.then {
            then(&test_cluster, &site.options);
        }
    })
}

/// [`conformance::snapshots_and_batches`].
pub fn snapshots_and_batches(keys: Keys, space: u64, steps: u64) -> Row {
    Row::of("snapshots and batches", move |site| {
        let (cluster, seed) = (site.cluster(), site.seed);
        conformance::snapshots_and_batches(&cluster, seed, keys, space, scaled(steps));
    })
}

/// [`conformance::load`].
pub fn load(keys: Keys, n: u64) -> Row {
    let name = format!("load of {n} keys");
    Row::of(&name, move |site| conformance::load(&site.cluster(), keys, scaled(n)))
}

/// [`conformance::random_fill`].
pub fn random_fill(n: u64) -> Row {
    let check = move |site: &Site<'_>| {
        conformance::random_fill(&site.cluster(), &site.cluster(), n);
    };
    Row::of("loads as random inserts would", check)
        .pool(|p| p.memory_bytes_per_node = 128 << 20)
        .cache(64 << 20, 0)
}

/// The rows of every index with one length of keys and of values, which the change sets; so many
/// operations in the longest.
pub fn of_one_length<O: Serialize + DeserializeOwned + 'static>(
    steps: u64,
    set: fn(O, u32, u32) -> O,
) -> Vec<Row> {
    let mut rows = vec![
        basics(),
        model("hashed keys", Keys::Hashed24, 3_000, steps),
        model("suspended", Keys::Hashed24, 2_000, steps / 2).seed(60).suspended(3),
        load(Keys::Hashed24, steps.max(10_000)),
        load(Keys::Hashed24, 20),
        Row::of("a load of the highest key", |site| {
            conformance::highest_key(&|| site.cluster());
        }),
    ];
    rows.extend(odd_lengths(set));
    rows
}

/// The rows of every index with keys and values of any length.
pub fn of_any_length() -> Vec<Row> {
    vec![
        basics(),
        model("short keys", Keys::Short, 2_000, 30_000).seed(1),
        model("hashed keys", Keys::Hashed24, 3_000, 30_000).seed(2),
        model("long prefixes", Keys::LongPrefix, 2_000, 20_000).seed(3),
        model("keys of any length", Keys::AnyLength, 1_000, 15_000).seed(4),
        model("suspended", Keys::Short, 2_000, 15_000).seed(11).suspended(3),
        snapshots_and_batches(Keys::Short, 300, 6_000).seed(21),
        load(Keys::Hashed24, 20_000),
        load(Keys::AnyLength, 500),
        load(Keys::Hashed24, 20),
        Row::of("lengths", |site| conformance::lengths(&site.cluster())),
        Row::of("scans over splits", |site| {
            scans_over_splits(&site.cluster(), site.seed, false, true);
        })
        .seed(300)
        .suspended(2),
    ]
}

/// A model on three memory nodes with small chunks.
pub fn three_memory_nodes(space: u64, steps: u64) -> Row {
    model("three memory nodes", Keys::Hashed24, space, steps)
        .seed(30)
        .pool(|p| (p.memory_nodes, p.chunk_bytes) = (3, Some(64 << 10)))
}

/// [`conformance::fill_and_empty`] in several orders.
pub fn fills(leaves: EmptyLeaves) -> [Row; 3] {
    let ways = [
        (Keys::Ascending, 6_000, false),
        (Keys::Ascending, 6_000, true),
        (Keys::LongPrefix, 3_000, false),
    ];
    ways.map(|(keys, n, descending)| {
        Row::of("fill and empty", move |site: &Site<'_>| {
            conformance::fill_and_empty(&site.cluster(), (keys, n), descending, leaves);
        })
    })
}

/// Two memory nodes without on-chip memory, with room for few locks there, and for all.
pub fn chips(space: u64, steps: u64) -> [Row; 3] {
    [0, 64, 128 << 10].map(|chip_bytes| {
        let row = model("locks on chip or not", Keys::Hashed24, space, steps).seed(30);
        Row { chip_bytes, ..row }.pool(|p| p.memory_nodes = 2)
    })
}

/// How the options of a tree of keys of any length are changed.
pub struct Geometries<O> {
    /// Small inner nodes.
    pub small: fn(O) -> O,
    /// Small leaves, too.
    pub high: fn(O) -> O,
    /// So many inline bytes of keys and of values.
    pub inline: fn(O, u32, u32) -> O,
}

/// The suite on a tree of keys of any length, in its geometries.
pub fn trees<O: Serialize + DeserializeOwned + 'static>(g: &Geometries<O>) -> Vec<Row> {
    let (small, high, inline) = (g.small, g.high, g.inline);
    let tiny = |keys, space, steps| {
        model("a cache of three nodes", keys, space, steps).options(small).cache(0, 3)
    };
    let mut rows = of_any_length();
    rows.extend(fills(EmptyLeaves::GoBack).map(|row| row.options(small)));
    rows.extend([
        tiny(Keys::Hashed24, 3_000, 15_000).seed(8),
        tiny(Keys::LongPrefix, 2_000, 10_000).seed(9),
        model("high trees", Keys::Ascending, 10_000, 40_000).seed(10).options(high),
        model("few generations", Keys::Hashed24, 2_000, 30_000)
            .pool(|p| p.generation_bits = 2)
            .options(high),
    ]);
    rows.extend([(8, 0), (8, 8), (16, 16), (64, 256), (24, 0)].map(|(k, v)| {
        let row = model("inline sizes", Keys::AnyLength, 400, 5_000).seed(u64::from(k + v));
        row.options(move |o| inline(o, k, v))
    }));
    rows
}

/// The suite with locks in tables of few words.
pub fn few_locks<O: Serialize + DeserializeOwned + 'static>(set: fn(&mut O, u32)) -> [Row; 3] {
    [(1, 1), (1, 3), (7, 2)].map(|(locks, memory_nodes)| {
        let row = model("few locks", Keys::Hashed24, 2_000, 10_000).seed(7);
        row.pool(|p| p.memory_nodes = memory_nodes).options(move |mut o| {
            set(&mut o, locks);
            o
        })
    })
}

/// Lengths of keys and values that are no whole words.
fn odd_lengths<O: Serialize + DeserializeOwned + 'static>(set: fn(O, u32, u32) -> O) -> Vec<Row> {
    let lengths = [(1, 0), (3, 1), (13, 7), (16, 100), (200, 1000), (250, 9)];
    let row = |(key, value): (u32, u32)| {
        Row::of(&format!("keys of {key} bytes, values of {value}"), move |site: &Site<'_>| {
            conformance::one_length(&site.cluster(), key as usize, value as usize);
        })
        .options(move |o| set(o, key, value))
    };
    lengths.into_iter().map(row).collect()
}

/// A pool that fills up, [`conformance::full`]: it has room for so many keys at least.
pub fn full<O: DeserializeOwned + 'static>(least: u64, updates: fn(&O) -> bool) -> Row {
    Row::of("full memory nodes", move |site: &Site<'_>| {
        conformance::full(&site.cluster(), least, updates(&typed(&site.options)));
    })
    .pool(|p| p.memory_bytes_per_node = 2 << 20)
}

/// Runs the rows of a peer on its systems. Returns what failed.
pub fn local(peer: &Peer) -> Vec<String> {
    let cells: Vec<(&Row, usize)> = (peer.local.iter())
        .flat_map(|row| (0..peer.systems.len()).map(move |number| (row, number)))
        .filter(|(row, number)| listed(row.systems, peer.systems[*number].0))
        .collect();
    each(&cells, |(row, number)| row.run(peer, *number))
}

fn pool(memory_nodes: u16) -> PoolOptions {
    PoolOptions {
        memory_nodes,
        compute_nodes: 2,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

/// Runs every system on nodes that share nothing but TCP connections; one client posts the same
/// verbs there as in one process. Returns what failed.
pub fn apart(peer: &Peer) -> Vec<String> {
    each(&peer.systems, |(name, o)| {
        let any_length = o.ops().any_length;
        let (keys, steps) =
            if any_length { (Keys::AnyLength, 4_000) } else { (Keys::Hashed24, 1_500) };
        let cluster = |memory_nodes| {
            let cluster = Cluster::over_tcp(&pool(memory_nodes)).expect("nodes");
            TestCluster::on(cluster, 8 << 20, o).expect("an index")
        };
        named(&format!("{name}, apart"), || {
            conformance::basics(&cluster(1));
            conformance::model(&cluster(2), 4, keys, scaled(500), scaled(steps));
            if any_length {
                let (keys, leaves) = ((Keys::Hashed24, 2_000), EmptyLeaves::GoBack);
                conformance::fill_and_empty(&cluster(1), keys, false, leaves);
            }
            if (peer.repeats)(o) {
                let here = || TestCluster::new(&pool(1), 8 << 20, o).expect("an index");
                let both = || (counts(&cluster(1)), counts(&here()));
                // A call that is late on a busy machine is repeated, and counts twice.
                let again = (0..2).map(|_| both()).find(|(apart, here)| apart == here);
                let (apart, here) = again.unwrap_or_else(both);
                let pairs = apart.into_iter().zip(here);
                pairs.enumerate().for_each(|(i, (a, b))| assert_eq!(a, b, "round {i}"));
            }
        })
    })
}

/// The verb counts of one client for the same operations of every kind.
pub fn counts(test_cluster: &TestCluster) -> Vec<Snapshot> {
    let mut c = test_cluster.client(0).expect("a member");
    let long = vec![7; if test_cluster.ops().any_length { 300 } else { 8 }];
    let n = scaled(7_200).min(3_000) as usize;
    let keys: Vec<Vec<u8>> = (0..n as u64).map(|i| Keys::Hashed24.key(i)).collect();
    let mut rounds = Vec::new();
    c.foretell(keys[n / 2..].iter().cloned()).expect("foretell");
    let pairs = keys[..n / 2].iter().map(|k| (k.clone(), vec![6; 8])).collect();
    c.load(pairs, false, 0.7).expect("load");
    rounds.push(c.take_counts());
    let mut all = |keys: &[Vec<u8>], op: &mut dyn FnMut(&mut Client, &[u8])| {
        keys.iter().for_each(|k| op(&mut c, k));
        rounds.push(c.take_counts());
    };
    let write = |c: &mut Client, k: &[u8], w| _ = c.write(k, w).expect("room");
    all(&keys[n / 3..2 * n / 3], &mut |c, k| write(c, k, Write::Put(b"12345678")));
    all(&keys, &mut |c, k| _ = c.get(k).expect("works"));
    all(&keys[..n / 3], &mut |c, k| write(c, k, Write::Update(b"87654321")));
    all(&keys[2 * n / 3..], &mut |c, k| write(c, k, Write::Insert(&long)));
    if test_cluster.ops().delete {
        all(&keys[..n / 6], &mut |c, k| write(c, k, Write::Delete));
    }
    let mut page = Page::new();
    all(&keys[..100], &mut |c, k| {
        c.scan(&above(k, 20), &mut page).expect("works");
    });
    all(&keys[..1], &mut |c, _| c.maintain().expect("works"));
    rounds
}

/// Every number of the options, below and above its range, and beside its step: it is refused, by
/// name and with the range. Returns what was not.
pub fn ranges(peer: &Peer) -> Vec<String> {
    let cluster = Cluster::embedded(&PoolOptions::default()).expect("a pool");
    let cx = NodeContext { pool: cluster.compute_node(0).expect("a node"), cache_bytes: 1 << 30 };
    each(&peer.subjects, |system| {
        for Range { name, bounds: (low, high), step } in system.ranges {
            let beside = Some(low + 1).filter(|_| *step > 1);
            let outside = [low.checked_sub(*step), high.checked_add(*step), beside];
            for value in outside.into_iter().flatten() {
                let mut options = (*system.options).clone();
                options[name] = value.into();
                let refused = system.options.with(options).check_for(&cx).expect_err(name);
                let words = format!("{name} is {value}; it must be {low} to {high}");
                assert!(refused.to_string().contains(&words), "{}: {refused}", system.name);
            }
        }
        Ok(())
    })
}
