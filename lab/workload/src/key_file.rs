//! Keys taken from a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::keys::MAX_KEY;

/// Bytes before the keys of a binary file: their number.
const COUNT: usize = 8;
/// Bytes of a key that is a number.
const NUMBER: usize = 8;

/// The keys of a file, in the file's order. Held in memory: their bytes, 4 bytes per key, and 8
/// more where keys are lines.
#[derive(Debug)]
pub struct KeyFile {
    bytes: Vec<u8>,
    places: Places,
    /// Line numbers from 0 in key order.
    sorted: Vec<u32>,
    /// The length of the longest key, bytes.
    pub longest: usize,
}

/// Where the keys stand.
#[derive(Debug)]
enum Places {
    /// The start of each line, and one more: the position after the last one.
    Lines(Vec<usize>),
    /// Every key has [`NUMBER`] bytes.
    Numbers,
}

/// The form of a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFileForm {
    /// One key on each line: the raw bytes without the newline. No encoding is assumed and nothing
    /// is trimmed.
    Lines,
    /// As of the benchmark SOSD: the number of keys, then the keys, integers of 4 or of 8 bytes,
    /// all little endian. A key of the index has 8 bytes, big endian, so that keys have the order
    /// of the numbers.
    Sosd,
}

/// What tells one state of a file from another.
type Stamp = (PathBuf, KeyFileForm, u64, Option<SystemTime>);

/// The last file that was read: settings are checked for each cell, and a file may be large.
static LAST: Mutex<Option<(Stamp, Arc<KeyFile>)>> = Mutex::new(None);

