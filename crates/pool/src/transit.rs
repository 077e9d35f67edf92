//! Memory on its way from one holder to another.

use std::sync::Arc;

use dmtree_fabric::Endpoint;

use crate::epoch::EpochHandle;
use crate::gc_log::GcLog;

/// Pieces on their way to a memory node: they count as listed until nothing of the call executes
/// any more, also when the future is dropped.
pub(crate) struct InTransit<'a>(pub(crate) &'a Endpoint, pub(crate) &'a Arc<GcLog>, pub(crate) u64);

impl Drop for InTransit<'_> {
    fn drop(&mut self) {
        let (gc_log, at) = (self.1.clone(), self.2);
        match self.0.is_quiet() {
            true => gc_log.unpend_place(at),
            false => self.0.when_quiet(move || gc_log.unpend_place(at)),
        }
    }
}

/// The operation to which memory belongs on its way from one holder to another. See
/// [`PoolNode::begin_transfer`].
pub(crate) struct Transfer(pub(crate) EpochHandle);

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.leave();
    }
}
