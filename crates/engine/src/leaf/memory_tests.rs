//! Memory that was taken and is not used comes back whole.

use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{ErrorKind, LeaseParameters, MemberPhase, Role};
use dmtree_pool::{PoolOptions, TableId};

use super::{CellKind, LeafMemory};
use crate::testing::{now, tree};
use crate::{DmTree, Options};

/// Slots of the leaves, and lines of their tables.
const CAPACITY: usize = 32;
const LINES: u8 = 1;

fn cluster(generation_bits: u8) -> TestCluster {
    let pool = PoolOptions { compute_nodes: 2, generation_bits, ..PoolOptions::default() };
    TestCluster::new(&pool, 1 << 20, Options::default()).expect("an index")
}

/// A cell of one line at the first node, taken by a client of the second one.
fn cell_at_first(c: &mut DmTree) -> TableId {
    let index = c.client.node.root.index;
    now(c, async |c| {
        let pool = &c.client.node.pool;
        loop {
            let t = pool.alloc_table(&c.client.ep, index, LINES, Role::Compute).await?;
            if pool.resolve(&c.client.ep, t).await?.node() != pool.cn() {
                return Ok(t);
            }
        }
    })
    .expect("room")
}

/// Regression: where a partition has lost its owner, its cell of a new leaf was lost until garbage
/// collection.
#[test]
fn a_cell_without_an_owner_is_given_back() {
    let cluster = cluster(16);
    let membership = cluster.membership();
    // The leases hold as long as the test runs.
    let ns = 600_000_000_000;
    let leases = LeaseParameters { lease_ns: ns, acknowledge_ns: ns, ..LeaseParameters::default() };
    membership.set_lease_parameters(leases);
    let nodes = [0, 1].map(|cn| cluster.cluster.compute_node(cn).expect("exists"));
    let mut c = tree(&cluster, 1);
    let mut first_client = tree(&cluster, 0);
    let step = |c: &mut DmTree| {
        now(c, async |c| {
            c.client.node.pool.membership().membership_step(&c.client.ep).await.map(drop)
        })
    };
    step(&mut first_client).expect("joined");
    step(&mut c).expect("joined");
    let cell = cell_at_first(&mut c);
    let first = nodes[0].member();
    // It does not hand its tables over.
    now(&mut first_client, async |c| nodes[0].membership().leave(&c.client.ep).await)
        .expect("a member");
    while nodes[1].resolve_cached(cell).is_some() {
        step(&mut c).expect("a member");
    }
    let taken = now(&mut c, async |c| {
        LeafMemory(&c.client).take(CAPACITY, CellKind::Taken(cell)).await.map(drop)
    });
    assert_eq!(taken.expect_err("no owner").kind(), ErrorKind::Unreachable);
    while nodes[1].membership().phase(first.node, first.incarnation) != Some(MemberPhase::Gone) {
        step(&mut c).expect("a member");
    }
    let index = c.client.node.root.index;
    let free = now(&mut c, async |c| {
        let pool = &c.client.node.pool;
        let mut cells = Vec::new();
        for _ in 0..200 {
            cells.push(pool.alloc_table(&c.client.ep, index, LINES, Role::Compute).await?);
        }
        Ok(cells)
    });
    assert!(free.expect("room").contains(&cell), "it is on a free list");
}

#[test]
fn a_leaf_that_was_not_written_keeps_its_generation() {
    let cluster = cluster(2);
    let mut c = tree(&cluster, 0);
    let worn_out = |c: &DmTree| {
        let arenas = c.client.node.pool.usage().arenas;
        arenas.iter().map(|arena| arena.worn_out).sum::<u64>()
    };
    let give_back = |c: &mut DmTree, is_written: bool| {
        now(c, async |c| {
            let new = LeafMemory(&c.client).take(CAPACITY, CellKind::Plain).await?;
            match is_written {
                true => LeafMemory(&c.client).give_back(&new),
                false => LeafMemory(&c.client).give_back_unwritten(&new),
            }
            Ok(())
        })
        .expect("room");
    };
    (0..20).for_each(|_| give_back(&mut c, false));
    assert_eq!(worn_out(&c), 0);
    (0..20).for_each(|_| give_back(&mut c, true));
    assert!(worn_out(&c) > 0);
}
