//! A garbage collection for a write without room.

use dmtree_fabric::ErrorKind;

use super::Collection;
use super::admission_tests::clients;
use crate::testing::now;

/// Where a collection takes longer than an operation may, each write began it anew, and none ended.
#[test]
fn the_next_write_goes_on_with_a_collection_that_was_too_long() {
    let (_cluster, mut trees) = clients();
    // Late from the beginning: a call executes one piece.
    let mut piece = || {
        now(&mut trees[0], async |c| match Collection(&c.client).run_until(0).await {
            Err(e) if e.kind() == ErrorKind::TimedOut => Ok(false),
            ended => ended.map(|()| true),
        })
    };
    let pieces = (1..1000).find(|_| piece().expect("no other collection"));
    assert!(pieces.is_some_and(|pieces| pieces > 2), "{pieces:?}");
}
