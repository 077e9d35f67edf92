//! The log at the end of what a leaf can count and under contention, and what a node keeps of the
//! rings.

use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::sync::locked;
use dmtree_parts::fairness::FairShare;
use dmtree_parts::{RangeIndex, Work, Write};
use dmtree_pool::PoolOptions;

use super::{MOST_WRITES, Replay, Since};
use crate::lock::LeafLocks;
use crate::router::Router;
use crate::testing::{key, now, tree};
use crate::{Chore, DmTree, Options, Route};

fn route(c: &mut DmTree, key: &[u8]) -> Route {
    now(c, async |c| Router(&c.client).fresh_route(key).await).expect("a leaf")
}

fn logged() -> Options {
    Options { images: 0.5, log_kib: 64, log_groups: 1, ..Options::default() }
}

/// What was read of rings is as large as all of them: the sweep after a death ends its use.
#[test]
fn a_sweep_drops_what_was_read_of_rings() {
    let cluster = TestCluster::new(&PoolOptions::default(), 1 << 20, logged()).expect("an index");
    let mut c = tree(&cluster, 0);
    now(&mut c, async |c| c.write(&key(0), Write::Put(b"there")).await).expect("a put");
    let leaf = route(&mut c, &key(0)).leaf;
    now(&mut c, async |c| Replay(&c.client).records(leaf, Since::Dead).await).expect("read");
    let kept = |c: &DmTree| locked(&c.client.node.log.as_ref().expect("a log").kept).len();
    assert_eq!(kept(&c), 1, "for the next repair");
    c.client.node.push_chore(Chore::Sweep(Vec::new()));
    while now(&mut c, async |c| c.maintain().await).expect("works") == Work::Some {}
    assert_eq!(kept(&c), 0);
}

/// While other nodes wait for a leaf its updates go to the leaf, and no record of it counts.
#[test]
fn a_contended_leaf_leaves_the_log() {
    let cluster = TestCluster::new(&PoolOptions::default(), 1 << 20, logged()).expect("an index");
    let mut c = tree(&cluster, 0);
    let (one, two) = (key(0), key(1));
    now(&mut c, async |c| c.write(&one, Write::Put(b"before")).await).expect("a put");
    let leaf = route(&mut c, &one);
    let is_behind = |c: &mut DmTree| {
        let behind = now(c, async |c| {
            let locks = LeafLocks(&c.client);
            let l = locks.lock(&leaf).await?.expect("its route");
            let behind = l.table.behind;
            locks.unlock_with_table(l).await.map(|()| behind)
        });
        behind.expect("locked")
    };
    let update = |c: &mut DmTree, value: &[u8]| {
        now(c, async |c| c.write(&one, Write::Update(value)).await).expect("an update");
    };
    update(&mut c, b"first");
    assert!(is_behind(&mut c), "no other node waits");
    let (contenders, lock) = (&c.client.node.clone().contenders, leaf.table.bits());
    let other = FairShare::new(7, 1);
    contenders.took(lock, Some(&[0, other.says(lock), 0, 0]));
    contenders.left(lock);
    update(&mut c, b"second");
    assert!(!is_behind(&mut c));
    now(&mut c, async |c| c.write(&two, Write::Put(b"new")).await).expect("an insert");
    assert!(is_behind(&mut c), "an insert has a record");
    update(&mut c, b"third");
    assert!(!is_behind(&mut c));
    let mut value = Vec::new();
    assert!(now(&mut c, async |c| c.get(&one, &mut value).await).expect("a get"));
    assert_eq!(value, b"third");
    now(&mut c, async |c| c.walk().await).expect("sound");
}

/// The count of a leaf does not wrap: a record of before would be newer than all records behind.
#[test]
fn a_leaf_that_was_written_most_often_moves() {
    let cluster = TestCluster::new(&PoolOptions::default(), 1 << 20, logged()).expect("an index");
    let mut c = tree(&cluster, 0);
    let keys: Vec<_> = (0..200).map(key).collect();
    for key in &keys {
        now(&mut c, async |c| c.write(key, Write::Put(b"before")).await).expect("a put");
    }
    let last = keys.last().expect("some");
    let before = route(&mut c, last);
    assert!(before.is_imaged());
    now(&mut c, async |c| {
        let locks = LeafLocks(&c.client);
        let mut l = locks.lock(&before).await?.expect("its route");
        l.table.writes = MOST_WRITES;
        locks.unlock_with_table(l).await
    })
    .expect("written");
    now(&mut c, async |c| c.write(last, Write::Put(b"after")).await).expect("a put");
    let after = route(&mut c, last);
    assert!(after.is_imaged() && after.leaf != before.leaf);
    let writes = now(&mut c, async |c| {
        let locks = LeafLocks(&c.client);
        let l = locks.lock(&after).await?.expect("its route");
        let writes = l.table.writes;
        locks.unlock_with_table(l).await.map(|()| writes)
    });
    assert!(writes.expect("locked") < 100, "counted anew");
    let mut value = Vec::new();
    for key in &keys {
        let found = now(&mut c, async |c| c.get(key, &mut value).await).expect("a get");
        let wanted: &[u8] = if key == last { b"after" } else { b"before" };
        assert!(found && value == wanted);
    }
    now(&mut c, async |c| c.walk().await).expect("sound");
}
