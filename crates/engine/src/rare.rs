//! Branches that hardly any run reaches, or that sound nodes never reach: each test constructs the
//! state that leads to one, and checks that the branch does its work.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use dmtree_check::scenario::{Scenario, Script, key};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{Buf, Fifo, GlobalAddr};
use dmtree_parts::gc::Collector;
use dmtree_parts::held::RemoteLock;
use dmtree_parts::{Fill, RangeIndex, Work, Write};
use dmtree_pool::{BlockPtr, PoolOptions, Span};

use crate::change::{Merge, Relocation, Split};
use crate::format::inner::free_word;
use crate::format::{BODY_AT, Child, Stored, Table, Ver, block, get_key};
use crate::inner::{InnerLocks, LockedInner, Records};
use crate::leaf::{CellKind, Leaves, NodeHeader, Pair, image_at, pair_of};
use crate::lock::{HeldLock, LeafLocks, Lockable, Locked, TableLocks};
use crate::maintenance::Collection;
use crate::point::{DirectWrite, Writes};
use crate::recovery::LeafRecovery;
use crate::router::{Router, route_of};
use crate::{Chore, DmTree, KeyHash, Mark, Options, Route, Techniques, Unlock, fence_tag};

/// Bytes of cache of a node: a few inner nodes.
const SMALL_CACHE: u64 = 16 << 10;
/// A reader has retried repeatedly within this time, ns.
const A_WHILE_NS: u64 = 50_000;

fn hits(mark: Mark) -> u64 {
    Mark::reached()[mark as usize].1
}

/// Marks are counted for the whole process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn long_key(n: u64) -> Vec<u8> {
    format!("a long key that needs a block {n:012}").into_bytes()
}

/// A cluster with these keys in it.
fn scenario(options: Options, keys: impl Iterator<Item = Vec<u8>>) -> Scenario {
    dmtree_fabric::mark::set_on(true);
    let script = Script { cache_bytes: SMALL_CACHE, ..Script::new("rare", options) };
    let scenario = Scenario::new(&script, false, 1);
    let mut pairs = keys.map(|k| (k, b"a value".to_vec()));
    let mut c = scenario.client(0);
    scenario.now(c.load(&mut pairs, true, Fill::Even(0.5))).expect("room");
    scenario
}

fn small() -> Options {
    let techniques = Techniques { adaptive_capacity: false, ..Techniques::default() };
    Options { fanout: 8, techniques, ..Options::default() }
}

/// A client with the steps of its type.
fn client(scenario: &Scenario, cn: u16) -> DmTree {
    let node = scenario.test_cluster.nodes[usize::from(cn)].typed();
    DmTree::new(scenario.own_endpoint(cn), node)
}

/// Runs this in virtual time on the first node; afterwards the tree has to be sound.
fn alone<F: Future<Output = ()>>(scenario: &Scenario, f: impl FnOnce(DmTree) -> F) {
    scenario.run(&mut Fifo, f(client(scenario, 0)));
    assert_eq!(scenario.trouble(), None);
    let mut c = scenario.client(0);
    scenario.now(c.walk()).expect("a sound tree");
}

async fn all_chores(c: &mut DmTree) {
    while c.maintain().await.expect("works") == Work::Some {}
}

async fn locked(c: &DmTree, level: u8, key: &[u8]) -> LockedInner {
    InnerLocks(&c.client).lock(level, key).await.expect("works").expect("as high as that")
}

async fn locked_leaf(c: &DmTree, route: &Route) -> Locked {
    LeafLocks(&c.client).lock(route).await.expect("works").expect("alive")
}

async fn relocate(c: &DmTree, l: Locked) {
    let back = Relocation::run(&c.client, l, (64, CellKind::Any(&[]))).await.expect("works");
    assert!(back.is_none(), "it has moved");
}

/// Removes the record of a key's leaf, as if its publication had found no memory, and returns it.
async fn lose_record(c: &DmTree, key: &[u8]) -> (Vec<u8>, Child) {
    let parent = locked(c, 1, key).await;
    let i = parent.node.floor(key);
    assert!(i > 0, "the first record of a node is always there");
    let (low, record) = (parent.node.key(i).to_vec(), parent.node.record(i));
    let (child, index) = (record.child, record.index);
    Records(&c.client).remove(parent, index).await.expect("works");
    (low, child)
}

