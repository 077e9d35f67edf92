//! The published benchmark's keys (24 decimal digits, the FNV-1a hash of a record number), and a
//! generator of record numbers.

pub const KEY_BYTES: usize = 24;
pub type Key = [u8; KEY_BYTES];

/// FNV-1a 64 of the number's 8 bytes, low byte first.
fn fnv1a(n: u64) -> u64 {
    n.to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

pub fn key(n: u64) -> Key {
    let mut out = [b'0'; KEY_BYTES];
    let mut rest = fnv1a(n);
    let mut at = KEY_BYTES;
    while rest > 0 {
        at -= 1;
        out[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out
}

/// The value of record `n`.
pub fn value(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// Uniform record numbers (xorshift64*).
pub struct Uniform {
    state: u64,
    bound: u64,
}

impl Uniform {
    pub fn new(seed: u64, bound: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, bound }
    }

    pub fn draw(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let x = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(x) * u128::from(self.bound)) >> 64) as u64
    }
}
