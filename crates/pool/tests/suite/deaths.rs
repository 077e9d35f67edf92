//! Deaths of compute nodes: leases, barriers, new owners. In virtual time, on the adversarial
//! fabric.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use dmtree_fabric::sim::{CrashPoint, FabricFaults, How, Place, SimFabric};
use dmtree_fabric::{
    Capabilities, Core, Endpoint, ErrorKind, Fabric, LeaseParameters, MemberPhase, NodeId, Role,
    SeededRandom, Worker,
};
use dmtree_pool::{ANY_INDEX, Cluster, PoolNode, PoolOptions, TableId};

const LEASE_PARAMETERS: LeaseParameters = LeaseParameters {
    lease_ns: 20_000_000,
    acknowledge_ns: 80_000_000,
    drift_one_in: 16,
    mutant: None,
};
const PAUSE_NS: u64 = 300_000;

/// A slot, whether its node is up, and its task.
type Task = (u32, Box<dyn Fn() -> bool>, Pin<Box<dyn Future<Output = ()>>>);

/// A pool in virtual time with a membership agent per compute node.
struct Scenario {
    fabric: SimFabric,
    cluster: Cluster,
    core: Rc<Core>,
    /// The slot of the test itself.
    own: u32,
    over: Rc<Cell<bool>>,
    tasks: RefCell<Vec<Task>>,
}

impl Scenario {
    fn new(seed: u64, compute_nodes: u16) -> Self {
        let o = PoolOptions {
            memory_nodes: 2,
            compute_nodes,
            memory_bytes_per_node: 2 << 20,
            compute_bytes_per_node: 1 << 20,
            chunk_bytes: Some(64 << 10),
            ..PoolOptions::default()
        };
        let fabric_faults = FabricFaults { refuse_memory_one_in: 0, ..FabricFaults::of_seed(seed) };
        let fabric =
            SimFabric::adversarial(fabric_faults, Capabilities::NONE, seed).expect("a fabric");
        for m in 0..2 {
            fabric.add_node(NodeId::memory(m), o.memory_bytes_per_node).expect("new");
        }
        for c in 0..compute_nodes {
            fabric.add_node(NodeId::compute(c), o.compute_bytes_per_node).expect("new");
        }
        let cluster = Cluster::format(Arc::new(fabric.clone()), &o).expect("a pool");
        let membership = cluster.in_process_membership().expect("in this process");
        membership.set_lease_parameters(LEASE_PARAMETERS);
        let core = Core::new(fabric.attach(NodeId::memory(0)).expect("a member"), 8 << 20);
        let own = core.add_slot();
        Self { fabric, cluster, core, own, over: Rc::default(), tasks: RefCell::default() }
    }

    fn node(&self, i: usize) -> Arc<PoolNode> {
        self.cluster.compute_node(i).expect("exists")
    }

    /// An endpoint of the test itself.
    fn endpoint(&self, cn: usize) -> Endpoint {
        self.at_slot(cn, self.own)
    }

    fn at_slot(&self, cn: usize, slot: u32) -> Endpoint {
        let t = self.fabric.attach(self.node(cn).cn()).expect("a member");
        let ep = Endpoint::new(self.core.clone(), t, slot);
        ep.set_timeout(20_000_000);
        ep
    }

    fn spawn(
        &self,
        slot: u32,
        lives: impl Fn() -> bool + 'static,
        f: impl Future<Output = ()> + 'static,
    ) {
        self.tasks.borrow_mut().push((slot, Box::new(lives), Box::pin(f)));
    }

    /// Starts a membership agent; `pause_ns` between its steps.
    fn membership_agent(&self, cn: usize, pause_ns: u64) {
        let ep = self.at_slot(cn, self.core.add_slot());
        let (node, over) = (self.node(cn), self.over.clone());
        let node_incarnation = node.member().incarnation;
        let (fabric, cn) = (self.fabric.clone(), node.cn());
        let lives = move || !fabric.is_down(cn) && fabric.incarnation(cn) == Some(node_incarnation);
        self.spawn(ep.slot(), lives, async move {
            let _ = node.membership().run_membership(&ep, pause_ns, || over.get()).await;
        });
    }

