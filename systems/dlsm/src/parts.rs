//! Merges at the owner, in parts that the workers of its node execute side by side.
//!
//! The worker that leads a compaction offers its parts, and executes one after the other of those
//! that nothing has begun; idle workers take some meanwhile. It depends on none of them: alone it
//! executes all. A part has one worker at a time, and one that is dropped leaves it to the next.
//! The leader waits until all have ended, and takes what they have built in the order of the rules.
//! When it is dropped, or a part has failed, no further part begins; what was built, also by parts
//! that end later, is garbage with the last holder of the merge.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, GlobalAddr, NodeId, OpKind, OpOutcome, Result};

use crate::build::Built;
use crate::client::Dlsm;
use crate::fetch::InUse;
use crate::garbage::Garbage;
use crate::merge::{merge, opened};
use crate::shard::Shard;
use crate::store::Store;
use crate::table::{Opened, Table};
use crate::wire::Rule;
use crate::work::Running;

/// The longest pause of a leader that waits for parts, ns.
const LONGEST_NS: u64 = 20_000;

/// A merge in parts, one for each rule. What holds it may READ its inputs.
struct Split {
    rules: Vec<Rule>,
    runs: Vec<Vec<Opened>>,
    home: NodeId,
    garbage: Arc<Garbage>,
    state: Mutex<State>,
}

/// How far its parts are.
struct State {
    /// Those that nothing executes.
    waiting: BTreeSet<usize>,
    /// What each has built.
    built: Vec<Option<Vec<Built>>>,
    /// The first failure.
    failed: Option<Error>,
    has_leader: bool,
}

/// A part that a worker executes; dropped before its end, another one may.
struct Part {
    split: Arc<Split>,
    number: usize,
    has_ended: bool,
}

/// The merges of a node that have a leader.
#[derive(Default)]
pub(crate) struct Offers(Mutex<Vec<Arc<Split>>>);

/// A merge that its leader offers until this is dropped.
struct Offer<'n>(&'n Offers, Arc<Split>);

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Offers({})", locked(&self.0).len())
    }
}

impl Offers {
    fn offer(&self, split: Arc<Split>) -> Offer<'_> {
        locked(&self.0).push(split.clone());
        Offer(self, split)
    }

    /// A part of the merge that was offered first, and has one left.
    fn begin(&self) -> Option<Part> {
        locked(&self.0).iter().find_map(Split::begin)
    }

    fn is_empty(&self) -> bool {
        locked(&self.0).is_empty()
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        locked(&self.1.state).has_leader = false;
        locked(&self.0.0).retain(|split| !Arc::ptr_eq(split, &self.1));
    }
}

impl Split {
    fn begin(self: &Arc<Self>) -> Option<Part> {
        let mut state = locked(&self.state);
        let goes_on = state.has_leader && state.failed.is_none();
        let number = goes_on.then(|| state.waiting.pop_first()).flatten()?;
        Some(Part { split: self.clone(), number, has_ended: false })
    }

    /// How many parts have ended.
    fn ended(&self) -> usize {
        locked(&self.state).built.iter().flatten().count()
    }

    /// What all parts have built, in order; `None` while some have not ended.
    ///
    /// # Errors
    /// That of a part.
    fn take(&self) -> Result<Option<Vec<Built>>> {
        let mut state = locked(&self.state);
        match state.failed.take() {
            Some(failed) => {
                state.has_leader = false;
                Err(failed)
            }
            None if state.built.iter().any(Option::is_none) => Ok(None),
            None => Ok(Some(state.built.drain(..).flatten().flatten().collect())),
        }
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        // All WRITEs of a part have ended when it has.
        let built = std::mem::take(&mut locked(&self.state).built);
        built.iter().flatten().flatten().for_each(|built| self.garbage.add(&built.meta));
    }
}

impl Part {
    fn end(mut self, merged: Result<Vec<Built>>) {
        self.has_ended = true;
        let mut state = locked(&self.split.state);
        match merged {
            Ok(built) => state.built[self.number] = Some(built),
            Err(e) => _ = state.failed.get_or_insert(e),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.has_ended {
            locked(&self.split.state).waiting.insert(self.number);
        }
    }
}

impl Dlsm {
    /// Merges runs at the owner, as each rule says.
    ///
    /// # Errors
    /// As [`merge`]; `TimedOut` when no part ends in the time of an operation.
    pub(crate) async fn merge_here(
        &self,
        shard: &Shard,
        runs: Vec<Vec<Arc<Table>>>,
        rules: Vec<Rule>,
    ) -> Result<Vec<Arc<Table>>> {
        let _in_use = InUse(&self.ep, &runs);
        let runs = opened(&self.node.remote(&self.ep), &runs).await?;
        let offer = self.offer(shard.home, runs, rules);
        let built = self.lead(&offer.1).await?;
        drop(offer);
        self.tables_of(shard, built).await
    }

