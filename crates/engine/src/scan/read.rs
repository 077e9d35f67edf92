//! How a scan READs leaves: the three steps of a scan, for several leaves or for one.
//!
//! On memory of this process the first two steps execute at once (`direct_op.rs` of the fabric), as
//! long as all tables lie at one compute node and all leaves at one memory node. The verbs and
//! their order are those of the posted lists.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, Result, Sampled, Stage, Step, Verified};
use dmtree_parts::ScanRequest;
use dmtree_parts::cache::CachedNode;

use crate::format::{
    BODY_AT, MAX_BODY, Table, Ver, View, bound, check_header, u64_at, unchecked_header, with_bound,
};
use crate::hop::Places;
use crate::leaf::{Blocks, Images, LeafCopy, Leaves, block_pair, image_at};
use crate::point::Direct;
use crate::router::route_of;
use crate::scan::{Collected, Fence, ScanLeaf};
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
}

/// An accepted leaf, or why there is none.
pub(crate) type Seen = Result<ScanLeaf, Refused>;

/// READs leaves for a client's scan.
#[derive(Clone, Copy)]
pub(crate) struct LeafReader<'t>(pub &'t Client);

/// Leaves to be READ together: of one bottom node, or predicted ones.
pub(crate) struct LeafGroup<'n> {
    node: Option<&'n CachedNode>,
    first: usize,
    leaves: Vec<Wanted>,
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
    fn of(node: &CachedNode, i: usize) -> Self {
        let whole = Self::whole(route_of(&node.record(i)));
        if !whole.route.is_imaged() {
            return whole;
        }
        let Some(used) = node.reach(i) else { return whole };
        let h0 = with_bound(0, used.min(whole.slots), whole.slots);
        Self { slots: bound(h0, whole.slots), ..whole }
    }
}

impl<'n> LeafGroup<'n> {
    /// As many leaves from `first` on as are worth fetching together for `want` pairs.
    pub fn of(
        node: &'n CachedNode,
        first: usize,
        (want, places): (usize, Places),
        r: &ScanRequest<'_>,
    ) -> Self {
        let mut expected = 0;
        let mut leaves: Vec<Wanted> = Vec::with_capacity(MAX_GROUP);
        for i in first..node.len().min(first + MAX_GROUP) {
            if i > first && (r.is_over(node.keys().get(i)) || expected >= want) {
                break;
            }
            let full = places.full(usize::from(node.record(i).capacity)) as u32;
            let live = node.mirror_live(i).unwrap_or(full * 2 / 3);
            // Of the first leaf, half lies behind the cursor on average.
            expected += if i == first { live as usize / 2 } else { live as usize };
            leaves.push(Wanted::of(node, i));
        }
        Self { node: Some(node), first, leaves }
    }

    /// Leaf number `i` was READ: how many slots of an image the next scan needs.
    fn learn(&self, i: usize, leaf: &ScanLeaf) {
        let Wanted { route, .. } = self.leaves[i];
        if let Some(node) = self.node.filter(|_| route.is_imaged()) {
            node.note_reach(self.first + i, leaf.bound(route.capacity));
        }
    }

    /// How many leaves.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Those that models predict.
    pub fn predicted(routes: Vec<Route>) -> Self {
        let leaves = routes.into_iter().map(Wanted::whole).collect();
        Self { node: None, first: 0, leaves }
    }
}

impl LeafReader<'_> {
    /// READs the leaves of a group. `None` for one that the route no longer names.
    pub async fn read_group(self, group: &mut LeafGroup<'_>) -> Result<Vec<Option<ScanLeaf>>> {
        let images = match self.sample_direct(group) {
            Some(images) => images,
            None => self.sample_posted(group).await?,
        };
        if self.0.node.has_images() {
            Images(self.0).vouch()?;
        }
        let mut leaves = Vec::with_capacity(images.len());
        for (i, (wanted, bytes)) in group.leaves.iter().zip(images).enumerate() {
            let judged = bytes.ok_or(Refused::Torn).and_then(|bytes| self.judge(wanted, bytes));
            let seen = match judged {
                Ok((found, image)) if found.is_alone => {
                    let leaf = self.accept(image, found);
                    group.learn(i, &leaf);
                    leaves.push(Some(leaf));
                    continue;
                }
                Ok((found, image)) => self.complete(image, found).await?,
                Err(refused) => Err(refused),
            };
            let leaf = match seen {
                Ok(leaf) => Some(leaf),
                Err(Refused::Stale) => None,
                Err(Refused::Torn) => {
                    Mark::ScanTorn.hit();
                    self.0.op.retried.set(true);
                    self.read_one(&wanted.route).await?
                }
            };
            leaf.iter().for_each(|leaf| group.learn(i, leaf));
            leaves.push(leaf);
        }
        Ok(leaves)
    }

    /// Steps 1 and 2, posted. `None` for an image that its owner did not give.
    async fn sample_posted(self, group: &mut LeafGroup<'_>) -> Result<Vec<Option<Sampled>>> {
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

    async fn ask_tables(self, group: &mut LeafGroup<'_>) -> Result<()> {
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
    fn heed(self, group: &mut LeafGroup<'_>, i: usize, lock: u64, body: &[u8]) {
        let wanted = &mut group.leaves[i];
        let route = &wanted.route;
        let mut table = self.0.spare_table();
        let is_whole = lock == 0 && table.load(route.table, route.capacity, body);
        if is_whole && route.matches(&table) {
            if let Some(node) = group.node.filter(|_| self.0.node.o.techniques.mirrors) {
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
    fn sample_direct(self, group: &mut LeafGroup<'_>) -> Option<Vec<Option<Sampled>>> {
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
                Err(Refused::Torn) => {
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
        let found = Collected::of(&self.0.node.g, (copy.addr, &header), &copy.bytes, slots);
        self.complete(copy.bytes, found.expect("accepted")).await
    }

    fn judge(self, wanted: &Wanted, bytes: Sampled) -> Result<(Collected, Verified), Refused> {
        let (g, route, slots) = (&self.0.node.g, &wanted.route, wanted.slots);
        self.0.ep.stage_cost(Stage::NodeImage, slots as u32);
        bytes.check(|b| {
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
            Collected::of(g, (route.leaf, &h), b, (slots, mixed)).ok_or(Refused::Torn)
        })
    }

    /// The leaf of an accepted image that refers to blocks.
    async fn complete(self, image: Verified, mut found: Collected) -> Result<Seen> {
        let whole = self.fetch_blocks(&mut found).await?;
        if !whole {
            return Ok(Err(Refused::Torn));
        }
        let header = unchecked_header(&self.0.node.g, &image).expect("accepted");
        if found.lo.is_none() {
            found.lo =
                Blocks(self.0).fence(header.lo).await?.map(|lo| Fence::Block(lo.into_owned()));
        }
        if found.hi.is_none() {
            found.hi =
                Blocks(self.0).fence(header.hi).await?.map(|hi| Fence::Block(hi.into_owned()));
        }
        Ok(Ok(self.accept(image, found)))
    }

    /// The leaf of an accepted image.
    #[inline]
    fn accept(self, image: Verified, found: Collected) -> ScanLeaf {
        let leaf = ScanLeaf::new(self.0.node.g, image, found);
        self.0.ep.stage_cost(Stage::ScanCollect, leaf.len() as u32);
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
