//! Models that are old, torn, foreign or absent: answers are right all the same.

use std::collections::BTreeMap;

use dmtree_check::conformance::above;
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{Error, ErrorKind, GlobalAddr, OpKind, OpOutcome};
use dmtree_parts::{Fill, MAX_VALUE_BYTES, Page, RangeIndex, Work, Write};
use dmtree_pool::{BlockPtr, PoolOptions};

use super::{NodeModels, directory};
use crate::change::Split;
use crate::format::block;
use crate::lock::LeafLocks;
use crate::router::Router;
use crate::testing::{key, now, tree};
use crate::{DmTree, KeyHash, Models, Mutant, Options, Techniques, Unlock};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    let o = Options { leaf_capacity: 4, fanout: 8, ..Options::default().without_tables() };
    let techniques = Techniques {
        models: Models::Window,
        page_leaves: 4,
        retrain_after: 1,
        error_bound: 4,
        ..o.techniques
    };
    Options { techniques, ..o }
}

fn cluster() -> (TestCluster, Vec<DmTree>) {
    let pool = PoolOptions { compute_nodes: 2, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, options()).expect("an index");
    let trees = (0..2).map(|cn| tree(&cluster, cn)).collect();
    (cluster, trees)
}

fn load(c: &mut DmTree, keys: u64) -> Model {
    let all: Model = (0..keys).map(|n| (key(n * 10), vec![n as u8; 8])).collect();
    let mut pairs = all.clone().into_iter();
    now(c, async |c| c.load(&mut pairs, true, Fill::Even(1.0)).await).expect("room");
    all
}

fn models(c: &DmTree) -> &NodeModels {
    c.client.node.models.as_ref().expect("it has some")
}

fn word(c: &mut DmTree) -> u64 {
    let at = c.client.node.root.directory();
    now(c, async |c| c.client.ep.read(at, 8).await).expect("there").word(0)
}

fn maintain(c: &mut DmTree) -> Result<Work, Error> {
    now(c, async |c| c.maintain().await)
}

/// Gets, scans, updates and deletes of a client agree with a model.
fn agrees(c: &mut DmTree, all: &mut Model, space: u64) {
    let mut out = Vec::new();
    for n in 0..space {
        let found = now(c, async |c| c.get(&key(n), &mut out).await).expect("an answer");
        assert_eq!(found.then_some(&out), all.get(&key(n)), "key {n}");
    }
    for n in (0..space).step_by(37) {
        let (low, mut page) = (key(n), Page::new());
        let request = above(&low, 50);
        now(c, async |c| c.scan(&request, &mut page).await).expect("a page");
        let wanted = all.range(low.clone()..).take(50).map(|(k, v)| (&k[..], &v[..]));
        assert!(page.iter().eq(wanted), "from {n}");
    }
    for n in (0..space).step_by(23) {
        let w = if n.is_multiple_of(2) { Write::Put(b"replaced") } else { Write::Delete };
        now(c, async |c| c.write(&key(n), w).await).expect("room");
        match w {
            Write::Delete => _ = all.remove(&key(n)),
            _ => _ = all.insert(key(n), b"replaced".to_vec()),
        }
    }
    for n in 0..space {
        let found = now(c, async |c| c.get(&key(n), &mut out).await).expect("an answer");
        assert_eq!(found.then_some(&out), all.get(&key(n)), "key {n}, after writes");
    }
}

/// Another node splits and merges leaves, and publishes so many times, while this one keeps its
/// directory.
fn a_directory_of_age(publications: u32) {
    let (_cluster, mut trees) = cluster();
    let [old, new] = &mut trees[..] else { unreachable!("two nodes") };
    let mut all = load(old, 300);
    let (mut published, mut seen, mut n) = (0, word(old), 0u64);
    let known = models(old).directory().word;
    assert!(known == seen && known != 0, "the loader has published");
    while published < publications {
        n += 1;
        let at = n * 7919 % 3000;
        let w = if n.is_multiple_of(3) { Write::Delete } else { Write::Put(b"new") };
        now(new, async |c| c.write(&key(at), w).await).expect("room");
        match w {
            Write::Delete => _ = all.remove(&key(at)),
            _ => _ = all.insert(key(at), b"new".to_vec()),
        }
        while published < publications && maintain(new).expect("works") == Work::Some {
            let next = word(new);
            published += u32::from(next != seen);
            seen = next;
        }
        assert!(n < 100_000, "{published} publications only");
    }
    assert_eq!(models(old).directory().word, known, "no maintenance, no other directory");
    agrees(old, &mut all, 3000);
    assert_eq!(models(old).directory().word, known);
    for c in &mut trees {
        while maintain(c).expect("works") == Work::Some {}
        agrees(c, &mut all, 3000);
    }
    for c in &mut trees {
        while maintain(c).expect("works") == Work::Some {}
    }
    now(&mut trees[0], async |c| c.walk().await).expect("every invariant holds");
}

#[test]
fn a_directory_of_any_age_makes_no_answer_wrong() {
    for publications in [1, 2, 10] {
        a_directory_of_age(publications);
    }
}

