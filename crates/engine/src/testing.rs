//! What tests inside the crate share.

use std::pin::pin;

use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::Result;

use crate::DmTree;

/// Bytes of buffers of a client.
const SLAB_BYTES: u64 = 4 << 20;

/// A key of 7 bytes, in the order of its number.
pub(crate) fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

/// A client on a compute node.
pub(crate) fn tree(cluster: &TestCluster, cn: usize) -> DmTree {
    let node = cluster.cluster.compute_node(cn).expect("there");
    DmTree::new(node.endpoint(SLAB_BYTES).expect("a member"), cluster.nodes[cn].typed())
}

/// Waits for an operation of a client.
pub(crate) fn now<T>(c: &mut DmTree, f: impl AsyncFnOnce(&mut DmTree) -> Result<T>) -> Result<T> {
    let ep = c.client.ep.clone();
    ep.block_on(pin!(f(c)))
}
