//! The test cluster of all schemes: four clients on compute nodes of their own, two memory nodes,
//! one adversarial fabric.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use dmtree_fabric::sim::{FabricFaults, Laxity, SimFabric};
use dmtree_fabric::{
    Buf, Capabilities, Core, Endpoint, Fabric, GlobalAddr, NodeId, SeededRandom, Worker,
};

pub type Client = Pin<Box<dyn Future<Output = ()>>>;
/// Violations that clients observe.
pub type Wrong = Rc<Cell<u32>>;
/// Makes the clients of a scheme.
pub type Scheme = fn(&SimFabric, Vec<Endpoint>, Wrong) -> Vec<Client>;

/// Within so many seeds an unsound scheme fails.
pub const SEEDS: u64 = 300;
pub const ROUNDS: u64 = 40;
/// Words of an object, at `OBJECT` of the first memory node.
pub const WORDS: u64 = 32;
pub const OBJECT: u64 = 4096;

pub fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(NodeId::memory(0), offset)
}

pub fn run(scheme: Scheme, grants: Capabilities, seed: u64) -> (bool, u64) {
    run_on(scheme, (grants, Laxity::default()), seed)
}

/// The same on a platform that keeps less than the contract.
pub fn run_on(scheme: Scheme, (grants, laxity): Platform, seed: u64) -> (bool, u64) {
    let f = SimFabric::adversarial(FabricFaults::of_seed(seed), grants, seed).unwrap();
    for m in 0..2 {
        f.add_node(NodeId::memory(m), 1 << 20).unwrap();
    }
    for c in 0..4 {
        f.add_node(NodeId::compute(c), 1 << 16).unwrap();
    }
    f.set_laxity(laxity);
    f.set_timed(true);
    let first = f.attach(NodeId::compute(0)).unwrap();
    let core = Core::new(first, 1 << 22);
    let mut worker = Worker::new(core.clone());
    let endpoints: Vec<Endpoint> = (0..4)
        .map(|c| {
            let t = f.attach(NodeId::compute(c)).unwrap();
            Endpoint::new(core.clone(), t, core.add_slot())
        })
        .collect();
    let slots: Vec<u32> = endpoints.iter().map(Endpoint::slot).collect();
    let wrong = Wrong::default();
    for (slot, client) in slots.into_iter().zip(scheme(&f, endpoints, wrong.clone())) {
        worker.spawn(slot, client);
    }
    let ran = worker.run(&mut SeededRandom::new(seed));
    ran.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    (wrong.get() > 0, f.trace_hash())
}

/// Granted capabilities, and broken guarantees.
pub type Platform = (Capabilities, Laxity);

/// The first seed that shows the scheme to be unsound.
pub fn fails(name: &str, scheme: Scheme, grants: Capabilities) -> u64 {
    fails_on(name, scheme, (grants, Laxity::default()))
}

pub fn fails_on(name: &str, scheme: Scheme, platform: Platform) -> u64 {
    let seed = (0..SEEDS).find(|seed| run_on(scheme, platform, *seed).0);
    seed.unwrap_or_else(|| panic!("{name}: no failure in {SEEDS} seeds: the fabric is too kind"))
}

pub fn holds(name: &str, scheme: Scheme, grants: Capabilities) {
    holds_on(name, scheme, (grants, Laxity::default()));
}

pub fn holds_on(name: &str, scheme: Scheme, platform: Platform) {
    for seed in 0..SEEDS {
        assert!(!run_on(scheme, platform, seed).0, "{name} fails with seed {seed}");
    }
}

const KEPT: Laxity =
    Laxity { relaxed_writes: false, on_chip_first: false, forgets_calls: false, keeps_jobs: false };
pub const WEAKEST: Capabilities = Capabilities::NONE;
pub const LINES: Capabilities = Capabilities { line_atomic: true, ..Capabilities::NONE };
pub const ASCENDING: Capabilities =
    Capabilities { line_atomic: true, write_ascending: true, ..Capabilities::NONE };
pub const RELAXED: Platform = (READONLY, Laxity { relaxed_writes: true, ..KEPT });
/// Locks in on-chip memory, which is faster than main memory.
pub const SKEWED: Platform =
    (Capabilities { on_chip_bytes: 256, ..READONLY }, Laxity { on_chip_first: true, ..KEPT });
/// Locks in on-chip memory, as the contract has it.
pub const ON_CHIP: Platform = (Capabilities { on_chip_bytes: 256, ..Capabilities::NONE }, KEPT);
pub const READONLY: Capabilities =
    Capabilities { cas_fail_is_readonly: true, ..Capabilities::NONE };

/// An object with all words equal to `k`.
pub async fn object(ep: &Endpoint, k: u64) -> Buf {
    let mut buf = ep.buf(WORDS as u32 * 8).await.unwrap();
    buf.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&k.to_le_bytes()));
    buf
}

pub async fn sample(ep: &Endpoint) -> Vec<u64> {
    let s = ep.read(at(OBJECT), WORDS as u32 * 8).await.unwrap();
    (0..WORDS as usize).map(|i| s.word(i)).collect()
}

pub fn mixed(words: &[u64]) -> bool {
    words.iter().any(|w| *w != words[0])
}

/// The first client does `first`, the second one `second`.
pub fn two(
    eps: Vec<Endpoint>,
    first: impl AsyncFnOnce(Endpoint) + 'static,
    second: impl AsyncFnOnce(Endpoint) + 'static,
) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let (one, other) = (eps.next().unwrap(), eps.next().unwrap());
    vec![Box::pin(first(one)), Box::pin(second(other))]
}

/// All clients do the same, each with a number of its own, from 1.
pub fn each(
    eps: impl IntoIterator<Item = Endpoint>,
    work: impl AsyncFn(Endpoint, u64) + Clone + 'static,
) -> Vec<Client> {
    let client = |(ep, number)| -> Client {
        let work = work.clone();
        Box::pin(async move { work(ep, number).await })
    };
    eps.into_iter().zip(1..).map(client).collect()
}

/// The first client does `first`; the others `look`, round after round, and say whether they see a
/// violation.
pub fn one_and_others(
    eps: Vec<Endpoint>,
    wrong: &Wrong,
    first: impl AsyncFnOnce(Endpoint) + 'static,
    look: impl AsyncFn(&Endpoint) -> bool + Clone + 'static,
) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let one: Client = Box::pin(first(eps.next().unwrap()));
    let other = |ep: Endpoint| -> Client {
        let (wrong, look) = (wrong.clone(), look.clone());
        Box::pin(async move {
            for _ in 0..ROUNDS {
                flag(&wrong, look(&ep).await);
            }
        })
    };
    std::iter::once(one).chain(eps.map(other)).collect()
}

pub fn flag(wrong: &Wrong, bad: bool) {
    wrong.set(wrong.get() + u32::from(bad));
}