async fn route_to(c: &DmTree, key: &[u8]) -> Route {
    let node = Router(&c.client).descend_to(key, 1).await.expect("works").expect("a bottom level");
    let i = node.keys().floor(key).expect("covers it");
    route_of(&node.record(i))
}

/// Replaces bytes in memory and returns the old ones.
async fn replace(c: &DmTree, at: GlobalAddr, bytes: &[u8]) -> Vec<u8> {
    let was = c.client.ep.read(at, bytes.len() as u32).await.expect("there");
    let mut buf: Buf = c.client.ep.buf(bytes.len() as u32).await.expect("room");
    buf.copy_from_slice(bytes);
    c.client.ep.write(at, buf).await.expect("there");
    was.extract(<[u8]>::to_vec)
}

/// A late WRITE of a table has torn an image, and its lock is free.
#[test]
fn a_torn_image_is_built_anew() {
    let _one = one_at_a_time();
    let scenario = scenario(Options { images: 0.5, ..small() }, (0..20).map(key));
    alone(&scenario, |mut c| async move {
        let route = route_to(&c, &key(3)).await;
        assert!(route.is_imaged(), "{route:?}");
        let cell = c.client.cell(route.table).await.expect("works").expect("an owner");
        let bytes = c.client.node.g.leaf_image(route.capacity);
        replace(&c, image_at(cell, route.capacity), &vec![7; bytes]).await;
        let (before, mut out) = (hits(Mark::TableForeign), Vec::new());
        for n in 0..20 {
            assert!(c.get(&key(n), &mut out).await.expect("works"), "key {n}");
        }
        assert!(hits(Mark::TableForeign) > before);
    });
}

/// The lock of a leaf that has moved may be held for long: by a client that failed, on a node where
/// no client works any more. A reader with the old route waited for it.
#[test]
fn a_reader_does_not_wait_for_the_lock_of_a_tombstone() {
    let _one = one_at_a_time();
    let scenario = scenario(Options { images: 0.5, ..small() }, (0..20).map(key));
    let tag = client(&scenario, 1).client.tags.next();
    alone(&scenario, |mut c| async move {
        let route = route_to(&c, &key(3)).await;
        assert!(route.is_imaged(), "{route:?}");
        let pin = c.client.pin().expect("open");
        let l = locked_leaf(&c, &route).await;
        relocate(&c, l).await;
        let cell = c.client.cell(route.table).await.expect("works").expect("an owner");
        assert_eq!(c.client.ep.cas(cell, 0, tag.0).await.expect("there"), 0);
        let old = Leaves(&c.client).current(&route).await.expect("no wait");
        assert!(!old.header(&c.client).forward.is_null());
        assert_eq!(c.client.ep.cas(cell, tag.0, 0).await.expect("there"), tag.0);
        drop(pin);
        all_chores(&mut c).await;
    });
}

/// While bytes in memory are wrong another node's client reads a key: it retries, and finds the key
/// once the bytes are right again.
fn reads_again(
    scenario: &Scenario,
    (key, value): (Vec<u8>, Vec<u8>),
    mark: Mark,
    wrong: impl AsyncFnOnce(&DmTree) -> (GlobalAddr, Vec<u8>),
) {
    let (go, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (went, did, wanted) = (go.clone(), done.clone(), key.clone());
    scenario.worker(1, |mut c| async move {
        while !go.get() {
            c.endpoint().sleep(1_000).await;
        }
        let mut out = Vec::new();
        assert!(c.get(&key, &mut out).await.expect("works"));
        assert_eq!(out, value);
        done.set(true);
    });
    alone(scenario, |c| async move {
        let before = hits(mark);
        let _pin = c.client.pin().expect("open");
        let (at, right) = wrong(&c).await;
        went.set(true);
        c.client.ep.sleep(A_WHILE_NS).await;
        assert!(!did.get() && hits(mark) > before, "the reader of {wanted:?} has not noticed");
        replace(&c, at, &right).await;
        while !did.get() {
            c.client.ep.sleep(A_WHILE_NS).await;
            c.client.ep.check_deadline("the reader", 0).expect("it finds what is right again");
        }
    });
}

/// Memory is not reused while an operation that may have read its address runs, so a block holds
/// what it held. The check of a block is a second line of defence.
#[test]
fn a_block_that_holds_something_else_is_read_again() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..40).map(key));
    let (k, v) = (key(7), vec![7; 300]);
    let mut c = scenario.client(0);
    scenario.now(c.write(&k, Write::Put(&v))).expect("room");
    reads_again(&scenario, (k.clone(), v), Mark::BlockGone, async move |c: &DmTree| {
        let route = route_to(c, &k).await;
        let leaf = Leaves(&c.client).read(route.leaf, route.capacity).await.expect("there");
        let at = leaf.live(&c.client).find_map(|(_, s)| match pair_of(&s) {
            Some(Pair::ValueIn(_, at)) => Some(at),
            _ => None,
        });
        let at: BlockPtr = at.expect("one value is long");
        (at.addr(), replace(c, at.addr(), &[0xee; 64]).await)
    });
}

