//! How a scan READs leaves: the three steps of a scan, for several leaves or for one.
//!
//! On memory of this process the first two steps execute at once (`direct_op.rs` of the fabric), as
//! long as all tables lie at one compute node and all leaves at one memory node. The verbs and
//! their order are those of the posted lists.

use std::sync::Arc;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, Result, Sampled, Stage, Step};
use dmtree_parts::ScanRequest;
use dmtree_parts::cache::CachedNode;

use crate::format::{
    BODY_AT, MAX_BODY, Table, Ver, View, bound, check_header, u64_at, unchecked_header, with_bound,
};
use crate::hop::Places;
use crate::leaf::{Blocks, Images, LeafCopy, Leaves, block_pair, image_at};
use crate::maintenance::Uses;
use crate::point::Direct;
use crate::router::route_of;
use crate::scan::{Collected, Fence, LeafView, ScanLeaf};
use crate::{Client, Mark, Mutant, Route, is_away};

/// Leaves fetched together.
const MAX_GROUP: usize = 16;
/// Blocks fetched together, and their bytes.
const BLOCK_BATCH: usize = 64;
const BLOCK_BATCH_BYTES: u64 = 4 << 20;

/// Why an image is not a leaf of the scan.
pub(crate) enum Refused {
    /// Torn, or more slots are in use than were read: the whole leaf is read again.
    Torn,
    /// Another leaf than the route meant, or a tombstone.
    Stale,
    /// It is that leaf, and blocks are still to be READ.
    Incomplete(ScanLeaf),
}

/// An accepted leaf, or why there is none.
pub(crate) type Seen = Result<ScanLeaf, Refused>;

/// READs leaves for a client's scan.
#[derive(Clone, Copy)]
pub(crate) struct LeafReader<'t>(pub &'t Client);

/// Leaves to be READ together: of one bottom node, or predicted ones.
pub(crate) struct LeafGroup {
    node: Option<Arc<CachedNode>>,
    first: usize,
    leaves: Vec<Wanted>,
    /// What was READ of them. `None` for an image that its owner did not give.
    images: Vec<Option<Sampled>>,
    /// The first leaves may lie left of the key that they were looked for with.
    pub is_predicted: bool,
}

/// The part of a leaf that is READ.
struct Wanted {
    route: Route,
    /// Its first slots.
    slots: usize,
    /// The version in which the table vouches for the others.
    ver: Option<Ver>,
}

impl Wanted {
    fn whole(route: Route) -> Self {
        Self { slots: route.capacity, route, ver: None }
    }

    /// Of an imaged leaf those slots that may be in use, as far as its record knows: the image says
    /// whether it is so.
    fn of(node: &CachedNode, i: usize, route: Route) -> Self {
        let whole = Self::whole(route);
        if !whole.route.is_imaged() {
            return whole;
        }
        let Some(used) = node.reach(i) else { return whole };
        let h0 = with_bound(0, used.min(whole.slots), whole.slots);
        Self { slots: bound(h0, whole.slots), ..whole }
    }
}

impl LeafGroup {
    /// As many leaves from `first` on as are worth fetching together for `want` pairs.
    pub fn of(
        node: Arc<CachedNode>,
        first: usize,
        (want, places): (usize, Places),
        r: &ScanRequest<'_>,
    ) -> Self {
        let mut expected = 0;
        let end = node.len().min(first + MAX_GROUP);
        let mut leaves = Vec::with_capacity(end - first);
        for i in first..end {
            if i > first && (expected >= want || r.is_over(node.keys().get(i))) {
                break;
            }
            let (record, free) = node.record_with_slots(i, 0);
            let capacity = usize::from(record.capacity);
            let live = match free {
                Some(free) => capacity - free.len(),
                None => places.full(capacity) * 2 / 3,
            };
            // Of the first leaf, half lies behind the cursor on average.
            expected += if i == first { live / 2 } else { live };
            leaves.push(Wanted::of(&node, i, route_of(&record)));
        }
        Self { node: Some(node), first, leaves, images: Vec::new(), is_predicted: false }
    }

    /// Those of these routes.
    pub fn with_routes(routes: impl IntoIterator<Item = Route>) -> Self {
        let leaves = routes.into_iter().map(Wanted::whole).collect();
        Self { node: None, first: 0, leaves, images: Vec::new(), is_predicted: false }
    }

    /// Leaf number `i` was READ: how many slots of an image the next scan needs.
    fn learn(&self, i: usize, leaf: LeafView<'_>) {
        let route = &self.leaves[i].route;
        if let Some(node) = self.node.as_ref().filter(|_| route.is_imaged()) {
            node.note_reach(self.first + i, leaf.bound(route.capacity));
        }
    }

