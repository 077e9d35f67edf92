//! Every level at once, against a model with snapshots.

use std::collections::BTreeMap;

use dmtree_check::conformance::{Keys, everything, scan_all};
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::TestCluster;
use dmtree_dlsm::{Format, Merging, Options};
use dmtree_parts::{Page, Write};
use dmtree_pool::PoolOptions;

use crate::small;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all_levels(o: &Options, seed: u64) {
    let o = Options { level1_bytes: 1024, table_bytes: 1024, ..small(o.clone()) };
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, &o).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    let (mut rng, mut model, mut open) = (Rng::new(seed), Model::new(), Vec::new());
    for step in 0..16_000u64 {
        let key = Keys::Hashed24.key(rng.below(9_000));
        let value = vec![step as u8; 100 + rng.below(50) as usize];
        if rng.below(10) == 0 {
            model.remove(&key);
            c.write(&key, Write::Delete).expect("delete");
        } else {
            c.write(&key, Write::Put(&value)).expect("put");
            model.insert(key, value);
        }
        if step % 2_500 == 1_000 {
            open.push((c.take_snapshot().expect("snapshot"), model.clone()));
        }
        if step % 500 == 0 {
            c.maintain().expect("maintain");
        }
    }
    c.maintain().expect("maintain");
    let shape = c.walk().expect("every invariant holds");
    assert_eq!((shape.keys, shape.levels), (model.len() as u64, 6));
    assert!(scan_all(&mut c, &everything(997)).into_iter().eq(model));
    for (snapshot, model) in open {
        let (mut page, mut found, mut resume) = (Page::new(), Model::new(), None);
        loop {
            let r = everything(997).after(resume.as_ref());
            resume = c.scan_at(snapshot, &r, &mut page).expect("it is open");
            found.extend(page.iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
            if resume.is_none() {
                break;
            }
        }
        assert!(found == model, "a snapshot shows what it did");
        c.release_snapshot(snapshot).expect("it is open");
        c.release_snapshot(snapshot).expect_err("once");
    }
}

#[test]
fn all_levels_with_snapshots() {
    let dense = Options::default;
    all_levels(&dense(), 1);
    all_levels(&Options { merging: Merging::Owner, ..dense() }, 2);
    all_levels(&Options { format: Format::Dense(4), ..dense() }, 3);
    all_levels(&Options { format: Format::Blocks(500), ..dense() }, 4);
}
