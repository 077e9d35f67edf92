//! Ranges that go from one living node to another.
//!
//! An owner gives a range away when its slice's node asks for it, because that has opened the
//! index since; and gives all ranges to others when its node leaves the pool. The shard leaves the
//! router, so that no operation begins on it. Once the last one has ended the owner flushes what
//! there is, and drops the log; then the manifest says all. The last step is a compare-and-set of
//! the range's word, from its claim to that of the other node, or to 0. From then on the word
//! alone says what owns the range, also when the outcome is unknown: no two claims have the same
//! word. The new owner reads the manifest, as at a take-over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use dmtree_fabric::{Backoff, Endpoint, Error, NodeId, Result};
use dmtree_parts::Work;
use dmtree_pool::{LeaveFuture, RangeOwner};

use crate::calls::{Answer, Calls, What};
use crate::client::{Client, not_open};
use crate::collect::blocks_of;
use crate::durable::Durability;
use crate::mutants::Mutant;
use crate::node::DlsmNode;
use crate::owner::{Claim, Ranges, head_of, node_of};
use crate::recorder::Recorder;
use crate::router::{Router, Slot};
use crate::shard::Shard;
use crate::wire;
use crate::work::{Background, Piece};

/// A hand-over ends within this part of the time of an operation: others wait for it.
const PART: u64 = 8;

/// A shard that leaves its node; dropped before the end, it stays. Meanwhile the node frees
/// nothing: edits of this shard may not be on the memory node, and the router does not have it.
pub(crate) struct Leaving<'r> {
    slot: &'r Slot,
    shard: Option<Arc<Shard>>,
    count: &'r AtomicU32,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(shard) = self.shard.take() {
            self.slot.set(shard);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<'r> Leaving<'r> {
    /// Takes the shard out of the router. The order of the steps: [`DlsmNode::leaving`].
    pub(crate) fn begin(slot: &'r Slot, count: &'r AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self { slot, shard: slot.take(), count }
    }

    /// The shard, with what is kept of it.
    fn kept(&self) -> Result<(&Shard, &Recorder)> {
        let shard = self.shard.as_deref().ok_or_else(not_open)?;
        Ok((shard, shard.recorder.as_ref().ok_or_else(not_open)?))
    }

    /// Whether no operation has it, and no READ of a dropped one is on its way to its tables.
    fn is_alone(&mut self) -> bool {
        let shard = self.shard.as_mut().and_then(Arc::get_mut);
        shard.is_some_and(|shard| shard.is_unread())
    }
}