/// A READ of an inner node around the replacement of its first record can show the new place as it
/// was before, and the old one as it is after.
#[test]
fn a_node_without_its_first_record_is_read_again() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..400).map(key));
    let wanted = (key(3), b"a value".to_vec());
    reads_again(&scenario, wanted, Mark::InnerHeadless, async |c: &DmTree| {
        let parent = locked(c, 1, &key(3)).await;
        let (addr, ver, index) = (parent.addr, parent.ver, parent.node.record(0).index);
        c.client.unlock(parent).await.expect("works");
        let at = addr.plus(c.client.node.g.record_at(index) as u64);
        (at, replace(c, at, &free_word(addr, ver, index).to_le_bytes()).await)
    });
}

/// A client that has split an inner node gives its lock back before it adds the new node's record.
/// Other clients may add the record meanwhile, and merge the node away.
#[test]
fn an_inner_node_that_was_merged_away_gets_no_record() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..4_000).map(key));
    alone(&scenario, |mut c| async move {
        let top = locked(&c, 2, &key(2_000)).await;
        let below: Vec<(Vec<u8>, Child)> =
            top.node.keys().map(<[u8]>::to_vec).zip(top.node.records().map(|r| r.child)).collect();
        c.client.unlock(top).await.expect("works");
        for n in (0..4_000).filter(|n| n % 40 != 0) {
            c.write(&key(n), Write::Delete).await.expect("works");
        }
        all_chores(&mut c).await;
        let mut gone = Vec::new();
        for (low, child) in below {
            let h = NodeHeader::read(&c.client, child.addr).await.expect("there");
            if h.ver.generation != child.generation || !h.forward.is_null() {
                gone.push((low, child));
            }
        }
        let before = hits(Mark::PublishTombstone);
        let merged = gone.len() as u64;
        for (low, child) in gone {
            let _pin = c.client.pin().expect("open");
            Records(&c.client).insert(2, &low, &child).await.expect("there is nothing to do");
        }
        assert!(merged > 0 && hits(Mark::PublishTombstone) == before + merged, "{merged} merged");
    });
}

/// A tombstone and its successor share one lower fence. When the successor is merged away, the
/// fence's block is freed, and may hold anything when a client finds that the tombstone's table was
/// never closed.
#[test]
fn a_tombstone_is_closed_when_its_fence_is_gone() {
    let _one = one_at_a_time();
    for other_key in [false, true] {
        let options = Options { key_inline_bytes: 24, ..small() };
        let scenario = scenario(options, (0..100).map(long_key));
        alone(&scenario, |mut c| async move {
            let pin = c.client.pin().expect("open");
            let route = route_to(&c, &long_key(50)).await;
            let l = locked_leaf(&c, &route).await;
            let (at, fence) = (l.at, l.table.fence);
            relocate(&c, l).await;
            // As if the relocating client had died before it closed the table.
            let ver = Ver { generation: route.generation, range: 0 };
            let mut table = Table::new(route.leaf, ver, fence, route.capacity);
            let body = TableLocks(&c.client).body(&mut table, route.table).await.expect("room");
            c.client.ep.write(at.plus(BODY_AT as u64), body).await.expect("there");
            let h = NodeHeader::read(&c.client, route.leaf).await.expect("there");
            let Some(Stored::Block(b)) = get_key(&h.lo.bytes, h.lo.mode) else {
                panic!("a long fence is in a block");
            };
            let mut bytes = vec![0xee; b.capacity() as usize];
            if other_key {
                block::fill(b, &mut bytes, &long_key(77), &[]);
            }
            let fence = replace(&c, b.addr(), &bytes).await;
            let before = hits(Mark::RecoverTombstoneLate);
            assert!(
                !LeafRecovery(&c.client).finish_tombstone(&route, &h, at, 0).await.expect("works")
            );
            assert_eq!(hits(Mark::RecoverTombstoneLate), before + 1, "another key: {other_key}");
            assert!(matches!(c.client.ep.cas(at, 0, 0).await, Ok(0)), "unlocked");
            replace(&c, b.addr(), &fence).await;
            drop(pin);
            all_chores(&mut c).await;
        });
    }
}

