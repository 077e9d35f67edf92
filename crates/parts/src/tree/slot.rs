//! A slot of a leaf: word0, key area, value area, and for wide values a tail.
//!
//! word0: bits 0-1 state, 2-3 key mode, 4-5 value mode, 6 logged, 8-31 version, 32-63 CRC-32C over
//! the leaf's address, the slot's number, bits 0-31 but for 6 and, unless the slot is free, the
//! areas. Wide entries add 64 bits of XXH3 in the tail: a mix of two versions of one wide value
//! must not pass, while with 8 bytes of value every mix of one key's versions is one of them.

use std::ops::Range;

use crate::hash::check64;
use dmtree_fabric::cpu::{
    Numbering, Records, Seal, crc32c, crc32c_behind, crc32c_matches, crc32c_seal,
};
use dmtree_fabric::{GlobalAddr, golden_hash};

use super::area::{Mode, Stored, get_key};
use super::{Geometry, Ver, put_u64, u64_at};

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Free.
    Free,
    /// A pair.
    Live,
    /// An entry staged by a change that is not committed; no reader may see it.
    Staged,
    /// No entry: what hopscotch leaves say of themselves between their slots.
    Replica,
}

/// Which slot of which leaf: part of what the checksums cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The leaf.
    pub leaf: GlobalAddr,
    /// The slot.
    pub slot: usize,
}

/// A slot that passed its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot<'a> {
    /// Its state.
    pub state: SlotState,
    /// Version of the leaf when it was written.
    pub ver: Ver,
    /// How to read the key area.
    pub key_mode: Mode,
    /// How to read the value area.
    pub value_mode: Mode,
    /// Key area.
    pub key: &'a [u8],
    /// Value area.
    pub value: &'a [u8],
}

#[inline]
fn crc(place: Place, low: u32, areas: &[u8]) -> u32 {
    crc32c(heads(place, low), areas)
}

/// What a checksum covers beside the areas. The low half of word0 comes without [`LOGGED`].
#[inline]
fn heads(place: Place, low: u32) -> [u64; 2] {
    let number = u64::from(place.slot as u32 + 1);
    [place.leaf.bits(), number | u64::from(low) << 32]
}

/// The state: 0 free, 1 live, 2 staged, 3 replica.
const STATE: u32 = 3;

/// How key and value area are to be read.
const MODES: u32 = 0x3c;

/// In a copy of a leaf: a record of a log may say what the slot is. Not in the checksum: the copy
/// has that of its leaf.
const LOGGED: u32 = 1 << 6;

/// SlotState and range: the parts of word0 that a restamp of a slot changes.
const RESTAMPED: u32 = 0xff03;

fn tail_seed(place: Place, low: u32) -> u64 {
    let low = low & !(RESTAMPED | LOGGED);
    place.leaf.bits() ^ golden_hash(place.slot as u64) ^ u64::from(low) << 20
}

/// word0 of a free slot.
pub fn free_word(place: Place, ver: Ver) -> u64 {
    let low = ver.bits() << 8;
    u64::from(crc(place, low, &[])) << 32 | u64::from(low)
}

/// Checks the slot in `bytes`; `None` when it is torn (or garbage).
#[inline]
pub fn check<'a>(g: &Geometry, place: Place, bytes: &'a [u8]) -> Option<Slot<'a>> {
    check_word(g, place, bytes)?;
    unchecked(g, bytes)
}

/// [`check`], without a look at what the slot holds: the low half of its word0.
#[inline]
pub fn check_word(g: &Geometry, place: Place, bytes: &[u8]) -> Option<u32> {
    let word = u64_at(bytes, 0);
    let low = word as u32 & !LOGGED;
    let areas = &bytes[8..8 + g.k + g.v];
    let is_free = low & STATE == 0;
    if crc(place, low, if is_free { &[] } else { areas }) != (word >> 32) as u32 {
        return None;
    }
    let is_wide = g.v > 8 && !is_free;
    (!is_wide || has_whole_tail(g, place, bytes)).then_some(low)
}

