//! The tree of a range of keys: a map of leaves in the process, leaves in the region.
//!
//! Latches. Operations hold the map shared, and the latch of one leaf while they load and change
//! it. Splits, appends and the cut hold the map alone, so no other core has a latch then. A handler
//! waits for nothing else while it holds one.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, Error, GlobalAddr, NodeId, OwnMemory, Result, Stage, golden_hash};
use dmtree_parts::Shape;
use dmtree_parts::tree::Geometry;

use super::leaf::Image;
use super::room::Room;
use crate::wire::Stretch;
use crate::{Mutant, Mutants};

/// Latches of leaves; leaves with one hash share one.
const LATCHES: usize = 1024;
/// Leaves that a route names.
const ROUTE: usize = 64;
/// Leaves below a node of a tree in memory: what the depth of a search is charged by.
const FANOUT: usize = 64;

/// Why a step has ended without a result.
pub(crate) enum Stop {
    Error(Error),
    /// It needs so much memory, and has changed nothing.
    Room(u64),
    /// The client has to learn how keys are cut.
    Borders(Vec<Vec<u8>>),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

impl Stop {
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Error(e) => e,
            Self::Room(bytes) => Error::full(format!("no room for {bytes} bytes")),
            Self::Borders(_) => Error::corrupt("the client does not know how keys are cut"),
        }
    }
}

/// A core's visit of the memory of its node.
pub(crate) struct Visit<'a> {
    pub memory: OwnMemory<'a>,
    ep: &'a Endpoint,
}

impl<'a> Visit<'a> {
    /// # Errors
    /// `Unsupported` where no processor reaches the memory of a memory node.
    pub(crate) fn begin(ep: &'a Endpoint) -> Result<Self> {
        let memory = ep.own_memory().ok_or_else(|| {
            Error::unsupported(format!("no processor of {} reaches its memory", ep.node()))
        })?;
        Ok(Self { memory, ep })
    }

    /// Charges a search among so many leaves, and the visit of one.
    pub(crate) fn searched(&self, leaves: usize) {
        let levels = leaves.max(1).ilog(FANOUT) + u32::from(leaves > 1);
        self.ep.stage_cost(Stage::ServerNode, levels + 1);
    }

    /// Charges looks at entries, or changes of them.
    pub(crate) fn entries(&self, n: usize) {
        self.ep.stage_cost(Stage::ServerEntry, n as u32);
    }

    /// Charges a copy.
    pub(crate) fn copied(&self, bytes: usize) {
        self.ep.stage_cost(Stage::ServerCopy, bytes.div_ceil(1024) as u32);
    }
}

/// A leaf as the map has it: offset, and fences.
pub(crate) struct Place<'m> {
    pub at: u64,
    pub low: &'m [u8],
    pub high: Option<&'m [u8]>,
}

/// The leaves.
#[derive(Default)]
pub(crate) struct Map {
    /// Offsets by lower fences. The first is the empty key, unless there is no leaf yet.
    pub leaves: BTreeMap<Vec<u8>, u64>,
    /// How keys are cut into ranges; only the index's first node has it.
    borders: Option<Vec<Vec<u8>>>,
}

impl Map {
    /// The leaf of a key.
    pub(crate) fn leaf_of(&self, key: &[u8]) -> Result<Place<'_>> {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let at = self.leaves.range::<[u8], _>(up_to).next_back();
        let (low, at) = at.ok_or_else(|| Error::corrupt("a tree without a first leaf"))?;
        let above = (Bound::Excluded(key), Bound::Unbounded);
        let high = self.leaves.range::<[u8], _>(above).next().map(|(low, _)| &low[..]);
        Ok(Place { at: *at, low, high: high.or(self.end()) })
    }

    /// Where the last leaf ends, as far as this node knows. Only the home has clients that do not
    /// know the borders, so only its last leaf must say where it ends.
    pub(crate) fn end(&self) -> Option<&[u8]> {
        self.borders.as_ref()?.first().map(Vec::as_slice)
    }
}

/// The tree.
pub(crate) struct Tree {
    node: NodeId,
    index: u32,
    pub(crate) g: Geometry,
    map: RwLock<Map>,
    latches: Vec<Mutex<()>>,
    pub(crate) room: Room,
    mutants: Mutants,
}