impl Ranges<'_> {
    /// Gives a range away, to a claim of another node or, with 0, to none; nothing happens when it
    /// is not this node's.
    ///
    /// # Errors
    /// `Full`; `TimedOut`; those of the fabric.
    pub(crate) async fn give_away(&self, router: &Router, range: usize, to: u64) -> Result<()> {
        let (ep, node, slot) = (&self.0.ep, &self.0.node, &router.shards[range]);
        let _turn = node.opening.take(ep, [range as u64]).await?;
        let mut leaving = Leaving::begin(slot, &node.leaving);
        if leaving.shard.is_none() {
            return Ok(());
        }
        let until = ep.now() + node.o.timeout_ms.saturating_mul(1_000_000) / PART;
        let what = "operations on a range that is given away";
        let mut pauses = (ep.backoff(what, head_of(router, range)), until);
        // Operations that wait for room go on, and end.
        while !leaving.is_alone() && !node.mutants.has(Mutant::GivenInUse) {
            self.advance(&leaving, &mut pauses).await?;
        }
        leaving.kept()?.0.seal();
        while !leaving.kept()?.0.view().immutables.is_empty() {
            self.advance(&leaving, &mut pauses).await?;
        }
        let (shard, recorder) = leaving.kept()?;
        recorder.end_log();
        Durability(self.0).keep((shard, recorder), recorder.last_edit()).await?;
        Durability(self.0).free(recorder);
        let word = recorder.claim.word();
        let shard = leaving.shard.take().ok_or_else(not_open)?;
        if !node.mutants.has(Mutant::GivenFreed) {
            shard.view().version.tables().for_each(|table| table.set_garbage(None));
        }
        // Before the word is changed: from then on the next owner holds them.
        node.let_go(blocks_of(&shard));
        drop(shard);
        ep.cas(head_of(router, range), word, to).await?;
        router.owners[range].store(to, Ordering::SeqCst);
        Ok(())
    }

    /// A piece of the work of a shard that leaves, or a pause.
    async fn advance(
        &self,
        leaving: &Leaving<'_>,
        (backoff, until): &mut (Backoff<'_>, u64),
    ) -> Result<()> {
        if self.0.ep.now() >= *until {
            return Err(Error::busy("operations on a range last too long to give it away now"));
        }
        match Background(self.0).piece_of(leaving.kept()?).await? {
            Piece::Done => Ok(()),
            Piece::None => backoff.step().await,
            Piece::Full => Err(Error::full("no room to flush a range that is given away")),
        }
    }

    /// Takes a range of this node's slice from the living node that owns it. Whether there was one.
    ///
    /// # Errors
    /// Those of a take-over.
    pub(crate) async fn take_back(&self) -> Result<Work> {
        let (ep, node) = (&self.0.ep, &self.0.node);
        ep.renew_deadline();
        let is_due = node.o.any_node && node.has_joined();
        let router = if is_due { node.opened(ep).await? } else { None };
        let Some(router) = router else { return Ok(Work::None) };
        let me = node.pool.cn();
        for range in (0..router.shards.len()).filter(|range| node.of_slice(*range) == me) {
            if router.shards[range].get().is_some() {
                continue;
            }
            // A range that is about to be owned, or given, is looked at again later.
            let Some(_turn) = node.opening.try_take(range as u64) else { continue };
            ep.renew_deadline();
            let word = ep.read(head_of(router, range), 8).await?.word(0);
            if word == 0 || node_of(word) == me || node.is_owner_gone(word) {
                // The next operation claims it.
                continue;
            }
            let claim = Claim::new(node.pool.member());
            let ask = Calls(self.0).ask(range, What::Give { to: claim.word() });
            // An owner that does not answer is asked again later. It may have given the range.
            if let Ok(Some(Answer::Done)) =
                Calls(self.0).ask_node(node_of(word), &ask, &wire::encode(&ask)?).await
            {
                Box::pin(self.begin(router, range, claim)).await?;
                return Ok(Work::Some);
            }
        }
        Ok(Work::None)
    }

    /// Gives all ranges of this node to others.
    async fn give_all(&self, router: &Router) -> Result<()> {
        let (ep, pool) = (&self.0.ep, &self.0.node.pool);
        for range in 0..router.shards.len() {
            if router.shards[range].get().is_none() {
                continue;
            }
            let others = pool.membership().living().into_iter().map(|member| member.node);
            let others: Vec<NodeId> = others.filter(|node| *node != pool.cn()).collect();
            let of_slice = others.iter().find(|node| **node == self.0.node.of_slice(range));
            let Some(to) = of_slice.or_else(|| others.get(range % others.len().max(1))) else {
                return Ok(());
            };
            // Each range has as much time as a lease lasts.
            pool.membership().renew(ep).await?;
            ep.renew_deadline();
            self.give_away(router, range, 0).await?;
            // One that does not own it at once does so when it is needed.
            let ask = Calls(self.0).ask(range, What::Own);
            let _ = Calls(self.0).ask_node(*to, &ask, &wire::encode(&ask)?).await;
        }
        Ok(())
    }
}

impl RangeOwner for DlsmNode {
    fn leave<'a>(&'a self, ep: &'a Endpoint) -> LeaveFuture<'a> {
        Box::pin(async move {
            let node = self.this.get().and_then(Weak::upgrade);
            let (Some(node), Some(router)) = (node, self.router.get()) else { return Ok(()) };
            Ranges(&Client::new(ep.clone(), node)).give_all(router).await
        })
    }
}
