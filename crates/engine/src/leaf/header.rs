//! The headers of nodes with all their fields, also as a crash may have left them.
//!
//! A WRITE that was cut half way leaves words, each of them old or new. Two kinds of fields can be
//! told whatever the checksum says:
//!
//! - fields that are constant in a generation: the id (table, slots, level) and the lower fence;
//! - fields that are one word: h0's version and modes, `next`, the forwarding pointer.
//!
//! The upper fence is neither. It counts only when the checksum holds (`whole`); otherwise recovery
//! takes the right sibling's lower fence, which R makes equal to it.
//!
//! A header may also be that of a freed or reused address. `Validation::Unvalidated` marks READs of
//! blocks that such a header names: the bytes may be another object's, and an error of the checks
//! means only that.
//!
//! Recovery, sweeps, the mark phase and stall diagnosis READ these headers; operations READ checked
//! ones. Changes build the images that they WRITE from them.

use dmtree_fabric::{Buf, GlobalAddr, Result, Step};
use dmtree_pool::TableId;

use crate::format::{
    Child, FenceArea, Geometry, HeaderParts, Place, Slot, SlotState, Ver, check_header, put_free,
    put_header, put_slot, put_u64, restamp_slots, u64_at,
};
use crate::hop::{Places, put_replica};
use crate::leaf::{LeafCopy, NewLeaf};
use crate::{Client, DmNode, Route};

/// A header, perhaps torn.
#[derive(Clone, Debug)]
pub(crate) struct NodeHeader {
    /// The checksum holds: the upper fence counts, too.
    pub whole: bool,
    pub ver: Ver,
    pub table: TableId,
    pub slots: usize,
    pub level: u8,
    pub lo: FenceArea,
    pub hi: FenceArea,
    pub next: GlobalAddr,
    pub forward: GlobalAddr,
}

impl NodeHeader {
    /// READs a header without asking for its checksum.
    pub async fn read(c: &Client, addr: GlobalAddr) -> Result<Self> {
        let g = c.node.g;
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(addr, g.header() as u32).await?;
        Ok(bytes.extract(|b| Self::of(&g, addr, b)))
    }

    pub fn of(g: &Geometry, addr: GlobalAddr, bytes: &[u8]) -> Self {
        let id = u64_at(bytes, 8);
        Self {
            whole: check_header(g, addr, bytes).is_some(),
            ver: Ver::from_bits(u64_at(bytes, 0) as u32 >> 8),
            table: TableId::from_bits(id & 0xffff_ffff_ffff),
            slots: (id >> 48 & 0xff) as usize,
            level: (id >> 56) as u8,
            lo: FenceArea::lo_of(g, bytes),
            hi: FenceArea::hi_of(g, bytes),
            next: GlobalAddr::from_bits(u64_at(bytes, g.next_at())),
            forward: GlobalAddr::from_bits(u64_at(bytes, g.forward_at())),
        }
    }

    /// Of a new leaf that covers all keys.
    pub fn of_leaf(g: &Geometry, s: &NewLeaf) -> Self {
        Self { table: s.table, slots: s.capacity, ..Self::of_inner(g, s.grant.generation, 0) }
    }

    /// Of a new node of a level that covers all keys.
    pub fn of_inner(g: &Geometry, generation: u16, level: u8) -> Self {
        Self {
            whole: true,
            ver: Ver { generation, range: 0 },
            table: TableId::from_bits(0),
            slots: g.fanout,
            level,
            lo: FenceArea::inline(g, &[]).expect("nothing fits anywhere"),
            hi: FenceArea::infinite(g),
            next: GlobalAddr::NULL,
            forward: GlobalAddr::NULL,
        }
    }

    /// Writes it into an image.
    pub fn put(&self, g: &Geometry, addr: GlobalAddr, image: &mut [u8]) {
        let Self { ver, table, slots, level, ref lo, ref hi, next, forward, .. } = *self;
        let parts = HeaderParts { ver, table, slots, level, lo, hi, next, forward };
        put_header(g, addr, image, &parts);
    }

    /// Whether this is the header of a leaf of some capacity that exists.
    pub fn is_leaf(&self, node: &DmNode) -> bool {
        self.level == 0 && node.is_capacity(self.slots)
    }

