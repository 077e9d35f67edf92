//! Point reads.
//!
//! An operation on a key tries three sources, the cheapest first:
//!
//! 1. *Mirror.* The fingerprints in the cache name slots. Each is READ by itself. A valid, live
//!    entry of the route's generation with this key is the answer, current at its sample: by P a
//!    live entry of a published generation holds the key's current value. No hit proves nothing,
//!    since a mirror may be stale.
//! 2. *Table.* `[CAS lock 0->0, READ table]` at the table's owner. When the lock was free at the
//!    CAS the table is exact (F) at that instant, or at a later WRITE inside this operation. Its
//!    candidates are READ. One with the key is the answer. When none has it and every candidate
//!    carries the table's version, the key was absent at the CAS. A candidate of another version
//!    proves nothing: the key may have moved.
//! 3. *Leaf.* When the lock is held, the whole leaf is READ until all its slots and its header
//!    carry one version (S). It answers by itself, after hops over `forward` (the leaf is a
//!    tombstone) and `next` (a split without its record yet).
//!
//! So a read waits neither for a lock nor for an owner. It waits for a half-written image only, and
//! repairs it when the writer has died.
//!
//! A leaf with an image at its owner (`leaf/images.rs`) is READ there in all three steps. A read of
//! such a leaf waits for the next owner when there is none, and every answer needs the lease.
//!
//! On memory of this process the first two steps run without a wait (`direct.rs`), and the rest of
//! the read goes on from what they have found.
//!
//! Generation and fences are checked at every step. A stale route meets another generation (L), or
//! a leaf with other fences; then the route is read again from the bottom node. Hops carry no
//! generation, so a tombstone reached by the route's own record is followed only when the parent
//! still names it.
//!
//! An absence that no memory node has confirmed needs a lease that has not ended: an owner that was
//! revoked, or this node's own memory, may serve old tables.
//!
//! A read writes nothing, so a crash of its client leaves nothing to recover. Readers of one key
//! share one READ (single-flight); a leader that is dropped sends its members alone.

use dmtree_fabric::{OpKind, OpOutcome, Result, Stage};
use dmtree_parts::check_key;
use dmtree_parts::combine::{Intent, Turn, is_given_up};
use dmtree_parts::slots::Slots;

use crate::format::Place;
use crate::hop::Neighbourhoods;
use crate::leaf::{Blocks, Entries, Found, Images, LeafCopy, Leaves, Looked, Pair, Probe, pair_of};
use crate::lock::{Confirmed, TableLocks};
use crate::point::{Direct, DirectGet, candidates, end, verdict};
use crate::recovery::{LeafRecovery, has_abandoned_locks, recover_locks_due};
use crate::router::{MAX_CANDIDATES, Router};
use crate::{Client, HashedKey, KeyHash, Mark, Mutant, Route};

/// Hops to a right sibling or a successor that indicate nothing: a stale route leads over
/// tombstones. A reader that makes more hops pauses between them.
const FREE_HOPS: u32 = 4;

/// Result of probing one place for a key.
pub(crate) enum Answer {
    Found,
    Absent,
    /// The route was stale.
    Stale,
}

/// Where a point read begins: its route and candidates, as far as they are cached.
#[derive(Default)]
pub(crate) struct Start {
    pub cached: Option<(Route, Option<Slots>)>,
    /// Candidates that do not have the key.
    pub tried: usize,
    /// The next one, if it was READ already and does not answer alone.
    pub looked: Option<Looked>,
}

/// Use of a whole leaf besides its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learn {
    No,
    /// The leaf has no table, so nothing else fills its mirror.
    Mirror,
}

/// Point reads.
#[derive(Clone, Copy)]
pub(crate) struct Reads<'c>(pub &'c Client);

impl<'c> Reads<'c> {
    /// The part of a read that need not wait.
    #[inline]
    pub(crate) fn begin(self, key: &[u8], out: &mut Vec<u8>) -> Result<(DirectGet<'c>, KeyHash)> {
        check_key(key)?;
        let hash = KeyHash::of(key);
        out.clear();
        Ok((Direct(self.0).get(key, hash, out), hash))
    }

