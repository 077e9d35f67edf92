//! Byte layouts on memory nodes, which are those of `dmtree_parts::tree`, and on compute nodes: see
//! DESIGN.md for the maps.

pub mod table;

pub use dmtree_parts::tree::{Geometry, MAX_RANGE, Ver, area, block, inner, leaf, slot};
pub(crate) use dmtree_parts::tree::{put_u64, u64_at};