    /// Whether this is the header of the leaf that a route names.
    pub fn is_of(&self, route: &Route) -> bool {
        self.table == route.table
            && self.ver.generation == route.generation
            && self.slots == route.capacity
    }

    /// The route to the leaf with this header, but for the tag of its fence.
    pub fn route(&self, leaf: GlobalAddr) -> Route {
        let (generation, table, capacity) = (self.ver.generation, self.table, self.slots);
        Route { leaf, generation, table, capacity, fence: 0 }
    }

    /// The node with this header, as its parent names it.
    pub fn child(&self, addr: GlobalAddr) -> Child {
        Child { addr, generation: self.ver.generation, table: self.table, slots: self.slots }
    }
}

/// The image of a leaf that is to be written.
pub(crate) struct LeafImage {
    g: Geometry,
    places: Places,
    addr: GlobalAddr,
    ver: Ver,
    /// Where the first slot is, and the bytes of each.
    first: usize,
    len: usize,
    pub bytes: Buf,
}

impl LeafImage {
    /// Of a new leaf. With its header comes the tag of its upper fence.
    pub async fn new(c: &Client, s: &NewLeaf, (header, fence): (&NodeHeader, u32)) -> Result<Self> {
        let mut bytes = c.ep.buf(c.node.leaf_bytes(s.capacity) as u32).await?;
        bytes.fill(0);
        Ok(Self::with(c, s.grant.addr, (header, fence), bytes))
    }

    /// Of a leaf as it is, with another header.
    pub async fn of(c: &Client, leaf: &LeafCopy, header: (&NodeHeader, u32)) -> Result<Self> {
        Self::copied(c, leaf.addr, &leaf.bytes, header).await
    }

    /// The same of bytes that may be torn.
    pub async fn copied(
        c: &Client,
        addr: GlobalAddr,
        old: &[u8],
        (header, fence): (&NodeHeader, u32),
    ) -> Result<Self> {
        let mut bytes = c.ep.buf(c.node.g.leaf_image(header.slots) as u32).await?;
        let len = bytes.len();
        bytes.copy_from_slice(&old[..len]);
        Ok(Self::with(c, addr, (header, fence), bytes))
    }

    fn with(
        c: &Client,
        addr: GlobalAddr,
        (header, fence): (&NodeHeader, u32),
        mut bytes: Buf,
    ) -> Self {
        let (g, places) = (c.node.g, c.node.places);
        header.put(&g, addr, &mut bytes);
        for slot in (0..header.slots).filter(|i| places.is_replica(*i)) {
            put_replica(&g, Place { leaf: addr, slot }, &mut bytes, (header.ver, fence));
        }
        let (first, len) = (g.slot_at(0), g.entry());
        Self { g, places, addr, ver: header.ver, first, len, bytes }
    }

    /// Another entry, of any place, lives in slot `i`.
    #[inline]
    pub fn put(&mut self, i: usize, entry: &Slot<'_>) {
        put_slot(&self.g, self.addr, &mut self.bytes, i, entry, SlotState::Live, self.ver);
    }

    /// The live entry in these bytes, of any place, will live in slot `i` once all are stamped.
    #[inline]
    pub fn copy(&mut self, i: usize, entry: &[u8]) {
        self.entry(i).copy_from_slice(entry);
    }

    /// Slot `i` will be free once all are stamped, unless it is a replica.
    #[inline]
    pub fn clear(&mut self, i: usize) {
        if !self.places.is_replica(i) {
            put_u64(&mut self.bytes, self.first + i * self.len, 0);
        }
    }

    /// Stamps all slots: live entries live on in this version of this leaf, and the others are
    /// free, but for replicas.
    pub fn stamp(&mut self, slots: usize) {
        restamp_slots(&self.g, self.addr, &mut self.bytes, slots, self.ver);
    }

    /// Slot `i` is free, unless it is a replica.
    #[inline]
    pub fn free(&mut self, i: usize) {
        if self.places.is_replica(i) {
            return;
        }
        put_free(&self.g, self.addr, &mut self.bytes, i, self.ver);
    }

    /// The bytes of slot `i`.
    #[inline]
    pub fn entry(&mut self, i: usize) -> &mut [u8] {
        &mut self.bytes[self.first + i * self.len..][..self.len]
    }
}
