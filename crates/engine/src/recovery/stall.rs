//! Stall diagnosis: why a lock is not given back, when its repair needs memory that is lost.
//!
//! A change that has begun and needs a lost memory node cannot be finished. Its repair fails each
//! client that tries it, with an error that names the node. A client that merely waits for the lock
//! would learn nothing until its deadline. So a client that has waited for long READs what the
//! repair would READ, and fails for the same reason:
//!
//! 1. the table's owner, when it is a memory node (a table on a compute node is reassigned; one on
//!    a memory node is not);
//! 2. the leaf, the blocks of its fences, and the blocks of its keys;
//! 3. the chain of tombstones from `next` and from the forwarding pointer, each with its lower
//!    fence;
//! 4. the parent, where the record of a tombstone has to go; and what the parent's own repair would
//!    READ, while its lock is held: a relocation holds both.
//!
//! For an inner node: its neighbours, the blocks of its records and of its right sibling's lower
//! fence, the headers of its children, and the chains behind those that forward.
//!
//! Only unreachable memory counts (`only_away`). A leaf found by a stale route may be a tombstone,
//! and blocks that it names may have been reused; READs here are unvalidated, and no other
//! conclusion is drawn from them. So a false diagnosis is impossible as long as the named memory is
//! truly unreachable, and a missed one costs time only.
//!
//! The diagnosis takes no lock and writes nothing. It relies on no invariant, since a change may be
//! half done.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, Result, Step};

use crate::format::{Place, SlotState, UnvalidatedRecord, slot, unvalidated_record};
use crate::inner::InnerLocks;
use crate::leaf::{Blocks, NodeHeader, Pair, Validation, pair_of};
use crate::lock::is_memory;
use crate::router::Router;
use crate::{Client, Mark, is_away};

/// Bound of tombstones on the way to a live leaf that are read.
const LONGEST_CHAIN: u32 = 16;

/// Passes on unreachable memory only; every other error may come from an image that is changing.
fn only_away<T>(read: Result<T>) -> Result<()> {
    match read {
        Err(e) if is_away(&e) => {
            Mark::WaitForLost.hit();
            Err(e)
        }
        _ => Ok(()),
    }
}

/// For a client that waits for the lock of a leaf, or for its image.
///
/// # Errors
/// `Unreachable`, naming the node that a repair would wait for.
pub(crate) async fn diagnose_leaf(c: &Client, leaf: GlobalAddr) -> Result<()> {
    let g = c.node.g;
    let first = NodeHeader::read(c, leaf).await?;
    if !first.is_leaf(&c.node) {
        return Ok(());
    }
    inspect_table(c, &first).await?;
    let bytes = c.ep.read(leaf, c.node.leaf_bytes(first.slots) as u32).await?;
    let image = bytes.extract(<[u8]>::to_vec);
    let h = NodeHeader::of(&g, leaf, &image);
    for fence in [&h.lo, &h.hi] {
        only_away(Blocks(c).fence_key_in(fence, Validation::Unvalidated).await)?;
    }
    if !h.forward.is_null() {
        inspect_parent(c, &h).await?;
        inspect_parent_lock(c, &h).await?;
        inspect_chain(c, h.forward, leaf).await?;
    }
    inspect_chain(c, h.next, leaf).await?;
    for i in 0..first.slots {
        let span = g.slot_at(i)..g.slot_at(i) + g.entry();
        let place = Place { leaf, slot: i };
        let Some(s) = slot::check(&g, place, &image[span]) else { continue };
        if s.state != SlotState::Free
            && let Some(Pair::BothIn(at)) = pair_of(&s)
        {
            only_away(c.ep.read_unvalidated(at.addr(), at.capacity()).await)?;
        }
    }
    Ok(())
}

/// The lock that a repair would take. A table on a compute node is reassigned some time; one on
/// a memory node is not.
async fn inspect_table(c: &Client, h: &NodeHeader) -> Result<()> {
    match c.node.pool.resolve(&c.ep, h.table).await {
        Ok(at) if is_memory(at) => only_away(c.ep.read(at, 8).await),
        _ => Ok(()),
    }
}

