//! Keys: from a record number to the bytes of its key.
//!
//! A record has a number: `0..records` are loaded, inserts take the numbers above. A [`KeySpace`]
//! maps a number to key bytes, always to the same ones. It also has a second family of keys that
//! are never stored, for searches that must find nothing.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::key_file::{KeyFile, KeyFileForm};
use crate::permute::Permutation;
use crate::rng::{Seed, fnv1a, mix64};
use crate::shifting::{Shifting, Shifts};
use crate::text;

/// The longest key, in bytes, of any form.
pub const MAX_KEY: usize = 1024;

/// Absent keys of the computed forms are those of record numbers with this bit.
const ABSENT: u64 = 1 << 63;

/// The form of keys. As text (experiment files, command lines, results): `hashed24`, `u64`,
/// `sequential`, `db-bench`, `random(16..=32)`, `shifting(600000:1, 300000:0.1, ascending)`,
/// `file(/path/to/keys)`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyForm {
    /// 24 ASCII digits: the record number's FNV-1a 64 hash (8 bytes, low byte first) in decimal,
    /// padded with `0` on the left. The published benchmark's form. It does not depend on the seed.
    /// Two records may have the same hash; at 10^9 records the probability of any such pair is
    /// about 3 %.
    Hashed24,
    /// 8 bytes, big endian: a seeded bijection of the record number, so that adjacent numbers are
    /// not adjacent in key order, and no two keys are equal.
    U64,
    /// 8 bytes, big endian: the record number itself. Inserts then come in ascending order. Absent
    /// keys are to the right of all others, because a dense range has no gaps.
    Sequential,
    /// The same in 24 bytes, behind zeros.
    Sequential24,
    /// 20 bytes: the record number, big endian in 8, then ASCII `0`: the keys of db_bench.
    DbBench,
    /// Random bytes; the length is uniform over a range and fixed per record. The first bytes (up
    /// to 8, and at most `min`) are a bijection of the record number, so no two keys are equal.
    Random {
        /// Shortest key, bytes; at least 1. It bounds the number of records: 2^(8 min - 1).
        min: u32,
        /// Longest key, bytes; at most [`MAX_KEY`].
        max: u32,
    },
    /// 8 bytes, big endian: parts of the records in shares of the key space, see [`Shifts`]. What
    /// is inserted shifts with its number.
    Shifting(Shifts),
    /// One key per line, in the file's order: the first `records` are loaded, later ones are
    /// inserted.
    File(PathBuf),
    /// Integers of a binary file, as of the benchmark SOSD: their number (8 bytes), then the keys
    /// (4 or 8 bytes each), little endian. Keys of an index are these bytes, big endian.
    Sosd(PathBuf),
}

impl fmt::Display for KeyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyForm::Hashed24 => f.write_str("hashed24"),
            KeyForm::U64 => f.write_str("u64"),
            KeyForm::Sequential => f.write_str("sequential"),
            KeyForm::Sequential24 => f.write_str("sequential24"),
            KeyForm::DbBench => f.write_str("db-bench"),
            KeyForm::Random { min, max } => write!(f, "random({min}..={max})"),
            KeyForm::Shifting(shifts) => write!(f, "shifting({shifts})"),
            KeyForm::File(path) => write!(f, "file({})", path.display()),
            KeyForm::Sosd(path) => write!(f, "sosd({})", path.display()),
        }
    }
}