    pub(crate) async fn rest(
        self,
        begun: DirectGet<'_>,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        match begun {
            DirectGet::Ended(found) => Ok(found),
            DirectGet::GoesOn(scope, _pin, start) => {
                let found = self.go_on(start, key, out).await?;
                end(scope, self.outcome_of(found));
                Ok(found)
            }
            DirectGet::Posted => {
                if has_abandoned_locks(self.0) {
                    recover_locks_due(self.0).await;
                }
                let scope = self.0.ep.begin(OpKind::Get);
                let (found, outcome) = self.shared(key, out).await?;
                scope.end(outcome);
                Ok(found)
            }
        }
    }

    fn outcome_of(self, found: bool) -> OpOutcome {
        self.0.op.outcome(if found { OpOutcome::Hit } else { OpOutcome::Absent })
    }

    async fn shared(self, key: HashedKey<'_>, out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let c = self.0;
        let mut leader = None;
        if c.node.o.techniques.delegation {
            let (key_hash, rest) = (key, || c.op.quiescent_section());
            match c.node.readers.turn(&c.ep, key_hash, &Intent::Read, out, rest).await? {
                Turn::Shared(Err(e)) if is_given_up(&e) => Mark::LeaderDropped.hit(),
                Turn::Shared(shared) => {
                    Mark::ReadShared.hit();
                    return Ok((shared?.found(), OpOutcome::Shared));
                }
                Turn::Own(own) => leader = own,
            }
        }
        if let Some(leader) = &mut leader {
            c.ep.point().await;
            if !c.node.has(Mutant::DelegateLate) {
                leader.close(out);
            }
        }
        let found = self.alone(key, out).await;
        if let Some(leader) = leader {
            leader.finish_read(&c.ep, found.clone(), out).await;
        }
        let found = found?;
        Ok((found, self.outcome_of(found)))
    }

    pub(crate) async fn alone(self, key: HashedKey<'_>, out: &mut Vec<u8>) -> Result<bool> {
        self.0.stop_for_death().await;
        let _pin = self.0.pin()?;
        self.pinned(key, out).await
    }

    /// A point read under a pin of the caller.
    pub(crate) async fn pinned(
        self,
        (key, hash): HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let mut start = Start::default();
        if self.0.node.has_tables() {
            start.cached = Router(self.0).cached_route(key, hash.fingerprint());
        }
        self.go_on(start, (key, hash), out).await
    }

    /// The rest of a point read. Without tables the leaf answers.
    async fn go_on(
        self,
        start: Start,
        (key, hash): HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let c = self.0;
        let mut read = None;
        let mut route = match start.cached {
            Some((route, Some(candidates))) => {
                let rest = (candidates.take(MAX_CANDIDATES).skip(start.tried), start.looked);
                match self.try_candidates(&route, rest, (key, hash), out).await? {
                    Answer::Found => return Ok(true),
                    Answer::Absent => {
                        if !candidates.is_empty() {
                            Mark::MirrorStale.hit();
                        }
                        route
                    }
                    Answer::Stale => Router(c).fresh_route(key).await?,
                }
            }
            Some((route, None)) => route,
            None => {
                let (route, leaf) = Router(c).leaf_of(key).await?;
                read = leaf;
                route
            }
        };
        let mut backoff = c.ep.backoff("a consistent view of a leaf", route.leaf);
        loop {
            let answer = match c.node.has_tables() {
                true => self.by_table(&route, (key, hash), out).await?,
                false => self.without_table((&route, read.take()), (key, hash), out).await?,
            };
            match answer {
                Answer::Found => return Ok(true),
                Answer::Absent => {
                    // An owner that hangs serves its memory after it was revoked, and so does this
                    // node's own memory. No memory node has confirmed that this node is still a
                    // member.
                    if c.node.has_tables() {
                        c.check_lease()?;
                    }
                    out.clear();
                    return Ok(false);
                }
                Answer::Stale => {}
            }
            route = Router(c).other_route(key, &route, &mut backoff).await?;
        }
    }

    /// Step (1): `Absent` means only that none of these entries has the key. The first one may have
    /// been READ already.
    async fn try_candidates(
        self,
        route: &Route,
        (slots, mut looked): (impl Iterator<Item = usize>, Option<Looked>),
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        for slot in slots {
            let probe = match route.is_imaged() {
                false => {
                    let place = (Place { leaf: route.leaf, slot }, route.generation);
                    Entries(self.0).probe(place, looked.take(), key, out).await?
                }
                // What is torn there is not waited for: the table says what goes on.
                true => match Images(self.0).glance(route, slot, key, out).await? {
                    Some(probe) => probe,
                    None => return Ok(Answer::Absent),
                },
            };
            if probe.ver().generation != route.generation
                && !self.0.node.has(Mutant::MirrorOtherGeneration)
            {
                return Ok(Answer::Stale);
            }
            if matches!(probe, Probe::Hit { .. }) {
                return Ok(Answer::Found);
            }
        }
        Ok(Answer::Absent)
    }

    /// Steps (2) and (3).
    async fn by_table(
        self,
        route: &Route,
        (key, hash): HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        let c = self.0;
        let table = match TableLocks(c).confirm(route.table, route.capacity).await? {
            Confirmed::Exact(table) if route.matches(&table) => table,
            Confirmed::Exact(_) => {
                Mark::GetTableStale.hit();
                return Ok(Answer::Stale);
            }
            Confirmed::Locked => {
                Mark::GetLeafLocked.hit();
                c.op.retried.set(true);
                return self.by_leaf((route, None), (key, hash), (out, Learn::No)).await;
            }
            // The leaf answers only when its image is there again.
            odd if route.is_imaged() => {
                c.op.retried.set(true);
                if matches!(odd, Confirmed::Unbuilt) {
                    Mark::GetUnbuilt.hit();
                    Box::pin(LeafRecovery(c).help_route(route)).await?;
                }
                return Ok(Answer::Stale);
            }
            odd => {
                if matches!(odd, Confirmed::Unbuilt) {
                    Mark::GetUnbuilt.hit();
                    c.node.push_build(*route);
                }
                c.op.retried.set(true);
                return self.by_leaf((route, None), (key, hash), (out, Learn::Mirror)).await;
            }
        };
        c.ep.stage_cost(Stage::FingerprintScan, 1);
        Router(c).fill_mirror(key, route, table.fps());
        let Some(candidates) = candidates(&table, hash) else {
            return self.by_leaf((route, None), (key, hash), (out, Learn::No)).await;
        };
        for slot in candidates {
            let probe = match route.is_imaged() {
                false => {
                    let place = (Place { leaf: route.leaf, slot }, route.generation);
                    Entries(c).probe(place, None, (key, hash), out).await?
                }
                true => match Images(c).probe(route, slot, (key, hash), out).await? {
                    Some(probe) => probe,
                    None => return Ok(Answer::Stale),
                },
            };
            if let Some(answer) = verdict(&probe, route, &table) {
                return Ok(answer);
            }
        }
        Ok(Answer::Absent)
    }

    /// The key's neighbourhood answers, if it has one, or step (3).
    async fn without_table(
        self,
        (route, read): (&Route, Option<LeafCopy>),
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        if let Some(part) = self.0.node.places.reach(key.1)
            && let Some(answer) = Neighbourhoods(self.0).get(route, &part, key, out).await?
        {
            return Ok(answer);
        }
        self.by_leaf((route, read), key, (out, Learn::No)).await
    }

    /// Step (3): the answer from whole leaves, starting at the route's, which may have been READ
    /// already, and following `forward` and `next`.
    async fn by_leaf(
        self,
        (route, read): (&Route, Option<LeafCopy>),
        (key, hash): HashedKey<'_>,
        (out, learn): (&mut Vec<u8>, Learn),
    ) -> Result<Answer> {
        let c = self.0;
        let mut leaf = match read {
            Some(leaf) => leaf,
            None => Leaves(c).current(route).await?,
        };
        if leaf.header(c).ver.generation != route.generation {
            return Ok(Answer::Stale);
        }
        let mut backoff = c.ep.backoff("a structure change", route.leaf);
        let mut hops = 0;
        loop {
            let h = leaf.header(c);
            let (forward, next) = (h.forward, h.next);
            let on = if !forward.is_null() {
                Mark::GetTombstone.hit();
                // A record that is older than this operation may name a tombstone with a successor
                // that is reclaimed already: `forward` carries no generation.
                if leaf.addr == route.leaf && Router(c).fresh_route(key).await?.leaf != route.leaf {
                    return Ok(Answer::Stale);
                }
                forward
            } else {
                if Blocks(c).fence(h.lo).await?.is_some_and(|lo| key < &lo[..]) {
                    return Ok(Answer::Stale);
                }
                match Blocks(c).fence(h.hi).await? {
                    Some(hi) if key >= &hi[..] => {
                        Mark::GetRight.hit();
                        next
                    }
                    _ => {
                        if learn == Learn::Mirror {
                            self.mirror_leaf(key, route, &leaf);
                        }
                        return Ok(match Leaves(self.0).find(&leaf, (key, hash), out).await? {
                            Found::At(_) => Answer::Found,
                            Found::Nowhere => Answer::Absent,
                            Found::Torn => Answer::Stale,
                        });
                    }
                }
            };
            if on.is_null() {
                return Ok(Answer::Stale);
            }
            hops += 1;
            if hops > FREE_HOPS {
                Router(c).paced_walk(&mut backoff, &leaf).await?;
            }
            leaf = Leaves(c).current_at(on, leaf.capacity).await?;
        }
    }

    /// Fills the mirror of a leaf that has no table from the leaf itself, so that the next read of
    /// a key there costs one round trip. Keys in blocks stay out: a mirror is a hint.
    fn mirror_leaf(self, key: &[u8], route: &Route, leaf: &LeafCopy) {
        let mut fps = vec![0; leaf.capacity];
        for (i, slot) in leaf.live(self.0) {
            if let Some(Pair::Inline(k, _) | Pair::ValueIn(k, _)) = pair_of(&slot) {
                fps[i] = KeyHash::of(k).fingerprint();
            }
        }
        let generation = leaf.header(self.0).ver.generation;
        Router(self.0).fill_mirror(key, &Route { leaf: leaf.addr, generation, ..*route }, &fps);
    }
}
