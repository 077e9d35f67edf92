//! The random numbers of every workload: one seed, named child seeds, one generator.
//!
//! **Frozen.** A result names its seed, and the seed must replay for as long as the result is
//! quoted: xoshiro256** 1.0 (D. Blackman, S. Vigna, "Scrambled linear pseudorandom number
//! generators", ACM TOMS 47(4), 2021), its state filled by SplitMix64 (Steele, Lea, Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014). A library computes these published
//! sequences, and the tests check its first outputs: a change of any output changes every published
//! workload.
//!
//! Integer draws are the same on every machine. Draws that use `exp` or `ln` (the exact zipf law
//! above its table size, YCSB's formula) use the platform's mathematics library. Its last bit may
//! differ from that of another platform, so two platforms may, very rarely, disagree on a draw.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::{SplitMix64, Xoshiro256StarStar};
use serde::{Deserialize, Serialize};

/// SplitMix64's output function, a bijection of 64 bits with good avalanche. Frozen.
#[inline]
pub fn mix64(x: u64) -> u64 {
    // The state is `x` when the increment has been added.
    SplitMix64::seed_from_u64(x.wrapping_sub(GOLDEN)).next_u64()
}

/// SplitMix64's increment, 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a over bytes, 64 bits. Frozen: it names child seeds and makes the published keys.
pub const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(1_099_511_628_211);
        i += 1;
    }
    hash
}

/// A seed; independent generators and further seeds are derived from it by name.
///
/// ```
/// use dmtree_workload::Seed;
/// let seed = Seed(42);
/// assert_eq!(seed.child("keys"), Seed(42).child("keys"));
/// assert_ne!(seed.child("keys"), seed.child("values"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed of the part called `name`.
    pub fn child(self, name: &str) -> Seed {
        Seed(mix64(self.0.wrapping_add(GOLDEN) ^ mix64(fnv1a(name.as_bytes()))))
    }

    /// The seed of item `number` of the part called `name`, for example of one client of many.
    pub fn numbered(self, name: &str, number: u64) -> Seed {
        let named = self.child(name);
        Seed(mix64(named.0 ^ mix64(number.wrapping_add(GOLDEN))))
    }

    /// A generator that starts at this seed.
    pub fn rng(self) -> Rng {
        Rng::new(self)
    }
}

/// xoshiro256**. 32 bytes, never allocates, not for cryptography.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng(Xoshiro256StarStar);

impl Rng {
    /// A generator; its state is the first four outputs of SplitMix64 from `seed`.
    pub fn new(seed: Seed) -> Self {
        Self(Xoshiro256StarStar::seed_from_u64(seed.0))
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// The upper half of the next 64 bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniform in `0..n`, exactly (D. Lemire, "Fast random integer generation in an interval", ACM
    /// TOMACS 29(1), 2019). `n` = 0 means the whole range of 64 bits.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return self.next_u64();
        }
        let mut wide = self.next_u64() as u128 * n as u128;
        if (wide as u64) < n {
            let reject = n.wrapping_neg() % n;
            while (wide as u64) < reject {
                wide = self.next_u64() as u128 * n as u128;
            }
        }
        (wide >> 64) as u64
    }

    /// Uniform in `low..=high`; `low` if the range is empty.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.below((high - low).wrapping_add(1)) }
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_is_the_published_generator() {
        // The reference sequence of xoshiro256** from the state 1, 2, 3, 4.
        let state: Vec<u8> = [1u64, 2, 3, 4].iter().flat_map(|s| s.to_le_bytes()).collect();
        let state = state.try_into().expect("32 bytes");
        let mut rng = Rng(Xoshiro256StarStar::from_seed(state));
        let first: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [11520, 0, 1509978240, 1215971899390074240, 1216172134540287360]);
    }

    #[test]
    fn splitmix_is_the_published_generator() {
        // The reference sequence of SplitMix64 from 1234567.
        let first = [
            6_457_827_717_110_365_317u64,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
        ];
        let mut state = 1_234_567u64;
        for output in first {
            state = state.wrapping_add(GOLDEN);
            assert_eq!(mix64(state), output);
        }
        let bytes: Vec<u8> = first.iter().flat_map(|s| s.to_le_bytes()).collect();
        let filled = Xoshiro256StarStar::from_seed(bytes.try_into().expect("32 bytes"));
        assert_eq!(Rng::new(Seed(1_234_567)), Rng(filled));
    }

    #[test]
    fn seeds_are_frozen() {
        // A change of these numbers changes every workload ever published with a seed.
        let got = [
            Seed(1).child("a").0,
            Seed(1).child("b").0,
            Seed(1).numbered("client", 0).0,
            Seed(1).numbered("client", 1).0,
            Seed(1).rng().next_u64(),
        ];
        assert_eq!(got, FROZEN);
    }
    const FROZEN: [u64; 5] = [
        16_560_185_994_610_610_332,
        7_498_099_014_157_151_991,
        18_285_387_530_883_557_027,
        10_389_228_323_259_696_803,
        12_966_619_160_104_079_557,
    ];

    #[test]
    fn bounds_hold() {
        let mut rng = Seed(7).rng();
        for n in [1, 2, 3, 1000, u64::MAX] {
            for _ in 0..1000 {
                assert!(rng.below(n) < n);
            }
        }
        for _ in 0..1000 {
            let unit = rng.unit();
            assert!((0.0..1.0).contains(&unit));
            assert!((5..=9).contains(&rng.between(5, 9)));
        }
        assert_eq!(rng.between(9, 5), 9);
        let _ = rng.between(0, u64::MAX);
    }
}
