//! Shares of a leaf's lock in virtual time: the rule alone decides which node has it.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::task::Poll;

use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_fabric::sim::{Profile, SimFabric};
use dmtree_fabric::{Core, Endpoint, Fifo, Worker};
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

/// Clients of a node have keys of their own, all of one leaf.
const CLIENTS: usize = 8;

fn key(cn: usize, n: usize) -> Vec<u8> {
    format!("key {:02}", cn * CLIENTS + n).into_bytes()
}

fn test_cluster(profile: &str, nodes: usize) -> TestCluster {
    let pool = PoolOptions {
        compute_nodes: nodes as u16,
        memory_bytes_per_node: 16 << 20,
        ..PoolOptions::default()
    };
    let profile = Profile::named(profile).expect("a profile");
    let fabric = SimFabric::new(&profile, 1);
    let test_cluster = TestCluster::simulated(&fabric, &pool, 8 << 20, Options::default())
        .expect("a test cluster");
    let mut c = test_cluster.client(0).expect("attach");
    for (cn, n) in (0..nodes).flat_map(|cn| (0..CLIENTS).map(move |n| (cn, n))) {
        c.write(&key(cn, n), Write::Insert(b"0")).expect("room");
    }
    fabric.set_timed(true);
    test_cluster
}

/// Runs `clients` of each node; each gets its endpoint, its node and its number there.
fn run<F: Future<Output = ()>>(
    test_cluster: &TestCluster,
    clients: &[usize],
    client: impl Fn(Endpoint, usize, usize) -> F,
) {
    let attach = |cn: usize| {
        let node = test_cluster.cluster.compute_node(cn).expect("a node");
        node.fabric().attach(node.cn()).expect("attach")
    };
    let first = attach(0);
    let core = Core::new(first.clone(), 64 << 20);
    let mut worker = Worker::new(core.clone());
    for (cn, n) in (0..clients.len()).flat_map(|cn| (0..clients[cn]).map(move |n| (cn, n))) {
        let transport = if cn == 0 { first.clone() } else { attach(cn) };
        let slot = core.add_slot();
        let ep = Endpoint::new(core.clone(), transport, slot);
        worker.spawn(slot, client(ep, cn, n));
    }
    worker.run(&mut Fifo).expect("every client ends");
}

/// How often the clients of each node have written, all at once, in `for_ns`. The first node owns
/// the table.
fn shares(profile: &str, clients: &[usize], for_ns: u64) -> Vec<u64> {
    let test_cluster = test_cluster(profile, clients.len());
    let done: Vec<_> = clients.iter().map(|_| Cell::new(0)).collect();
    run(&test_cluster, clients, |ep, cn, n| {
        let mut client = test_cluster.nodes[cn].client(ep.clone());
        let (done, until) = (&done[cn], ep.now() + for_ns);
        async move {
            while ep.now() < until {
                client.write(&key(cn, n), Write::Put(b"1")).await.expect("works");
                done.set(done.get() + 1);
            }
        }
    });
    done.into_iter().map(Cell::into_inner).collect()
}

const PROFILES: [(&str, u64); 4] = [
    ("ideal", 20_000_000),
    ("dmtree-artifact-100g", 20_000_000),
    ("soft-roce", 100_000_000),
    ("efa", 50_000_000),
];

#[test]
fn nodes_with_clients_that_always_wait_take_a_lock_in_turn() {
    for (profile, for_ns) in PROFILES {
        let done = shares(profile, &[CLIENTS, CLIENTS], for_ns);
        let (least, most) = (done[0].min(done[1]), done[0].max(done[1]));
        assert!(least * 100 >= most * 95 && most > 100, "{profile}: {done:?}");
    }
}

/// No node has less than a quarter of its share, even one with a single client, which does not wait
/// between its operations.
#[test]
fn nodes_with_few_clients_get_their_share_of_a_lock() {
    for (profile, for_ns) in PROFILES {
        for clients in [&[1, 1][..], &[CLIENTS, 1], &[1, CLIENTS], &[CLIENTS; 3], &[CLIENTS, 1, 1]]
        {
            let done = shares(profile, clients, for_ns);
            let all = done.iter().sum::<u64>();
            let is_fair = done.iter().all(|n| n * 4 * done.len() as u64 >= all);
            assert!(is_fair, "{profile}, {clients:?} clients: {done:?}");
        }
    }
}

/// Runs a future until a time.
async fn until<T>(ep: &Endpoint, end: u64, f: impl Future<Output = T>) -> Option<T> {
    let mut f = pin!(f);
    std::future::poll_fn(|cx| match ep.now() < end {
        true => f.as_mut().poll(cx).map(Some),
        false => Poll::Ready(None),
    })
    .await
}

/// Clients of another node give up while they wait, and no client clears their node's stamp.
#[test]
fn a_waiter_that_has_gone_stops_a_node_once_and_for_a_bounded_time() {
    let mut long = 0;
    for gone_ns in (5_000_000..5_100_000).step_by(10_000) {
        let test_cluster = test_cluster("dmtree-artifact-100g", 2);
        let gaps = RefCell::new(Vec::new());
        run(&test_cluster, &[1, CLIENTS], |ep, cn, n| {
            let mut client = test_cluster.nodes[cn].client(ep.clone());
            let (gaps, began) = (&gaps, ep.now());
            let (gone, end) = (began + gone_ns, began + 100_000_000);
            async move {
                let (own, mut last) = (key(cn, n), ep.now());
                while ep.now() < if cn == 0 { end } else { gone } {
                    let write = client.write(&own, Write::Put(b"1"));
                    if cn == 0 {
                        write.await.expect("works");
                        gaps.borrow_mut().push(ep.now() - last);
                        last = ep.now();
                    } else if until(&ep, gone, write).await.is_none() {
                        // The recovery after a drop under the lock.
                        for _ in 0..20 {
                            ep.sleep(20_000).await;
                            client.maintain().await.expect("works");
                        }
                    }
                }
            }
        });
        let mut gaps = gaps.into_inner();
        gaps.sort_unstable();
        let longest = gaps.split_off(gaps.len() - 2);
        assert!(longest[0] < 1_000_000, "once: {longest:?}");
        assert!(longest[1] < 25_000_000, "bounded: {longest:?}");
        long += u32::from(longest[1] > 10_000_000);
    }
    assert!(long > 0, "no run has left a stamp");
}
