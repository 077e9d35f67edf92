//! The C interface of dmtree. `include/dmtree.h` is made from this source.
//!
//! *Handles* of pools, indexes and scans are numbers. A number that was closed is refused with
//! `DMTREE_STATUS_CLOSED`: there is no pointer to use after it was freed. Any thread may use any
//! handle.
//!
//! *Results.* Every call returns a status: 0 and positive numbers say what happened, negative ones
//! are errors. [`dmtree_last_error`] has the message of the last error of the calling thread, and
//! [`dmtree_last_effect`] says whether a write that failed may have happened. A null pointer where
//! memory is needed, a length without memory, and a text that is no UTF-8 are
//! `DMTREE_STATUS_INVALID_ARGUMENT`; nothing was done then.
//!
//! *Memory.* What the library allocates, a [`Bytes`], is given back with [`dmtree_bytes_free`].
//! What a scan lends stays until the scan's next call.

mod handles;
mod index;
mod memory;
mod pool;
mod scan;
mod status;
mod writes;

pub use crate::index::*;
pub use crate::memory::*;
pub use crate::pool::*;
pub use crate::scan::*;
pub use crate::status::*;
pub use crate::writes::*;