/// A client writes the new half of a split, and dies: nothing leads to it. Returns where it is.
fn half_a_split(c: &mut DmTree, key: &[u8]) -> GlobalAddr {
    now(c, async |c| {
        let c = &c.client;
        let (scope, pin) = (c.ep.begin(OpKind::Insert), c.pin().expect("open"));
        let route = Router(c).fresh_route(key).await?;
        let mut locked = LeafLocks(c).lock(&route).await?.expect("the route is fresh");
        let pair = (key, KeyHash::of(key), &b"unstored"[..]);
        let at = Split::prepare(c, &mut locked, pair).await?.0.new_leaf();
        // What a survivor does with the dead client's lock: nothing was committed.
        c.unlock(locked).await?;
        pin.end();
        scope.end(OpOutcome::Other);
        Ok(at)
    })
    .expect("room")
}

/// A leaf that a table names in one generation is merged away, and its memory is the half of a
/// split that was never committed: it is whole and alive, has the fences of the key, and keeps what
/// the key had at the split.
fn a_leaf_in_its_next_life(mutant: Option<Mutant>) -> (Vec<u8>, bool) {
    let (_cluster, mut trees) = cluster();
    let [old, new] = &mut trees[..] else { unreachable!("two nodes") };
    old.client.node.set_mutants(mutant.as_slice());
    load(old, 40);
    // Leaves of four keys: the one from 120 on goes into the one from 80 on.
    let page = {
        let directory = models(old).directory();
        let page = directory.pages[directory.number(&key(120))].clone();
        let here = page.loaded().clone();
        here.expect("the loader has trained it")
    };
    let (window, likeliest) = page.window(&key(130), models(old).at);
    let named = page.leaves()[likeliest];
    assert!(window.contains(&likeliest));
    for n in (9..16).map(|n| n * 10) {
        now(new, async |c| c.write(&key(n), Write::Delete).await).expect("stored");
    }
    while maintain(new).expect("works") == Work::Some {}
    let pool = new.client.node.pool.clone();
    now(new, async |c| pool.reclaimer().reclaim(&c.client.ep).await).expect("works");
    for n in [100, 130, 140] {
        now(new, async |c| c.write(&key(n), Write::Insert(b"before")).await).expect("room");
    }
    let at = half_a_split(new, &key(135));
    assert_eq!(at, named.leaf(), "the merged leaf's memory is used again");
    now(new, async |c| c.write(&key(140), Write::Update(b"after")).await).expect("stored");
    let mut out = Vec::new();
    let found = now(old, async |c| c.get(&key(140), &mut out).await).expect("an answer");
    (out, found)
}

#[test]
fn a_leaf_in_its_next_life_is_no_answer() {
    assert_eq!(a_leaf_in_its_next_life(None), (b"after".to_vec(), true));
    let wrong = a_leaf_in_its_next_life(Some(Mutant::LearnAnyGeneration));
    assert_eq!(wrong, (b"before".to_vec(), true), "the mutant trusts any generation");
}

/// The block that the word names has such a content.
fn replace(c: &mut DmTree, content: impl Fn(&mut Vec<u8>, BlockPtr)) {
    let at = BlockPtr::from_bits(word(c));
    let replaced = now(c, async |c| {
        let len = at.capacity();
        let bytes = c.client.ep.read(at.addr(), len).await?;
        let mut bytes = bytes.extract(<[u8]>::to_vec);
        content(&mut bytes, at);
        let mut buf = c.client.ep.buf(len).await?;
        buf.copy_from_slice(&bytes);
        c.client.ep.write(at.addr(), buf).await
    });
    replaced.expect("there");
}

/// A directory that is torn, of another index or of a future version is refused with its address,
/// and searches descend the tree.
#[test]
fn a_directory_that_is_none_is_refused() {
    let other = |head: directory::Head| {
        move |bytes: &mut Vec<u8>, at: BlockPtr| {
            let image = directory::encoded(head, &[directory::PageName::untrained(Vec::new())]);
            block::fill(at, bytes, &[], &image);
        }
    };
    type Content = Box<dyn Fn(&mut Vec<u8>, BlockPtr)>;
    let contents: [(&str, Content); 3] = [
        ("torn", Box::new(|bytes, _| bytes[40] ^= 1)),
        ("of another index", Box::new(other(directory::Head::of(99, 7)))),
        ("of a future version", Box::new(other(directory::Head::of_version(1, 7, 2)))),
    ];
    for (what, content) in contents {
        let (_cluster, mut trees) = cluster();
        let [loader, other] = &mut trees[..] else { unreachable!("two nodes") };
        let mut all = load(loader, 200);
        replace(loader, content);
        agrees(other, &mut all, 2000);
        let at = BlockPtr::from_bits(word(other)).addr();
        let e = maintain(other).expect_err(what);
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}");
        assert!(e.to_string().contains(&at.to_string()), "{what}: {e}");
        while maintain(other).is_err() {}
        agrees(other, &mut all, 2000);
        let walk = now(other, async |c| c.walk().await);
        assert_eq!(walk.expect_err(what).kind(), ErrorKind::Corrupt);
    }
}

/// A directory is a block, and its pages grow before it does not fit.
#[test]
fn a_large_directory_fits_its_block() {
    let name = |n: u64| directory::PageName::new(key(n), BlockPtr::from_bits(u64::MAX), u64::MAX);
    let names: Vec<_> = (0..20_000).map(name).collect();
    let image = directory::encoded(directory::Head::of(u32::MAX, u64::MAX), &names);
    assert!(image.len() <= MAX_VALUE_BYTES, "{}", image.len());
}