/// A write that has its lock leaves abandoned locks to others: their recovery has a pin of its own,
/// and its end would abandon the write's lock and withdraw its announcement.
#[test]
fn a_write_with_its_lock_recovers_no_other() {
    let pool = PoolOptions::default();
    let test_cluster = TestCluster::new(&pool, 1 << 20, Options::default()).expect("an index");
    let node = test_cluster.cluster.compute_node(0).expect("there");
    let c = DmTree::new(node.endpoint(1 << 20).expect("a member"), test_cluster.nodes[0].typed());
    let splits = async {
        for n in 0.. {
            let (key, w) = (key(n), Write::Insert(b"a value"));
            let (begun, hash) = Writes(&c.client).begin(&key, w)?;
            let DirectWrite::Locked(locked) = &begun else {
                Writes(&c.client).rest(begun, (&key, hash), w).await?;
                continue;
            };
            let lock =
                HeldLock { tag: c.client.tags.next(), on: Lockable::Leaf(locked.locked.route) };
            c.client.node.abandoned_locks.add(lock);
            c.client.node.abandoned_locks.answers(&lock.key(), true);
            Writes(&c.client).rest(begun, (&key, hash), w).await?;
            assert!(c.client.node.abandoned_locks.get(&lock.key()).is_some(), "left to others");
            c.client.node.abandoned_locks.remove(&lock.key());
            assert!(!c.client.node.abandoned_locks.any(), "its own lock was given back");
            return Ok(());
        }
        unreachable!("a leaf becomes full");
    };
    c.client.ep.block_on(std::pin::pin!(splits)).expect("room");
}

/// The record of a leaf has found no memory: there is none to replace, and the leaf stays in place
/// until there is one.
#[test]
fn a_leaf_without_a_record_does_not_move() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..100).map(key));
    alone(&scenario, |mut c| async move {
        let pin = c.client.pin().expect("open");
        let route = route_to(&c, &key(50)).await;
        let (low, child) = lose_record(&c, &key(50)).await;
        let l = locked_leaf(&c, &route).await;
        let before = hits(Mark::RelocateNoRecord);
        let l = Relocation::run(&c.client, l, (64, CellKind::Any(&[])))
            .await
            .expect("works")
            .expect("it has not moved");
        assert_eq!(hits(Mark::RelocateNoRecord), before + 1);
        c.client.unlock(l).await.expect("works");
        Records(&c.client).insert(1, &low, &child).await.expect("room");
        let l = locked_leaf(&c, &route).await;
        relocate(&c, l).await;
        drop(pin);
        all_chores(&mut c).await;
    });
}

/// The left sibling of a tombstone has no record, and the leaf before it ends where the tombstone
/// begins, as far as the tags of the two fences tell: its `next` names another leaf.
#[test]
fn a_tombstone_without_its_sibling_record_is_unlinked_later() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..100).map(key));
    alone(&scenario, |mut c| async move {
        let pin = c.client.pin().expect("open");
        let route = route_to(&c, &key(50)).await;
        let l = locked_leaf(&c, &route).await;
        relocate(&c, l).await;
        let Some(Chore::Unlink { lo, .. }) = c.client.node.maintenance.pop() else {
            panic!("the tombstone is to be unlinked")
        };
        let before = route_to(&c, &key(20)).await;
        let l = locked_leaf(&c, &before).await;
        let (at, mut table) = (l.at.plus(BODY_AT as u64), l.table.clone());
        c.client.unlock(l).await.expect("works");
        let (low, child) = lose_record(&c, &key(40)).await;
        let fence = std::mem::replace(&mut table.fence, fence_tag(Some(&lo)));
        let body = TableLocks(&c.client).body(&mut table, before.table).await.expect("room");
        c.client.ep.write(at, body).await.expect("there");
        c.client.node.push_chore(Chore::Unlink { lo, route });
        drop(pin);
        let (again, unlinked) = (hits(Mark::UnlinkAgain), hits(Mark::Unlinked));
        c.maintain().await.expect("works");
        assert_eq!((hits(Mark::UnlinkAgain), hits(Mark::Unlinked)), (again + 1, unlinked));
        table.fence = fence;
        let body = TableLocks(&c.client).body(&mut table, before.table).await.expect("room");
        c.client.ep.write(at, body).await.expect("there");
        Records(&c.client).insert(1, &low, &child).await.expect("room");
        all_chores(&mut c).await;
        assert_eq!(hits(Mark::Unlinked), unlinked + 1);
    });
}

