//! The lengths of scans.

use std::fmt;
use std::str::FromStr;

use crate::dist::{THETA, ZipfExact};
use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::text;

/// The longest scan, entries.
pub const MAX_SCAN: u32 = 1 << 20;

/// The distribution of scan lengths. Its text form is its name in results: `10` (each scan asks for
/// 10 entries), `uniform(1..=100)` (the default, as in YCSB and in the published benchmark),
/// `zipfian(1..=100, 0.99)` (short scans are frequent).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ScanLength {
    /// Always this many entries.
    Fixed(u32),
    /// Uniform over a range, ends included.
    Uniform {
        /// Shortest, entries.
        min: u32,
        /// Longest, entries.
        max: u32,
    },
    /// Length min + k - 1 with a probability proportional to k^-theta, exactly.
    Zipfian {
        /// Shortest, entries.
        min: u32,
        /// Longest, entries.
        max: u32,
        /// The exponent.
        theta: f64,
    },
}

impl Default for ScanLength {
    fn default() -> Self {
        ScanLength::Uniform { min: 1, max: 100 }
    }
}

impl ScanLength {
    /// The longest scan, entries.
    pub fn most(&self) -> u32 {
        self.ends().1
    }

    fn ends(&self) -> (u32, u32) {
        match *self {
            ScanLength::Fixed(len) => (len, len),
            ScanLength::Uniform { min, max } | ScanLength::Zipfian { min, max, .. } => (min, max),
        }
    }

    pub(crate) fn checked(self) -> Result<Self> {
        let (min, max) = self.ends();
        if min == 0 || min > max || max > MAX_SCAN {
            return Err(Error::new(format!(
                "scan length {self} is not usable: give entries within 1..={MAX_SCAN}, the smaller end first"
            )));
        }
        Ok(self)
    }
}

impl fmt::Display for ScanLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScanLength::Fixed(len) => write!(f, "{len}"),
            ScanLength::Uniform { min, max } => write!(f, "uniform({min}..={max})"),
            ScanLength::Zipfian { min, max, theta } => write!(f, "zipfian({min}..={max}, {theta})"),
        }
    }
}

impl FromStr for ScanLength {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, args) = text::call(text)?;
        let range = |text| text::range32("scan length", text);
        match (name, args.as_slice()) {
            ("uniform", [ends]) => range(ends).map(|(min, max)| ScanLength::Uniform { min, max }),
            ("zipfian", [ends]) => {
                range(ends).map(|(min, max)| ScanLength::Zipfian { min, max, theta: THETA })
            }
            ("zipfian", [ends, theta]) => {
                let theta = text::theta(theta)?;
                range(ends).map(|(min, max)| ScanLength::Zipfian { min, max, theta })
            }
            (len, []) if len.starts_with(|c: char| c.is_ascii_digit()) => {
                text::number32("scan length", len).map(ScanLength::Fixed)
            }
            _ => Err(Error::unknown(
                "scan length law",
                text,
                "N, uniform(MIN..=MAX), zipfian(MIN..=MAX, THETA)",
            )),
        }?
        .checked()
    }
}

text::serde_by_text!(ScanLength, "a scan length such as 10 or \"uniform(1..=100)\"");

/// A distribution of scan lengths, prepared for drawing.
#[derive(Debug, Clone)]
pub(crate) struct ScanLengths {
    law: ScanLength,
    ranks: Option<ZipfExact>,
}

impl ScanLengths {
    pub(crate) fn new(law: ScanLength) -> Result<Self> {
        let law = law.checked()?;
        let ranks = match law {
            ScanLength::Zipfian { min, max, theta } => {
                Some(ZipfExact::new(u64::from(max - min) + 1, theta)?)
            }
            _ => None,
        };
        Ok(ScanLengths { law, ranks })
    }

    #[inline]
    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        let (min, max) = self.law.ends();
        match &self.ranks {
            Some(law) => min + law.draw(rng) as u32,
            None => rng.between(u64::from(min), u64::from(max)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::zeta;
    use crate::rng::Seed;

    fn shares(text: &str) -> Vec<f64> {
        let law = ScanLengths::new(text.parse().unwrap()).unwrap();
        let mut rng = Seed(2).rng();
        let mut hits = vec![0.0; 121];
        for _ in 0..400_000 {
            hits[law.draw(&mut rng) as usize] += 1.0 / 400_000.0;
        }
        hits
    }

    #[test]
    fn lengths_follow_their_law() {
        assert!((shares("10")[10] - 1.0).abs() < 1e-6);
        let uniform = shares("uniform(1..=100)");
        let chi2: f64 =
            uniform[1..=100].iter().map(|s| (s - 0.01).powi(2) / 0.01 * 400_000.0).sum();
        // 99 degrees of freedom: the 99.9 % point is 148.2.
        assert!(chi2 < 148.2, "{chi2}");
        let zipf = shares("zipfian(11..=110, 0.99)");
        for k in [1, 2, 3, 10, 100] {
            let due = (k as f64).powf(-0.99) / zeta(100, 0.99);
            assert!((zipf[10 + k] - due).abs() < 5.0 * (due / 400_000.0).sqrt(), "{k}");
        }
        assert!((zipf[11..=110].iter().sum::<f64>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn names_survive() {
        for text in ["10", "uniform(1..=100)", "zipfian(1..=50, 0.8)"] {
            assert_eq!(text.parse::<ScanLength>().unwrap().to_string(), text);
        }
        assert_eq!(ScanLength::default().to_string(), "uniform(1..=100)");
        for bad in ["", "0", "uniform", "uniform(0..=4)", "uniform(5..=4)", "1048577", "poisson(3)"]
        {
            assert!(bad.parse::<ScanLength>().is_err(), "{bad}");
        }
    }
}