    /// Runs everything until `main` has ended.
    fn run(&self, seed: u64, main: impl Future<Output = ()>) {
        self.fabric.set_timed(true);
        let tasks = self.tasks.take();
        let slots: Vec<u32> = tasks.iter().map(|(slot, ..)| *slot).collect();
        let mut worker = Worker::new(self.core.clone());
        for (slot, lives, mut task) in tasks {
            let over = self.over.clone();
            worker.spawn(
                slot,
                std::future::poll_fn(move |cx| match over.get() {
                    true => Poll::Ready(()),
                    // Nothing of a dead node runs.
                    false if !lives() => Poll::Pending,
                    false => task.as_mut().poll(cx),
                }),
            );
        }
        worker.spawn(self.own, async move {
            main.await;
            self.over.set(true);
            slots.iter().for_each(|s| self.core.wake(*s));
        });
        worker.run(&mut SeededRandom::new(seed)).expect("no task waits for ever");
        drop(worker);
        self.fabric.set_timed(false);
    }
}

/// Tables of every node, before time begins.
fn tables(scenario: &Scenario, per_node: usize) -> Vec<TableId> {
    let mut out = Vec::new();
    for cn in 0..scenario.cluster.compute_nodes() {
        let (node, ep) = (scenario.node(cn), scenario.endpoint(cn));
        for i in 0..per_node {
            let lines = 1 + (i % 3) as u8;
            let cell = node.alloc_table(&ep, ANY_INDEX, lines, Role::Compute);
            out.push(scenario.core.block_on(ep.slot(), cell).expect("room"));
        }
    }
    out
}

/// The present owners of the tables; every cell of a new owner is zero.
async fn check_owners(
    node: &PoolNode,
    ep: &Endpoint,
    all: &[TableId],
    gone: &[NodeId],
) -> BTreeMap<NodeId, u32> {
    let mut owners = BTreeMap::new();
    for t in all {
        let at = node.resolve(ep, *t).await.expect("an owner");
        assert!(!gone.contains(&at.node()), "{t:?} is at {at}");
        let bytes = ep.read(at, u32::from(t.lines()) * 64).await.expect("reads");
        assert!(bytes.extract(|b| b.iter().all(|b| *b == 0)), "{t:?} at {at}");
        *owners.entry(at.node()).or_default() += 1;
    }
    owners
}

async fn settled(scenario: &Scenario, watch: &Endpoint, cn: usize, dead: &[(u16, u32)]) {
    let began = watch.now();
    loop {
        let node = scenario.node(cn);
        let gone = |(n, i): &(u16, u32)| {
            node.membership().phase(NodeId::compute(*n), *i) == Some(MemberPhase::Gone)
        };
        if node.membership().has_settled_membership() && dead.iter().all(gone) {
            return;
        }
        let membership = scenario.cluster.in_process_membership();
        assert!(watch.now() < began + 2_000_000_000, "{membership:?}");
        watch.sleep(100_000).await;
    }
}

#[test]
fn a_dead_node_is_revoked_and_its_tables_find_new_owners() {
    for (seed, how) in [(1, How::Process), (2, How::Machine), (3, How::Hung), (4, How::Hung)] {
        let scenario = Scenario::new(seed, 3);
        let all = tables(&scenario, 30);
        (0..3).for_each(|cn| scenario.membership_agent(cn, PAUSE_NS));
        let watch = scenario.endpoint(0);
        scenario.run(seed, async {
            watch.sleep(2_000_000).await;
            scenario.fabric.crash(NodeId::compute(1), how).expect("known");
            settled(&scenario, &watch, 0, &[(1, 1)]).await;
            settled(&scenario, &watch, 2, &[(1, 1)]).await;
            let (a, c) = (scenario.node(0), scenario.node(2));
            assert!(a.is_revoked(NodeId::compute(1), 1) && !a.is_revoked(NodeId::compute(0), 1));
            let owners = check_owners(&a, &watch, &all, &[NodeId::compute(1)]).await;
            assert_eq!(owners.values().sum::<u32>(), 90);
            assert!(owners.values().all(|n| *n > 20), "{owners:?}");
            let other = scenario.endpoint(2);
            assert_eq!(check_owners(&c, &other, &all, &[NodeId::compute(1)]).await, owners);
            for _ in 0..40 {
                let t = a.alloc_table(&watch, ANY_INDEX, 1, Role::Compute).await.expect("room");
                let at = a.resolve(&watch, t).await.expect("an owner");
                assert!(at.node() != NodeId::compute(1) && at.node().role() == Role::Compute);
            }
        });
    }
}