/// Whether the areas of a wide entry are those of one WRITE.
fn has_whole_tail(g: &Geometry, place: Place, bytes: &[u8]) -> bool {
    let (areas, low) = (&bytes[8..8 + g.k + g.v], u64_at(bytes, 0) as u32);
    u64_at(bytes, 8 + g.k + g.v) == check64(areas, tail_seed(place, low))
}

/// Version and value of a slot that is whole and holds this key, where key and value fill their
/// areas: most slots of most indexes. `None` says nothing.
#[inline]
pub fn full_of<'a>(
    g: &Geometry,
    place: Place,
    bytes: &'a [u8],
    key: &[u8],
) -> Option<(Ver, &'a [u8])> {
    let (word, areas) = bytes.split_first_chunk()?;
    let (word, areas) = (u64::from_le_bytes(*word), areas.get(..g.k + g.v)?);
    let low = word as u32 & !LOGGED;
    if low & 0xff != FULL || g.v > 8 || key.len() != g.k {
        return None;
    }
    let sum = crc32c_behind(heads(place, low), areas, key)?;
    (sum == (word >> 32) as u32).then(|| (Ver::from_bits(low >> 8), &areas[g.k..]))
}

/// Slots that are checked together.
const TOGETHER: usize = 32;

/// Slots that passed [`check_word`].
#[derive(Clone, Debug)]
pub enum Whole<'a> {
    /// Live slots with keys and values that fill their areas.
    Full(Range<usize>),
    /// Any slot: its number, the low half of its word0, its bytes.
    Any(usize, u32, &'a [u8]),
}

/// [`check_word`] of the first slots of a leaf, which carry this version, if one is given; `f` gets
/// them in their order. False when a slot is torn.
#[inline]
pub fn check_all<'a>(
    g: &Geometry,
    leaf: GlobalAddr,
    slots: &'a [u8],
    ver: Option<u32>,
    mut f: impl FnMut(Whole<'a>),
) -> bool {
    let (covered, len) = (g.k + g.v, g.entry());
    // Most slots are full, and of one version.
    let usual = ver.filter(|_| g.v <= 8).map(|ver| ver << 8 | FULL);
    for (round, bytes) in slots.chunks(TOGETHER * len).enumerate() {
        let from = round * TOGETHER;
        let records = Records { bytes, len, covered, from };
        let full = usual.map_or(0, |usual| crc32c_matches(leaf.bits(), (usual, LOGGED), records));
        let (mut i, count) = (0, bytes.len() / len);
        while i < count {
            let run = (full >> i).trailing_ones() as usize;
            if run > 0 {
                f(Whole::Full(from + i..from + i + run));
                i += run;
                continue;
            }
            let bytes = &bytes[i * len..][..len];
            match check_word(g, Place { leaf, slot: from + i }, bytes) {
                Some(low) if ver.is_none_or(|ver| ver == low >> 8) => {
                    f(Whole::Any(from + i, low, bytes));
                }
                _ => return false,
            }
            i += 1;
        }
    }
    true
}

/// word0 of a live slot with key and value that fill their areas, but for version and checksum.
const FULL: u32 = 1;

/// The slot in `bytes` as it stands, torn or not: for bytes that were accepted before.
#[inline]
pub fn unchecked<'a>(g: &Geometry, bytes: &'a [u8]) -> Option<Slot<'a>> {
    let low = u64_at(bytes, 0) as u32;
    let state = match low & STATE {
        0 => SlotState::Free,
        1 => SlotState::Live,
        2 => SlotState::Staged,
        _ => SlotState::Replica,
    };
    let areas = &bytes[8..8 + g.k + g.v];
    Some(Slot {
        state,
        ver: Ver::from_bits(low >> 8),
        key_mode: Mode::from_bits(u64::from(low >> 2)),
        value_mode: Mode::from_bits(u64::from(low >> 4)),
        key: &areas[..g.k],
        value: &areas[g.k..],
    })
}

