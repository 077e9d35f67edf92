//! Operations on single keys, and batches of them.
//!
//! - A *get* begins in `get.rs`: on memory of this process it executes at once (`direct.rs`), and
//!   otherwise, or where it has to wait, in three steps from mirror to table to leaf.
//! - A *put*, like every write, begins in `put.rs`: at once, or by lock, READ of the candidates,
//!   and WRITE of the entry. `room.rs` repeats it in a full pool.
//! - What a step decides stands in `steps.rs`, for both ways.
//! - `get_many.rs` and `write_many.rs` share round trips between keys.

mod direct;
mod get;
mod get_many;
mod put;
mod room;
mod steps;
mod write_many;

pub use direct::Begun;
pub(crate) use direct::{Direct, DirectGet, DirectWrite, LockedWrite, MAX_ENTRY, end};
pub(crate) use get::{Answer, Reads, Start};
pub(crate) use get_many::get_many;
pub(crate) use put::{Writes, Written};
pub(crate) use room::{write_rest_with_room, write_with_room};
pub(crate) use steps::{Next, PointWrite, Present, candidates, verdict};
pub(crate) use write_many::write_many;
