//! Images move to the leaves that are used, within the room that was given, and stale routes of
//! other nodes never read what an eviction has left.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::pin::pin;

use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::NodeId;
use dmtree_parts::{Fill, Page, RangeIndex, ScanRequest, Work, Write};
use dmtree_pool::PoolOptions;

use crate::router::{Router, route_of};
use crate::testing::{key, now, tree};
use crate::{DmTree, Mutant, Options, Route, Techniques};

/// Cells with images on each node.
pub(super) const CELLS: u64 = 4;
pub(super) const CACHE_BYTES: u64 = 1 << 20;
/// More leaves than cells.
pub(super) const KEYS: u64 = 1_000;

/// Options with room for so many images on each node.
pub(super) fn options() -> Options {
    let techniques = Techniques { adaptive_capacity: false, ..Techniques::default() };
    let o = Options { fanout: 8, techniques, ..Options::default() };
    let bytes = CELLS * o.cell_bytes().expect("leaves have images");
    Options { images: bytes as f64 / CACHE_BYTES as f64, ..o }
}

/// Two nodes, and an index without keys.
pub(super) fn cluster() -> TestCluster {
    let pool = PoolOptions { compute_nodes: 2, ..PoolOptions::default() };
    TestCluster::new(&pool, CACHE_BYTES, options()).expect("an index")
}

/// Clients of two nodes, with more leaves than images.
pub(super) fn clients() -> (TestCluster, [DmTree; 2]) {
    let cluster = cluster();
    let mut trees = [0, 1].map(|cn| tree(&cluster, cn));
    let mut pairs = (0..KEYS).map(|n| (key(n), b"old".to_vec()));
    let c = &mut trees[0];
    now(c, async |c| c.load(&mut pairs, true, Fill::Even(0.7)).await).expect("room");
    for c in &mut trees {
        (0..KEYS).for_each(|n| assert_eq!(get(c, n).as_deref(), Some(&b"old"[..])));
    }
    (cluster, trees)
}

pub(super) fn get(c: &mut DmTree, n: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = now(c, async |c| c.get(&key(n), &mut out).await).expect("works");
    found.then_some(out)
}

/// Everything that is due, the limbo list included.
pub(super) fn maintain(c: &mut DmTree) {
    while now(c, async |c| c.maintain().await).expect("works") == Work::Some {}
    let (ep, pool) = (c.client.ep.clone(), c.client.node.pool.clone());
    ep.block_on(pin!(pool.reclaimer().reclaim(&ep))).expect("works");
}

pub(super) fn route(c: &mut DmTree, n: u64) -> Route {
    now(c, async |c| {
        let node = Router(&c.client).descend_to(&key(n), 1).await?.expect("a bottom level");
        Ok(route_of(&node.record(node.keys().floor(&key(n)).expect("covers it"))))
    })
    .expect("works")
}

pub(super) fn owner(c: &DmTree, route: &Route) -> Option<NodeId> {
    c.client.node.pool.resolve_cached(route.table).map(|at| at.node())
}

/// Leaves with images, as this client's node knows them.
pub(super) fn imaged(c: &mut DmTree) -> Vec<(u64, Route)> {
    let mut seen = BTreeSet::new();
    let all = (0..KEYS).map(|n| (n, route(c, n))).collect::<Vec<_>>();
    all.into_iter().filter(|(_, r)| r.is_imaged() && seen.insert(r.leaf.bits())).collect()
}

/// Keys of leaves without an image, far from each other.
pub(super) fn plain(c: &mut DmTree, count: usize) -> Vec<u64> {
    let keys = (0..KEYS).step_by(40).filter(|n| !route(c, *n).is_imaged());
    keys.take(count).collect()
}

