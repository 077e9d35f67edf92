//! Tuples: their elements, one after the other.

use dmtree_fabric::Result;

use super::{DecodeKey, EncodeKey};

macro_rules! tuple {
    ($($t:ident $i:tt)+) => {
        impl<$($t: EncodeKey),+> EncodeKey for ($($t,)+) {
            fn encode_to(&self, out: &mut Vec<u8>) {
                $(self.$i.encode_to(out);)+
            }
        }
        impl<$($t: DecodeKey),+> DecodeKey for ($($t,)+) {
            fn decode_from(input: &mut &[u8]) -> Result<Self> {
                Ok(($($t::decode_from(input)?,)+))
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0 B 1);
tuple!(A 0 B 1 C 2);
tuple!(A 0 B 1 C 2 D 3);
tuple!(A 0 B 1 C 2 D 3 E 4);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5 G 6);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7);
