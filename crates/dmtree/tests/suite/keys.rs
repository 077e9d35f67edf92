//! Encoded keys order as the values do, come back whole, and malformed bytes are errors.

use dmtree::ErrorKind;
use dmtree::keys::{DecodeKey, EncodeKey, decode, encode};
use proptest::prelude::*;

fn same_order<T: EncodeKey + DecodeKey + PartialOrd + std::fmt::Debug>(
    a: &T,
    b: &T,
) -> Result<(), TestCaseError> {
    let (x, y) = (encode(a), encode(b));
    prop_assert_eq!(a.partial_cmp(b), Some(x.cmp(&y)), "{:?} {:?}", a, b);
    prop_assert_eq!(&decode::<T>(&x).expect("whole"), a);
    // A key cut short, or with something behind it, is none of the same type.
    for cut in 0..x.len() {
        prop_assert!(decode::<T>(&x[..cut]).is_err(), "{:?} cut to {}", a, cut);
    }
    let mut longer = x;
    longer.push(0);
    prop_assert!(decode::<T>(&longer).is_err());
    Ok(())
}

/// Few bytes, so that zeros, prefixes and equal strings are frequent.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(
        prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff), any::<u8>()],
        0..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn integers(a: (u8, u16, u32, u64, u128), b: (u8, u16, u32, u64, u128)) {
        same_order(&a.0, &b.0)?;
        same_order(&a.1, &b.1)?;
        same_order(&a.2, &b.2)?;
        same_order(&a.3, &b.3)?;
        same_order(&a.4, &b.4)?;
        same_order(&a, &b)?;
    }

    #[test]
    fn signed_integers(a: (i8, i16, i32, i64, i128), b: (i8, i16, i32, i64, i128)) {
        same_order(&a.0, &b.0)?;
        same_order(&a.1, &b.1)?;
        same_order(&a.2, &b.2)?;
        same_order(&a.3, &b.3)?;
        same_order(&a.4, &b.4)?;
        same_order(&a, &b)?;
    }

    #[test]
    fn floats_in_total_order(a: u64, b: u64) {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        prop_assert_eq!(x.total_cmp(&y), encode(&x).cmp(&encode(&y)));
        prop_assert_eq!(decode::<f64>(&encode(&x)).expect("whole").to_bits(), a);
        let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        prop_assert_eq!(x.total_cmp(&y), encode(&x).cmp(&encode(&y)));
        prop_assert_eq!(decode::<f32>(&encode(&x)).expect("whole").to_bits(), a as u32);
    }

    #[test]
    fn strings_and_options(a in bytes(), b in bytes(), s: String, t: String, c: (char, bool), d: (char, bool)) {
        same_order(&a, &b)?;
        same_order(&s, &t)?;
        same_order(&c, &d)?;
        let option = |x: &Vec<u8>| (!x.is_empty()).then(|| x.clone());
        same_order(&option(&a), &option(&b))?;
    }

    #[test]
    fn tuples(a in (bytes(), any::<i32>(), bytes()), b in (bytes(), any::<i32>(), bytes())) {
        same_order(&a, &b)?;
        same_order(&(a.0.clone(), a.2.clone()), &(b.0.clone(), b.2.clone()))?;
        let eight = |x: &(Vec<u8>, i32, Vec<u8>)| {
            (x.0.clone(), x.1, Some(x.2.clone()), true, 'x', x.1 as u8, [1u8, 2], x.0.clone())
        };
        same_order(&eight(&a), &eight(&b))?;
        // The first elements are a prefix.
        prop_assert!(encode(&a).starts_with(&encode(&(&a.0[..],))));
    }

    #[test]
    fn any_bytes_decode_or_fail(input in bytes()) {
        if let Ok(v) = decode::<(Option<Vec<u8>>, bool)>(&input) {
            prop_assert_eq!(encode(&v), input.clone());
        }
        if let Ok(v) = decode::<(String,)>(&input) {
            prop_assert_eq!(encode(&v), input);
        }
    }
}

#[test]
fn landmarks() {
    let order =
        [f64::NEG_INFINITY, -1.5, -0.0, 0.0, f64::MIN_POSITIVE, 2.0, f64::INFINITY, f64::NAN];
    assert!(order.windows(2).all(|w| encode(&w[0]) < encode(&w[1])));
    assert_eq!(encode(&("a\0b", -1i16)), b"a\0\xffb\0\0\x7f\xff");
    assert!(encode(&None::<u8>) < encode(&Some(0u8)));
    for malformed in [&b"ab"[..], b"a\0", b"a\0\x01", b"\0\xff", b"\xff\0\0"] {
        let e = decode::<String>(malformed).expect_err("no text");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    }
    assert!(decode::<bool>(&[2]).is_err());
    assert!(decode::<char>(&[0, 0, 0xd8, 0]).is_err());
}
