//! Parts of merges: which worker executes each, and what is left of those that end early.

use std::pin::Pin;
use std::task::Poll;

use dmtree_check::scenario::{Scenario, Script, dropped_after, key, value};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::{ErrorKind, SeededRandom};

use super::*;
use crate::guards::{client, now, options, put, router, settle};
use crate::key::KeyRange;
use crate::node::DlsmNode;
use crate::options::{Merging, Options};
use crate::read::Reads;
use crate::table::Meta;
use crate::work::Background;

const PARTS: usize = 5;

/// A shard with tables, and the runs and rules of a merge of all of them in some parts.
fn tables() -> (TestCluster, Client, Arc<Shard>) {
    let (cluster, c) = client(Options { merging: Merging::Owner, ..options() });
    (0..200).for_each(|n| now(&c, put(&c, n)).expect("room"));
    now(&c, settle(&c)).expect("room");
    let shard = router(&c).shards[0].get().expect("its own");
    (cluster, c, shard)
}

fn offered<'c>(c: &'c Client, shard: &Shard) -> Offer<'c> {
    let version = shard.view().version.clone();
    let runs: Vec<Vec<Arc<Table>>> = version.levels.to_vec();
    let runs = now(c, opened(&c.node.remote(&c.ep), &runs)).expect("there");
    let first = version.tables().map(|table| table.smallest().to_vec()).min();
    let mut all: Vec<_> = version.tables().map(|t| t.smallest().to_vec()).collect();
    all.sort_unstable();
    all.dedup();
    let step = all.len() / PARTS;
    assert!(first.is_some() && step > 0, "{} tables", all.len());
    let borders: Vec<_> = (1..PARTS).map(|i| Some(all[i * step].clone())).collect();
    let lows = [None].into_iter().chain(borders.iter().cloned());
    let highs = borders.iter().cloned().chain([None]);
    let rule = |(low, high)| Background(c).rule(KeyRange { low, high }, u64::MAX);
    OwnMerges(c).offer(shard.home, runs, lows.zip(highs).map(rule).collect())
}

fn execute(c: &Client, part: Part) {
    let executed = async {
        OwnMerges(c).execute_part(part).await;
        Ok(())
    };
    now(c, executed).expect("it has no error of its own");
}

fn entries<'m>(metas: impl Iterator<Item = &'m Meta>) -> u64 {
    metas.map(|meta| meta.entries).sum()
}

/// What is garbage now, in bytes.
fn garbage(c: &Client) -> u64 {
    c.node.garbage.take_own().take().iter().map(|extent| u64::from(extent.bytes)).sum()
}

fn bytes(built: &[Built]) -> u64 {
    built.iter().flat_map(|b| b.meta.extents()).map(|extent| u64::from(extent.bytes)).sum()
}

#[test]
fn a_part_is_executed_once_and_tables_have_the_order_of_the_rules() {
    let (_cluster, c, shard) = tables();
    let offer = offered(&c, &shard);
    let mut parts: Vec<Part> = std::iter::from_fn(|| c.node.offers.begin()).collect();
    let numbers: Vec<_> = parts.iter().map(|part| part.number).collect();
    assert_eq!(numbers, (0..PARTS).collect::<Vec<_>>());
    // One that is dropped is the next one's, and no other.
    drop(parts.remove(2));
    let again = c.node.offers.begin().expect("it was left");
    assert_eq!((again.number, c.node.offers.begin().is_none()), (2, true));
    parts.push(again);
    parts.into_iter().rev().for_each(|part| execute(&c, part));
    let built = now(&c, OwnMerges(&c).lead(&offer.1)).expect("all have ended");
    assert!(c.node.offers.begin().is_none());
    drop(offer);
    let ascends = |two: &[Built]| &two[0].index.largest[..] < two[1].index.first(0).0;
    let keys = built.windows(2).all(ascends);
    let all = entries(shard.view().version.tables().map(|table| &table.meta));
    assert!(keys && built.len() >= PARTS, "{} tables", built.len());
    assert_eq!((entries(built.iter().map(|b| &b.meta)), garbage(&c)), (all, 0));
    assert_eq!(c.node.compactions.load(Ordering::SeqCst), 0);
}

#[test]
fn a_leader_without_workers_executes_all_parts() {
    let (_cluster, c, shard) = tables();
    let offer = offered(&c, &shard);
    let built = now(&c, OwnMerges(&c).lead(&offer.1)).expect("room");
    let all = entries(shard.view().version.tables().map(|table| &table.meta));
    assert_eq!(entries(built.iter().map(|b| &b.meta)), all);
}