/// Guards against a deadlock: a client with a locked leaf asked a hanging owner for cells, or a
/// hanging member for its epoch, and waited until its own time-out, while the death of that very
/// node waited for the client (checked crashes, seed 401).
#[test]
fn calls_to_a_hanging_node_end_soon() {
    let scenario = Scenario::new(1, 2);
    let watch = scenario.endpoint(0);
    watch.set_timeout(10_000_000_000);
    scenario.run(1, async {
        let a = scenario.node(0);
        scenario.fabric.crash(NodeId::compute(1), How::Hung).expect("known");
        for _ in 0..40 {
            watch.renew_deadline();
            let began = watch.now();
            let t =
                a.alloc_table(&watch, ANY_INDEX, 1, Role::Compute).await.expect("another owner");
            assert!(watch.now() < began + 100_000_000);
            a.retire_table(ANY_INDEX, t);
        }
        watch.renew_deadline();
        let began = watch.now();
        let e = a.reclaimer().reclaim(&watch).await.expect_err("it may still read");
        assert!(e.kind() == ErrorKind::Unreachable && watch.now() < began + 100_000_000, "{e}");
    });
}

/// Guards against the loss of a claimant that asked a hanging owner and did not renew its own lease
/// until it got an answer (checked crashes, seed 1106).
#[test]
fn a_claimant_renews_its_lease_while_an_owner_hangs() {
    for seed in 1..6 {
        let scenario = Scenario::new(seed, 3);
        tables(&scenario, 10);
        (0..3).for_each(|cn| scenario.membership_agent(cn, PAUSE_NS));
        let watch = scenario.endpoint(0);
        scenario.run(seed, async {
            watch.sleep(2_000_000).await;
            scenario.fabric.crash(NodeId::compute(1), How::Process).expect("known");
            let a = scenario.node(0);
            while a.membership().phase(NodeId::compute(1), 1) != Some(MemberPhase::Reassigning) {
                watch.sleep(50_000).await;
            }
            scenario.fabric.crash(NodeId::compute(2), How::Hung).expect("known");
            settled(&scenario, &watch, 0, &[(1, 1), (2, 1)]).await;
            assert_eq!(a.membership().phase(NodeId::compute(0), 1), Some(MemberPhase::Living));
        });
    }
}

/// The claimant of a reassignment may die at any verb; another one goes on. Records that it left
/// torn are written anew.
#[test]
fn the_claimant_dies_at_every_verb() {
    let mut verbs = 0;
    for verb in 1.. {
        let mut crashed = false;
        for place in [Place::Before, Place::Inside, Place::After] {
            let seed = verb * 3 + place as u64;
            let scenario = Scenario::new(seed, 3);
            let all = tables(&scenario, 12);
            scenario.membership_agent(0, PAUSE_NS);
            scenario.membership_agent(1, PAUSE_NS);
            scenario.membership_agent(2, 4 * PAUSE_NS);
            let watch = scenario.endpoint(2);
            let over = Rc::new(Cell::new(false));
            scenario.run(seed, async {
                watch.sleep(2_000_000).await;
                scenario.fabric.crash(NodeId::compute(1), How::Machine).expect("known");
                let point = CrashPoint { verb, place };
                scenario.fabric.crash_at(NodeId::compute(0), point, How::Machine).expect("known");
                settled(&scenario, &watch, 2, &[(1, 1)]).await;
                over.set(!scenario.fabric.is_down(NodeId::compute(0)));
                if over.get() {
                    return;
                }
                settled(&scenario, &watch, 2, &[(1, 1), (0, 1)]).await;
                let gone = [NodeId::compute(0), NodeId::compute(1)];
                check_owners(&scenario.node(2), &watch, &all, &gone).await;
                verbs += 1;
            });
            crashed |= !over.get();
        }
        if !crashed {
            break;
        }
    }
    assert!(verbs > 30, "{verbs} crash points");
}

