//! The text form of a dump: any bytes, one pair per line.
//!
//! ```text
//! dmtree-dump 1
//! key<TAB>value
//! another\x00key<TAB>
//! end 2 0123456789abcdef
//! ```
//!
//! Bytes other than printable ASCII, and the backslash, are written `\xNN`. Keys ascend strictly.
//! The last line has the number of pairs and XXH3-64 over the lines between, newlines included.

use std::io::{BufRead, Write};

use dmtree_parts::{MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, check_value};
use xxhash_rust::xxh3::Xxh3;

use crate::failure::{Failure, Result};

/// The first line.
pub const HEADER: &str = "dmtree-dump 1";

/// Longest line: both parts escaped, and the characters around them.
const MAX_LINE: usize = 4 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + 64;

/// Appends bytes in their escaped form.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for b in bytes {
        match b {
            b'\\' | 0..=0x1f | 0x7f..=0xff => {
                out.extend_from_slice(b"\\x");
                out.push(DIGITS[usize::from(b >> 4)]);
                out.push(DIGITS[usize::from(b & 15)]);
            }
            _ => out.push(*b),
        }
    }
}

/// The bytes of an escaped form.
///
/// # Errors
/// Names the malformed part.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'\\' => {
                let digits = text.get(at + 1..at + 4).filter(|d| d[0] == b'x');
                let byte = digits
                    .and_then(|d| std::str::from_utf8(&d[1..]).ok())
                    .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|d| u8::from_str_radix(d, 16).ok());
                out.push(byte.ok_or_else(|| {
                    format!(
                        "a backslash at byte {} is not followed by x and two hexadecimal digits",
                        at + 1
                    )
                })?);
                at += 4;
            }
            b @ (0..=0x1f | 0x7f..=0xff) => {
                return Err(format!(
                    "byte {} is {b:#04x}, which must be written \\x{b:02x}",
                    at + 1
                ));
            }
            b => {
                out.push(b);
                at += 1;
            }
        }
    }
    Ok(out)
}

/// Writes a dump pair by pair; errors are those of the writer.
pub struct Dumper<W: Write> {
    to: W,
    sum: Xxh3,
    pairs: u64,
    line: Vec<u8>,
}

impl<W: Write> Dumper<W> {
    /// Begins a dump.
    pub fn new(mut to: W) -> std::io::Result<Self> {
        writeln!(to, "{HEADER}")?;
        Ok(Self { to, sum: Xxh3::new(), pairs: 0, line: Vec::new() })
    }

    /// Writes a pair; keys ascend.
    pub fn pair(&mut self, key: &[u8], value: &[u8]) -> std::io::Result<()> {
        self.line.clear();
        escape(key, &mut self.line);
        self.line.push(b'\t');
        escape(value, &mut self.line);
        self.line.push(b'\n');
        self.sum.update(&self.line);
        self.pairs += 1;
        self.to.write_all(&self.line)
    }

    /// Writes the end; returns the number of pairs and the writer.
    pub fn finish(mut self) -> std::io::Result<(u64, W)> {
        writeln!(self.to, "end {} {:016x}", self.pairs, self.sum.digest())?;
        self.to.flush()?;
        Ok((self.pairs, self.to))
    }
}