/// The key of a slot as it stands: for bytes that were accepted before.
#[inline]
pub fn key_of<'a>(g: &Geometry, bytes: &'a [u8]) -> Option<Stored<'a>> {
    get_key(&bytes[8..8 + g.k], Mode::from_bits(u64_at(bytes, 0) >> 2))
}

/// Stamps the areas already in `bytes` with a state, a version and a checksum.
#[inline]
pub fn encode(
    g: &Geometry,
    place: Place,
    bytes: &mut [u8],
    state: SlotState,
    ver: Ver,
    modes: (Mode, Mode),
) {
    let bits = match state {
        SlotState::Free => 0,
        SlotState::Live => 1,
        SlotState::Staged => 2,
        SlotState::Replica => 3,
    };
    seal(g, place, bytes, bits | (modes.0 as u32) << 2 | (modes.1 as u32) << 4 | ver.bits() << 8);
}

/// Stamps a live entry anew, as it lives on in another place or version.
fn restamp(g: &Geometry, place: Place, bytes: &mut [u8], ver: Ver) {
    let modes = u64_at(bytes, 0) as u32 & MODES;
    seal(g, place, bytes, FULL | modes | ver.bits() << 8);
}

/// Stamps all slots of a leaf anew: live entries live on in another version, or another leaf; the
/// others are free. Replicas stay.
pub fn restamp_all(g: &Geometry, leaf: GlobalAddr, slots: &mut [u8], ver: Ver) {
    let (len, covered, low) = (g.entry(), g.k + g.v, ver.bits() << 8);
    if g.v <= 8 {
        let numbering = Numbering { first: leaf.bits(), second: 1, step: 1, state: STATE };
        let (kept, live, fixed) = (MODES | STATE, FULL, STATE);
        return crc32c_seal(Seal { numbering, len, covered, low, kept, live, fixed }, slots);
    }
    for (slot, bytes) in slots.chunks_exact_mut(len).enumerate() {
        let place = Place { leaf, slot };
        match u64_at(bytes, 0) as u32 & STATE {
            FULL => restamp(g, place, bytes, ver),
            STATE => {}
            _ => put_u64(bytes, 0, free_word(place, ver)),
        }
    }
}

/// Whether a record of a log may say what a slot of a copy is.
#[inline]
pub fn is_logged(bytes: &[u8]) -> bool {
    u64_at(bytes, 0) as u32 & LOGGED != 0
}

/// Says whether a record of a log may say what a slot of a copy is.
#[inline]
pub fn set_logged(bytes: &mut [u8], is_logged: bool) {
    let word = u64_at(bytes, 0) & !u64::from(LOGGED);
    put_u64(bytes, 0, word | u64::from(if is_logged { LOGGED } else { 0 }));
}

/// Whether a slot that was accepted is live.
#[inline]
pub fn is_live(bytes: &[u8]) -> bool {
    u64_at(bytes, 0) as u32 & STATE == FULL
}

