//! An insert into a full neighbourhood: entries move to free slots of their own neighbourhoods,
//! until a slot of the new key's is free.
//!
//! 1. `[CAS tag -> changing tag, READ leaf]`: the change is announced, awaited, so that the next
//!    step is never found under a plain tag.
//! 2. *Plan.* Moves, each of one entry into a free slot: the first one into a slot that is free
//!    now, each further one into the slot that the move before has left. The search goes through
//!    the slots breadth first, so the plan has the fewest moves. Without one of at most
//!    `MOST_MOVES` the leaf is split.
//! 3. WRITE a *staged* copy of the first entry into its new slot, awaited.
//! 4. For each move: WRITE the image under the next range: the staged copy live, the old slot free.
//!    Behind it in the same chain WRITE the staged copy of the next move; or, behind the last
//!    image, WRITE the new entry and `CAS tag -> 0`.
//!
//! P: an entry is live in one of its slots, or staged there, throughout, and the leaf is locked, so
//! its copies are equal. S: each move has a version of its own. No READ of a neighbourhood counts
//! that mixes two of them, so none can miss an entry that moves past it.
//!
//! Why one move at a time: a free slot takes a copy while the old slot still has the entry. A slot
//! that is in use would lose its own entry to the copy, and its other copy would have to be found
//! outside of its neighbourhood.
//!
//! A crash before step 3 leaves a changed tag and an unchanged leaf; a later one leaves what
//! `repair.rs` names. The new entry is behind the last image in its chain: when it is torn, its
//! slot was free.
//!
//! The lease is checked before each step. A failure from step 3 on keeps the lock: its repair finds
//! the same states as after a crash.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, Error, Result, Stage, Step};

use crate::format::{MAX_RANGE, Place, Slot, SlotState, Table, Ver, put_slot, slot};
use crate::hop::{Hop, Places};
use crate::leaf::{Entries, LeafCopy, LeafImage, Leaves, NodeHeader};
use crate::lock::{Change, Locked, WordLocks};
use crate::{Client, KeyHash, KeyValue, Mark, Mutant, Unlock};

/// Longest plan. Each move takes a round trip, and a split takes three.
const MOST_MOVES: usize = 3;

/// A move of one entry, from a slot to a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    from: usize,
    to: usize,
}

/// Moves that free a slot of a neighbourhood.
pub(crate) struct Shift {
    moves: Vec<Move>,
    leaf: LeafCopy,
}

impl Hop {
    /// The fewest moves after which a slot of the key's neighbourhood is free. `hashes`: that
    /// of each live entry's key.
    fn plan(self, hashes: &[Option<KeyHash>], key: KeyHash, most: usize) -> Option<Vec<Move>> {
        let mut into: Vec<Option<usize>> = vec![None; hashes.len()];
        let mut round: Vec<usize> = self.slots(self.reach(key)).collect();
        let mut seen = vec![false; hashes.len()];
        round.iter().for_each(|i| seen[*i] = true);
        for _ in 0..most {
            let mut next = Vec::new();
            for from in round {
                let Some(hash) = hashes[from] else { continue };
                for to in self.slots(self.reach(hash)) {
                    if hashes[to].is_none() {
                        return Some(chain(&into, Move { from, to }));
                    }
                    if !std::mem::replace(&mut seen[to], true) {
                        into[to] = Some(from);
                        next.push(to);
                    }
                }
            }
            round = next;
        }
        None
    }
}

/// The moves in their order, the first one given; `into`: the slot with the entry that takes a
/// slot's place.
fn chain(into: &[Option<usize>], first: Move) -> Vec<Move> {
    let mut moves = vec![first];
    let mut free = first.from;
    while let Some(from) = into[free] {
        moves.push(Move { from, to: free });
        free = from;
    }
    moves
}

impl Shift {
    /// Steps 1 and 2, for a locked leaf of which only a neighbourhood is known, and which is full.
    /// Afterwards the whole leaf is known.
    pub(crate) async fn prepare(
        c: &Client,
        mut l: Locked,
        key: KeyHash,
    ) -> Result<(Locked, Option<Self>)> {
        let Places::Near(hop) = c.node.places else { return Ok((l, None)) };
        let read = match c.node.has(Mutant::HopUnannounced) {
            false => WordLocks(c).announce_and_read(&mut l).await,
            true => WordLocks(c).read_locked(&l.route, None).await,
        };
        let l = adopt(c, l, read).await?;
        let hashes = hashes_of(c, &l).await;
        let (mut l, hashes) = c.under(l, hashes).await?;
        c.ep.stage_cost(Stage::FingerprintScan, hashes.len() as u32);
        let ranges = usize::from(MAX_RANGE.saturating_sub(l.table.ver.range));
        let Some(moves) = hop.plan(&hashes, key, MOST_MOVES.min(ranges)) else {
            return Ok((l, None));
        };
        let leaf = Leaves(c).image_of(&mut l).await;
        let (l, leaf) = c.under(l, leaf).await?;
        Ok((l, Some(Self { moves, leaf })))
    }

