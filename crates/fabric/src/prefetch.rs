//! Prefetch hints: the addresses of a client's state, for a prefetch before the client is resumed.
//! The clients of a simulated cluster do not fit the processor's caches, and each would wait for
//! memory dozens of times in a row.

#[cfg(feature = "sim")]
use crate::cpu::prefetch_at;

const LINE_BYTES: usize = 64;
/// Pieces of memory that lie apart; what is more is left out.
const PIECES: usize = 16;
/// Pieces with no more lines than this between them count as one.
const GAP: usize = 2;
/// Of a larger piece only its beginning.
const MOST_LINES: usize = 40;
/// Bits of a piece that hold its length.
const LENGTH_BITS: u32 = 10;

/// Pieces of memory of one client. An address that has gone stale does no harm.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct PrefetchHints {
    /// Number of the first line, and how many: 0 where there is none.
    pieces: [u64; PIECES],
}

fn piece(from: usize, to: usize) -> u64 {
    (from as u64) << LENGTH_BITS | ((to - from) as u64).min((1 << LENGTH_BITS) - 1)
}

fn lines(piece: u64) -> (usize, usize) {
    let from = (piece >> LENGTH_BITS) as usize;
    (from, from + (piece & ((1 << LENGTH_BITS) - 1)) as usize)
}

impl PrefetchHints {
    /// Adds a piece, to a neighbour where there is one.
    pub(crate) fn add(&mut self, at: usize, bytes: usize) {
        let from = at / LINE_BYTES;
        let to = (at + bytes.max(1)).div_ceil(LINE_BYTES).min(from + MOST_LINES);
        for p in &mut self.pieces {
            let (first, end) = lines(*p);
            if *p == 0 {
                *p = piece(from, to);
                return;
            }
            if from <= end + GAP && first <= to + GAP {
                *p = piece(from.min(first), to.max(end));
                return;
            }
        }
    }

    /// Prefetches all pieces.
    #[cfg(feature = "sim")]
    pub(crate) fn prefetch(&self) {
        for p in self.pieces.iter().take_while(|p| **p != 0) {
            let (from, to) = lines(*p);
            prefetch_at(from * LINE_BYTES, (to - from) * LINE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_piece() {
        let mut n = PrefetchHints::default();
        n.add(0x1000, 64);
        n.add(0x1060, 32);
        n.add(0x8010, 1 << 20);
        n.add(0xfc0, 16);
        assert_eq!(n.pieces.map(lines)[..3], [(0x3f, 0x42), (0x200, 0x200 + MOST_LINES), (0, 0)]);
        (1..100).for_each(|i| n.add(i << 20, 8));
        assert!(n.pieces.iter().all(|p| *p != 0));
    }
}