    fn offer(&self, home: NodeId, runs: Vec<Vec<Opened>>, rules: Vec<Rule>) -> Offer<'_> {
        let (node, parts) = (&self.node, rules.len());
        let state = State {
            waiting: (0..parts).collect(),
            built: (0..parts).map(|_| None).collect(),
            failed: None,
            has_leader: true,
        };
        let (garbage, state) = (node.garbage.clone(), Mutex::new(state));
        let offer = node.offers.offer(Arc::new(Split { rules, runs, home, garbage, state }));
        if parts > 1 {
            node.signal.raise();
        }
        offer
    }

    /// Executes parts of a merge, then waits for those of other workers.
    async fn lead(&self, split: &Arc<Split>) -> Result<Vec<Built>> {
        loop {
            while let Some(part) = split.begin() {
                self.execute_part(part).await;
            }
            let ended = split.ended();
            self.ep.renew_deadline();
            let what = "the parts of a merge that other workers execute";
            let mut backoff = self.ep.backoff_within(what, GlobalAddr::NULL, LONGEST_NS);
            // One that is dropped leaves its part; each one that ends shows that they go on.
            while split.ended() == ended && locked(&split.state).waiting.is_empty() {
                if let Some(built) = split.take()? {
                    return Ok(built);
                }
                backoff.step().await?;
            }
            if let Some(built) = split.take()? {
                return Ok(built);
            }
        }
    }

    /// Executes a part of a merge that another worker leads; whether there was one.
    pub(crate) async fn take_part(&self) -> bool {
        let node = &self.node;
        if node.offers.is_empty() {
            return false;
        }
        let most = node.o.compaction_workers;
        let Some(_running) = Running::one_of(&node.compactions, most) else { return false };
        let Some(_taken) = Running::one_of(&node.parts, most) else { return false };
        let Some(part) = node.offers.begin() else { return false };
        let scope = self.ep.begin(OpKind::Maintain);
        self.execute_part(part).await;
        scope.end(OpOutcome::Other);
        true
    }

    /// How many compactions of the node run; workers that help count as one with their leader.
    pub(crate) fn compactions(&self) -> u32 {
        let [all, parts] =
            [&self.node.compactions, &self.node.parts].map(|n| n.load(Ordering::SeqCst));
        all.saturating_sub(parts)
    }

    async fn execute_part(&self, part: Part) {
        let (node, split) = (&self.node, part.split.clone());
        let _in_use = InUse(&self.ep, &split);
        let fetch = node.remote(&self.ep);
        let mut store = self.blocks(split.home, node.o.ring);
        let rule = &split.rules[part.number];
        let merged = merge((&self.ep, &fetch), &mut store, &split.runs, rule).await;
        match &merged {
            Ok(_) => store.keep(),
            Err(_) => store.abandon().await,
        }
        part.end(merged);
    }
}

#[cfg(test)]
mod tests {
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
    use crate::table::Meta;

    const PARTS: usize = 5;

    /// A shard with tables, and the runs and rules of a merge of all of them in some parts.
    fn tables() -> (TestCluster, Dlsm, Arc<Shard>) {
        let (cluster, c) = client(Options { merging: Merging::Owner, ..options() });
        (0..200).for_each(|n| now(&c, put(&c, n)).expect("room"));
        now(&c, settle(&c)).expect("room");
        let shard = router(&c).shards[0].get().expect("its own");
        (cluster, c, shard)
    }

    fn offered<'c>(c: &'c Dlsm, shard: &Shard) -> Offer<'c> {
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
        let rule = |(low, high)| c.rule(KeyRange { low, high }, u64::MAX);
        c.offer(shard.home, runs, lows.zip(highs).map(rule).collect())
    }

    fn execute(c: &Dlsm, part: Part) {
        let executed = async {
            c.execute_part(part).await;
            Ok(())
        };
        now(c, executed).expect("it has no error of its own");
    }

    fn entries<'m>(metas: impl Iterator<Item = &'m Meta>) -> u64 {
        metas.map(|meta| meta.entries).sum()
    }

    /// What is garbage now, in bytes.
    fn garbage(c: &Dlsm) -> u64 {
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
        let built = now(&c, c.lead(&offer.1)).expect("all have ended");
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
        let built = now(&c, c.lead(&offer.1)).expect("room");
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
        let failed = now(&c, c.lead(&offer.1)).map(|built| built.len()).expect_err("it has failed");
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
        let late = now(&c, c.lead(&offer.1)).map(|built| built.len()).expect_err("it is kept");
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
        let workers = [0; 3].map(|_| Dlsm::new(scenario.own_endpoint(0), node.clone()));
        let (c, mut helped, mut left) = (&workers[0], 0, 0);
        let work = async {
            for n in 0..4_000 {
                workers.iter().for_each(|worker| worker.ep.renew_deadline());
                put(c, n % 200).await?;
                let pieces = (0..).zip(&workers).map(|(i, worker)| {
                    let polls = 1 + (n * 7919 + i * 104_729) % 120;
                    let piece = dropped_after(polls, worker.work_piece());
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
            assert!(scenario.now(c.read(&key(n), &mut found)).expect("its own"));
            assert_eq!(found, value(n));
        }
    }
}
