//! Records on memory nodes, one behind the other in a block that one node writes.
//!
//! A *frame* is the length of its contents (4 bytes), a CRC-32C (4), the contents, and zeros up to
//! a whole word. The checksum covers the block's *life*: a number, and the [`Series`] that counts
//! it. What an earlier life has left there is no frame, whichever log or manifest had the block.
//! Frames end where a checksum fails: a WRITE that its node did not survive may be there in part,
//! and nothing behind it was acknowledged.

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, Result};

/// The form of contents that this program writes, their first byte.
pub(crate) const FORM: u8 = 1;
/// Bytes before the contents.
const HEAD: usize = 8;

/// The log, or the manifest, of a range: each counts the lives of its own blocks, and a block that
/// one gives back may be the next one of any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Series(u64);

/// A life of a block: its number in a series.
pub(crate) type Life = (Series, u64);

impl Series {
    /// The blocks of the log of a range.
    pub(crate) fn log(index: u32, range: usize) -> Self {
        Self(u64::from(index) << 32 | (range as u64) << 1)
    }

    /// The segments of the manifest of a range.
    pub(crate) fn manifest(index: u32, range: usize) -> Self {
        Self(Self::log(index, range).0 | 1)
    }
}

/// The checksum of contents in a life of a block.
fn checksum((series, number): Life, contents: &[u8]) -> u32 {
    let life = u64::from(crc32c([series.0, number], &[]));
    crc32c([life, contents.len() as u64], contents)
}

/// Bytes of a frame around so many bytes of contents.
pub(crate) fn frame_bytes(contents: usize) -> usize {
    (HEAD + contents).next_multiple_of(8)
}

/// Appends a frame for a block in this life.
pub(crate) fn put_frame(out: &mut Vec<u8>, life: Life, contents: &[u8]) {
    let end = out.len() + frame_bytes(contents.len());
    out.extend_from_slice(&(contents.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(life, contents).to_le_bytes());
    out.extend_from_slice(contents);
    out.resize(end, 0);
}

/// Takes the next frame; `None` behind the last one. `torn`: whatever its checksum says.
fn next<'a>(rest: &mut &'a [u8], life: Life, torn: bool) -> Option<&'a [u8]> {
    let (head, behind) = rest.split_first_chunk::<HEAD>()?;
    let [length, sum] = [&head[..4], &head[4..]]
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let n = length as usize;
    let contents = behind.get(..n).filter(|some| !some.is_empty())?;
    if !torn && checksum(life, contents) != sum {
        return None;
    }
    *rest = rest.get(frame_bytes(n)..).unwrap_or_default();
    Some(contents)
}

/// The contents of the frames of a block, without their form.
///
/// # Errors
/// `Incompatible` for contents of another form.
pub(crate) fn contents(bytes: &[u8], life: Life, torn: bool) -> Result<Vec<&[u8]>> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while let Some(frame) = next(&mut rest, life, torn) {
        match frame.split_first() {
            Some((&FORM, contents)) => all.push(contents),
            other => {
                let form = other.map_or(0, |(form, _)| *form);
                return Err(Error::incompatible(format!(
                    "log or manifest of dlsm in form {form}; this program reads form {FORM}: open \
                     the index with the program that wrote it"
                )));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Series = Series(6);

    fn framed(number: u64, all: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        all.iter().for_each(|some| put_frame(&mut out, (LOG, number), some));
        out
    }

    /// A block goes from the log of a range to that of another, to a manifest, and, once its index
    /// is dropped, to another index. All of them count from 1.
    #[test]
    fn frames_of_another_series_with_the_same_number_are_none() {
        let (index, range, number) = (2, 3, 4);
        let all = [
            Series::log(index, range),
            Series::manifest(index, range),
            Series::log(index, range + 1),
            Series::log(index + 1, range),
        ];
        for (w, writer) in all.into_iter().enumerate() {
            let mut bytes = Vec::new();
            put_frame(&mut bytes, (writer, number), &[FORM, 1, 2]);
            for (r, reader) in all.into_iter().enumerate() {
                let found = contents(&bytes, (reader, number), false).expect("one form");
                assert_eq!(found.len(), usize::from(r == w), "{writer:?} {reader:?}");
            }
        }
    }

    #[test]
    fn frames_end_at_the_first_that_is_none() {
        let bytes = framed(7, &[&[FORM, 1, 2], &[FORM], &[FORM; 40]]);
        let all = contents(&bytes, (LOG, 7), false).expect("one form");
        assert_eq!(all, [&[1u8, 2][..], &[], &[FORM; 39]]);
        assert_eq!(
            contents(&bytes, (LOG, 8), false).expect("none"),
            [&[0u8; 0][..]; 0],
            "of another life"
        );
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(contents(&torn, (LOG, 7), false).is_ok_and(|some| some.len() <= 3));
            assert!(contents(&bytes[..at], (LOG, 7), false).is_ok_and(|some| some.len() < 3));
        }
        assert_eq!(contents(&[0; 64], (LOG, 7), false).expect("none"), [&[0u8; 0][..]; 0]);
    }

    #[test]
    fn another_form_is_refused() {
        let e = contents(&framed(1, &[&[2, 9]]), (LOG, 1), false)
            .expect_err("another form")
            .to_string();
        assert!(e.contains("form 2; this program reads form 1"), "{e}");
    }
}
