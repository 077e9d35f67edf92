//! The generators behind a seed of this crate: schedules and faults of simulators, and the spread
//! of back-off.
//!
//! **Frozen**, and defined here: a recorded seed replays its run draw by draw, and libraries have
//! xorshifts of 64 bits only in other forms (four words of 32 bits, or another recurrence).

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Knuth's multiplicative hash. The upper bits of the product depend on all bits of `x`, the lower
/// ones do not.
#[inline]
pub const fn golden_hash(x: u64) -> u64 {
    x.wrapping_mul(GOLDEN)
}

/// The multiplication that turns the state of an xorshift into a draw (Vigna, "An experimental
/// exploration of Marsaglia's xorshift generators, scrambled", ACM TOMS 42(4), 2016).
#[inline]
pub(crate) const fn scrambled(state: u64) -> u64 {
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// The next state of xorshift64 (Marsaglia, "Xorshift RNGs", JSS 8(14), 2003; shifts 13, 7, 17),
/// for states in cells and atomics. 0 stays 0.
#[inline]
pub(crate) const fn xorshift64(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ x << 17
}

/// xorshift64* (shifts 12, 25, 27).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(golden_hash(seed) | 1)
    }

    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        scrambled(self.0)
    }

    /// 0 to `n - 1`, for `n` up to 2^32 evenly and beyond nearly so.
    #[cfg(feature = "sim")]
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    #[cfg(feature = "sim")]
    pub(crate) const fn one_in(&mut self, n: u32) -> bool {
        n > 0 && self.below(n as u64) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of these numbers changes every run that was recorded with a seed.
    #[test]
    fn draws_are_frozen() {
        let mut rng = Rng::new(42);
        let first = [0; 4].map(|_| rng.next_u64());
        assert_eq!(
            first,
            [
                8_952_379_422_571_887_915,
                13_575_666_566_127_367_164,
                13_965_042_861_690_359_151,
                3_611_477_123_556_396_415,
            ]
        );
        assert_eq!(
            [1000, 1 << 32, u64::MAX].map(|n| rng.below(n)),
            [924, 61_053_689, 14_347_014_379_366_455_777]
        );
        let mut state = 42;
        let states = [0; 4].map(|_| {
            state = xorshift64(state);
            state
        });
        assert_eq!(
            states,
            [
                45_454_805_674,
                11_532_217_803_599_905_471,
                10_021_416_941_527_320_954,
                2_899_061_411_254_629_736,
            ]
        );
        assert_eq!(scrambled(states[3]), 3_436_753_063_373_280_456);
    }
}