impl KeyFile {
    /// Reads and checks a file, if it is not the one that was read last.
    ///
    /// # Errors
    /// The errors of [`KeyFile::parse`], and a file that cannot be read.
    pub fn read(path: &Path, form: KeyFileForm) -> Result<Arc<Self>> {
        let io = |e| Error::io("read key file", path, e);
        let mut file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        let stamp = (path.to_path_buf(), form, meta.len(), meta.modified().ok());
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, keys)) = &*last
            && *of == stamp
        {
            return Ok(keys.clone());
        }
        *last = None;
        let name = path.display().to_string();
        if form == KeyFileForm::Sosd {
            // A wrong count is refused before the file is in memory.
            let mut count = Vec::new();
            file.by_ref().take(COUNT as u64).read_to_end(&mut count).map_err(io)?;
            width(&name, &count, meta.len())?;
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let keys = Arc::new(Self::parse(&name, bytes, form)?);
        *last = Some((stamp, keys.clone()));
        Ok(keys)
    }

    /// Checks keys that are already in memory; `name` is for messages.
    ///
    /// # Errors
    /// An empty key, one above [`MAX_KEY`] bytes, a repeated one (all with the line or number), no
    /// key at all, or 2^32 keys; a count of keys that is not that of the file.
    pub fn parse(name: &str, bytes: Vec<u8>, form: KeyFileForm) -> Result<Self> {
        let file = match form {
            KeyFileForm::Lines => Self::lines(name, bytes)?,
            KeyFileForm::Sosd => Self::sosd(name, bytes)?,
        };
        file.ordered(name, form)
    }

    fn sosd(name: &str, mut bytes: Vec<u8>) -> Result<Self> {
        let width = width(name, &bytes, bytes.len() as u64)?;
        bytes.drain(..COUNT);
        if width < NUMBER {
            let keys = bytes.chunks_exact(width);
            bytes = keys.flat_map(|key| [key, &[0; NUMBER][width..]].concat()).collect();
        }
        bytes.chunks_exact_mut(NUMBER).for_each(<[u8]>::reverse);
        Ok(KeyFile { bytes, places: Places::Numbers, sorted: Vec::new(), longest: NUMBER })
    }

    fn lines(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let bad =
            |line: usize, why: String| Err(Error::new(format!("{name}, line {}: {why}", line + 1)));
        let mut starts = vec![0];
        let mut longest = 0;
        let body = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if body.is_empty() && bytes.is_empty() {
            return Err(Error::new(format!("{name} holds no key: put one key on each line")));
        }
        for (line, key) in body.split(|&b| b == b'\n').enumerate() {
            if key.is_empty() {
                return bad(line, "an empty key: remove the line".to_owned());
            }
            if key.len() > MAX_KEY {
                let len = key.len();
                return bad(line, format!("a key of {len} bytes: keep keys to {MAX_KEY} bytes"));
            }
            if line as u64 >= u64::from(u32::MAX) {
                return bad(line, format!("too many keys: keep to {}", u32::MAX));
            }
            longest = longest.max(key.len());
            starts.push(starts[line] + key.len() + 1);
        }
        Ok(KeyFile { bytes, places: Places::Lines(starts), sorted: Vec::new(), longest })
    }

    /// With the order of the keys.
    fn ordered(mut self, name: &str, form: KeyFileForm) -> Result<Self> {
        let mut sorted: Vec<u32> = (0..self.len() as u32).collect();
        // The sort is stable: of two equal keys the earlier line comes first.
        sorted.sort_by(|&a, &b| self.get(a as usize).cmp(self.get(b as usize)));
        let repeated = sorted
            .windows(2)
            .filter(|pair| self.get(pair[0] as usize) == self.get(pair[1] as usize))
            .min_by_key(|pair| pair[1]);
        if let Some(pair) = repeated {
            let (first, again) = (pair[0] + 1, pair[1] + 1);
            let (here, there) = match form {
                KeyFileForm::Lines => (format!("line {again}"), format!("on line {first}")),
                KeyFileForm::Sosd => (format!("key {again}"), format!("as key {first}")),
            };
            return Err(Error::new(format!(
                "{name}, {here}: the key stands {there} already: keys must differ"
            )));
        }
        self.sorted = sorted;
        Ok(self)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        match &self.places {
            Places::Lines(starts) => starts.len() - 1,
            Places::Numbers => self.bytes.len() / NUMBER,
        }
    }

    /// Whether there is none; a file without keys is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key on line `line`, counted from 0; empty beyond the last.
    pub fn get(&self, line: usize) -> &[u8] {
        let (start, end) = match &self.places {
            Places::Lines(starts) => match (starts.get(line), starts.get(line + 1)) {
                (Some(&start), Some(&next)) => (start, next - 1),
                _ => return &[],
            },
            Places::Numbers if line < self.len() => (line * NUMBER, (line + 1) * NUMBER),
            Places::Numbers => return &[],
        };
        &self.bytes[start..end]
    }

    /// Whether the file has a key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.search(key).is_ok()
    }

    fn search(&self, key: &[u8]) -> std::result::Result<usize, usize> {
        self.sorted.binary_search_by(|&line| self.get(line as usize).cmp(key))
    }

    /// The number of the key at a position of the key order.
    fn number(&self, rank: usize) -> u64 {
        let bytes = self.get(self.sorted[rank] as usize);
        bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// A number that is no key: the next behind the key at a position of the key order, or else the
    /// next before it. There are fewer keys than numbers.
    fn gap(&self, rank: usize) -> u64 {
        let (here, last) = (self.number(rank), self.len() - 1);
        // Between two keys is no gap if their numbers differ by as much as their positions.
        let is_dense = |a: usize, b: usize| self.number(b) - self.number(a) == (b - a) as u64;
        let behind = |n: usize| is_dense(rank, rank + n);
        let run = run(last - rank, behind);
        if let Some(next) = (here + run as u64).checked_add(1) {
            return next;
        }
        let before = |n: usize| is_dense(rank - n, rank);
        here - self::run(rank, before) as u64 - 1
    }

    /// The position of a line's key in key order.
    pub(crate) fn rank(&self, line: usize) -> u64 {
        self.search(self.get(line)).unwrap_or_else(|place| place) as u64
    }

    /// Appends to `out` a key near that of line `line` which is not in the file: of the same
    /// length, with another last byte. If all 255 changes are keys of the file, too, it is a key
    /// one byte longer than the longest.
    ///
    /// Of numbers it is the next number behind that key that is no key, or else the next
    /// before it.
    pub(crate) fn absent(&self, line: u64, out: &mut Vec<u8>) {
        let start = out.len();
        let line = (line % self.len() as u64) as usize;
        if let Places::Numbers = self.places {
            let number = self.gap(self.rank(line) as usize);
            out.extend_from_slice(&number.to_be_bytes());
            return;
        }
        out.extend_from_slice(self.get(line));
        let Some(last) = out.last().copied() else { return };
        let at = out.len() - 1;
        for change in 1..=255u8 {
            out[at] = last.wrapping_add(change);
            // A key of the file has no newline, and an absent key must not have one either.
            if out[at] != b'\n' && !self.contains(&out[start..]) {
                return;
            }
        }
        out[at] = last;
        out.resize(start + self.longest + 1, last);
    }
}

