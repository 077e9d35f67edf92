//! A smaller cache budget holds to the byte when the call returns, and images go first.

use std::pin::pin;

use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{ErrorKind, Role};
use dmtree_parts::{CacheStats, RangeIndex, Work, Write};
use dmtree_pool::TableId;

use super::admission_tests::{
    CACHE_BYTES, CELLS, KEYS, clients, get, imaged, maintain, options, owner, plain, route,
};
use crate::testing::{key, now, tree};
use crate::{DmNode, DmTree, Options};

/// Bytes of a cell with an image.
fn cell() -> u64 {
    options().cell_bytes().expect("leaves have images")
}

fn stats(c: &DmTree) -> CacheStats {
    DmTree::cache_stats(&c.client.node)
}

fn shrink(c: &mut DmTree, bytes: u64) {
    now(c, async |c| c.set_cache_bytes(bytes).await).expect("it fits");
    holds(c, bytes);
}

/// The memory of a client's node is within its budget.
fn holds(c: &DmTree, bytes: u64) {
    let s = stats(c);
    assert!(s.budget_bytes == bytes && s.used_bytes + s.image_bytes <= bytes, "{s:?}");
}

/// How many leaves have images at a client's node.
fn images_at(c: &mut DmTree) -> u64 {
    let me = c.client.ep.node();
    let all = imaged(c);
    all.iter().filter(|(_, r)| owner(c, r) == Some(me)).count() as u64
}

/// Nothing is lost, for any client.
fn is_whole(trees: &mut [DmTree]) {
    for c in &mut *trees {
        (0..KEYS).for_each(|n| assert_eq!(get(c, n).as_deref(), Some(&b"old"[..]), "key {n}"));
    }
    let c = &mut trees[0];
    let shape = now(c, async |c| c.walk().await).expect("sound");
    assert_eq!(shape.keys, KEYS);
    let found = now(c, async |c| c.gc().await).expect("works");
    assert!(found.is_nothing(), "withheld cells are not lost: {found:?}");
}

/// Half of the room is given back, and images alone: those of the leaves that are used least.
#[test]
fn half_of_the_images_go() {
    let (_cluster, mut trees) = clients();
    let [a, b] = &mut trees;
    let (me, others) = (a.client.ep.node(), images_at(b));
    let all = imaged(a);
    let own: Vec<_> = all.into_iter().filter(|(_, r)| owner(a, r) == Some(me)).collect();
    assert!(own.len() as u64 >= CELLS - 1, "{own:?}");
    // The cursor meets it first.
    let (hot, _) = own[0];
    (0..200).for_each(|_| assert!(get(a, hot).is_some()));
    let before = stats(a);
    shrink(a, CACHE_BYTES - CELLS / 2 * cell());
    let s = stats(a);
    assert!(s.used_bytes >= before.used_bytes && s.evictions == 0, "inner nodes stay: {s:?}");
    assert_eq!((s.image_bytes, images_at(a)), (CELLS / 2 * cell(), CELLS / 2));
    assert!(route(a, hot).is_imaged(), "the leaf that is used keeps its image");
    assert_eq!(images_at(b), others, "another node's stay");
    is_whole(&mut trees);
    // The other half comes back with the room, for leaves that are used.
    let [a, _] = &mut trees;
    shrink(a, CACHE_BYTES);
    let hot = plain(a, CELLS as usize / 2);
    for _ in 0..20 {
        hot.iter().cycle().take(40).for_each(|n| assert!(get(a, *n).is_some()));
        maintain(a);
    }
    assert_eq!((stats(a).image_bytes, images_at(a)), (CELLS * cell(), CELLS));
    is_whole(&mut trees);
}

/// All images go, and no others come, on each node in turn; then inner nodes go, too.
#[test]
fn no_image_stays() {
    let (_cluster, mut trees) = clients();
    for c in &mut trees {
        shrink(c, CACHE_BYTES - CELLS * cell());
        assert_eq!((stats(c).image_bytes, images_at(c), stats(c).evictions), (0, 0, 0));
    }
    is_whole(&mut trees);
    let [a, _] = &mut trees;
    for n in 0..KEYS {
        let new = [&key(n)[..], b"new"].concat();
        now(a, async |a| a.write(&new, Write::Insert(b"new")).await).expect("room");
    }
    maintain(a);
    assert!(imaged(a).is_empty() && stats(a).image_bytes == 0);
    let least = DmNode::least_cache_bytes(&options().geometry());
    shrink(a, least);
    assert!(stats(a).evictions > 0);
    let e = now(a, async |a| a.set_cache_bytes(least - 1).await);
    assert_eq!(e.expect_err("too small").kind(), ErrorKind::InvalidArgument);
    holds(a, least);
}

