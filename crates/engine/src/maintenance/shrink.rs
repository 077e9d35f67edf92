//! Another cache budget for this node, while clients work.
//!
//! *Images first.* A budget that becomes smaller is taken from the room for images as far as that
//! goes, and from the inner nodes and mirrors only then. Cells beyond the room are withheld when
//! they come free (`image_room.rs` of the pool), and maintenance takes leaves their images until
//! enough are on their way: each is relocated to a plain cell, as in an eviction by use. So a leaf
//! has its lock while it changes, and a crash leaves what a relocation leaves. The cache of inner
//! nodes becomes smaller when the images are within their room.
//!
//! *Order.* The cursor goes over all leaves with images in this node's region several times: those
//! without counted uses go first, then those with few, at last all ([`MOST_USES`]).
//!
//! *When memory is within the budget.* Bytes that are granted never grow beyond a room, so from
//! the moment when they are within it they stay there. They come back when no operation can hold
//! the cells any more; free cells that other nodes have are asked for when a cursor has gone over
//! all leaves in vain. [`Shrink::finish`] returns behind that moment.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, ErrorKind, OpKind, OpOutcome, Result};
use dmtree_parts::Work;
use dmtree_parts::cache::CachedNode;

use crate::leaf::Images;
use crate::lock::LeafLocks;
use crate::maintenance::admission::CANDIDATE;
use crate::maintenance::{Collection, Sweep, maintain};
use crate::router::{Router, route_of};
use crate::{Client, DmNode, Mark, Route, is_away, reached};

/// Most uses of the leaves that lose their images when the cursor goes over them the first time,
/// the second time, and so on.
const MOST_USES: [u64; 5] = [0, CANDIDATE - 1, 4 * CANDIDATE - 1, 16 * CANDIDATE - 1, u64::MAX];
/// After a cursor that has taken nothing, so many calls of maintenance begin no other one.
const REST_CALLS: u32 = 64;
/// After this part of the timeout in vain [`Shrink::finish`] collects garbage. Where the answer of
/// a grant has come too late, its cells are lost until then.
const COLLECTED_AFTER: u64 = 8;
/// Pause of [`Shrink::finish`] between two rounds, ns.
const PAUSE_NS: u64 = 50_000;

/// The cache budget of a compute node as it is now.
#[derive(Debug)]
pub(crate) struct CacheBudget {
    /// Bytes for inner nodes and mirrors when the index was opened: a smaller budget leaves them
    /// as long as there is room for images.
    inner_bytes: u64,
    /// More images are granted than there is room.
    due: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bytes: u64,
    cursor: Cursor,
}

/// Where the search for images is.
#[derive(Clone, Debug, Default)]
struct Cursor {
    from: Vec<u8>,
    pass: usize,
    /// Images taken since it began.
    taken: u64,
    /// Calls of maintenance until it begins.
    rest: u32,
}

impl CacheBudget {
    /// A budget with so many bytes of it for inner nodes and mirrors.
    pub(crate) fn new(bytes: u64, inner_bytes: u64) -> Self {
        let state = Mutex::new(State { bytes, cursor: Cursor::default() });
        Self { inner_bytes, due: AtomicBool::new(false), state }
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        locked(&self.state).bytes
    }

    /// Whether images have to go: a load.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Another budget from now on.
    pub(crate) fn set(&self, node: &DmNode, bytes: u64) {
        let mut state = locked(&self.state);
        *state = State { bytes, cursor: Cursor::default() };
        if node.has_images() {
            node.pool.images().give(node.root.index, bytes - self.inner_part(node, bytes));
        }
        self.settle(node, &state);
    }

    /// Images are due as long as they are beyond their room; then the inner nodes have theirs.
    pub(crate) fn check(&self, node: &DmNode) -> bool {
        let state = locked(&self.state);
        self.settle(node, &state);
        self.is_due()
    }

    fn settle(&self, node: &DmNode, state: &State) {
        let is_due = node.pool.images().has_excess(node.root.index);
        // With models the inner nodes have a part of their own, which stays as it is.
        if !is_due && node.models.is_none() {
            node.cache.set_budget(self.inner_part(node, state.bytes));
        }
        self.due.store(is_due, Ordering::Relaxed);
    }

    /// The part of a budget for inner nodes and mirrors.
    fn inner_part(&self, node: &DmNode, bytes: u64) -> u64 {
        (bytes - node.o.image_bytes(bytes)).max(self.inner_bytes).min(bytes)
    }

    /// The place of the next piece; `None` while the cursor rests.
    fn next_piece(&self) -> Option<Cursor> {
        let cursor = &mut locked(&self.state).cursor;
        cursor.rest = cursor.rest.saturating_sub(1);
        (cursor.rest == 0).then(|| cursor.clone())
    }

    /// The search goes on at once.
    fn wake(&self) {
        locked(&self.state).cursor.rest = 0;
    }

    /// A piece has taken so many images, and ends at a key. False when the cursor has gone over all
    /// leaves in vain.
    fn go_on(&self, mut from: Cursor, taken: u64, to: Option<Vec<u8>>) -> bool {
        from.taken += taken;
        let next = match to {
            Some(to) => Cursor { from: to, ..from },
            None if from.pass + 1 < MOST_USES.len() => {
                Cursor { from: Vec::new(), pass: from.pass + 1, ..from }
            }
            None if from.taken > 0 => Cursor::default(),
            None => Cursor { rest: REST_CALLS, ..Cursor::default() },
        };
        let goes_on = next.rest == 0;
        locked(&self.state).cursor = next;
        goes_on
    }
}

