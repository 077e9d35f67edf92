//! A record of named fields, and its form as one value of an index.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::Fields;
use crate::error::{Error, Result};

/// First byte of an encoded record.
const MAGIC: u8 = 0xD7;

/// Second byte: the version of the encoding.
const VERSION: u8 = 1;

/// Magic, version and checksum.
const HEADER: usize = 6;

/// The value of a trace's key: field number (the N of `fieldN`) to value.
///
/// # Encoding, version 1
///
/// | bytes | content |
/// |---|---|
/// | 1 | 0xD7 |
/// | 1 | version, 1 |
/// | 4 | checksum, little endian: the lower half of XXH3-64 of all that follows |
/// | 1 to 5 | number of fields |
/// | then per field, by ascending number: | |
/// | 1 to 5 | field number |
/// | 1 to 5 | length of the value |
/// | length | the value |
///
/// Numbers are LEB128 (7 bits per byte, low bits first, in as few bytes as possible), below 2^32. A
/// record has one encoding; [`Record::decode`] refuses any other bytes, and so detects a torn or
/// foreign value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record(pub BTreeMap<u32, Vec<u8>>);

impl Record {
    /// The record with only the fields that a read asks for.
    pub fn project(&self, wanted: &Fields) -> Record {
        match wanted {
            Fields::All => self.clone(),
            Fields::Some(numbers) => {
                let pick = |field: &u32| Some((*field, self.0.get(field)?.clone()));
                Record(numbers.iter().filter_map(pick).collect())
            }
        }
    }

    /// Length of the encoding, bytes.
    pub fn encoded_len(&self) -> usize {
        let number = |n: u32| (32 - (n | 1).leading_zeros()).div_ceil(7) as usize;
        let fields = self.0.iter();
        let fields = fields.map(|(f, v)| number(*f) + number(v.len() as u32) + v.len());
        HEADER + number(self.0.len() as u32) + fields.sum::<usize>()
    }

    /// Replaces the content of `out` by the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&[MAGIC, VERSION, 0, 0, 0, 0]);
        put_number(self.0.len() as u32, out);
        for (&field, value) in &self.0 {
            put_number(field, out);
            put_number(value.len() as u32, out);
            out.extend_from_slice(value);
        }
        let sum = checksum(&out[HEADER..]);
        out[2..HEADER].copy_from_slice(&sum);
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Bytes that [`Record::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |why: String| {
            let len = bytes.len();
            Error::new(format!(
                "the value ({len} bytes) is no record of a trace: {why}; load the index from the trace"
            ))
        };
        let Some((header, mut rest)) = bytes.split_at_checked(HEADER) else {
            return Err(bad("too short".to_owned()));
        };
        if header[0] != MAGIC {
            return Err(bad(format!("it starts with {:#04x}, not {MAGIC:#04x}", header[0])));
        }
        if header[1] != VERSION {
            return Err(bad(format!("its version is {}, not {VERSION}", header[1])));
        }
        if header[2..] != checksum(rest) {
            return Err(bad("its checksum is wrong".to_owned()));
        }
        let number = |rest: &mut &[u8]| {
            take_number(rest).ok_or_else(|| bad("a number in it is malformed".to_owned()))
        };
        let mut fields = BTreeMap::new();
        for _ in 0..number(&mut rest)? {
            let field = number(&mut rest)?;
            let len = number(&mut rest)? as usize;
            let Some((value, after)) = rest.split_at_checked(len) else {
                return Err(bad(format!("field {field} ends beyond it")));
            };
            if fields.last_key_value().is_some_and(|(&last, _)| last >= field) {
                return Err(bad(format!("field {field} is out of order")));
            }
            fields.insert(field, value.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes follow it", rest.len())));
        }
        Ok(Record(fields))
    }
}

fn checksum(body: &[u8]) -> [u8; 4] {
    (xxh3_64(body) as u32).to_le_bytes()
}

fn put_number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number: u64 = 0;
    for at in 0..5 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << (7 * at);
        if byte < 0x80 {
            // As few bytes as possible: the last one is not empty.
            let shortest = at == 0 || byte != 0;
            return u32::try_from(number).ok().filter(|_| shortest);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(fields: &[(u32, &str)]) -> Record {
        Record(fields.iter().map(|&(f, v)| (f, v.as_bytes().to_vec())).collect())
    }

    fn encoded(record: &Record) -> Vec<u8> {
        let mut out = vec![1];
        record.encode(&mut out);
        out
    }

    #[test]
    fn a_read_may_ask_for_some_fields() {
        let r = record(&[(0, "a"), (1, ""), (3, "c")]);
        assert_eq!(r.project(&Fields::Some(vec![3, 7])), record(&[(3, "c")]));
        assert_eq!(r.project(&Fields::All), r);
    }

    #[test]
    fn the_encoding_is_as_documented() {
        let bytes = encoded(&record(&[(1, "xy"), (300, "")]));
        assert_eq!(bytes[..2], [0xD7, 1]);
        assert_eq!(bytes[6..], [2, 1, 2, b'x', b'y', 0xAC, 0x02, 0]);
        assert_eq!(bytes[2..6], (xxh3_64(&bytes[6..]) as u32).to_le_bytes());
    }

    /// A body with a correct header and checksum.
    fn sealed(body: &[u8]) -> Vec<u8> {
        [&[MAGIC, VERSION], &checksum(body)[..], body].concat()
    }

    #[test]
    fn other_bytes_say_why() {
        for (bytes, why) in [
            (b"".to_vec(), "too short"),
            (b"twelve bytes".to_vec(), "starts with"),
            (vec![MAGIC, 9, 0, 0, 0, 0, 0], "version is 9"),
            (vec![MAGIC, VERSION, 0, 0, 0, 0, 0], "checksum"),
            (sealed(b""), "malformed"),
            // Zero in two bytes; 2^32 and more.
            (sealed(&[0x80, 0]), "malformed"),
            (sealed(&[0xFF, 0xFF, 0xFF, 0xFF, 0x7F]), "malformed"),
            (sealed(&[1, 0, 5, b'x']), "ends beyond"),
            (sealed(&[2, 1, 0, 1, 0]), "out of order"),
            (sealed(&[0, 0]), "1 bytes follow"),
        ] {
            let error = Record::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        assert_eq!(Record::decode(&sealed(&[0])).unwrap(), Record::default());
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn encodings_come_back(fields: BTreeMap<u32, Vec<u8>>) {
            let r = Record(fields);
            prop_assert_eq!(r.encoded_len(), encoded(&r).len());
            prop_assert_eq!(Record::decode(&encoded(&r)).unwrap(), r);
        }

        #[test]
        fn any_bytes_decode_or_fail_and_never_twice(body: Vec<u8>) {
            let bytes = sealed(&body);
            if let Ok(r) = Record::decode(&bytes) {
                prop_assert_eq!(encoded(&r), bytes);
            }
            let _ = Record::decode(&body);
        }

        #[test]
        fn a_flipped_bit_is_seen(fields: BTreeMap<u32, Vec<u8>>, bit: prop::sample::Index) {
            let mut bytes = encoded(&Record(fields));
            let bit = bit.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Record::decode(&bytes).is_err());
        }
    }
}
