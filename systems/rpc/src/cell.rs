//! The choice of [`crate::Reads::Cell`]: whichever way was faster of late.

use std::cell::Cell;

/// Operations that a moving average covers.
const WINDOW: u64 = 50;
/// One read of so many tries the way that is slower.
const TRY_ONE_IN: u64 = 100;

/// Moving averages of the two ways of a client, ns; 0: not tried yet.
#[derive(Debug, Default)]
pub(crate) struct Averages {
    by_read: Cell<u64>,
    by_call: Cell<u64>,
    reads: Cell<u64>,
}

impl Averages {
    /// Whether the next read is a READ.
    pub(crate) fn choose_read(&self) -> bool {
        self.reads.set(self.reads.get() + 1);
        let is_faster = self.by_read.get() <= self.by_call.get();
        is_faster != self.reads.get().is_multiple_of(TRY_ONE_IN)
    }

    /// A read took so long.
    pub(crate) fn took(&self, by_read: bool, ns: u64) {
        let average = if by_read { &self.by_read } else { &self.by_call };
        let old = average.get();
        let new = if old == 0 { ns } else { (old * (WINDOW - 1) + ns) / WINDOW };
        average.set(new.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried() {
        let averages = Averages::default();
        let mut by_read = 0;
        for round in 0..20_000u64 {
            let read = averages.choose_read();
            by_read += u64::from(read && round >= 10_000);
            // READs become slow in the middle.
            let ns = if read && round >= 5_000 { 9_000 } else { 3_000 + u64::from(!read) };
            averages.took(read, ns);
        }
        assert_eq!(by_read, 100, "one of a hundred tries whether READs are faster again");
    }
}
