//! Point operations.

mod direct;
mod get;
mod get_many;
mod put;
mod room;
mod steps;
mod write_many;

pub use direct::Begun;
pub(crate) use direct::{DirectGet, DirectWrite, LockedWrite, MAX_ENTRY, end};
pub(crate) use get::{Answer, Reads, Start};
pub(crate) use get_many::ReadMany;
pub(crate) use put::{Writes, Written};
pub(crate) use room::Room;
pub(crate) use steps::{Next, PointWrite, Present, candidates, verdict};
pub(crate) use write_many::WriteMany;