impl Tree {
    pub(crate) fn new(node: NodeId, index: u32, g: Geometry) -> Self {
        Self {
            node,
            index,
            g,
            map: RwLock::default(),
            latches: (0..LATCHES).map(|_| Mutex::default()).collect(),
            room: Room::new(node),
            mutants: Mutants::default(),
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.g
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn has(&self, m: Mutant) -> bool {
        self.mutants.has(m)
    }

    pub(crate) fn add_room(&self, run: (u64, u64)) {
        self.room.add(run);
    }

    /// The map, shared; for a client that knows how keys are cut, if they are.
    pub(crate) fn shared(&self, knows: bool) -> Result<RwLockReadGuard<'_, Map>, Stop> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        match &map.borders {
            Some(borders) if !knows => Err(Stop::Borders(borders.clone())),
            _ => Ok(map),
        }
    }

    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn latch(&self, leaf: u64) -> Option<MutexGuard<'_, ()>> {
        let latch = golden_hash(leaf) >> 32;
        (!self.has(Mutant::NoLatch)).then(|| locked(&self.latches[latch as usize % LATCHES]))
    }

    pub(crate) fn load(&self, v: &Visit<'_>, offset: u64) -> Result<Image> {
        Image::load(v, self.g, GlobalAddr::new(self.node, offset))
    }

    /// A place for a new leaf.
    pub(crate) fn new_leaf(&self) -> Result<Image, Stop> {
        let bytes = self.g.leaf_image(self.g.fanout).next_multiple_of(64) as u64;
        let at = self.room.take_leaf(bytes).ok_or(Stop::Room(bytes))?;
        Ok(Image::new(self.g, GlobalAddr::new(self.node, at)))
    }

    /// Makes the first leaf, if there is none.
    pub(crate) fn begin(&self, v: &Visit<'_>) -> Result<(), Stop> {
        if !self.shared(true)?.leaves.is_empty() {
            return Ok(());
        }
        let mut map = self.alone();
        if map.leaves.is_empty() {
            let first = self.new_leaf()?;
            first.store(v)?;
            map.leaves.insert(Vec::new(), first.at.offset());
        }
        Ok(())
    }

    /// The value of a key.
    pub(crate) fn get(
        &self,
        v: &Visit<'_>,
        knows: bool,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Stop> {
        let map = self.shared(knows)?;
        let at = map.leaf_of(key)?.at;
        v.searched(map.leaves.len());
        v.entries(1);
        let _latch = self.latch(at);
        let image = self.load(v, at)?;
        match image.find(v, key)? {
            Some(i) => Ok(Some(image.value(v, i)?.into_owned())),
            None => Ok(None),
        }
    }

    /// The offset of a key's leaf.
    pub(crate) fn locate(&self, v: &Visit<'_>, knows: bool, key: &[u8]) -> Result<u64, Stop> {
        let map = self.shared(knows)?;
        v.searched(map.leaves.len());
        Ok(map.leaf_of(key)?.at)
    }

    /// The leaves from that of a key on.
    pub(crate) fn route(&self, v: &Visit<'_>, knows: bool, key: &[u8]) -> Result<Stretch, Stop> {
        let map = self.shared(knows)?;
        v.searched(map.leaves.len());
        let low = map.leaf_of(key)?.low;
        let mut after = map.leaves.range(low.to_vec()..);
        let leaves: Vec<_> = after.by_ref().take(ROUTE).map(|(k, at)| (k.clone(), *at)).collect();
        v.entries(leaves.len());
        Ok(Stretch { leaves, end: after.next().map(|(low, _)| low.clone()) })
    }

    /// Cuts the keys of all memory nodes into ranges, if there are none yet; whether there were.
    pub(crate) fn cut(&self, v: &Visit<'_>, borders: &[&[u8]]) -> Result<bool, Stop> {
        let mut map = self.alone();
        if let Some(borders) = &map.borders {
            return Err(Stop::Borders(borders.clone()));
        }
        let first = map.leaf_of(&[])?.at;
        let mut leaf = self.load(v, first)?;
        let is_empty = map.leaves.len() == 1 && leaf.live().next().is_none();
        if (is_empty || self.has(Mutant::CutWithKeys)) && !borders.is_empty() {
            map.borders = Some(borders.iter().map(|key| key.to_vec()).collect());
            if map.leaves.len() == 1 {
                // A client that has a route to the leaf from before reads there what has moved.
                let next = leaf.next();
                self.restamp(&mut leaf, (&[], map.end()), next, &[])?;
                leaf.store(v)?;
            }
        }
        Ok(is_empty)
    }

    /// Checks that every leaf is whole and has keys between its fences only.
    pub(crate) fn walk(&self, v: &Visit<'_>, knows: bool) -> Result<Shape, Stop> {
        drop(self.shared(knows)?);
        let map = self.alone();
        let mut shape = Shape { levels: 1, ..Shape::default() };
        let bytes = self.g.leaf_image(self.g.fanout).next_multiple_of(64) as u64;
        for (low, at) in &map.leaves {
            let image = self.load(v, *at)?;
            (0..self.g.fanout).try_for_each(|i| image.check(i))?;
            let high = map.leaf_of(low)?.high;
            let keys = image.sorted(v)?;
            let is_inside = |key: &[u8]| key >= &low[..] && high.is_none_or(|high| key < high);
            if !keys.iter().all(|(key, _)| is_inside(key)) {
                let why = format!("{}: a key lies outside of the leaf's fences", image.at);
                return Err(Error::corrupt(why).into());
            }
            if keys.windows(2).any(|w| w[0].0 == w[1].0) {
                return Err(Error::corrupt(format!("{}: a key is there twice", image.at)).into());
            }
            for (_, i) in &keys {
                let entry = image.entry(*i)?;
                let blocks = [entry.key_block(), entry.value_block()];
                let bytes = blocks.iter().flatten().map(|b| u64::from(b.capacity()));
                shape.block_bytes += bytes.sum::<u64>();
            }
            shape.add_leaf(self.g.fanout, keys.len(), bytes);
        }
        Ok(shape)
    }
}