impl FromStr for KeyForm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // A path may contain commas and parentheses, so it is taken whole.
        let path = |name| text.trim().strip_prefix(name).and_then(|t| t.strip_suffix(')'));
        if let Some(path) = path("file(") {
            return Ok(KeyForm::File(PathBuf::from(path)));
        }
        if let Some(path) = path("sosd(") {
            return Ok(KeyForm::Sosd(PathBuf::from(path)));
        }
        let (name, args) = text::call(text)?;
        let form = match (name, args.as_slice()) {
            ("hashed24", []) => KeyForm::Hashed24,
            ("u64", []) => KeyForm::U64,
            ("sequential", []) => KeyForm::Sequential,
            ("sequential24", []) => KeyForm::Sequential24,
            ("db-bench", []) => KeyForm::DbBench,
            ("random", [range]) => {
                let (min, max) = text::range32("key length", range)?;
                KeyForm::Random { min, max }
            }
            ("shifting", parts) => KeyForm::Shifting(Shifts::parse(parts)?),
            _ => {
                return Err(Error::unknown(
                    "key form",
                    text,
                    "hashed24, u64, sequential, sequential24, db-bench, random(MIN..=MAX), shifting(RECORDS:SHARE, ..., SHARE|ascending), file(PATH), sosd(PATH)",
                ));
            }
        };
        Ok(form)
    }
}

text::serde_by_text!(KeyForm, "a key form such as \"hashed24\" or \"random(16..=32)\"");

/// A prepared key form: maps record numbers to key bytes.
#[derive(Debug, Clone)]
pub enum KeySpace {
    Hashed24,
    U64 { bijection: Permutation },
    Sequential { bytes: usize },
    DbBench,
    Random { bijection: Permutation, embed: usize, min: u32, max: u32, seed: Seed },
    Shifting(Shifting),
    File(Arc<KeyFile>),
}

impl KeySpace {
    /// Prepares a form; reads and checks a key file here.
    ///
    /// # Errors
    /// A length range that is empty, starts at 0 or ends above [`MAX_KEY`]; a key file that cannot
    /// be read or holds an empty, too long or repeated key.
    pub fn new(form: &KeyForm, seed: Seed) -> Result<Self> {
        Ok(match form {
            KeyForm::Hashed24 => KeySpace::Hashed24,
            KeyForm::U64 => {
                KeySpace::U64 { bijection: Permutation::of_bytes(8, seed.child("u64")) }
            }
            KeyForm::Sequential => KeySpace::Sequential { bytes: 8 },
            KeyForm::Sequential24 => KeySpace::Sequential { bytes: 24 },
            KeyForm::DbBench => KeySpace::DbBench,
            &KeyForm::Random { min, max } => {
                if min == 0 || min > max || max as usize > MAX_KEY {
                    return Err(Error::new(format!(
                        "key lengths {min}..={max} are not usable: give a range within 1..={MAX_KEY}"
                    )));
                }
                let embed = (min as usize).min(8);
                let bijection = Permutation::of_bytes(embed, seed.child("random"));
                KeySpace::Random { bijection, embed, min, max, seed: seed.child("random bytes") }
            }
            KeyForm::Shifting(shifts) => {
                KeySpace::Shifting(Shifting::new(shifts, seed.child("shifting")))
            }
            KeyForm::File(path) => KeySpace::File(KeyFile::read(path, KeyFileForm::Lines)?),
            KeyForm::Sosd(path) => KeySpace::File(KeyFile::read(path, KeyFileForm::Sosd)?),
        })
    }

    /// The number of record numbers that have a key: those from 0 up to, not including, this one.
    pub fn capacity(&self) -> u64 {
        match self {
            KeySpace::Random { embed, .. } => 1 << (8 * embed - 1),
            KeySpace::Shifting(all) => all.capacity(),
            KeySpace::File(keys) => keys.len() as u64,
            _ => ABSENT,
        }
    }

    /// The longest key of this space, including absent keys, in bytes.
    pub fn max_len(&self) -> usize {
        match self {
            KeySpace::Hashed24 => 24,
            KeySpace::U64 { .. } | KeySpace::Shifting(_) => 8,
            KeySpace::Sequential { bytes } => *bytes,
            KeySpace::DbBench => 20,
            KeySpace::Random { max, .. } => *max as usize,
            // An absent key of lines may be one byte longer than the longest.
            KeySpace::File(keys) => keys.longest + 1,
        }
    }