/// From a neighbour to the live leaf that it leads to. The record of a sibling merged into the
/// leaf itself has to go.
async fn inspect_chain(c: &Client, first: GlobalAddr, leaf: GlobalAddr) -> Result<()> {
    let mut at = first;
    for _ in 0..LONGEST_CHAIN {
        if at.is_null() || at == leaf {
            return Ok(());
        }
        let n = match NodeHeader::read(c, at).await {
            Ok(n) => n,
            Err(e) => return only_away::<()>(Err(e)),
        };
        only_away(Blocks(c).fence_key_in(&n.lo, Validation::Unvalidated).await)?;
        if n.forward == leaf {
            return inspect_parent(c, &n).await;
        }
        at = n.forward;
    }
    Ok(())
}

/// The record of a tombstone has to go. Its fence may be gone: it was its successor's, too.
async fn inspect_parent(c: &Client, tombstone: &NodeHeader) -> Result<()> {
    match Blocks(c).fence_key_in(&tombstone.lo, Validation::Unvalidated).await {
        Ok(low) => only_away(Router(c).fresh_route(&low.unwrap_or_default()).await),
        Err(e) => only_away::<()>(Err(e)),
    }
}

/// The repair of a relocated leaf takes the lock of its parent. When that is held, the parent may
/// have to be repaired first.
async fn inspect_parent_lock(c: &Client, tombstone: &NodeHeader) -> Result<()> {
    let low = Blocks(c).fence_key_in(&tombstone.lo, Validation::Unvalidated).await;
    let Ok(low) = low else { return Ok(()) };
    let Some((parent, _)) = c.node.cache.lookup(1, &low.unwrap_or_default()) else { return Ok(()) };
    let lock = c.ep.read(InnerLocks(c).word(parent.addr), 8).await;
    match lock.map(|lock| lock.word(0)) {
        Ok(0) => Ok(()),
        Ok(_) => diagnose_inner(c, parent.addr).await,
        Err(e) => only_away::<()>(Err(e)),
    }
}

/// For a client that waits for the lock of an inner node, or for its image.
///
/// # Errors
/// As [`leaf`].
pub(crate) async fn diagnose_inner(c: &Client, addr: GlobalAddr) -> Result<()> {
    let g = c.node.g;
    c.ep.step(Step::Structure);
    let bytes = c.ep.read(addr, g.inner_image() as u32).await?;
    let image = bytes.extract(<[u8]>::to_vec);
    let h = NodeHeader::of(&g, addr, &image);
    let mut named: Vec<GlobalAddr> =
        [h.next, h.forward].into_iter().filter(|at| !at.is_null()).collect();
    for i in 0..g.fanout {
        let at = g.record_at(i);
        let raw = &image[at..at + g.record()];
        if let UnvalidatedRecord::Live(r, _) =
            unvalidated_record(&g, addr, h.ver.generation, i, raw)
        {
            only_away(Blocks(c).fence_in(r.key, Validation::Unvalidated).await)?;
            named.push(r.child.addr);
        }
    }
    let mut batch = VerbVec::new();
    named.iter().for_each(|at| {
        batch.read(*at, g.header() as u32);
    });
    if batch.is_empty() {
        return Ok(());
    }
    let mut read = match c.ep.batch(batch).await {
        Ok(read) => read,
        Err(e) => return only_away::<()>(Err(e)),
    };
    for (i, at) in named.into_iter().enumerate() {
        let n = read.take_sampled(i).extract(|b| NodeHeader::of(&g, at, b));
        if at == h.next {
            // The node ends where its sibling begins, and that is where the sibling's record goes.
            only_away(Blocks(c).fence_key_in(&n.lo, Validation::Unvalidated).await)?;
        } else if n.level == 0 && !n.forward.is_null() {
            // The record of a child that forwards becomes that of the leaf to which it leads.
            inspect_chain(c, n.forward, at).await?;
        }
    }
    Ok(())
}
