//! In steady state a verb allocates nothing.

mod common;

use common::allocation::{Counting, of_rounds};
use dmtree_fabric::local::LocalFabric;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn verbs_allocate_nothing_in_steady_state() {
    let f = LocalFabric::new();
    let made = of_rounds(&f, |node, bytes| f.add_node(node, bytes).expect("new"), 10_000);
    // A block_on makes nothing per verb; leave room for allocations of the test harness.
    assert!(made < 10, "{made} allocations in 50 000 verbs");
}
