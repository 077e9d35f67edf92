//! The log at the end of what a leaf can count.

use dmtree_check::test_cluster::TestCluster;
use dmtree_parts::{RangeIndex, Write};
use dmtree_pool::PoolOptions;

use super::MOST_WRITES;
use crate::lock::LeafLocks;
use crate::router::Router;
use crate::testing::{key, now, tree};
use crate::{DmTree, Options, Route};

fn route(c: &mut DmTree, key: &[u8]) -> Route {
    now(c, async |c| Router(&c.client).fresh_route(key).await).expect("a leaf")
}

/// The count of a leaf does not wrap: a record of before would be newer than all records behind.
#[test]
fn a_leaf_that_was_written_most_often_moves() {
    let options = Options { images: 0.5, log_kib: 64, log_groups: 1, ..Options::default() };
    let cluster = TestCluster::new(&PoolOptions::default(), 1 << 20, options).expect("an index");
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