/// A node with a clock within its bounds stops before its access is revoked. The lease of a node
/// with a worker that makes no progress ends.
#[test]
fn leases_end_first_where_they_are_held() {
    for ppm in [-50_000, 0, 50_000] {
        let scenario = Scenario::new(7, 2);
        let (a, b) = (scenario.node(0), scenario.node(1));
        b.membership().set_clock_drift(ppm);
        let heartbeat = b.heartbeat();
        scenario.membership_agent(0, PAUSE_NS);
        scenario.membership_agent(1, PAUSE_NS);
        let (watch, own) = (scenario.endpoint(0), scenario.endpoint(1));
        scenario.run(7, async {
            for _ in 0..40 {
                heartbeat.beat();
                watch.sleep(500_000).await;
                assert!(
                    b.check_lease(&own).is_ok()
                        && b.membership().phase(b.cn(), 1) == Some(MemberPhase::Living)
                );
            }
            // The worker makes no progress.
            while a.membership().phase(b.cn(), 1) == Some(MemberPhase::Living) {
                watch.sleep(20_000).await;
            }
            super::common::fails(
                b.check_lease(&own),
                "over before the other nodes know",
                ErrorKind::Revoked,
            );
        });
    }
}

/// A late state delays the barrier, and harms nothing. If it is too late, the node loses its
/// membership.
#[test]
fn late_news() {
    for (delay, survives) in [(15_000_000, true), (200_000_000, false)] {
        let scenario = Scenario::new(11, 3);
        let all = tables(&scenario, 9);
        (0..3).for_each(|cn| scenario.membership_agent(cn, PAUSE_NS));
        let watch = scenario.endpoint(0);
        scenario.run(11, async {
            watch.sleep(2_000_000).await;
            let membership = scenario.cluster.in_process_membership().expect("in this process");
            membership.delay_news(NodeId::compute(2), delay);
            scenario.fabric.crash(NodeId::compute(1), How::Hung).expect("known");
            settled(&scenario, &watch, 0, &[(1, 1)]).await;
            watch.sleep(150_000_000).await;
            settled(&scenario, &watch, 0, &[]).await;
            let living = scenario.node(0).membership().phase(NodeId::compute(2), 1)
                == Some(MemberPhase::Living);
            assert_eq!(living, survives);
            let gone: Vec<_> = [1, 2].into_iter().filter(|n| *n == 1 || !survives).collect();
            let gone: Vec<_> = gone.into_iter().map(NodeId::compute).collect();
            check_owners(&scenario.node(0), &watch, &all, &gone).await;
        });
    }
}

/// A node that restarts before its lease has ended is a new incarnation without tables, takes its
/// share, and hands it over when it leaves.
#[test]
fn restart_join_and_leave() {
    for seed in 20..24 {
        let scenario = Scenario::new(seed, 3);
        let all = tables(&scenario, 20);
        (0..3).for_each(|cn| scenario.membership_agent(cn, PAUSE_NS));
        let watch = scenario.endpoint(0);
        let cn1 = NodeId::compute(1);
        scenario.run(seed, async {
            watch.sleep(2_000_000).await;
            scenario.fabric.crash(cn1, How::Process).expect("known");
            watch.sleep(500_000).await;
            scenario.fabric.restart(cn1).expect("down");
            let again = scenario.cluster.revive(1).expect("exists");
            let ep = scenario.endpoint(1);
            let keep = async |times: u32| {
                for _ in 0..times {
                    let _ = again.membership().membership_step(&ep).await;
                    ep.sleep(PAUSE_NS).await;
                }
            };
            while !scenario.node(0).membership().has_settled_membership()
                || scenario.node(0).membership().phase(cn1, 1) != Some(MemberPhase::Gone)
            {
                keep(1).await;
            }
            check_owners(&scenario.node(0), &watch, &all, &[]).await;
            while !again.partitions().take_share(&ep).await.expect("living") {
                keep(4).await;
            }
            keep(4).await;
            let owners = check_owners(&scenario.node(0), &watch, &all, &[]).await;
            assert!(owners[&cn1] >= 5, "{owners:?}");
            assert_eq!(check_owners(&again, &ep, &all, &[]).await, owners);
            while !again.partitions().hand_over(&ep).await.expect("living") {
                keep(4).await;
            }
            again.membership().leave(&ep).await.expect("living");
            settled(&scenario, &watch, 0, &[(1, 1), (1, 2)]).await;
            check_owners(&scenario.node(0), &watch, &all, &[cn1]).await;
            // At the latest when its lease is due for renewal.
            ep.sleep(LEASE_PARAMETERS.lease_ns).await;
            assert!(again.membership().membership_step(&ep).await.is_err(), "{seed}");
        });
    }
}
