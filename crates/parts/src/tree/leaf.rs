//! The header that leaves and inner nodes share, and the image of a leaf.
//!
//! | offset (K inline key bytes) | field |
//! |---|---|
//! | 0 | h0: modes 4 bits, tombstone 1, bound 3, version 24, CRC-32C with address, id, lo, hi |
//! | 8 | id: table id 48 (leaves), slots 8, level 8 (0: leaf) |
//! | 16 | lo, inclusive, constant in a generation |
//! | 16 + K | hi, exclusive |
//! | 16 + 2K | next: right sibling; the commit word of splits; outside the CRC |
//! | 24 + 2K | forward: 0 or the successor; commit word of merges, relocations; outside the CRC |

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::crc32c;
use dmtree_pool::TableId;

use super::area::{self, Mode, Stored};
use super::inner::Record;
use super::slot::{self, Place, Slot, SlotState, Whole};
use super::{Geometry, Ver, put_u64, u64_at};

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Version.
    pub ver: Ver,
    /// The leaf's table; none for inner nodes.
    pub table: TableId,
    /// Slots or records.
    pub slots: usize,
    /// 0 for leaves.
    pub level: u8,
    /// Lower fence, inclusive; never infinite.
    pub lo: Stored<'a>,
    /// Upper fence, exclusive.
    pub hi: Stored<'a>,
    /// Right sibling.
    pub next: GlobalAddr,
    /// The forwarding pointer: the successor that took over the range; null while alive.
    pub forward: GlobalAddr,
    /// The whole header was written when `forward` was there already.
    pub tombstone: bool,
}

/// h0: the node is a tombstone. `forward` is not covered by the checksum: of a node that is being
/// reused it may be gone before the rest is.
const TOMBSTONE: u32 = 1 << 4;

/// h0 of an image at the owner of its table: of so many eighths of the slots, the last ones, none
/// is in use. No part of what the checksum covers: a write that has not READ the fences sets it. 0
/// in a leaf.
const FREE_EIGHTHS: u32 = 7 << 5;

/// The first slot of an image behind which none is in use, by its h0.
#[inline]
pub fn bound(h0: u64, slots: usize) -> usize {
    slots - slots / 8 * ((h0 as u32 & FREE_EIGHTHS) >> 5) as usize
}

/// An h0 with a bound: the first `used` slots may be in use. All of them: the h0 of a leaf.
pub fn with_bound(h0: u64, used: usize, slots: usize) -> u64 {
    let eighths = ((slots - used) / (slots / 8).max(1)).min(7);
    let free = if slots < 8 { 0 } else { eighths as u64 };
    h0 & !u64::from(FREE_EIGHTHS) | free << 5
}

/// Sets the bound of an image behind its last slot that is in use.
pub fn set_bound(g: &Geometry, image: &mut [u8], slots: usize) {
    let is_free = |i: &usize| {
        let slot = slot::unchecked(g, &image[g.slot_at(*i)..g.slot_at(*i + 1)]);
        slot.is_some_and(|slot| slot.state == SlotState::Free)
    };
    let free = (0..slots).rev().take_while(is_free).count();
    put_u64(image, 0, with_bound(u64_at(image, 0), slots - free, slots));
}

fn crc(g: &Geometry, addr: GlobalAddr, bytes: &[u8], low: u32) -> u32 {
    let low = low & !FREE_EIGHTHS;
    crc32c([addr.bits(), u64::from(low) | 0xa5a5_a5a5 << 32], &bytes[8..g.next_at()])
}

/// Checks a header; `None` when it is torn, of another place, or garbage.
pub fn check_header<'a>(g: &Geometry, addr: GlobalAddr, bytes: &'a [u8]) -> Option<Header<'a>> {
    let h0 = u64_at(bytes, 0);
    let is_whole = crc(g, addr, bytes, h0 as u32) == (h0 >> 32) as u32;
    if is_whole { unchecked_header(g, bytes) } else { None }
}

/// The header in `bytes` as it stands, torn or not: for bytes that were accepted before.
pub fn unchecked_header<'a>(g: &Geometry, bytes: &'a [u8]) -> Option<Header<'a>> {
    let (h0, id) = (u64_at(bytes, 0), u64_at(bytes, 8));
    let lo = area::get_key(&bytes[g.lo_at()..g.hi_at()], Mode::from_bits(h0))?;
    let hi = area::get_key(&bytes[g.hi_at()..g.next_at()], Mode::from_bits(h0 >> 2))?;
    if lo == Stored::Infinite {
        return None;
    }
    Some(Header {
        ver: Ver::from_bits(h0 as u32 >> 8),
        table: TableId::from_bits(id & 0xffff_ffff_ffff),
        slots: (id >> 48 & 0xff) as usize,
        level: (id >> 56) as u8,
        lo,
        hi,
        next: GlobalAddr::from_bits(u64_at(bytes, g.next_at())),
        forward: GlobalAddr::from_bits(u64_at(bytes, g.forward_at())),
        tombstone: h0 as u32 & TOMBSTONE != 0,
    })
}

