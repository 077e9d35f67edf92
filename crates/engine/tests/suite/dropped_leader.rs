//! The leading caller of a group of writers drops its operation before it has done anything for the
//! group.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{Mark, Options};
use dmtree_fabric::local::Knobs;
use dmtree_parts::{Outcome, Write};
use dmtree_pool::PoolOptions;

fn poll<F: Future + Unpin>(f: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
}

/// The members write alone: they get the outcomes of their own writes, and their values are stored.
#[test]
fn the_members_of_a_group_go_alone() {
    dmtree_fabric::mark::set_on(true);
    let mut alone = 0;
    for seed in 0..20 {
        let knobs = Knobs { suspend_one_in: 1, seed };
        let pool = PoolOptions { memory_bytes_per_node: 16 << 20, knobs, ..PoolOptions::default() };
        let test_cluster: TestCluster =
            TestCluster::new(&pool, 1 << 20, Options::default()).expect("an index");
        let (core, clients) = test_cluster.coroutines([0, 0]).expect("attach");
        let mut clients = clients.into_iter();
        let (mut leader, mut member) = (clients.next().expect("two"), clients.next().expect("two"));
        let slot = member.endpoint().slot();
        let mut leading = Box::pin(leader.write(b"key", Write::Put(b"the leader's")));
        assert!(poll(&mut leading).is_pending(), "its first verb is suspended");
        let mut joining = Box::pin(member.write(b"key", Write::Put(b"the member's")));
        assert!(poll(&mut joining).is_pending());
        drop(leading);
        assert_eq!(core.block_on(slot, joining).expect("written"), Outcome::Done);
        let mut out = Vec::new();
        assert!(core.block_on(slot, member.get(b"key", &mut out)).expect("read"));
        assert_eq!(out, b"the member's");
        alone = Mark::reached().iter().find(|(m, _)| m.contains("go alone")).map_or(0, |(_, n)| *n);
    }
    assert!(alone > 0, "no operation has joined");
}