/// How far something holds that once it does not hold never holds again, `most` at most.
fn run(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The bytes of a key of a binary file that has `head` keys.
fn width(name: &str, head: &[u8], len: u64) -> Result<usize> {
    let Some(count) = head.first_chunk::<COUNT>().map(|count| u64::from_le_bytes(*count)) else {
        return Err(Error::new(format!(
            "{name} has {len} bytes: give the number of keys in {COUNT} bytes, then the keys"
        )));
    };
    let rest = len.saturating_sub(COUNT as u64);
    if count == 0 {
        return Err(Error::new(format!("{name} holds no key: its count is 0")));
    }
    if count > u64::from(u32::MAX) {
        return Err(Error::new(format!("{name}: {count} keys: keep to {}", u32::MAX)));
    }
    let fits = |width: &u64| count.checked_mul(*width) == Some(rest);
    match [8, 4].into_iter().find(fits) {
        Some(width) => Ok(width as usize),
        None => Err(Error::new(format!(
            "{name}: its count is {count} keys, and {rest} bytes follow: {} of 8 bytes are expected, or {} of 4",
            count * 8,
            count * 4
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(name: &str, bytes: &[u8]) -> Result<KeyFile> {
        KeyFile::parse(name, bytes.to_vec(), KeyFileForm::Lines)
    }

    fn sosd(count: u64, keys: &[Vec<u8>]) -> Result<KeyFile> {
        let bytes = [count.to_le_bytes().to_vec(), keys.concat()].concat();
        KeyFile::parse("keys", bytes, KeyFileForm::Sosd)
    }

    fn wide(keys: &[u64]) -> Vec<Vec<u8>> {
        keys.iter().map(|k| k.to_le_bytes().to_vec()).collect()
    }

    #[test]
    fn numbers_are_keys_in_their_order() {
        let file = sosd(3, &wide(&[256, 1, u64::MAX])).unwrap();
        assert_eq!(file.get(0), [0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!([0, 1, 2].map(|l| file.rank(l)), [1, 0, 2]);
        let narrow: Vec<Vec<u8>> = [7u32, 9].iter().map(|k| k.to_le_bytes().to_vec()).collect();
        let file = sosd(2, &narrow).unwrap();
        assert_eq!((file.get(1), file.longest), (&[0, 0, 0, 0, 0, 0, 0, 9][..], 8));
        assert!(file.get(2).is_empty());
    }

    #[test]
    fn counts_beyond_the_file_are_refused() {
        let keys = wide(&[1, 2, 3]);
        for (count, words) in [
            (4, "its count is 4 keys, and 24 bytes follow: 32 of 8 bytes are expected, or 16 of 4"),
            (u64::MAX, "keep to 4294967295"),
            (0, "its count is 0"),
        ] {
            let e = sosd(count, &keys).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
        let short = KeyFile::parse("keys", vec![1, 2], KeyFileForm::Sosd).unwrap_err();
        assert!(short.to_string().contains("has 2 bytes: give the number"), "{short}");
        let e = sosd(3, &wide(&[5, 6, 5])).unwrap_err().to_string();
        assert!(e.contains("key 3: the key stands as key 1 already"), "{e}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        std::fs::write(&path, [9u64.to_le_bytes().to_vec(), keys.concat()].concat()).unwrap();
        let e = KeyFile::read(&path, KeyFileForm::Sosd).unwrap_err().to_string();
        assert!(e.contains("its count is 9 keys, and 24 bytes follow"), "{e}");
    }

    /// A file that has changed is read again.
    #[test]
    fn the_last_file_is_kept_as_long_as_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        std::fs::write(&path, b"a\nb\n").unwrap();
        let read = || KeyFile::read(&path, KeyFileForm::Lines).unwrap();
        assert_eq!(read().len(), 2);
        std::fs::write(&path, b"a\nb\nc\n").unwrap();
        assert_eq!(read().len(), 3);
    }

    #[test]
    fn absent_numbers_lie_in_gaps() {
        let dense: Vec<u64> = (10..5000).chain([9000, u64::MAX]).collect();
        let file = sosd(dense.len() as u64, &wide(&dense)).unwrap();
        let absent = |line| {
            let mut out = Vec::new();
            file.absent(line, &mut out);
            u64::from_be_bytes(out.try_into().unwrap())
        };
        assert_eq!((absent(0), absent(4000)), (5000, 5000));
        assert_eq!(absent(4990), 9001);
        assert_eq!(absent(4991), u64::MAX - 1, "nothing follows the last number");
        let full = sosd(3, &wide(&[u64::MAX - 1, u64::MAX, u64::MAX - 2])).unwrap();
        let mut out = Vec::new();
        full.absent(1, &mut out);
        assert_eq!(out, (u64::MAX - 3).to_be_bytes());
    }

    #[test]
    fn bytes_are_taken_raw() {
        let file = lines("t", b"b\r\n \xff\0\na").unwrap();
        assert_eq!(file.len(), 3);
        assert_eq!([file.get(0), file.get(1), file.get(2)], [&b"b\r"[..], b" \xff\0", b"a"]);
        assert!(file.get(3).is_empty());
        assert_eq!([0, 1, 2].map(|l| file.rank(l)), [2, 0, 1]);
    }

    #[test]
    fn unusable_files_say_the_line() {
        let long = [b"ok\n".to_vec(), vec![b'x'; 1025]].concat();
        for (bytes, words) in [
            (&b"a\n\nb\n"[..], "keys.txt, line 2: an empty key"),
            (b"\n", "keys.txt, line 1: an empty key"),
            (b"", "keys.txt holds no key"),
            (b"a\nb\na\n", "keys.txt, line 3: the key stands on line 1 already"),
            (&long, "keys.txt, line 2: a key of 1025"),
        ] {
            let why = lines("keys.txt", bytes).unwrap_err().to_string();
            assert!(why.starts_with(words), "{why}");
        }
        let longest = lines("t", &[b'x'; 1024]).unwrap();
        assert_eq!(longest.longest, 1024);
        let missing =
            KeyFile::read(Path::new("/nonexistent/keys"), KeyFileForm::Lines).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read key file /nonexistent/keys"));
    }

    #[test]
    fn an_absent_key_is_found_even_when_every_neighbour_is_taken() {
        let all: Vec<u8> =
            (0..=255u8).filter(|&b| b != b'\n').flat_map(|b| [b'p', b, b'\n']).collect();
        let file = lines("t", &all).unwrap();
        let mut out = Vec::new();
        file.absent(3, &mut out);
        assert_eq!(out.len(), 3);
        assert!(!file.contains(&out));
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn any_bytes_parse_or_say_why(bytes: Vec<u8>) {
            for form in [KeyFileForm::Lines, KeyFileForm::Sosd] {
                let Ok(file) = KeyFile::parse("t", bytes.clone(), form) else { continue };
                let mut out = Vec::new();
                for line in 0..file.len() {
                    prop_assert!(file.contains(file.get(line)));
                    out.clear();
                    file.absent(line as u64, &mut out);
                    prop_assert!(!file.contains(&out));
                }
            }
        }
    }
}
