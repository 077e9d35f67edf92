//! Gates: whether operations of an index may still begin on a compute node.
//!
//! A client looks at its index's gate after it has announced an operation ([`EpochHandle::enter`]),
//! and ends the operation when the gate is closed. A purge (`purge.rs`) closes the gate first and
//! looks at the announcements then, with the barrier of [`Epochs::adopt`] in between. So either the
//! purge sees the announcement, or the operation sees the closed gate.
//!
//! Designs without announcements open an index *ungated* ([`Ungated`]): its gate cannot be closed
//! while a client of it is there.
//!
//! [`EpochHandle::enter`]: crate::EpochHandle::enter
//! [`Epochs::adopt`]: crate::epoch::Epochs::adopt

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::{Error, Result};

use crate::wire::locked;

/// The gate of an index on a compute node.
#[derive(Debug)]
pub struct Gate {
    index: u32,
    is_closed: AtomicBool,
}

impl Gate {
    /// Refuses an operation of an index that was dropped. The operation has been announced.
    ///
    /// # Errors
    /// `Closed`.
    #[inline]
    pub fn check(&self) -> Result<()> {
        // The announcement has a sequentially consistent barrier behind it.
        match self.is_closed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(self.refusal()),
        }
    }

    #[cold]
    fn refusal(&self) -> Error {
        Error::closed(format!("index number {} was removed from its pool", self.index))
    }
}

/// An index on a compute node.
#[derive(Debug)]
struct Opened {
    gate: Arc<Gate>,
    /// How often it is open without a gate.
    ungated: usize,
}

/// The gates of one compute node. The number of an index is never given again, so a gate stays
/// closed.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<BTreeMap<u32, Opened>>);

/// An index is open in a design that does not announce its operations, until this is dropped.
#[derive(Debug)]
pub struct Ungated {
    gates: Arc<Gates>,
    index: u32,
}

impl Drop for Ungated {
    fn drop(&mut self) {
        self.gates.with(self.index, |opened| opened.ungated -= 1);
    }
}

impl Gates {
    fn with<T>(&self, index: u32, f: impl FnOnce(&mut Opened) -> T) -> T {
        let gate = || Arc::new(Gate { index, is_closed: AtomicBool::new(false) });
        let mut gates = locked(&self.0);
        f(gates.entry(index).or_insert_with(|| Opened { gate: gate(), ungated: 0 }))
    }

    /// The gate of an index: every client of a design that announces its operations has it.
    pub(crate) fn of(&self, index: u32) -> Arc<Gate> {
        self.with(index, |opened| opened.gate.clone())
    }

    /// Opens an index without a gate.
    ///
    /// # Errors
    /// `Closed` when it was dropped.
    pub(crate) fn open_ungated(self: &Arc<Self>, index: u32) -> Result<Ungated> {
        self.with(index, |opened| {
            opened.gate.check()?;
            opened.ungated += 1;
            Ok(Ungated { gates: self.clone(), index })
        })
    }

    /// Closes the gate of an index, also of one that was not opened yet.
    ///
    /// # Errors
    /// `Busy` for an index that was opened without a gate.
    pub(crate) fn close(&self, index: u32) -> Result<()> {
        self.with(index, |opened| match opened.ungated {
            0 => {
                opened.gate.is_closed.store(true, Ordering::SeqCst);
                Ok(())
            }
            _ => Err(Error::busy(format!(
                "index number {index} is open in a design that does not announce its operations"
            ))),
        })
    }
}

#[cfg(test)]
mod tests {
    use dmtree_fabric::ErrorKind;

    use super::*;

    #[test]
    fn a_closed_gate_stays_closed_and_an_index_without_one_is_busy() {
        let gates = Arc::new(Gates::default());
        let gate = gates.of(3);
        gate.check().expect("open");
        gates.close(3).expect("gated");
        assert_eq!(gate.check().expect_err("closed").kind(), ErrorKind::Closed);
        gates.close(4).expect("not opened yet");
        assert_eq!(gates.of(4).check().expect_err("born closed").kind(), ErrorKind::Closed);
        assert_eq!(gates.open_ungated(4).expect_err("closed").kind(), ErrorKind::Closed);
        let open = gates.open_ungated(5).expect("new");
        assert_eq!(gates.close(5).expect_err("no gate").kind(), ErrorKind::Busy);
        drop(open);
        gates.close(5).expect("no client of it is left");
    }
}