    /// Steps 3 and 4.
    pub(crate) async fn run(self, c: &Client, mut l: Locked, pair: KeyValue<'_>) -> Result<()> {
        let Self { moves, leaf } = self;
        match &moves[..] {
            [_] => Mark::HopMove.hit(),
            _ => Mark::HopMoves.hit(),
        }
        let (leaf_at, last) = (l.route.leaf, moves[moves.len() - 1]);
        // The new entry's memory is taken before the first WRITE.
        moves.iter().for_each(|_| l.table.ver = next_ver(c, l.table.ver));
        let place = Place { leaf: leaf_at, slot: last.from };
        let entry = Entries(c).images(&l, place, pair, None).await;
        let (l, entry) = c.under(l, entry).await?;
        let (mut image, mut behind) = (leaf.bytes.to_vec(), None);
        for one in moves {
            let staged = staged_copy(c, &l, &image, one).await?;
            let at = Entries(c).at(Place { leaf: leaf_at, slot: one.to });
            c.check_lease()?;
            c.ep.step(Step::Structure);
            match behind.take() {
                Some(image) => {
                    let list = (write_verb(leaf_at, image), write_verb(at, staged));
                    c.ep.chain(list).await?;
                }
                None if c.node.has(Mutant::HopNotStaged) => {}
                None if c.node.has(Mutant::HopStagedDetached) => {
                    c.ep.detach(write_verb(at, staged), None);
                }
                None => _ = c.ep.write(at, staged).await?,
            }
            let next = moved(c, &l, &image, one).await?;
            image = next.to_vec();
            behind = Some(next);
        }
        let image = behind.expect("a plan has a move");
        WordLocks(c).unlock_with(l, place, Change::Moved(image, entry)).await
    }
}

/// The whole leaf is known under the lock.
async fn adopt(c: &Client, l: Locked, read: Result<Option<(LeafCopy, Table)>>) -> Result<Locked> {
    let (mut l, read) = c.under(l, read).await?;
    let Some((image, table)) = read else {
        let e = Error::corrupt(format!("locked leaf {} has changed", l.route.leaf));
        return c.fail(l, e).await;
    };
    (l.image, *l.table) = (Some(image), table);
    Ok(l)
}

/// The hash of each live entry of a locked leaf.
async fn hashes_of(c: &Client, l: &Locked) -> Result<Vec<Option<KeyHash>>> {
    let mut hashes = vec![None; l.route.capacity];
    for (i, slot) in l.image.iter().flat_map(|leaf| leaf.live(c)) {
        hashes[i] = Some(KeyHash::of(&Leaves(c).whole_key(&slot, l.route.leaf).await?));
    }
    Ok(hashes)
}

/// Slot `i` of an image of the leaf.
fn slot_of<'i>(c: &Client, image: &'i [u8], i: usize) -> Option<Slot<'i>> {
    let g = &c.node.g;
    slot::unchecked(g, &image[g.slot_at(i)..][..g.entry()])
}

/// The staged copy of an entry that is to move.
async fn staged_copy(c: &Client, l: &Locked, image: &[u8], one: Move) -> Result<Buf> {
    let (g, leaf) = (&c.node.g, l.route.leaf);
    let mut copy = image.to_vec();
    if let Some(entry) = slot_of(c, image, one.from) {
        let ver = NodeHeader::of(g, leaf, image).ver;
        put_slot(g, leaf, &mut copy, one.to, &entry, SlotState::Staged, ver);
    }
    let mut buf = c.ep.buf(g.entry() as u32).await?;
    buf.copy_from_slice(&copy[g.slot_at(one.to)..][..g.entry()]);
    Ok(buf)
}

/// The version behind a move.
fn next_ver(c: &Client, ver: Ver) -> Ver {
    if c.node.has(Mutant::HopSameVersion) { ver } else { ver.bumped() }
}

/// The image behind a move.
async fn moved(c: &Client, l: &Locked, image: &[u8], one: Move) -> Result<Buf> {
    let leaf = l.route.leaf;
    let old = NodeHeader::of(&c.node.g, leaf, image);
    let header = NodeHeader { ver: next_ver(c, old.ver), ..old };
    let mut next = LeafImage::copied(c, leaf, image, (&header, l.route.fence)).await?;
    for i in 0..l.route.capacity {
        let from = if i == one.to { one.from } else { i };
        match slot_of(c, image, from).filter(|s| s.state == SlotState::Live) {
            Some(entry) if i != one.from => next.put(i, &entry),
            _ => next.free(i),
        }
    }
    Ok(next.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A plan's moves go to free slots of their entries' neighbourhoods, one after the other,
        /// and free a slot of the key's.
        #[test]
        fn plans_make_room(numbers in proptest::collection::vec(any::<u32>(), 1..30), key: u32, h in 2usize..9) {
            let hop = Hop { h, span: 24 };
            let key = KeyHash(u64::from(key));
            let mut hashes = vec![None; hop.capacity()];
            for hash in numbers.iter().map(|n| KeyHash(u64::from(*n))) {
                if let Some(i) = hop.slots(hop.reach(hash)).find(|i| hashes[*i].is_none()) {
                    hashes[i] = Some(hash);
                }
            }
            if hop.slots(hop.reach(key)).any(|i| hashes[i].is_none()) {
                return Ok(());
            }
            if let Some(moves) = hop.plan(&hashes, key, 4) {
                prop_assert!(moves.len() <= 4);
                for Move { from, to } in moves {
                    prop_assert!(hashes[to].is_none());
                    let hash = hashes[from].take().expect("an entry moves");
                    prop_assert!(hop.slots(hop.reach(hash)).any(|i| i == to));
                    hashes[to] = Some(hash);
                }
                prop_assert!(hop.slots(hop.reach(key)).any(|i| hashes[i].is_none()));
            }
        }
    }
}
