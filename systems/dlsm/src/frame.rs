//! Records on memory nodes, one behind the other in a block that one node writes.
//!
//! A *frame* is the length of its contents (4 bytes), a CRC-32C (4), the contents, and zeros up to
//! a whole word. The checksum covers the number of the block's life: what an earlier life has left
//! there is no frame. Frames end where a checksum fails: a WRITE that its node did not survive may
//! be there in part, and nothing behind it was acknowledged.

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, Result};

/// The form of contents that this program writes, their first byte.
pub(crate) const FORM: u8 = 1;
/// Bytes before the contents.
const HEAD: usize = 8;

/// Bytes of a frame around so many bytes of contents.
pub(crate) fn frame_bytes(contents: usize) -> usize {
    (HEAD + contents).next_multiple_of(8)
}

/// Appends a frame for a block with the number `life`.
pub(crate) fn put_frame(out: &mut Vec<u8>, life: u64, contents: &[u8]) {
    let end = out.len() + frame_bytes(contents.len());
    out.extend_from_slice(&(contents.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c([life, contents.len() as u64], contents).to_le_bytes());
    out.extend_from_slice(contents);
    out.resize(end, 0);
}

/// Takes the next frame; `None` behind the last one. `torn`: whatever its checksum says.
fn next<'a>(rest: &mut &'a [u8], life: u64, torn: bool) -> Option<&'a [u8]> {
    let (head, behind) = rest.split_first_chunk::<HEAD>()?;
    let [length, sum] = [&head[..4], &head[4..]]
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let n = length as usize;
    let contents = behind.get(..n).filter(|some| !some.is_empty())?;
    if !torn && crc32c([life, n as u64], contents) != sum {
        return None;
    }
    *rest = rest.get(frame_bytes(n)..).unwrap_or_default();
    Some(contents)
}

/// The contents of the frames of a block, without their form.
///
/// # Errors
/// `Incompatible` for contents of another form.
pub(crate) fn contents(bytes: &[u8], life: u64, torn: bool) -> Result<Vec<&[u8]>> {
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

    fn framed(life: u64, all: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        all.iter().for_each(|some| put_frame(&mut out, life, some));
        out
    }

    #[test]
    fn frames_end_at_the_first_that_is_none() {
        let bytes = framed(7, &[&[FORM, 1, 2], &[FORM], &[FORM; 40]]);
        let all = contents(&bytes, 7, false).expect("one form");
        assert_eq!(all, [&[1u8, 2][..], &[], &[FORM; 39]]);
        assert_eq!(
            contents(&bytes, 8, false).expect("none"),
            [&[0u8; 0][..]; 0],
            "of another life"
        );
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(contents(&torn, 7, false).is_ok_and(|some| some.len() <= 3));
            assert!(contents(&bytes[..at], 7, false).is_ok_and(|some| some.len() < 3));
        }
        assert_eq!(contents(&[0; 64], 7, false).expect("none"), [&[0u8; 0][..]; 0]);
    }

    #[test]
    fn another_form_is_refused() {
        let e = contents(&framed(1, &[&[2, 9]]), 1, false).expect_err("another form").to_string();
        assert!(e.contains("form 2; this program reads form 1"), "{e}");
    }
}
