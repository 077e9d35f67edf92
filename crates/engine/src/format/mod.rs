//! Byte layouts on memory nodes, which are those of `dmtree_parts::tree`, and on compute nodes: see
//! DESIGN.md for the maps.

pub mod table;

pub(crate) use area::{Mode, Stored, get_key, may_be, put_key_block};
pub use dmtree_parts::tree::{Geometry, MAX_RANGE, Ver, area, block, inner, leaf, slot};
pub(crate) use dmtree_parts::tree::{put_u64, u64_at};
pub(crate) use inner::{Child, Record, UnvalidatedRecord, put_record, unvalidated_record};
pub(crate) use leaf::{
    FenceArea, Header, HeaderParts, bound, check_header, check_leaf, check_whole, check_words,
    put_free, put_header, put_slot, restamp_slots, set_bound, unchecked_header, with_bound,
};
pub(crate) use slot::{Place, Slot, SlotState, Whole};
pub(crate) use table::{BODY_AT, LockTag, MAX_BODY, MAX_SLOTS, Table, View};
