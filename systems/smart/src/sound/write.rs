//! Point writes: selects what a write does from the content of the key's place.
//!
//! Order: with combining, puts and updates of one key on a compute node form a batch; its leader
//! executes the verbs, and the followers return its outcome. The leader tries the fast path
//! (`get.rs`): a live leaf is updated, compared and set, or deleted (`update.rs`). Otherwise the
//! slow path finds the key's place (`find.rs`): an absent key ends an update, a delete and a
//! compare-and-set, and a put or insert continues in `insert.rs`. Each attempt that meets a changed
//! place begins again on the slow path.
//!
//! Invariant: the value of a batch is fixed, and the batch closed, before the value is written
//! ([`seal`]). An absence, too, counts only after the batch is closed: a follower that joined later
//! may have begun after another client inserted the key.
//!
//! The module posts no verbs of its own, so the crash cases are those of `update.rs` and
//! `insert.rs`.

use dmtree_fabric::{OpOutcome, Result};
use dmtree_parts::check_key;
use dmtree_parts::combine::{LeaderGuard, Turn, is_given_up};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::op::Written;
use dmtree_parts::{Outcome, Write};

use super::client::Smart;
use super::find::Paths;
use super::find::{Content, Place};
use super::get::Reads;
use super::get::{LeafMatch, LeafView};
use super::insert::Inserts;
use super::update::Updates;

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Smart);

impl Writes<'_> {
    pub(crate) async fn write_op(&self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        check_key(key)?;
        w.check()?;
        let scope = self.0.ep.begin(w.kind());
        let (outcome, counted) = self.write_shared(key, w).await?;
        scope.end(counted);
        Ok(outcome)
    }

    async fn write_shared(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let mut leader = None;
        if let Some(intent) = w.intent().filter(|_| self.0.node.o.combining) {
            let (writers, none) = (&self.0.node.writers, &mut Vec::new());
            let (key_hash, rest) = ((key, KeyHash::of(key)), || self.0.op.quiescent_section());
            match writers.turn(&self.0.ep, key_hash, &intent, none, rest).await? {
                Turn::Shared(Err(e)) if is_given_up(&e) => {}
                Turn::Shared(shared) => return Ok((shared?.wrote(), OpOutcome::Shared)),
                Turn::Own(own) => leader = own,
            }
        }
        let written = {
            let _pin = self.0.op.pin()?;
            self.write_pinned(key, w, &mut leader).await
        };
        if let Some(leader) = leader {
            let outcome = written.as_ref().map(|w| w.0).map_err(Clone::clone);
            leader.finish_write(&self.0.ep, outcome).await;
        }
        written
    }

    /// A write by an operation that is already pinned.
    pub(crate) async fn write_pinned(
        &self,
        key: &[u8],
        w: Write<'_>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        let mut backoff = self.0.ep.backoff("a write of a key", self.0.node.root.word);
        if let Some(view) = Reads(self.0).fast_leaf(key).await? {
            if let Some(written) = self.write_present(key, view, w, lease).await? {
                return Ok(written);
            }
            self.0.op.retried.set(true);
        }
        loop {
            let place = Paths(self.0).find(key).await?;
            if let Some(written) = self.write_at(key, place, w, lease).await? {
                return Ok(written);
            }
            self.0.op.retried.set(true);
            backoff.step().await?;
        }
    }

    async fn write_at(
        &self,
        key: &[u8],
        place: Place,
        w: Write<'_>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let mut other = None;
        if let Content::Leaf { at, lines, .. } = &place.content {
            match Reads(self.0).match_leaf(key, *at, *lines).await? {
                LeafMatch::Present(view) => return self.write_present(key, view, w, lease).await,
                LeafMatch::Tombstone(view) | LeafMatch::Other(view) => other = Some(view),
            }
        }
        if let Some(refused) = w.refused(None) {
            if lease.as_mut().is_some_and(LeaderGuard::close_only) {
                // A follower that joined since the key was searched may have begun after the key
                // was inserted: the search is repeated for all.
                return Ok(None);
            }
            return Ok(Some((refused.0, self.0.op.outcome(refused.1))));
        }
        let value = w.value().expect("writes of no value are refused");
        Inserts(self.0).insert(key, value, place, other, lease).await
    }

    /// A write to a key with a live leaf. `None`: the leaf is not the key's any more.
    async fn write_present(
        &self,
        key: &[u8],
        view: LeafView,
        w: Write<'_>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        match w {
            Write::Insert(_) => Ok(Some((Outcome::Exists, self.0.op.outcome(OpOutcome::Hit)))),
            Write::Put(v) | Write::Update(v) => Updates(self.0).update(view, v, lease).await,
            Write::Delete => Updates(self.0).delete(key, view).await,
            Write::CompareAndSet { expected, new } => {
                Updates(self.0).compare_and_set(key, view, expected, new).await
            }
        }
    }
}

/// The value to write: closes the batch and takes its value, or takes the caller's.
pub(crate) fn seal(lease: &mut Option<LeaderGuard>, value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    if let Some(lease) = lease {
        lease.close(&mut value);
    }
    value
}