/// A fence ready to be stored: its area and how to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceArea {
    /// The area, K bytes.
    pub bytes: Vec<u8>,
    /// How to read it.
    pub mode: Mode,
}

impl FenceArea {
    /// A fence that fits its area; `None` when it needs a block.
    pub fn inline(g: &Geometry, key: &[u8]) -> Option<Self> {
        // Allocators take longer for memory that is to be zeros.
        let mut bytes = Vec::with_capacity(g.k);
        bytes.extend_from_slice(&key[..key.len().min(g.k)]);
        bytes.resize(g.k, 0);
        let mode = area::put_inline(&mut bytes, key)?;
        Some(Self { bytes, mode })
    }

    /// The right end.
    pub fn infinite(g: &Geometry) -> Self {
        Self { bytes: vec![0; g.k], mode: Mode::Infinite }
    }

    /// The key area of an inner node's record.
    pub fn of_record(record: &Record<'_>) -> Self {
        Self { bytes: record.area.to_vec(), mode: record.mode }
    }

    /// The area of `lo` as it stands in an image.
    pub fn lo_of(g: &Geometry, image: &[u8]) -> Self {
        let bytes = image[g.lo_at()..g.hi_at()].to_vec();
        Self { bytes, mode: Mode::from_bits(u64_at(image, 0)) }
    }

    /// The area of `hi` as it stands in an image.
    pub fn hi_of(g: &Geometry, image: &[u8]) -> Self {
        let bytes = image[g.hi_at()..g.next_at()].to_vec();
        Self { bytes, mode: Mode::from_bits(u64_at(image, 0) >> 2) }
    }
}

/// The fields of a header.
#[derive(Clone, Debug)]
pub struct HeaderParts<'a> {
    /// Version.
    pub ver: Ver,
    /// The leaf's table; none for inner nodes.
    pub table: TableId,
    /// Slots or records.
    pub slots: usize,
    /// 0 for leaves.
    pub level: u8,
    /// Lower fence.
    pub lo: &'a FenceArea,
    /// Upper fence.
    pub hi: &'a FenceArea,
    /// Right sibling.
    pub next: GlobalAddr,
    /// The successor, which took over the range.
    pub forward: GlobalAddr,
}

/// Writes a header into an image.
pub fn put_header(g: &Geometry, addr: GlobalAddr, image: &mut [u8], p: &HeaderParts<'_>) {
    put_u64(image, 8, p.table.bits() | (p.slots as u64) << 48 | u64::from(p.level) << 56);
    image[g.lo_at()..g.hi_at()].copy_from_slice(&p.lo.bytes);
    image[g.hi_at()..g.next_at()].copy_from_slice(&p.hi.bytes);
    put_u64(image, g.next_at(), p.next.bits());
    put_u64(image, g.forward_at(), p.forward.bits());
    let tombstone = if p.forward.is_null() { 0 } else { TOMBSTONE };
    let low = p.lo.mode as u32 | (p.hi.mode as u32) << 2 | tombstone | p.ver.bits() << 8;
    let sum = crc(g, addr, image, low);
    put_u64(image, 0, u64::from(sum) << 32 | u64::from(low));
}

/// Checks header and first `n` slots of a leaf, all of one version; calls `f` for each slot. `None`
/// when anything is torn.
pub fn check_leaf<'a>(
    g: &Geometry,
    leaf: GlobalAddr,
    bytes: &'a [u8],
    n: usize,
    f: impl FnMut(usize, Slot<'a>),
) -> Option<Header<'a>> {
    check_slots(g, leaf, bytes, (n, false), f)
}

/// The same; `mixed` lets every slot have a version of its own, which is wrong.
pub fn check_slots<'a>(
    g: &Geometry,
    leaf: GlobalAddr,
    bytes: &'a [u8],
    (n, mixed): (usize, bool),
    mut f: impl FnMut(usize, Slot<'a>),
) -> Option<Header<'a>> {
    let mut known = true;
    let header = check_header(g, leaf, bytes)?;
    let is_whole = check_words(g, (leaf, &header), bytes, (n, mixed), |slots| {
        let slots = match slots {
            Whole::Full(slots) => slots,
            Whole::Any(slot, ..) => slot..slot + 1,
        };
        for i in slots {
            match slot::unchecked(g, &bytes[g.slot_at(i)..]) {
                Some(s) => f(i, s),
                None => known = false,
            }
        }
    });
    (is_whole && known).then_some(header)
}