    /// Replaces the content of `out` by the key of `record`, which is below [`KeySpace::capacity`];
    /// a larger number gives an empty key. Does not allocate once `out` has room.
    pub fn key(&self, record: u64, out: &mut Vec<u8>) {
        out.clear();
        if record < self.capacity() {
            self.make(record, out);
        }
    }

    /// Replaces the content of `out` by a key that no record has, the same one for the same
    /// `record`. For the computed forms it is the key of a number that is never loaded or inserted;
    /// for a file, the file's key of that number with its last byte changed.
    pub fn absent(&self, record: u64, out: &mut Vec<u8>) {
        out.clear();
        match self {
            KeySpace::File(keys) => keys.absent(record, out),
            _ => self.make(self.absent_number(record), out),
        }
    }

    /// The number of the key that [`KeySpace::absent`] makes of a computed form.
    pub(crate) fn absent_number(&self, record: u64) -> u64 {
        self.capacity() + record % self.capacity()
    }

    fn make(&self, number: u64, out: &mut Vec<u8>) {
        match self {
            KeySpace::Hashed24 => decimal24(fnv1a(&number.to_le_bytes()), out),
            KeySpace::U64 { bijection } => {
                out.extend_from_slice(&bijection.apply(number).to_be_bytes())
            }
            KeySpace::Sequential { bytes } => {
                out.resize(bytes - 8, 0);
                out.extend_from_slice(&number.to_be_bytes());
            }
            KeySpace::DbBench => {
                out.extend_from_slice(&number.to_be_bytes());
                out.resize(20, b'0');
            }
            KeySpace::Random { bijection, embed, min, max, seed } => {
                out.extend_from_slice(&bijection.apply(number).to_be_bytes()[8 - embed..]);
                let state = mix64(seed.0 ^ mix64(number));
                let mut rng = Seed(state).rng();
                let len = rng.between(u64::from(*min), u64::from(*max)) as usize;
                while out.len() < len {
                    let word = rng.next_u64().to_le_bytes();
                    let take = word.len().min(len - out.len());
                    out.extend_from_slice(&word[..take]);
                }
            }
            KeySpace::Shifting(all) => out.extend_from_slice(&all.apply(number).to_be_bytes()),
            KeySpace::File(keys) => out.extend_from_slice(keys.get(number as usize)),
        }
    }

    /// The position of the key of `record` in key order: sorting record numbers by it sorts their
    /// keys.
    pub(crate) fn rank(&self, record: u64) -> u64 {
        match self {
            KeySpace::Hashed24 => fnv1a(&record.to_le_bytes()),
            KeySpace::U64 { bijection } | KeySpace::Random { bijection, .. } => {
                bijection.apply(record)
            }
            KeySpace::Sequential { .. } | KeySpace::DbBench => record,
            KeySpace::Shifting(all) => all.apply(record),
            KeySpace::File(keys) => keys.rank(record as usize),
        }
    }
}