/// A pair of a dump.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Reads a dump, and passes each pair to `each`; `from` names the dump in messages.
///
/// # Errors
/// The malformed line, and the errors of `each`.
pub fn read(
    from: &str,
    mut lines: impl BufRead,
    mut each: impl FnMut(Pair) -> Result<()>,
) -> Result<u64> {
    let mut line = Vec::new();
    let mut number = 0u64;
    let mut sum = Xxh3::new();
    let mut pairs = 0u64;
    let mut last: Option<Vec<u8>> = None;
    let fail = |number: u64, why: String| Failure::input(format!("{from}, line {number}: {why}"));
    loop {
        line.clear();
        number += 1;
        let got = std::io::Read::take(&mut lines, MAX_LINE as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|e| fail(number, format!("cannot read on: {e}")))?;
        if got > MAX_LINE {
            return Err(fail(number, format!("longer than {MAX_LINE} bytes: is this a dump?")));
        }
        if got == 0 {
            let why =
                if number == 1 { "the file is empty" } else { "the file ends before its end line" };
            return Err(fail(number, format!("{why}: it was cut off, or is no dump")));
        }
        let body = line.strip_suffix(b"\n").unwrap_or(&line);
        if number == 1 {
            if body != HEADER.as_bytes() {
                return Err(fail(
                    1,
                    format!(
                        "the first line must be {HEADER:?}: this is no dump, or of another version"
                    ),
                ));
            }
            continue;
        }
        let Some(tab) = body.iter().position(|b| *b == b'\t') else {
            if !body.starts_with(b"end ") {
                return Err(fail(
                    number,
                    "neither a pair (key, tab, value) nor the end line".to_owned(),
                ));
            }
            let due = format!("end {pairs} {:016x}", sum.digest());
            if body != due.as_bytes() {
                return Err(fail(
                    number,
                    format!(
                        "the end line does not fit what stands above ({due:?} would): the file was changed"
                    ),
                ));
            }
            let mut more = [0];
            return match std::io::Read::read(&mut lines, &mut more) {
                Ok(0) => Ok(pairs),
                Ok(_) => Err(fail(number + 1, "something follows the end line".to_owned())),
                Err(e) => Err(fail(number + 1, format!("cannot read on: {e}"))),
            };
        };
        let key = unescape(&body[..tab]).map_err(|e| fail(number, format!("key: {e}")))?;
        let value = unescape(&body[tab + 1..]).map_err(|e| fail(number, format!("value: {e}")))?;
        check_key(&key).map_err(|e| fail(number, e.to_string()))?;
        check_value(&value).map_err(|e| fail(number, e.to_string()))?;
        if last.as_ref().is_some_and(|l| *l >= key) {
            return Err(fail(number, "the key is not above the one before".to_owned()));
        }
        sum.update(&line);
        pairs += 1;
        last = Some(key.clone());
        each((key, value))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn dumped(pairs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
        let mut d = Dumper::new(Vec::new()).unwrap();
        for (k, v) in pairs {
            d.pair(k, v).unwrap();
        }
        d.finish().unwrap().1
    }

    fn back(text: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut out = BTreeMap::new();
        let n = read("x", text, |(k, v)| {
            out.insert(k, v);
            Ok(())
        })?;
        assert_eq!(n as usize, out.len());
        Ok(out)
    }

    #[test]
    fn what_is_wrong_has_a_line() {
        let good = dumped(&BTreeMap::from([
            (b"a".to_vec(), b"1".to_vec()),
            (b"b\t\n\\".to_vec(), vec![]),
        ]));
        assert_eq!(back(&good).unwrap().len(), 2);
        let text = String::from_utf8(good).unwrap();
        let why = |t: &str| back(t.as_bytes()).unwrap_err().to_string();
        assert!(why("").contains("line 1: the file is empty"));
        assert!(why("x\n").contains("line 1: the first line"));
        assert!(why(&text.replace("a\t1", "a\t2")).contains("line 4: the end line"));
        assert!(why(&text.replace("a\t1", "c\t1")).contains("line 3: the key is not above"));
        assert!(why(&text.replace("a\t1", "a 1")).contains("line 2: neither"));
        assert!(why(&text.replace("a\t1", "\t1")).contains("line 2: the empty key"));
        assert!(why(&text.replace("a\t1", "a\\x4\t1")).contains("line 2: key: a backslash"));
        assert!(
            why(&text.replace("a\t1", &format!("{}\t1", "a".repeat(1025))))
                .contains("line 2: a key of 1025")
        );
        assert!(why(text.split("end").next().unwrap()).contains("line 4: the file ends"));
        assert!(why(&format!("{text}x")).contains("line 5: something follows"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_bytes_come_back(pairs: BTreeMap<Vec<u8>, Vec<u8>>) {
            let pairs: BTreeMap<_, _> = pairs.into_iter().filter(|(k, _)| !k.is_empty()).collect();
            let text = dumped(&pairs);
            prop_assert!(text.is_ascii());
            prop_assert_eq!(back(&text).unwrap(), pairs);
        }

        #[test]
        fn any_text_is_read_or_refused(text: Vec<u8>) {
            let _ = back(&text);
            let _ = unescape(&text);
        }
    }
}
