//! Numbers, truth values, characters, byte arrays.

use dmtree_fabric::{Error, Result};

use super::{DecodeKey, EncodeKey, take};

macro_rules! unsigned {
    ($($t:ident)*) => {$(
        impl EncodeKey for $t {
            fn encode_to(&self, out: &mut Vec<u8>) {
                out.extend(self.to_be_bytes());
            }
        }
        impl DecodeKey for $t {
            fn decode_from(input: &mut &[u8]) -> Result<Self> {
                take(input, stringify!($t)).map(Self::from_be_bytes)
            }
        }
    )*};
}
unsigned!(u8 u16 u32 u64 u128);

macro_rules! signed {
    ($($t:ident $u:ident)*) => {$(
        impl EncodeKey for $t {
            fn encode_to(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ $t::MIN.cast_unsigned()).encode_to(out);
            }
        }
        impl DecodeKey for $t {
            fn decode_from(input: &mut &[u8]) -> Result<Self> {
                let bits = take(input, stringify!($t)).map($u::from_be_bytes)?;
                Ok((bits ^ $t::MIN.cast_unsigned()).cast_signed())
            }
        }
    )*};
}
signed!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

macro_rules! float {
    ($($t:ident $u:ident)*) => {$(
        impl EncodeKey for $t {
            fn encode_to(&self, out: &mut Vec<u8>) {
                let (bits, sign) = (self.to_bits(), !($u::MAX >> 1));
                let ordered = if bits & sign == 0 { bits ^ sign } else { !bits };
                ordered.encode_to(out);
            }
        }
        impl DecodeKey for $t {
            fn decode_from(input: &mut &[u8]) -> Result<Self> {
                let (bits, sign) = (take(input, stringify!($t)).map($u::from_be_bytes)?, !($u::MAX >> 1));
                Ok(Self::from_bits(if bits & sign == 0 { !bits } else { bits ^ sign }))
            }
        }
    )*};
}
float!(f32 u32 f64 u64);

impl EncodeKey for bool {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl DecodeKey for bool {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        match take(input, "a truth value or an option")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Error::invalid(format!(
                "a key has {other:#04x} where a truth value or an option begins: 0 or 1"
            ))),
        }
    }
}

impl EncodeKey for char {
    fn encode_to(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode_to(out);
    }
}

impl DecodeKey for char {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        let code = u32::decode_from(input)?;
        Self::from_u32(code)
            .ok_or_else(|| Error::invalid(format!("{code:#x} in a key is no character")))
    }
}

impl<const N: usize> EncodeKey for [u8; N] {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> DecodeKey for [u8; N] {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        take(input, "an array of bytes")
    }
}
