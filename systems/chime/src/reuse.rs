//! A leaf that is freed, with memory that is used again, under what a compute node remembers of it.
//!
//! The published code frees nothing, so the test does by hand what a merge would do: the keys go
//! into another leaf, the node above names that one, and a leaf of another index with one of the
//! keys comes to the old place. (The old place is not of the index any more.)

use dmtree_check::scenario::{key, value};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{Endpoint, GlobalAddr, NodeId, Result};
use dmtree_parts::Write;
use dmtree_parts::blink::{Descent, Format, PageTree};
use dmtree_parts::bytes::get_addr;
use dmtree_parts::published::Published;
use dmtree_pool::PoolOptions;

use crate::get::Reads;
use crate::index::Chime;
use crate::options::Options;
use crate::read::Leaves;
use crate::split::Splits;

const OTHER_LIFE: &[u8; 6] = b"other!";

fn options(hotspot_share: f64) -> Options {
    Options {
        key_bytes: key(0).len() as u32,
        value_bytes: value(0).len() as u32,
        span: 16,
        inner_span: 16,
        hotspot_share,
        ..Options::published().repaired()
    }
}

/// The leaf of a key moves, and its memory is used again with this sibling instead of its own.
async fn reuse(c: &Chime, n: u64, sibling: Option<GlobalAddr>) -> Result<()> {
    let (g, key) = (&c.node.g, key(n));
    let old = c.fresh_route(&key).await?;
    let leaf = Leaves(c).read_parts(old.leaf, &[g.whole()]).await?;
    let new = c.new_page().await?;
    Splits(c).write_new_leaf(new, &leaf).await?;
    let root = get_addr(&c.ep.read(c.node.root.word, 8).await?.word(0).to_le_bytes(), 0);
    let read = c.ep.read(root, g.page_bytes() as u32).await?;
    let mut image = read.extract(|b| g.plain(b).map(|plain| plain.into_owned())).expect("whole");
    let records = g.header(&image).expect("an inner node").records;
    let i = (0..records).find(|i| g.child(&image, *i) == old.leaf).expect("the root names it");
    let low = g.key(&image, i).to_vec();
    g.put_record(&mut image, i, &low, new);
    let mut buf = c.ep.buf(g.page_bytes() as u32).await?;
    image.resize(buf.len(), 0);
    g.seal(&mut image);
    buf.copy_from_slice(&image);
    c.ep.write(root, buf).await?;
    let mut other = leaf.clone();
    let slot = leaf.find(&key).expect("it is there");
    other.fill(slot, &key, OTHER_LIFE);
    other.set_metadata(sibling.unwrap_or(leaf.sibling()), &low, &low);
    Splits(c).write_new_leaf(old.leaf, &other).await
}

/// What a client with an old cache finds of a key in a leaf that has moved.
fn found(hotspot_share: f64, has_sibling: bool) -> Vec<u8> {
    let pool = PoolOptions { compute_nodes: 2, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, options(hotspot_share)).expect("an index");
    let client = |cn: usize| {
        let pool = cluster.cluster.compute_node(cn).expect("there");
        let ep: Endpoint = pool.endpoint(4 << 20).expect("a member");
        (ep.clone(), Chime::connect(ep, cluster.nodes[cn].typed()))
    };
    let ((ep, writer), (old_ep, old)) = (client(0), client(1));
    let written = ep.block_on(async {
        for n in 0..40 {
            writer.write_key(&key(n), Write::Insert(&value(n))).await?;
        }
        Ok(())
    });
    written.expect("room");
    let mut out = Vec::new();
    let read = |out: &mut Vec<u8>| {
        out.clear();
        old_ep.block_on(Reads(&old).find(&key(30), out)).expect("an answer")
    };
    (0..3).for_each(|_| assert!(read(&mut out)));
    assert_eq!(out, value(30));
    let sibling = (!has_sibling).then(|| GlobalAddr::new(NodeId::memory(0), 64));
    ep.block_on(reuse(&writer, 30, sibling)).expect("room");
    assert!(read(&mut out));
    out
}

/// A guess compares nothing but the key, and a cached route nothing but the sibling.
#[test]
fn a_freed_leaf_answers_to_guesses_and_to_cached_siblings() {
    assert_eq!(found(0.0, false), value(30), "another sibling shows that the route is old");
    assert_eq!(found(0.0, true), OTHER_LIFE, "the sibling is all that a leaf is checked by");
    assert_eq!(found(0.5, false), OTHER_LIFE, "a guess does not ask for the sibling");
}
