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
use crate::client::Client;
use crate::fetch::InUse;
use crate::garbage::Garbage;
use crate::merge::{merge, opened};
use crate::opened::Opened;
use crate::shard::Shard;
use crate::store::Store;
use crate::table::Table;
use crate::wire::Rule;
use crate::work::{Background, Running};

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

/// Merges by the workers of the owner.
pub(crate) struct OwnMerges<'c>(pub(crate) &'c Client);

impl<'c> OwnMerges<'c> {
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
        let _in_use = InUse(&self.0.ep, &runs);
        let runs = opened(&self.0.node.remote(&self.0.ep), &runs).await?;
        let offer = self.offer(shard.home, runs, rules);
        let built = self.lead(&offer.1).await?;
        drop(offer);
        Background(self.0).tables_of(shard, built).await
    }

    fn offer(&self, home: NodeId, runs: Vec<Vec<Opened>>, rules: Vec<Rule>) -> Offer<'c> {
        let (node, parts) = (&self.0.node, rules.len());
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
            self.0.ep.renew_deadline();
            let what = "the parts of a merge that other workers execute";
            let mut backoff = self.0.ep.backoff_within(what, GlobalAddr::NULL, LONGEST_NS);
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
        let node = &self.0.node;
        if node.offers.is_empty() {
            return false;
        }
        let most = node.o.compaction_workers;
        let Some(_running) = Running::one_of(&node.compactions, most) else { return false };
        let Some(_taken) = Running::one_of(&node.parts, most) else { return false };
        let Some(part) = node.offers.begin() else { return false };
        let scope = self.0.ep.begin(OpKind::Maintain);
        self.execute_part(part).await;
        scope.end(OpOutcome::Other);
        true
    }

    /// How many compactions of the node run; workers that help count as one with their leader.
    pub(crate) fn compactions(&self) -> u32 {
        let [all, parts] =
            [&self.0.node.compactions, &self.0.node.parts].map(|n| n.load(Ordering::SeqCst));
        all.saturating_sub(parts)
    }

    async fn execute_part(&self, part: Part) {
        let (node, split) = (&self.0.node, part.split.clone());
        let _in_use = InUse(&self.0.ep, &split);
        let fetch = node.remote(&self.0.ep);
        let mut store = Background(self.0).blocks(split.home, node.o.ring);
        let rule = &split.rules[part.number];
        let merged = merge((&self.0.ep, &fetch), &mut store, &split.runs, rule).await;
        match &merged {
            Ok(_) => store.keep(),
            Err(_) => store.abandon().await,
        }
        part.end(merged);
    }
}

#[cfg(test)]
mod tests;