/// An empty index, and every cell with an image that a client of node 1 can get.
fn all_cells() -> (TestCluster, [DmTree; 2], Vec<TableId>) {
    let cluster = super::admission_tests::cluster();
    let [a, mut b] = [0, 1].map(|cn| tree(&cluster, cn));
    let (index, lines) = (a.client.node.root.index, (cell() / 64) as u8);
    let taken = now(&mut b, async |b| {
        let (ep, pool) = (&b.client.ep, &b.client.node.pool);
        let mut taken = Vec::new();
        while let Ok(t) = pool.alloc_table(ep, index, lines, Role::Compute).await {
            taken.push(t);
        }
        Ok(taken)
    });
    assert!(stats(&a).image_bytes >= (CELLS - 1) * cell());
    (cluster, [a, b], taken.expect("works"))
}

/// Free cells that another node has are asked for.
#[test]
fn free_cells_of_other_nodes_come_back() {
    let (_cluster, [mut a, b], taken) = all_cells();
    let index = a.client.node.root.index;
    taken.into_iter().for_each(|t| b.client.node.pool.give_back_table(index, t));
    shrink(&mut a, CACHE_BYTES - CELLS * cell());
    assert_eq!(stats(&a).image_bytes, 0);
}

/// Empty cells that were lost come back whole from a garbage collection: with their images, as the
/// owner counts them.
#[test]
fn lost_cells_come_back_with_their_images() {
    let (_cluster, mut trees, taken) = all_cells();
    let found = now(&mut trees[0], async |c| c.gc().await).expect("works");
    assert_eq!(found.cells, taken.len() as u64, "each is found as one cell");
    for c in &mut trees {
        shrink(c, CACHE_BYTES - CELLS * cell());
        assert_eq!(stats(c).image_bytes, 0);
    }
}

/// A call for a smaller budget finds lost cells by itself. On a busy machine the answer of a grant
/// may come too late, and its cells are lost.
#[test]
fn a_smaller_budget_finds_lost_cells() {
    let (_cluster, mut trees, _lost) = all_cells();
    for c in &mut trees {
        shrink(c, CACHE_BYTES - CELLS * cell());
        assert_eq!(stats(c).image_bytes, 0);
    }
}

/// An index that is opened again with a smaller budget gives images back by maintenance.
#[test]
fn maintenance_keeps_a_smaller_budget_of_an_opening() {
    let (_cluster, [a, _b]) = clients();
    let (pool, root) = (a.client.node.pool.clone(), a.client.node.root);
    let smaller = dmtree_parts::NodeContext { pool, cache_bytes: CACHE_BYTES / 2 };
    let node = std::sync::Arc::new(DmNode::new(&smaller, &options(), root).expect("it fits"));
    let mut c = DmTree::new(a.client.ep.clone(), node);
    drop(a);
    for _ in 0..100 {
        while now(&mut c, async |c| c.maintain().await).expect("works") == Work::Some {}
        let (ep, pool) = (c.client.ep.clone(), c.client.node.pool.clone());
        ep.block_on(pin!(pool.reclaimer().reclaim(&ep))).expect("works");
    }
    assert_eq!(stats(&c).image_bytes, CELLS / 2 * cell());
    holds(&c, CACHE_BYTES / 2);
}

/// An index without images has inner nodes alone to give back.
#[test]
fn a_cache_without_images_shrinks() {
    let o = Options { images: 0.0, ..options() };
    let pool = dmtree_pool::PoolOptions::default();
    let cluster = TestCluster::new(&pool, CACHE_BYTES, o).expect("an index");
    let mut c = tree(&cluster, 0);
    for n in 0..KEYS {
        now(&mut c, async |c| c.write(&key(n), Write::Put(b"old")).await).expect("room");
    }
    let used = stats(&c).used_bytes;
    shrink(&mut c, used / 2);
    assert!(stats(&c).used_bytes > 0);
    (0..KEYS).for_each(|n| assert!(get(&mut c, n).is_some()));
    holds(&c, used / 2);
}