/// Takes images that are beyond their room.
#[derive(Clone, Copy)]
pub(crate) struct Shrink<'c>(pub &'c Client);

impl Shrink<'_> {
    /// One piece of maintenance. When enough cells are on their way the next reclamation is due.
    pub(crate) async fn piece(self) -> Result<Work> {
        let c = self.0;
        if !c.node.budget.check(&c.node) {
            return Ok(Work::None);
        }
        if self.excess() == 0 {
            c.node.pool.reclaimer().press_reclaim();
            return Ok(Work::None);
        }
        let Some(at) = c.node.budget.next_piece() else { return Ok(Work::None) };
        let scope = c.ep.begin(OpKind::Maintain);
        let pin = c.pin()?;
        let done = Box::pin(self.take_some(&at)).await;
        pin.end();
        let goes_on = match done {
            Err(e) if !is_away(&e) => return Err(e),
            // The next call tries again.
            Err(_) => false,
            Ok((taken, to)) => {
                let goes_on = c.node.budget.go_on(at, taken, to);
                if !goes_on {
                    self.recall().await;
                }
                goes_on
            }
        };
        scope.end(OpOutcome::Other);
        Ok(if goes_on { Work::Some } else { Work::None })
    }

    fn excess(self) -> u64 {
        self.0.node.pool.images().excess_in_use(self.0.node.root.index)
    }

    /// The leaves of one bottom node: how many have lost their images, and the key at which to
    /// continue.
    async fn take_some(self, at: &Cursor) -> Result<(u64, Option<Vec<u8>>)> {
        let c = self.0;
        // The last pass misses no leaf: neither one that a cached node does not name yet, nor one
        // without a record, which another client is still to add.
        let is_last = at.pass + 1 == MOST_USES.len();
        let node = match is_last {
            true => Sweep(c).present_node(&at.from).await?,
            false => Router(c).descend(&at.from, 1).await?,
        };
        let mut taken = 0;
        for i in 0..node.len() {
            if self.excess() == 0 {
                return Ok((taken, Some(at.from.clone())));
            }
            if node.uses(i) <= MOST_USES[at.pass] && self.take(&node, i).await? {
                taken += 1;
            } else if is_last {
                reached(Sweep(c).right(node.record(i).child, node.child_hi(i)).await)?;
            }
        }
        Ok((taken, node.hi().map(<[u8]>::to_vec)))
    }

    /// Takes the image of a leaf of a node, if it has one here.
    async fn take(self, node: &CachedNode, i: usize) -> Result<bool> {
        let c = self.0;
        let mut route = route_of(&node.record(i));
        if !self.is_here(&route) {
            return Ok(false);
        }
        c.ep.renew_deadline();
        let mut locked = LeafLocks(c).lock(&route).await?;
        if locked.is_none() {
            route = Router(c).fresh_route(node.keys().get(i)).await?;
            if self.is_here(&route) {
                locked = LeafLocks(c).lock(&route).await?;
            }
        }
        let Some(l) = locked else { return Ok(false) };
        let is_taken = Images(c).take(l).await?;
        if is_taken {
            Mark::ImageGivenBack.hit();
        }
        Ok(is_taken)
    }

    fn is_here(self, route: &Route) -> bool {
        route.is_imaged() && self.0.node.pool.images().is_own(route.table)
    }

    /// Asks other nodes for the free cells that they have.
    async fn recall(self) {
        let c = self.0;
        for lines in c.node.o.capacities().into_iter().filter_map(|n| c.node.imaged_lines(n)) {
            c.ep.renew_deadline();
            c.node.pool.images().recall(&c.ep, c.node.root.index, lines).await;
        }
    }

    /// Returns when this node's memory is within its budget. Call it between operations.
    ///
    /// # Errors
    /// `TimedOut` when nothing has come back for the timeout of an operation: without memory for
    /// its copy a leaf keeps its image, and cells of a node that does not answer stay there.
    /// Maintenance goes on.
    pub(crate) async fn finish(self) -> Result<()> {
        let Client { ep, node, .. } = self.0;
        let timeout_ns = node.o.timeout_ms.saturating_mul(1_000_000);
        let (mut least, mut since, mut is_collected) = (u64::MAX, ep.now(), false);
        while node.budget.is_due() {
            node.budget.wake();
            while maintain(self.0).await? == Work::Some {}
            reached(node.pool.reclaimer().reclaim(ep).await)?;
            let bytes = node.pool.images().bytes(node.root.index);
            let vain_ns = ep.now().saturating_sub(since);
            if bytes < least {
                (least, since) = (bytes, ep.now());
            } else if vain_ns > timeout_ns / COLLECTED_AFTER && !is_collected {
                is_collected = true;
                match Box::pin(Collection(self.0).run()).await {
                    Err(e) if !is_away(&e) && e.kind() != ErrorKind::TimedOut => return Err(e),
                    _ => {}
                }
            } else if vain_ns > timeout_ns {
                return Err(Error::timed_out(format!(
                    "{bytes} bytes of images stay on {}, more than its budget has room for",
                    ep.node()
                )));
            }
            if !node.budget.check(node) {
                break;
            }
            ep.sleep(PAUSE_NS).await;
        }
        Ok(())
    }
}
