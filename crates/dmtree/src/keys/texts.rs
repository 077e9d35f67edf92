//! Byte strings of any length: each 0x00 is written as 0x00 0xff, and 0x00 0x00 ends them, so that
//! a shorter string is below its extensions whatever follows.

use dmtree_fabric::{Error, Result};

use super::{DecodeKey, EncodeKey};

const END: u8 = 0x00;
const ZERO: u8 = 0xff;

impl EncodeKey for [u8] {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len() + 2);
        for byte in self {
            out.push(*byte);
            if *byte == 0 {
                out.push(ZERO);
            }
        }
        out.extend([0, END]);
    }
}

impl EncodeKey for str {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_to(out);
    }
}

impl EncodeKey for String {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_to(out);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_to(out);
    }
}

impl DecodeKey for Vec<u8> {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        let mut out = Self::new();
        loop {
            let Some(zero) = input.iter().position(|b| *b == 0) else {
                return Err(Error::invalid("a key ends within a string: its end mark is missing"));
            };
            out.extend_from_slice(&input[..zero]);
            let mark = input.get(zero + 1).copied();
            *input = input.get(zero + 2..).unwrap_or(&[]);
            match mark {
                Some(END) => return Ok(out),
                Some(ZERO) => out.push(0),
                Some(other) => {
                    return Err(Error::invalid(format!(
                        "a key has 0x00 {other:#04x} within a string: only 0x00 0x00 and 0x00 0xff occur there"
                    )));
                }
                None => return Err(Error::invalid("a key ends within the end mark of a string")),
            }
        }
    }
}

impl DecodeKey for String {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        let bytes = Vec::<u8>::decode_from(input)?;
        Self::from_utf8(bytes).map_err(|e| Error::invalid(format!("a text in a key: {e}")))
    }
}