/// The same without a look at what the slots hold.
pub fn check_whole<'a>(
    g: &Geometry,
    leaf: GlobalAddr,
    bytes: &'a [u8],
    (n, mixed): (usize, bool),
) -> Option<Header<'a>> {
    let header = check_header(g, leaf, bytes)?;
    check_words(g, (leaf, &header), bytes, (n, mixed), |_| ()).then_some(header)
}

/// [`check_whole`] behind a checked header, with what was found. False when anything is torn.
#[inline]
pub fn check_words<'a>(
    g: &Geometry,
    (leaf, header): (GlobalAddr, &Header<'_>),
    bytes: &'a [u8],
    (n, mixed): (usize, bool),
    f: impl FnMut(Whole<'a>),
) -> bool {
    // A tombstone without `forward`: another generation begins there.
    if header.level != 0 || (header.tombstone && header.forward.is_null()) {
        return false;
    }
    let Some(slots) = bytes.get(g.slot_at(0)..g.slot_at(n)) else { return false };
    let ver = (!mixed).then(|| header.ver.bits());
    slot::check_all(g, leaf, slots, ver, f)
}

/// Writes slot `i` of an image from another entry's areas (same geometry, any place).
pub fn put_slot(
    g: &Geometry,
    leaf: GlobalAddr,
    image: &mut [u8],
    i: usize,
    entry: &Slot<'_>,
    state: SlotState,
    ver: Ver,
) {
    let at = g.slot_at(i);
    let bytes = &mut image[at..at + g.entry()];
    bytes[8..8 + g.k].copy_from_slice(entry.key);
    bytes[8 + g.k..8 + g.k + g.v].copy_from_slice(entry.value);
    slot::encode(g, Place { leaf, slot: i }, bytes, state, ver, (entry.key_mode, entry.value_mode));
}

/// Stamps the first `n` slots of an image anew: live entries live on there in this version,
/// wherever they come from, and the others are free.
pub fn restamp_slots(g: &Geometry, leaf: GlobalAddr, image: &mut [u8], n: usize, ver: Ver) {
    slot::restamp_all(g, leaf, &mut image[g.slot_at(0)..g.slot_at(n)], ver);
}

/// Writes slot `i` of an image as free.
pub fn put_free(g: &Geometry, leaf: GlobalAddr, image: &mut [u8], i: usize, ver: Ver) {
    put_u64(image, g.slot_at(i), slot::free_word(Place { leaf, slot: i }, ver));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_back_and_mixed_versions_are_refused() {
        let g = Geometry { k: 24, v: 8, fanout: 32 };
        let leaf = GlobalAddr::from_bits(0x4000);
        let ver = Ver { generation: 1, range: 4 };
        let mut image = vec![0; g.leaf_image(32)];
        let lo = FenceArea::inline(&g, b"").expect("fits");
        let hi = FenceArea::infinite(&g);
        let parts = HeaderParts {
            ver,
            table: TableId::from_bits(5),
            slots: 32,
            level: 0,
            lo: &lo,
            hi: &hi,
            next: GlobalAddr::NULL,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, leaf, &mut image, &parts);
        (0..32).for_each(|i| put_free(&g, leaf, &mut image, i, ver));
        let header = check_leaf(&g, leaf, &image, 32, |_, s| assert_eq!(s.state, SlotState::Free));
        let header = header.expect("whole");
        assert_eq!((header.lo, header.hi), (Stored::Inline(b""), Stored::Infinite));
        assert_eq!((header.ver, header.slots, header.table.bits()), (ver, 32, 5));
        put_free(&g, leaf, &mut image, 9, ver.bumped());
        assert!(check_leaf(&g, leaf, &image, 32, |_, _| ()).is_none(), "digest 8.1 #4");
        assert!(check_leaf(&g, leaf, &image, 9, |_, _| ()).is_some());
        for (free_from, behind) in [(0, 4), (4, 4), (5, 8), (29, 32), (32, 32)] {
            let state = |i| if i < free_from { SlotState::Live } else { SlotState::Free };
            for i in 0..32 {
                let area = vec![0; g.k + g.v];
                let full = Slot {
                    state: SlotState::Live,
                    ver,
                    key_mode: Mode::Full,
                    value_mode: Mode::Full,
                    key: &area[..g.k],
                    value: &area[g.k..],
                };
                put_slot(&g, leaf, &mut image, i, &full, state(i), ver);
            }
            set_bound(&g, &mut image, 32);
            assert_eq!(bound(u64_at(&image, 0), 32), behind, "free from {free_from}");
            assert!(check_leaf(&g, leaf, &image, 32, |_, _| ()).is_some(), "the checksum holds");
        }
        assert_eq!([0, 3, 7].map(|used| bound(with_bound(7 << 5, used, 7), 7)), [7; 3]);
        assert!(check_header(&g, leaf.plus(64), &image).is_none(), "another place's bytes");
    }
}