    /// A scan uses its leaves.
    pub fn count_uses(&self, uses: Uses<'_>) {
        self.node.iter().for_each(|node| uses.scanned(node, self.first..self.first + self.len()));
    }

    /// How many leaves.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// How many pairs they have at most, as far as tables have said.
    pub fn most_pairs(&self) -> usize {
        self.leaves.iter().map(|wanted| wanted.slots).sum()
    }
}

impl LeafReader<'_> {
    /// READs the leaves of a group: steps 1 and 2.
    pub async fn sample(self, group: &mut LeafGroup) -> Result<()> {
        group.images = match self.sample_direct(group) {
            Some(images) => images,
            None => self.sample_posted(group).await?,
        };
        if self.0.node.has_images() {
            Images(self.0).vouch()?;
        }
        Ok(())
    }

    /// Leaf number `i` of a group, if the READ of the group is enough for it.
    #[inline]
    pub fn sampled(self, group: &mut LeafGroup, i: usize) -> Seen {
        let sampled = group.images.get_mut(i).and_then(Option::take).ok_or(Refused::Torn)?;
        let leaf = self.judge(&group.leaves[i], sampled)?;
        match leaf.is_alone() {
            true => {
                let leaf = self.accept(leaf);
                group.learn(i, leaf.view(&self.0.node.g));
                Ok(leaf)
            }
            false => Err(Refused::Incomplete(leaf)),
        }
    }

    /// The same where that READ is not enough. `None` when the route no longer names the leaf.
    #[inline(never)]
    pub async fn reread(
        self,
        group: &LeafGroup,
        i: usize,
        refused: Refused,
    ) -> Result<Option<ScanLeaf>> {
        let seen = match refused {
            Refused::Incomplete(leaf) => self.complete(leaf).await?,
            refused => Err(refused),
        };
        let leaf = match seen {
            Ok(leaf) => Some(leaf),
            Err(Refused::Stale) => None,
            Err(_) => {
                if !group.images.is_empty() {
                    Mark::ScanTorn.hit();
                    self.0.op.retried.set(true);
                }
                self.read_one(&group.leaves[i].route).await?
            }
        };
        leaf.iter().for_each(|leaf| group.learn(i, leaf.view(&self.0.node.g)));
        Ok(leaf)
    }

    /// Steps 1 and 2, posted.
    async fn sample_posted(self, group: &mut LeafGroup) -> Result<Vec<Option<Sampled>>> {
        let c = self.0;
        if c.node.has_tables() {
            self.ask_tables(group).await?;
        }
        let mut batch = VerbVec::new();
        let mut reads = Vec::with_capacity(group.leaves.len());
        for Wanted { route, slots, .. } in &group.leaves {
            let at = match route.is_imaged() {
                false => Some(route.leaf),
                true => c.cell(route.table).await?.map(|cell| image_at(cell, route.capacity)),
            };
            reads.push(at.map(|at| batch.read(at, c.node.g.leaf_part(*slots) as u32)));
        }
        c.ep.step(Step::Entry);
        let mut images = match batch.is_empty() {
            true => batch,
            false => match c.ep.batch(batch).await {
                Err(e) if is_away(&e) && c.node.has_images() => {
                    Mark::OwnerAway.hit();
                    return Ok(reads.iter().map(|_| None).collect());
                }
                images => images?,
            },
        };
        Ok(reads.into_iter().map(|i| i.map(|i| images.take_sampled(i))).collect())
    }

    async fn ask_tables(self, group: &mut LeafGroup) -> Result<()> {
        let mut batch = VerbVec::new();
        let mut asked = vec![None; group.leaves.len()];
        for (asked, wanted) in asked.iter_mut().zip(&mut group.leaves) {
            let route = wanted.route;
            if route.is_imaged() {
                // Its image proves itself, and says how much of it is needed.
                continue;
            }
            *wanted = Wanted::whole(route);
            // An owner that is dead or cut off is not asked: its leaf is read whole.
            match self.0.node.pool.resolve(&self.0.ep, route.table).await {
                Ok(at) => {
                    *asked = Some(batch.cas(at, 0, 0));
                    let len = Table::body_len(route.capacity) as u32;
                    batch.then().read(at.plus(BODY_AT as u64), len);
                }
                Err(e) if is_away(&e) => Mark::OwnerAway.hit(),
                Err(e) => return Err(e),
            }
        }
        self.0.ep.step(Step::Table);
        let mut tables = match batch.is_empty() {
            true => batch,
            false => match self.0.ep.batch(batch).await {
                Ok(tables) => tables,
                Err(e) if is_away(&e) => {
                    Mark::OwnerAway.hit();
                    asked.fill(None);
                    VerbVec::new()
                }
                Err(e) => return Err(e),
            },
        };
        for (i, at) in asked.into_iter().enumerate() {
            match at {
                Some(at) => {
                    let lock = tables.word(at);
                    tables.take_sampled(at + 1).extract(|body| self.heed(group, i, lock, body));
                }
                None if group.leaves[i].route.is_imaged() => {}
                None => Mark::ScanOddTable.hit(),
            }
        }
        Ok(())
    }

    /// What the table of leaf number `i`, and its lock, say of the part to be READ.
    #[inline]
    fn heed(self, group: &mut LeafGroup, i: usize, lock: u64, body: &[u8]) {
        let wanted = &mut group.leaves[i];
        let route = &wanted.route;
        let mut table = self.0.spare_table();
        let is_whole = lock == 0 && table.load(route.table, route.capacity, body);
        if is_whole && route.matches(&table) {
            let mirrors = self.0.node.o.techniques.mirrors;
            if let Some(node) = group.node.as_ref().filter(|_| mirrors) {
                node.fill_mirror(group.first + i, table.fps());
            }
            (wanted.slots, wanted.ver) = (table.used(), Some(table.ver));
        } else {
            Mark::ScanOddTable.hit();
            let is_unbuilt = lock == 0 && !is_whole;
            if is_unbuilt && Table::view(route.table, route.capacity, body) == View::Unbuilt {
                self.0.node.push_build(*route);
            }
        }
        self.0.keep_table(table);
    }

    /// Steps 1 and 2 on memory of this process; `None` when they have to be posted.
    fn sample_direct(self, group: &mut LeafGroup) -> Option<Vec<Option<Sampled>>> {
        let mut tables = [GlobalAddr::NULL; MAX_GROUP];
        let nodes = |leaf: GlobalAddr, table: GlobalAddr| (leaf.node(), table.node());
        let first = group.leaves.first().filter(|_| self.0.is_direct)?.route.leaf;
        for (i, Wanted { route, .. }) in group.leaves.iter().enumerate() {
            tables[i] = Direct(self.0).own_table(route)?;
            if nodes(route.leaf, tables[i]) != nodes(first, tables[0]) {
                return None;
            }
        }
        let mut op = self.0.begin_direct(OpKind::Scan)?;
        // The lines that the lists reach lie far apart: they are on their way at once. A processor
        // fetches the second half of a leaf by itself, once it reads the first one.
        for (at, Wanted { route, slots, .. }) in tables.iter().zip(&group.leaves) {
            op.prefetch(*at, BODY_AT + Table::body_len(route.capacity));
            op.prefetch(route.leaf, self.0.node.g.leaf_part(*slots) / 2);
        }
        op.list();
        let asked = op.list_at(tables[0].node(), |verbs| {
            let mut body = [0; MAX_BODY];
            for (i, at) in tables.into_iter().enumerate().take(group.leaves.len()) {
                let body = &mut body[..Table::body_len(group.leaves[i].route.capacity)];
                let lock = verbs.cas(at, 0, 0)?;
                verbs.read(at.plus(BODY_AT as u64), body)?;
                self.heed(group, i, lock, body);
            }
            Ok(())
        });
        asked.ok()?;
        op.list();
        let images = op.list_at(first.node(), |verbs| {
            let mut images = Vec::with_capacity(group.leaves.len());
            for Wanted { route, slots, .. } in &group.leaves {
                let len = self.0.node.g.leaf_part(*slots) as u32;
                images.push(Some(verbs.sample(route.leaf, len)?));
            }
            Ok(images)
        });
        let images = images.ok()?;
        op.go_on();
        Some(images)
    }

    /// READs one leaf whole, until its image is accepted; `None` when the route no longer names it.
    pub async fn read_one(self, route: &Route) -> Result<Option<ScanLeaf>> {
        let mut backoff = self.0.ep.backoff("leaf being written", route.leaf);
        loop {
            let copy = Leaves(self.0).current(route).await?;
            if copy.header(self.0).ver.generation != route.generation {
                return Ok(None);
            }
            match self.see_copy(copy).await? {
                Ok(leaf) => return Ok(Some(leaf)),
                Err(Refused::Stale) => return Ok(None),
                Err(_) => {
                    self.0.op.quiescent_point();
                    backoff.step().await?;
                }
            }
        }
    }

    /// The pairs of a leaf that was accepted as a whole.
    pub async fn see_copy(self, copy: LeafCopy) -> Result<Seen> {
        let header = copy.header(self.0);
        if !header.forward.is_null() {
            return Ok(Err(Refused::Stale));
        }
        let mixed = self.0.node.has(Mutant::LeafMixed);
        let slots = (copy.capacity, mixed);
        let mut found = self.0.spare_collected();
        let is_whole = found.fill(&self.0.node.g, (copy.addr, &header), &copy.bytes, slots);
        debug_assert!(is_whole, "accepted before");
        if !is_whole {
            return Ok(Err(Refused::Torn));
        }
        self.complete(ScanLeaf { image: copy.bytes, found }).await
    }

    /// The leaf of an image, its pairs not yet in order.
    fn judge(self, wanted: &Wanted, bytes: Sampled) -> Seen {
        let (g, route, slots) = (&self.0.node.g, &wanted.route, wanted.slots);
        self.0.ep.stage_cost(Stage::NodeImage, slots as u32);
        let mut found = self.0.spare_collected();
        let (_, image) = bytes.check(|b| {
            let h = check_header(g, route.leaf, b).ok_or(Refused::Torn)?;
            if h.ver.generation != route.generation
                || h.slots != route.capacity
                || !h.forward.is_null()
            {
                return Err(Refused::Stale);
            }
            // Of an image its first word vouches for the rest, whenever it was READ: a slot behind
            // it was free then.
            if route.is_imaged() && bound(u64_at(b, 0), route.capacity) > slots {
                Mark::ScanBehindBound.hit();
                return Err(Refused::Torn);
            }
            // A part counts only for the version that the table confirms.
            let any = self.0.node.has(Mutant::ScanOtherVersion);
            if wanted.ver.is_some_and(|v| v != h.ver) && slots < route.capacity && !any {
                return Err(Refused::Torn);
            }
            let mixed = self.0.node.has(Mutant::LeafMixed);
            let is_whole = found.fill(g, (route.leaf, &h), b, (slots, mixed));
            if is_whole { Ok(()) } else { Err(Refused::Torn) }
        })?;
        Ok(ScanLeaf { image, found })
    }

    /// The leaf of an accepted image that refers to blocks.
    async fn complete(self, mut leaf: ScanLeaf) -> Result<Seen> {
        let whole = self.fetch_blocks(&mut leaf.found).await?;
        if !whole {
            return Ok(Err(Refused::Torn));
        }
        let ScanLeaf { image, found } = &mut leaf;
        let header = unchecked_header(&self.0.node.g, image).expect("accepted");
        if found.lo.is_none() {
            found.lo =
                Blocks(self.0).fence(header.lo).await?.map(|lo| Fence::Block(lo.into_owned()));
        }
        if found.hi.is_none() {
            found.hi =
                Blocks(self.0).fence(header.hi).await?.map(|hi| Fence::Block(hi.into_owned()));
        }
        Ok(Ok(self.accept(leaf)))
    }

    /// A leaf that has all its parts.
    #[inline]
    fn accept(self, mut leaf: ScanLeaf) -> ScanLeaf {
        let g = &self.0.node.g;
        leaf.found.sort(g, &leaf.image);
        self.0.ep.stage_cost(Stage::ScanCollect, leaf.view(g).len() as u32);
        leaf
    }

    /// READs blocks, several together; false when one was not whole (its entry has changed
    /// meanwhile).
    async fn fetch_blocks(self, found: &mut Collected) -> Result<bool> {
        let blocks = &found.blocks;
        let mut from = 0;
        while from < blocks.len() {
            let mut batch = VerbVec::new();
            let mut bytes = 0;
            let mut to = from;
            while to < blocks.len()
                && (to == from || bytes < BLOCK_BATCH_BYTES)
                && to - from < BLOCK_BATCH
            {
                let at = blocks[to];
                if at.is_null() {
                    return Ok(false);
                }
                bytes += u64::from(at.capacity());
                batch.read(at.addr(), at.capacity());
                to += 1;
            }
            self.0.ep.step(Step::Entry);
            let mut results = self.0.ep.batch(batch).await?;
            for (i, at) in blocks[from..to].iter().enumerate() {
                let bytes = results.take_sampled(i);
                match bytes.extract(|b| block_pair(*at, b).map(|(k, v)| (k.to_vec(), v.to_vec()))) {
                    Some(pair) => found.long.push(pair),
                    None => return Ok(false),
                }
            }
            from = to;
        }
        Ok(true)
    }
}
