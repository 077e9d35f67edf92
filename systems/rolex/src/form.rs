//! From keys to the numbers that models are trained on.
//!
//! The number of a key is what stands behind the bytes that all trained keys have in common: in
//! decimal digits (up to 38), or as a big-endian integer (up to 16 bytes). For trained keys it is
//! exact, and keys that it could only round are refused when models are trained. Any other key has
//! a number, too, and order is kept: a key that is above another has no smaller number.

use dmtree_fabric::{Error, Result};

/// Most decimal digits of a number.
const DIGITS: usize = 38;
/// Most bytes of a number in binary.
const BYTES: usize = 16;

/// How keys of one length are numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// What all trained keys begin with.
    pub prefix: Vec<u8>,
    /// The rest is decimal digits; otherwise it is an integer.
    pub is_decimal: bool,
}

impl Form {
    /// Of ascending keys of one length.
    ///
    /// # Errors
    /// `InvalidArgument` for keys that no number holds.
    pub fn of(keys: &[&[u8]]) -> Result<Self> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            return Ok(Self::default());
        };
        let common = first.iter().zip(*last).take_while(|(a, b)| a == b).count();
        let rest = first.len() - common;
        let is_decimal = keys.iter().all(|key| key[common..].iter().all(u8::is_ascii_digit));
        let fits = rest <= BYTES || (is_decimal && rest <= DIGITS);
        if !fits {
            let what = if is_decimal { "decimal digits" } else { "bytes" };
            return Err(Error::invalid(format!(
                "keys with {rest} {what} behind the {common} bytes that all have in common: a model \
                 holds {DIGITS} decimal digits, or {BYTES} bytes, and would round the rest"
            )));
        }
        let is_decimal = is_decimal && (1..=DIGITS).contains(&rest);
        Ok(Self { prefix: first[..common].to_vec(), is_decimal })
    }

    /// The number of a key.
    pub fn number(&self, key: &[u8]) -> u128 {
        let (head, rest) = key.split_at(self.prefix.len().min(key.len()));
        match head.cmp(&self.prefix[..]) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Greater => u128::MAX,
            std::cmp::Ordering::Equal if self.is_decimal => decimal(rest),
            std::cmp::Ordering::Equal => {
                // Without trained keys every key has one leaf to go to.
                let rest = &rest[..rest.len().min(BYTES)];
                rest.iter().fold(0, |n, b| n << 8 | u128::from(*b))
            }
        }
    }

    /// The key of so many bytes with this number, if it is the number of one that was trained.
    pub fn key(&self, number: u128, bytes: usize) -> Vec<u8> {
        let (mut key, rest) = (self.prefix.clone(), bytes - self.prefix.len());
        match self.is_decimal {
            true => key.extend(format!("{number:0rest$}").bytes()),
            false => key.extend(&number.to_be_bytes()[BYTES - rest..]),
        }
        key
    }
}

/// The number of decimal digits. A byte that is none ends it: the largest number with the digits
/// before, or the smallest.
fn decimal(rest: &[u8]) -> u128 {
    let (mut number, mut fill) = (0u128, None);
    for byte in rest {
        let digit = match (fill, byte) {
            (Some(fill), _) => fill,
            (None, b'0'..=b'9') => u128::from(byte - b'0'),
            (None, other) => *fill.insert(if *other < b'0' { 0 } else { 9 }),
        };
        number = number * 10 + digit;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn form(keys: &[&[u8]]) -> Result<Form> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        Form::of(&keys)
    }

    #[test]
    fn numbers_are_exact() {
        let digits = form(&[b"key-017", b"key-300"]).expect("digits");
        assert_eq!((&digits.prefix[..], digits.is_decimal), (&b"key-"[..], true));
        assert_eq!(digits.number(b"key-300"), 300);
        assert_eq!(digits.key(17, 7), b"key-017");
        let bytes = form(&[b"\x01\x00\xff", b"\x01\x02\x00"]).expect("bytes");
        assert_eq!((bytes.number(b"\x01\x02\x00"), bytes.key(255, 3)), (0x200, vec![1, 0, 255]));
        let one = form(&[&[7; 200]]).expect("one key is all prefix");
        assert_eq!((one.number(&[7; 200]), one.key(0, 200)), (0, vec![7; 200]));
        let widest = [[b'9'; 38], [b'0'; 38]];
        let widest = form(&[&widest[0], &widest[1]]).expect("38 digits");
        assert_eq!(widest.number(&[b'9'; 38]), 10u128.pow(38) - 1);
    }

    #[test]
    fn keys_that_would_be_rounded_are_refused() {
        for (a, b, words) in [
            (vec![b'0'; 39], vec![b'9'; 39], "keys with 39 decimal digits behind the 0 bytes"),
            (vec![b'a'; 17], vec![b'b'; 17], "keys with 17 bytes behind the 0 bytes"),
            (b"xx0123456789abcdefgh".to_vec(), b"xx1123456789abcdefgh".to_vec(), "18 bytes"),
        ] {
            let e = form(&[&a, &b]).expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
    }

    proptest! {
        /// Whatever was trained, other keys keep their order.
        #[test]
        fn order_is_kept(
            trained in prop::collection::vec("[0-9]{3,3}[0-9x]{1,1}", 1..4),
            mut keys in prop::collection::vec(any::<[u8; 4]>(), 2..20),
        ) {
            let mut trained: Vec<&[u8]> = trained.iter().map(|s| s.as_bytes()).collect();
            trained.sort_unstable();
            trained.dedup();
            let form = Form::of(&trained).expect("four bytes");
            for key in &trained {
                prop_assert_eq!(form.key(form.number(key), 4), key.to_vec());
            }
            keys.extend(trained.iter().map(|key| <[u8; 4]>::try_from(*key).expect("four")));
            keys.sort_unstable();
            let numbers: Vec<u128> = keys.iter().map(|key| form.number(key)).collect();
            prop_assert!(numbers.is_sorted());
        }
    }
}
