//! Keys with a distribution that shifts: the records are cut into parts, in their order, and those
//! of each part have keys in a share of the key space, or keys that ascend behind all others. So a
//! run that inserts goes from one part to the next.
//!
//! A key is a position, 58 bits of it in the space that is shared, and the number of its part in
//! the lowest four bits. So no two parts have a key in common, and shares may overlap.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::permute::Permutation;
use crate::rng::Seed;
use crate::text;

/// Positions of the space that parts share.
const POSITIONS: u64 = 1 << 58;
/// Bits of the number of a part.
const PART_BITS: u32 = 4;
/// The most parts: one number is that of absent keys.
const MAX_PARTS: usize = (1 << PART_BITS) - 1;
/// A share of 1.
const WHOLE: u32 = 1_000_000;

/// Where the keys of a part lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Anywhere in the first so many millionths of the space.
    Share(u32),
    /// One behind the other, above all keys of shares.
    Ascending,
}

impl Spread {
    fn positions(self) -> u64 {
        match self {
            Self::Share(millionths) => POSITIONS / u64::from(WHOLE) * u64::from(millionths),
            Self::Ascending => POSITIONS,
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(millionths) => {
                write!(f, "{}", f64::from(*millionths) / f64::from(WHOLE))
            }
            Self::Ascending => f.write_str("ascending"),
        }
    }
}

impl FromStr for Spread {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "ascending" {
            return Ok(Self::Ascending);
        }
        let share = text.parse().map(|share: f64| (share * f64::from(WHOLE)).round());
        match share {
            Ok(millionths) if (1.0..=f64::from(WHOLE)).contains(&millionths) => {
                Ok(Self::Share(millionths as u32))
            }
            _ => Err(Error::new(format!(
                "a share {text:?} of the key space: give a number from 0.000001 to 1, or ascending"
            ))),
        }
    }
}

/// The parts of the records, as text `600000:1, 300000:0.1, ascending`: each with its number of
/// records, but the last one, which has all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shifts {
    first: Vec<(u64, Spread)>,
    last: Spread,
}

impl Shifts {
    /// Reads the parts.
    ///
    /// # Errors
    /// A part that is malformed, none, or too many.
    pub(crate) fn parse(parts: &[&str]) -> Result<Self> {
        let Some((last, first)) = parts.split_last().filter(|_| parts.len() <= MAX_PARTS) else {
            let n = parts.len();
            return Err(Error::new(format!("{n} parts of shifting keys: give 1 to {MAX_PARTS}")));
        };
        let part = |text: &&str| {
            let (records, spread) = text.split_once(':').ok_or_else(|| {
                Error::new(format!("a part {text:?} of shifting keys: give RECORDS:SHARE"))
            })?;
            let records = text::number("records of a part", records)?;
            if records == 0 || records > POSITIONS / u64::from(WHOLE) {
                return Err(Error::new(format!(
                    "{records} records in a part of shifting keys: give 1 to {}",
                    POSITIONS / u64::from(WHOLE)
                )));
            }
            Ok((records, spread.trim().parse()?))
        };
        Ok(Self { first: first.iter().map(part).collect::<Result<_>>()?, last: last.parse()? })
    }
}

impl fmt::Display for Shifts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.iter().try_for_each(|(records, spread)| write!(f, "{records}:{spread}, "))?;
        write!(f, "{}", self.last)
    }
}

/// A prepared part.
#[derive(Debug, Clone)]
struct Part {
    /// Its first record.
    first: u64,
    /// The order of its keys; none where they ascend.
    bijection: Option<Permutation>,
}

/// Prepared parts: from a record to the number that is its key.
#[derive(Debug, Clone)]
pub struct Shifting {
    parts: Vec<Part>,
    capacity: u64,
    absent: Permutation,
}

impl Shifting {
    /// Prepares parts.
    pub(crate) fn new(shifts: &Shifts, seed: Seed) -> Self {
        let (mut first, mut parts) = (0, Vec::new());
        let all = shifts.first.iter().copied().chain([(0, shifts.last)]);
        for (n, (records, spread)) in (0..).zip(all) {
            let seed = seed.numbered("part", n);
            let bijection =
                (spread != Spread::Ascending).then(|| Permutation::new(spread.positions(), seed));
            parts.push(Part { first, bijection });
            first += records;
        }
        let absent = Permutation::new(POSITIONS, seed.child("absent"));
        Self { parts, capacity: first + shifts.last.positions(), absent }
    }

    /// Number of records that have a key.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The key of a number; above the capacity, one that no record has.
    pub(crate) fn apply(&self, number: u64) -> u64 {
        if number >= self.capacity {
            let position = self.absent.apply((number - self.capacity) % POSITIONS);
            return position << PART_BITS | MAX_PARTS as u64;
        }
        let n = self.parts.partition_point(|part| part.first <= number) - 1;
        let Part { first, bijection } = &self.parts[n];
        let position = match bijection {
            Some(bijection) => bijection.apply(number - first),
            None => POSITIONS + (number - first),
        };
        position << PART_BITS | n as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shifts(text: &str) -> Result<Shifts> {
        Shifts::parse(&text.split(',').map(str::trim).collect::<Vec<_>>())
    }

    #[test]
    fn parts_lie_where_they_say() {
        let all = Shifting::new(&shifts("1000:1, 1000:0.1, ascending").unwrap(), Seed(3));
        let share = |records: std::ops::Range<u64>, below: f64| {
            let end = ((POSITIONS as f64 * below) as u64) << PART_BITS;
            records.filter(|r| all.apply(*r) < end).count()
        };
        assert!((70..130).contains(&share(0..1000, 0.1)), "a tenth of the first ones");
        assert_eq!((share(0..1000, 1.0), share(1000..2000, 0.1)), (1000, 1000));
        assert!((2000..2999).all(|r| all.apply(r) < all.apply(r + 1)));
        assert!(share(2000..3000, 1.0) == 0, "they are above all others");
    }

    #[test]
    fn a_malformed_part_is_refused() {
        let seven = "100:0.5, ascending";
        assert_eq!(shifts(seven).unwrap().to_string(), seven);
        for bad in ["", "1:1", "5, 1", "0:1, 1", "9:0, 1", "9:1.5, 1", "9:1, nan", "x:1, 1"] {
            assert!(shifts(bad).is_err(), "{bad}");
        }
        assert!(shifts(&["1:1"; 15].join(",")).is_err(), "the last has no number");
        assert!(shifts(&format!("{}, 1", ["1:1"; 15].join(","))).is_err(), "sixteen");
    }
}