/// Writes word0 over areas that are there already, and the tail of a wide entry.
#[inline(always)]
fn seal(g: &Geometry, place: Place, bytes: &mut [u8], low: u32) {
    let areas = &bytes[8..8 + g.k + g.v];
    let covered = if low & STATE == 0 { &[][..] } else { areas };
    let sum = crc(place, low, covered);
    if g.v > 8 {
        let tail = check64(areas, tail_seed(place, low));
        put_u64(bytes, 8 + g.k + g.v, tail);
    }
    put_u64(bytes, 0, u64::from(sum) << 32 | u64::from(low));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(slot: usize) -> Place {
        Place { leaf: GlobalAddr::from_bits(0x1000), slot }
    }

    #[test]
    fn stamped_slots_pass_and_belong_to_their_place() {
        let g = Geometry { k: 24, v: 8, fanout: 32 };
        let ver = Ver { generation: 3, range: 9 };
        let mut bytes = vec![7; g.entry()];
        encode(&g, place(5), &mut bytes, SlotState::Live, ver, (Mode::Full, Mode::Full));
        let s = check(&g, place(5), &bytes).expect("stamped");
        assert_eq!((s.state, s.ver, s.key.len(), s.value), (SlotState::Live, ver, 24, &[7; 8][..]));
        assert!(check(&g, place(6), &bytes).is_none(), "another slot's bytes do not pass here");
        put_u64(&mut bytes, 0, free_word(place(5), ver));
        assert_eq!(check(&g, place(5), &bytes).expect("free").state, SlotState::Free);
        assert!(check(&g, place(5), &vec![0; g.entry()]).is_none(), "zeros are no slot");
    }

    #[test]
    fn slots_are_stamped_together_as_one_by_one() {
        let (leaf, other) = (place(0).leaf, GlobalAddr::from_bits(0x9000));
        let ver = Ver { generation: 3, range: 10 };
        let modes = [(Mode::Full, Mode::Full), (Mode::Short, Mode::Block)];
        for v in [8, 64] {
            let g = Geometry { k: 24, v, fanout: 32 };
            let mut all = vec![0; 40 * g.entry()];
            let states = [SlotState::Live, SlotState::Free, SlotState::Replica, SlotState::Staged];
            for (slot, bytes) in all.chunks_exact_mut(g.entry()).enumerate() {
                bytes.fill(slot as u8);
                let old = Ver { generation: 2, range: 9 };
                let at = Place { leaf: other, slot };
                encode(&g, at, bytes, states[slot % 4], old, modes[slot / 4 % 2]);
            }
            let mut wanted = all.clone();
            for (slot, bytes) in wanted.chunks_exact_mut(g.entry()).enumerate() {
                match slot % 4 {
                    0 => restamp(&g, Place { leaf, slot }, bytes, ver),
                    2 => {}
                    _ => put_u64(bytes, 0, free_word(Place { leaf, slot }, ver)),
                }
            }
            restamp_all(&g, leaf, &mut all, ver);
            assert_eq!(all, wanted);
        }
    }

    /// The slot of a copy of a leaf says that it is logged, and passes as the leaf's.
    #[test]
    fn a_logged_slot_passes() {
        let (ver, modes) = (Ver { generation: 3, range: 9 }, (Mode::Full, Mode::Full));
        for v in [8, 64] {
            let g = Geometry { k: 24, v, fanout: 32 };
            let mut leaf = vec![7; g.entry()];
            encode(&g, place(0), &mut leaf, SlotState::Live, ver, modes);
            let mut copy = leaf.clone();
            set_logged(&mut copy, true);
            assert!(is_logged(&copy) && !is_logged(&leaf) && copy != leaf);
            assert_eq!(check_word(&g, place(0), &copy), check_word(&g, place(0), &leaf));
            let full = full_of(&g, place(0), &copy, &[7; 24]);
            assert_eq!(full, full_of(&g, place(0), &leaf, &[7; 24]));
            let mut all = 0;
            let whole = check_all(&g, place(0).leaf, &copy, Some(ver.bits()), |_| all += 1);
            assert!(whole && all == 1);
            set_logged(&mut copy, false);
            assert_eq!(copy, leaf);
        }
    }

    /// 32 bits alone accept one torn wide value in 4 billion: the tail counts too.
    #[test]
    fn wide_values_need_their_tail() {
        let g = Geometry { k: 24, v: 64, fanout: 32 };
        let ver = Ver { generation: 1, range: 0 };
        let mut bytes = vec![3; g.entry()];
        encode(&g, place(1), &mut bytes, SlotState::Live, ver, (Mode::Full, Mode::Full));
        assert!(check(&g, place(1), &bytes).is_some());
        bytes[g.entry() - 1] ^= 1;
        assert!(check(&g, place(1), &bytes).is_none());
    }

    /// An image WRITE of a crashed node that lands half leaves each kept slot under its old stamp
    /// or its new one: only word0 may differ.
    #[test]
    fn a_restamp_changes_one_word() {
        let g = Geometry { k: 24, v: 64, fanout: 32 };
        let modes = (Mode::Full, Mode::Full);
        let mut a = vec![3; g.entry()];
        encode(&g, place(1), &mut a, SlotState::Staged, Ver { generation: 4, range: 7 }, modes);
        let mut b = a.clone();
        encode(&g, place(1), &mut b, SlotState::Live, Ver { generation: 4, range: 8 }, modes);
        assert!(a[..8] != b[..8] && a[8..] == b[8..]);
        assert!(check(&g, place(1), &a).is_some() && check(&g, place(1), &b).is_some());
    }

    proptest! {
        /// Slots of all states, with full and short keys, one of which may be torn or of another
        /// version.
        #[test]
        fn slots_are_checked_together_as_one_by_one(kinds in proptest::collection::vec(0u8..5, 1..70), torn in 0usize..90, wide: bool, any_ver: bool) {
            let g = Geometry { k: 24, v: if wide { 64 } else { 8 }, fanout: 32 };
            let (leaf, ver) = (place(0).leaf, Ver { generation: 3, range: 9 });
            let mut bytes = vec![0; kinds.len() * g.entry()];
            for (slot, (kind, bytes)) in kinds.iter().zip(bytes.chunks_exact_mut(g.entry())).enumerate() {
                bytes.fill(slot as u8);
                let (state, mode) = match kind {
                    0 => (SlotState::Free, Mode::Full),
                    1 => (SlotState::Staged, Mode::Full),
                    2 => (SlotState::Live, Mode::Short),
                    _ => (SlotState::Live, Mode::Full),
                };
                let ver = if *kind == 4 && slot == torn { ver.bumped() } else { ver };
                encode(&g, Place { leaf, slot }, bytes, state, ver, (mode, Mode::Full));
                bytes[0] ^= u8::from(*kind == 3 && slot == torn);
            }
            let only = (!any_ver).then(|| ver.bits());
            let mut wanted = Some(Vec::new());
            for (slot, bytes) in bytes.chunks_exact(g.entry()).enumerate() {
                let checked = check_word(&g, Place { leaf, slot }, bytes);
                let low = checked.filter(|low| only.is_none_or(|ver| ver == low >> 8));
                wanted = wanted.zip(low).map(|(mut all, low)| {
                    all.push((slot, low));
                    all
                });
            }
            let mut found = Vec::new();
            let is_whole = check_all(&g, leaf, &bytes, only, |some| match some {
                Whole::Full(slots) => found.extend(slots.map(|slot| (slot, ver.bits() << 8 | FULL))),
                Whole::Any(slot, low, _) => found.push((slot, low)),
            });
            prop_assert_eq!(is_whole.then_some(found), wanted);
        }

        /// Digest 8.1 #3, a torn entry: any mix of the words of two different pairs in one slot is
        /// refused.
        #[test]
        fn a_mix_of_two_keys_is_refused(a: [u8; 32], b: [u8; 32], mask in 1u8..31) {
            let g = Geometry { k: 24, v: 8, fanout: 32 };
            let ver = Ver { generation: 1, range: 0 };
            let make = |areas: &[u8; 32]| {
                let mut bytes = vec![0; 40];
                bytes[8..].copy_from_slice(areas);
                encode(&g, place(0), &mut bytes, SlotState::Live, ver, (Mode::Full, Mode::Full));
                bytes
            };
            let (a, b) = (make(&a), make(&b));
            let mix: Vec<u8> = (0..40).map(|i| if mask >> (i / 8) & 1 == 1 { a[i] } else { b[i] }).collect();
            prop_assume!(mix != a && mix != b);
            prop_assert!(check(&g, place(0), &mix).is_none());
        }
    }
}