/// Relocates a leaf, and is dropped before this poll; how many there were.
async fn relocate_until(c: &DmTree, route: &Route, dropped_at: u32) -> u32 {
    let pin = c.client.pin().expect("open");
    let l = locked_leaf(c, route).await;
    let mut relocation = Box::pin(relocate(c, l));
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        if polls == dropped_at { Poll::Ready(()) } else { relocation.as_mut().poll(cx) }
    })
    .await;
    drop((relocation, pin));
    polls
}

/// A leaf that is relocated behind the cursor of a collection, by a client that is dropped before
/// it queues the unlinking, was taken for lost and reused, while its left sibling still named it.
#[test]
fn a_leaf_that_leaves_the_index_during_a_gc_is_not_lost() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..1000).map(key));
    alone(&scenario, |mut c| async move {
        let mut routes = vec![route_to(&c, &key(0)).await];
        for n in 0..1000 {
            let route = route_to(&c, &key(n)).await;
            if routes.last() != Some(&route) {
                routes.push(route);
            }
        }
        // The second one finds the nodes above it in the cache, as others will.
        relocate_until(&c, &routes.pop().expect("many"), u32::MAX).await;
        let all = relocate_until(&c, &routes.pop().expect("many"), u32::MAX).await;
        all_chores(&mut c).await;
        let mut run = Collection(&c.client).collect_some(None).await.expect("begins");
        let leaf = loop {
            let live = &run.as_ref().expect("leaves are left").live;
            let bytes = c.client.node.leaf_bytes(32);
            let is_live = |route: &Route| live.has(Span::object(route.leaf, bytes));
            if let Some(two) = routes[1..].windows(2).find(|r| is_live(&r[0]) && !is_live(&r[1])) {
                break two[1];
            }
            run = Collection(&c.client).collect_some(run).await.expect("goes on");
        };
        // Its last verbs, which unlock the leaf, are in flight, and execute.
        assert_eq!(relocate_until(&c, &leaf, all).await, all);
        let before = (hits(Mark::GcObject), hits(Mark::GcUnlink));
        while run.is_some() {
            run = Collection(&c.client).collect_some(run).await.expect("goes on");
        }
        assert_eq!((hits(Mark::GcObject), hits(Mark::GcUnlink)), before);
        c.gc().await.expect("works");
        all_chores(&mut c).await;
        assert_eq!(hits(Mark::GcUnlink), before.1 + 1, "the next one unlinks it");
    });
}

/// A client has failed between the commit word of a split and the image, and a write without room
/// collects garbage before the sweep: the new leaf was taken for lost, and its memory given to
/// another one, before the repair made it the right sibling.
#[test]
fn a_leaf_of_a_split_that_has_not_ended_is_not_lost() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..200).map(key));
    alone(&scenario, |mut c| async move {
        let pin = c.client.pin().expect("open");
        let route = route_to(&c, &key(50)).await;
        let mut l = locked_leaf(&c, &route).await;
        let (new_key, next_at) = ([&key(50)[..], b"+"].concat(), c.client.node.g.next_at() as u64);
        let pair = (&new_key[..], KeyHash::of(&new_key), &b"a value"[..]);
        let (split, lower) = Split::prepare(&c.client, &mut l, pair).await.expect("room");
        let new = split.new_leaf();
        c.client.ep.write_word(route.leaf.plus(next_at), new.bits()).await.expect("there");
        drop((split, lower, l, pin));
        let repaired = hits(Mark::RecoverSplit);
        c.gc().await.expect("works");
        assert_eq!(hits(Mark::RecoverSplit), repaired + 1);
        let lower = Leaves(&c.client).read(route.leaf, route.capacity).await.expect("whole");
        assert_eq!(lower.header(&c.client).next, new);
        assert_eq!(c.gc().await.expect("works").doubly, 0, "in use, and not free");
    });
}