fn decimal24(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 24];
    let mut at = digits.len();
    while number > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> KeySpace {
        KeySpace::new(&text.parse().unwrap(), Seed(11)).unwrap()
    }

    fn key(space: &KeySpace, record: u64) -> Vec<u8> {
        let mut out = vec![1, 2, 3];
        space.key(record, &mut out);
        out
    }

    #[test]
    fn hashed24_is_the_published_form() {
        // FNV-1a of eight zero bytes, by the definition, is a8c7f832281a39c5.
        assert_eq!(fnv1a(&0u64.to_le_bytes()), 0xA8C7_F832_281A_39C5);
        assert_eq!(key(&space("hashed24"), 0), b"000012161962213042174405");
        let mut by_hand: u64 = 0xCBF2_9CE4_8422_2325;
        for byte in [0x15, 0xCD, 0x5B, 0x07, 0, 0, 0, 0] {
            by_hand = (by_hand ^ byte).wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(key(&space("hashed24"), 123_456_789), format!("{by_hand:024}").into_bytes());
    }

    #[test]
    fn db_bench_keys_are_numbers_behind_which_are_zeros() {
        let mut wanted = vec![0, 0, 0, 0, 0, 0, 1, 2];
        wanted.extend_from_slice(b"000000000000");
        assert_eq!(key(&space("db-bench"), 258), wanted);
        let refused = "dbbench".parse::<KeyForm>().unwrap_err().to_string();
        assert!(refused.contains("unknown key form") && refused.contains("db-bench"), "{refused}");
    }

    #[test]
    fn sequential_is_in_order_and_u64_is_not() {
        let (sequential, scattered) = (space("sequential"), space("u64"));
        assert_eq!(key(&sequential, 258), [0, 0, 0, 0, 0, 0, 1, 2]);
        let ascending = (0..1000).filter(|&r| key(&scattered, r) < key(&scattered, r + 1)).count();
        assert!((400..600).contains(&ascending), "{ascending}");
    }

    #[test]
    fn random_keys_fill_their_length_range() {
        let space = space("random(2..=5)");
        let mut lengths = [0u32; 6];
        for record in 0..20_000 {
            lengths[key(&space, record).len()] += 1;
        }
        for &count in &lengths[2..=5] {
            assert!((4700..5300).contains(&count), "{lengths:?}");
        }
        assert_eq!(lengths[..2], [0, 0]);
    }

    #[test]
    fn keys_are_unique_absent_ones_included_and_ranks_sort_them() {
        let file = KeyFile::parse(
            "t",
            (0..3000u32).flat_map(|i| format!("k{:04}\n", i * 7 % 3001).into_bytes()).collect(),
            KeyFileForm::Lines,
        );
        let file = KeySpace::File(Arc::new(file.unwrap()));
        let forms = [
            "hashed24",
            "u64",
            "sequential",
            "db-bench",
            "random(2..=40)",
            "shifting(1000:1, 9:0.1, 1)",
        ];
        for space in forms.map(space).into_iter().chain([file]) {
            let n = 3000;
            let mut all: Vec<(u64, Vec<u8>)> =
                (0..n).map(|r| (space.rank(r), key(&space, r))).collect();
            all.sort();
            assert!(all.is_sorted_by(|a, b| a.1 < b.1), "{space:?}");
            let mut stored: Vec<Vec<u8>> = all.into_iter().map(|(_, k)| k).collect();
            let mut absent = Vec::new();
            for record in 0..n {
                space.absent(record, &mut absent);
                assert!(!absent.is_empty() && absent.len() <= space.max_len());
                assert!(stored.binary_search(&absent).is_err(), "{space:?} {record}");
            }
            stored.dedup();
            assert_eq!(stored.len(), n as usize);
        }
    }

    #[test]
    fn numbers_without_a_key_give_none() {
        let space = space("random(1..=1)");
        assert_eq!(space.capacity(), 128);
        assert_eq!(key(&space, 127).len(), 1);
        assert!(key(&space, 128).is_empty());
    }

    #[test]
    fn forms_survive_their_text() {
        let shifting = "shifting(600000:1, 3:0.1, ascending)";
        for text in [
            "hashed24",
            "u64",
            "sequential",
            "db-bench",
            "random(16..=32)",
            shifting,
            "file(/a (b), c)",
            "sosd(/a (b), c)",
        ] {
            assert_eq!(text.parse::<KeyForm>().unwrap().to_string(), text);
        }
        for bad in ["", "hash", "random", "random(5..=3)", "random(1", "u64(3)"] {
            assert!(bad.parse::<KeyForm>().is_err(), "{bad}");
        }
        for bad in ["random(0..=3)", "random(1..=1025)"] {
            assert!(KeySpace::new(&bad.parse().unwrap(), Seed(1)).is_err(), "{bad}");
        }
    }
}
