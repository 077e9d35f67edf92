//! Concurrent clients on real threads, or on one; their histories are checked key by key.

use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Fifo, Policy, Worker};
use dmtree_parts::{AnyIndex, OpSet};

use crate::case::{Case, KeyForm, Schedule};
use crate::conformance::divided;
use crate::drive::operate;
use crate::log::{Answer, Call, Log};
use crate::plan;
use crate::rng::Rng;
use crate::test_cluster::{Coroutines, TestCluster};

/// Degree of concurrency, and number of keys.
#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// Seed of everything the clients draw.
    pub seed: u64,
    /// Threads (for [`threads`]).
    pub threads: usize,
    /// Clients per thread.
    pub coroutines: usize,
    /// Operations per client.
    pub ops: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of values: 8 at least; the first 8 are unique.
    pub value_bytes: usize,
    /// One operation in this many is a scan; 0: none.
    pub scan_one_in: u64,
    /// Clients fill and empty the index in turns of this many operations, so that leaves split and
    /// merge all the time; 0: an even mix.
    pub wave_ops: u64,
}

impl Stress {
    /// Six coroutines, on each of four threads for [`threads`], share 64 keys; no scans.
    pub fn of(seed: u64) -> Self {
        let (scan_one_in, wave_ops) = (0, 0);
        let (threads, coroutines, ops, keys, value_bytes) = (4, 6, 250, 64, 8);
        Self { seed, threads, coroutines, ops, keys, value_bytes, scan_one_in, wave_ops }
    }
}

/// Uniform and unfair schedules, alternately.
pub fn policy(seed: u64) -> Box<dyn Policy> {
    let schedule = if seed.is_multiple_of(2) { Schedule::Uniform } else { Schedule::Unfair };
    schedule.policy(seed)
}

/// The seeds of a test: its own number of them (fewer in a debug build), or as many as
/// `DMTREE_SEEDS` says (a 64th of these for a test of one or two, which runs many configurations).
pub fn seeds(from: u64, usual: u64) -> std::ops::Range<u64> {
    let more = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    let of = |n: u64| if usual <= 2 { n.div_ceil(64) } else { n };
    from..from + more.map_or_else(|| divided(usual).max(usual.min(4)), of)
}

/// The history is linearizable, and afterwards every invariant holds.
///
/// # Panics
/// Otherwise.
pub fn judge(test_cluster: &TestCluster, log: &Log, what: &str) {
    log.check().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    let mut c = test_cluster.client(0).expect("attach");
    c.maintain().expect("maintain");
    c.walk().expect("every invariant holds");
}

/// Runs clients of one thread in the order that a policy picks, numbered from `first` on.
pub(crate) fn run_clients<F: Future<Output = ()>>(
    (core, clients): Coroutines,
    first: usize,
    policy: &mut dyn Policy,
    client: impl Fn(u64, AnyIndex) -> F,
) {
    let mut worker = Worker::new(core);
    for (number, index) in (first as u64..).zip(clients) {
        worker.spawn(index.endpoint().slot(), client(number, index));
    }
    worker.run(policy).expect("every client ends");
}

/// What all clients share: their operations, and the log, which orders the calls and returns of all
/// threads.
struct Shared {
    stress: Stress,
    ops: OpSet,
    case: Case,
    log: Mutex<Log>,
}

impl Shared {
    fn new(stress: Stress, ops: OpSet) -> Self {
        let case = Case {
            clients: u32::MAX,
            keys: stress.keys as u32,
            neighbours: 0,
            key_form: KeyForm::Early,
            scan_one_in: stress.scan_one_in as u32,
            wave_ops: stress.wave_ops as u32,
            ..Case::of_any_system(stress.seed, Some(stress.value_bytes as u32))
        };
        Self { stress, ops, case, log: Mutex::new(Log::new(1, stress.keys)) }
    }

    async fn client(&self, number: u64, mut index: AnyIndex) {
        let (s, client) = (self.stress, number as u32);
        let mut rng = Rng::new(s.seed ^ number.wrapping_mul(0xff51_afd7_ed55_8ccd));
        let mut seen = None;
        for op in 0..s.ops as u32 {
            let call = plan::operation(&self.case, self.ops, (client, op), &mut rng, seen);
            let record = locked(&self.log).call(client, 0, call);
            let answer = operate(&mut index, &self.case, call, &mut rng).await;
            let answer = answer.unwrap_or_else(|e| panic!("{call}: {e}"));
            if let (Call::Get(key), Answer::Found(Some(value))) = (call, &answer) {
                seen = Some((key, *value));
            }
            locked(&self.log).ret(record, 0, answer);
            if op % 4 == 0 {
                index.maintain().await.expect("maintain");
            }
            index.endpoint().yield_now().await;
        }
    }

    fn into_log(self) -> Log {
        self.log.into_inner().expect("no client has panicked")
    }
}

/// Runs clients of one thread as coroutines, spread over all compute nodes, in the order that a
/// policy picks. Needs the suspending knob of the fabric.
pub fn coroutines(test_cluster: &TestCluster, s: Stress, policy: &mut dyn Policy) -> Log {
    let nodes = test_cluster.local_places();
    let clients = test_cluster.coroutines((0..s.coroutines).map(|n| n % nodes)).expect("attach");
    let shared = Shared::new(s, test_cluster.ops());
    run_clients(clients, 0, policy, |number, index| shared.client(number, index));
    shared.into_log()
}

/// Real threads over all compute nodes, with coroutines on each.
pub fn threads(test_cluster: &TestCluster, s: Stress) -> Log {
    let shared = Shared::new(s, test_cluster.ops());
    let thread = |t: usize| {
        let cn = t % test_cluster.local_places();
        let clients = test_cluster.coroutines((0..s.coroutines).map(|_| cn)).expect("attach");
        let client = |number, index| shared.client(number, index);
        run_clients(clients, t * s.coroutines, &mut Fifo, client);
    };
    std::thread::scope(|scope| {
        (0..s.threads).for_each(|t| _ = scope.spawn(move || thread(t)));
    });
    shared.into_log()
}