#[test]
fn images_follow_use_within_their_room() {
    let (_cluster, [mut a, mut b]) = clients();
    let most = 2 * CELLS as usize;
    let first = imaged(&mut a).len();
    assert!(first + 1 >= most, "what was built first, but for the leaf of the empty index");
    let hot = plain(&mut a, CELLS as usize);
    for _ in 0..20 {
        for _ in 0..16 {
            hot.iter().for_each(|n| assert!(get(&mut a, *n).is_some()));
        }
        maintain(&mut a);
        assert!(imaged(&mut a).len() <= most, "no byte more than was given");
    }
    let me = a.client.ep.node();
    for n in &hot {
        let r = route(&mut a, *n);
        assert!(r.is_imaged() && owner(&a, &r) == Some(me), "key {n}: {r:?}");
    }
    assert!(imaged(&mut a).len() >= first, "none is left free");
    // Another node's routes are old.
    (0..KEYS).for_each(|n| assert_eq!(get(&mut b, n).as_deref(), Some(&b"old"[..])));
    let shape = now(&mut b, async |b| b.walk().await).expect("sound");
    assert_eq!(shape.keys, KEYS);
}

/// A load of scans alone gets images of the leaves that it READs, upwards and downwards.
#[test]
fn images_follow_scans() {
    for reverse in [false, true] {
        let (_cluster, [mut a, _b]) = clients();
        let hot = plain(&mut a, CELLS as usize);
        let mut page = Page::new();
        for _ in 0..30 {
            for n in hot.iter().cycle().take(16 * hot.len()) {
                // Of one leaf alone: more leaves than cells would keep each other out.
                let (low, high) = (key(*n), key(n + 1));
                let r = ScanRequest {
                    low: Bound::Included(&low),
                    high: Bound::Excluded(&high),
                    limit: 4,
                    reverse,
                };
                assert!(now(&mut a, async |a| a.scan(&r, &mut page).await).is_ok());
            }
            maintain(&mut a);
        }
        let me = a.client.ep.node();
        for n in &hot {
            let r = route(&mut a, *n);
            assert!(r.is_imaged() && owner(&a, &r) == Some(me), "reverse {reverse}, {n}: {r:?}");
        }
    }
}

/// Leaves that are used alike keep what they have; one gets the image that the leaf of the empty
/// index has left.
#[test]
fn even_use_moves_nothing() {
    let (_cluster, [mut a, _b]) = clients();
    let before = imaged(&mut a);
    for _ in 0..40 {
        (0..KEYS).step_by(8).for_each(|n| assert!(get(&mut a, n).is_some()));
        maintain(&mut a);
    }
    let after = imaged(&mut a);
    assert!(before.iter().all(|leaf| after.contains(leaf)) && after.len() <= before.len() + 1);
}

/// The value that a READ from another node has, of a leaf that lost its image and then changed.
fn read_behind_an_eviction(mutant: Option<Mutant>) -> Option<Vec<u8>> {
    let (cluster, [mut a, mut b]) = clients();
    cluster.nodes.iter().for_each(|n| n.typed::<crate::DmNode>().set_mutants(mutant.as_slice()));
    let me = a.client.ep.node();
    let owned = imaged(&mut a);
    let owned: Vec<_> = owned.iter().filter(|(_, r)| owner(&a, r) == Some(me)).collect();
    let hot = plain(&mut a, 1)[0];
    let evicted = loop {
        (0..8).for_each(|_| assert!(get(&mut a, hot).is_some()));
        while now(&mut a, async |a| a.maintain().await).expect("works") == Work::Some {}
        if let Some((n, _)) = owned.iter().find(|(n, _)| !route(&mut a, *n).is_imaged()) {
            break *n;
        }
    };
    let update = async |a: &mut DmTree| a.write(&key(evicted), Write::Update(b"new")).await;
    now(&mut a, update).expect("works");
    get(&mut b, evicted)
}

#[test]
fn an_evicted_image_answers_no_more() {
    assert_eq!(read_behind_an_eviction(None).as_deref(), Some(&b"new"[..]));
    // The naive eviction takes the leaf away, and leaves the image as it is.
    let naive = read_behind_an_eviction(Some(Mutant::ImagedNotClosed));
    assert_eq!(naive.as_deref(), Some(&b"old"[..]), "the mutant is found");
}