/// A process that dies loses its queue of tombstones to unlink. The garbage collection finds such a
/// leaf by the left sibling that still names it.
#[test]
fn a_tombstone_that_no_list_names_is_unlinked_by_a_gc() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..100).map(key));
    alone(&scenario, |mut c| async move {
        let pin = c.client.pin().expect("open");
        let route = route_to(&c, &key(50)).await;
        let l = locked_leaf(&c, &route).await;
        relocate(&c, l).await;
        let chore = c.client.node.maintenance.pop();
        assert!(matches!(chore, Some(Chore::Unlink { .. })), "{chore:?}");
        c.client.node.pool.collection().log_retired(route.leaf);
        drop(pin);
        let before = (hits(Mark::GcUnlink), hits(Mark::Unlinked));
        c.gc().await.expect("works");
        all_chores(&mut c).await;
        let after = (hits(Mark::GcUnlink), hits(Mark::Unlinked));
        assert_eq!(after, (before.0 + 1, before.1 + 1));
    });
}

/// A cached inner node may name two leaves side by side that a split has parted meanwhile. They are
/// not merged: the leaf between them would become unreachable.
#[test]
fn leaves_that_are_no_neighbours_are_not_merged() {
    let _one = one_at_a_time();
    let scenario = scenario(small(), (0..200).map(key));
    alone(&scenario, |mut c| async move {
        for n in (0..200).filter(|n| n % 20 != 0) {
            c.write(&key(n), Write::Delete).await.expect("works");
        }
        let pin = c.client.pin().expect("open");
        let parent =
            Router(&c.client).descend_to(&key(0), 1).await.expect("works").expect("a bottom level");
        assert!(parent.len() > 2, "a leaf lies between two others");
        let pair = [0, 2].map(|i| route_of(&parent.record(i)));
        let low = parent.keys().get(2).to_vec();
        let before = hits(Mark::MergeNoNeighbour);
        assert!(Merge::pair(&c.client, &key(0), pair.into(), low).await.expect("works"));
        assert_eq!(hits(Mark::MergeNoNeighbour), before + 1);
        drop(pin);
        all_chores(&mut c).await;
        let mut out = Vec::new();
        for n in (0..200).step_by(20) {
            assert!(c.get(&key(n), &mut out).await.expect("works"), "{n}");
        }
    });
}

/// A detached WRITE of a table may land when the cell is another leaf's. It locks no client out.
#[test]
fn a_table_that_a_late_write_has_overwritten_is_built_anew() {
    let _one = one_at_a_time();
    for torn in [false, true] {
        let scenario = scenario(small(), (0..100).map(key));
        alone(&scenario, |mut c| async move {
            let pin = c.client.pin().expect("open");
            let route = route_to(&c, &key(50)).await;
            let l = locked_leaf(&c, &route).await;
            let at = l.at.plus(BODY_AT as u64);
            c.client.unlock(l).await.expect("works");
            drop(pin);
            let overwrite = async |c: &DmTree| {
                let other = GlobalAddr::from_bits(route.leaf.bits() + (1 << 20));
                let mut table =
                    Table::new(other, Ver { generation: 9, range: 0 }, 0, route.capacity);
                let mut body =
                    TableLocks(&c.client).body(&mut table, route.table).await.expect("room");
                if torn {
                    body[20] ^= 1;
                }
                c.client.ep.write(at, body).await.expect("there");
            };
            let before = hits(Mark::TableForeign);
            overwrite(&c).await;
            c.write(&key(50), Write::Put(b"another")).await.expect("room");
            assert_eq!(hits(Mark::TableForeign), before + 1, "a writer, torn: {torn}");
            overwrite(&c).await;
            let mut out = Vec::new();
            assert!(!c.get(b"k000050 absent", &mut out).await.expect("works"));
            assert!(c.get(&key(50), &mut out).await.expect("works") && out == b"another");
            c.write(&key(50), Write::Put(b"a third")).await.expect("room");
            all_chores(&mut c).await;
        });
    }
}
