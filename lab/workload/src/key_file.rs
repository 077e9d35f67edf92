//! Keys taken from a file.

use std::path::Path;

use crate::error::{Error, Result};
use crate::keys::MAX_KEY;

/// The keys of a file, one per line, in the file's order. A key is the raw bytes of its line
/// without the newline: no encoding is assumed and nothing is trimmed. Held in memory: the file's
/// size and 12 bytes per key.
#[derive(Debug)]
pub struct KeyFile {
    bytes: Vec<u8>,
    /// The start of each key, and one more: the position after the last key.
    starts: Vec<usize>,
    /// Line numbers from 0 in key order.
    sorted: Vec<u32>,
    /// The length of the longest key, bytes.
    pub longest: usize,
}

impl KeyFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The errors of [`KeyFile::parse`], and a file that cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io("read key file", path, e))?;
        Self::parse(&path.display().to_string(), bytes)
    }

    /// Checks keys that are already in memory; `name` is for messages.
    ///
    /// # Errors
    /// An empty key, one above [`MAX_KEY`] bytes, a repeated one (all with the line), no key at
    /// all, or 2^32 keys.
    pub fn parse(name: &str, bytes: Vec<u8>) -> Result<Self> {
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
        let mut file = KeyFile { bytes, starts, sorted: Vec::new(), longest };
        let mut sorted: Vec<u32> = (0..file.len() as u32).collect();
        // The sort is stable: of two equal keys the earlier line comes first.
        sorted.sort_by(|&a, &b| file.get(a as usize).cmp(file.get(b as usize)));
        let repeated = sorted
            .windows(2)
            .filter(|pair| file.get(pair[0] as usize) == file.get(pair[1] as usize))
            .min_by_key(|pair| pair[1]);
        if let Some(pair) = repeated {
            let first = pair[0] + 1;
            return bad(
                pair[1] as usize,
                format!("the key stands on line {first} already: keys must differ"),
            );
        }
        file.sorted = sorted;
        Ok(file)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The key on line `line`, counted from 0; empty beyond the last.
    pub fn get(&self, line: usize) -> &[u8] {
        match (self.starts.get(line), self.starts.get(line + 1)) {
            (Some(&start), Some(&next)) => &self.bytes[start..next - 1],
            _ => &[],
        }
    }

    /// Whether the file has a key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.search(key).is_ok()
    }

    fn search(&self, key: &[u8]) -> std::result::Result<usize, usize> {
        self.sorted.binary_search_by(|&line| self.get(line as usize).cmp(key))
    }

    /// The position of a line's key in key order.
    pub(crate) fn rank(&self, line: usize) -> u64 {
        self.search(self.get(line)).unwrap_or_else(|place| place) as u64
    }

    /// Appends to `out` a key near that of line `line` which is not in the file: of the same
    /// length, with another last byte. If all 255 changes are keys of the file, too, it is a key
    /// one byte longer than the longest.
    pub(crate) fn absent(&self, line: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.get((line % self.len() as u64) as usize));
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_taken_raw() {
        let file = KeyFile::parse("t", b"b\r\n \xff\0\na".to_vec()).unwrap();
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
            let why = KeyFile::parse("keys.txt", bytes.to_vec()).unwrap_err().to_string();
            assert!(why.starts_with(words), "{why}");
        }
        let longest = KeyFile::parse("t", vec![b'x'; 1024]).unwrap();
        assert_eq!(longest.longest, 1024);
        let missing = KeyFile::read(Path::new("/nonexistent/keys")).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read key file /nonexistent/keys"));
    }

    #[test]
    fn an_absent_key_is_found_even_when_every_neighbour_is_taken() {
        let all: Vec<u8> =
            (0..=255u8).filter(|&b| b != b'\n').flat_map(|b| [b'p', b, b'\n']).collect();
        let file = KeyFile::parse("t", all).unwrap();
        let mut out = Vec::new();
        file.absent(3, &mut out);
        assert_eq!(out.len(), 3);
        assert!(!file.contains(&out));
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn any_bytes_parse_or_say_why(bytes: Vec<u8>) {
            if let Ok(file) = KeyFile::parse("t", bytes) {
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