/// Before and after its leader was dropped: what a part has built is garbage, once.
#[test]
fn parts_of_a_dropped_leader_give_their_blocks_back() {
    let (_cluster, c, shard) = tables();
    let offer = offered(&c, &shard);
    execute(&c, c.node.offers.begin().expect("a part"));
    let built = bytes(locked(&offer.1.state).built[0].as_ref().expect("it has ended"));
    let late = c.node.offers.begin().expect("another part");
    let split = Arc::downgrade(&offer.1);
    assert_eq!(garbage(&c), 0, "the leader has it");
    drop(offer);
    assert!(c.node.offers.is_empty() && c.node.offers.begin().is_none());
    assert!(split.upgrade().is_some_and(|split| split.begin().is_none()), "it has no leader");
    assert_eq!(garbage(&c), 0, "a part has it");
    execute(&c, late);
    assert!(split.upgrade().is_none() && garbage(&c) > built, "both are garbage");
}

/// The leader has the error of a part, and what others have built is garbage.
#[test]
fn a_part_that_fails_ends_the_merge() {
    let (_cluster, c, shard) = tables();
    let offer = offered(&c, &shard);
    execute(&c, c.node.offers.begin().expect("a part"));
    c.node.offers.begin().expect("a part").end(Err(Error::full("no block")));
    assert!(c.node.offers.begin().is_none(), "no further part begins");
    let failed =
        now(&c, OwnMerges(&c).lead(&offer.1)).map(|built| built.len()).expect_err("it has failed");
    assert_eq!(failed.kind(), ErrorKind::Full);
    assert_eq!(garbage(&c), 0);
    drop(offer);
    assert!(garbage(&c) > 0);
}

/// A worker that keeps a part is waited for as long as an operation lasts.
#[test]
fn a_part_that_does_not_end_has_a_deadline() {
    let (_cluster, c, shard) = tables();
    c.ep.set_timeout(20_000_000);
    let offer = offered(&c, &shard);
    let kept = c.node.offers.begin().expect("a part");
    let late =
        now(&c, OwnMerges(&c).lead(&offer.1)).map(|built| built.len()).expect_err("it is kept");
    assert!(late.kind() == ErrorKind::TimedOut, "{late}");
    assert!(late.to_string().contains("the parts of a merge"), "{late}");
    drop(kept);
}

/// Polls all until each has ended; `look` sees the node after every round.
async fn all<'f>(
    mut futures: Vec<Pin<Box<dyn Future<Output = Result<()>> + 'f>>>,
    mut look: impl FnMut(),
) -> Result<()> {
    let mut failed = Ok(());
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(e) => {
                failed = e;
                false
            }
            Poll::Pending => true,
        });
        look();
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    failed
}

/// Three workers of a node, each dropped after some steps again and again: leaders in the midst
/// of parts of others, and others in the midst of a part. Every key has its value, and nothing
/// is read or written that was freed.
#[test]
fn leaders_and_workers_are_dropped_at_any_step() {
    let o = Options { merging: Merging::Owner, ..options() };
    let script = Script { compute_nodes: 1, ..Script::new("parts", o) };
    let scenario = Scenario::new(&script, false, 1);
    let node: Arc<DlsmNode> = scenario.test_cluster.nodes[0].typed();
    let workers = [0; 3].map(|_| Client::new(scenario.own_endpoint(0), node.clone()));
    let (c, mut helped, mut left) = (&workers[0], 0, 0);
    let work = async {
        for n in 0..4_000 {
            workers.iter().for_each(|worker| worker.ep.renew_deadline());
            put(c, n % 200).await?;
            let pieces = (0..).zip(&workers).map(|(i, worker)| {
                let polls = 1 + (n * 7919 + i * 104_729) % 120;
                let piece = dropped_after(polls, async { Background(worker).work_piece().await });
                Box::pin(async { piece.await.transpose().map(drop) })
                    as Pin<Box<dyn Future<Output = _>>>
            });
            let mut in_parts = 0;
            let look = || {
                let now = node.parts.load(Ordering::SeqCst);
                left += u32::from(now > 0 && node.offers.is_empty());
                helped += u32::from(now > in_parts);
                in_parts = now;
            };
            all(pieces.collect(), look).await?;
        }
        settle(c).await
    };
    let mut done: Result<()> = Ok(());
    scenario.run(&mut SeededRandom::new(1), async { done = work.await });
    done.expect("room");
    assert!(scenario.trouble().is_none(), "{:?}", scenario.trouble());
    assert!(helped > 40 && left > 20, "{helped} parts of others, {left} without a leader");
    for n in 0..200 {
        let mut found = Vec::new();
        assert!(scenario.now(Reads(c).read(&key(n), &mut found)).expect("its own"));
        assert_eq!(found, value(n));
    }
}
