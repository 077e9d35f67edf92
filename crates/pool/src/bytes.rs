//! Sizes in bytes, as text.

use bytesize::Unit;

/// The number of bytes that a text names: a number, and a unit or none, such as `4096`, `64KiB`,
/// `1.5 MiB` or `2GB` (`KiB` to `EiB` are powers of 1024, `KB` to `EB` powers of 1000). Case,
/// spaces and underscores do not matter.
///
/// # Errors
/// A text that is no size, quoted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
    let end = plain.rfind(|c: char| c.is_ascii_digit() || c == '.').map_or(0, |last| last + 1);
    let (number, unit) = plain.split_at(end);
    let unit = if unit.is_empty() { Ok(Unit::Byte) } else { unit.parse::<Unit>() };
    let bytes = unit.ok().and_then(|unit| match number.parse::<u64>() {
        Ok(n) => n.checked_mul(unit * 1_u64),
        Err(_) => {
            let n = number.parse::<f64>().ok()? * (unit * 1_u64) as f64;
            (n >= 0.0 && n < u64::MAX as f64).then_some(n as u64)
        }
    });
    bytes.ok_or_else(|| {
        format!(
            "{text:?} is no size below 16EiB: give bytes such as 4096, or with a unit such as 64MiB"
        )
    })
}

/// The number that a text names: `1000000`, `1_000_000`, `1e6` or `1M` (`k`, `M` and `G` are
/// powers of 1000), also `2.5M`.
///
/// # Errors
/// A text that is no whole number below 2^64, quoted.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let (number, power) = match plain.char_indices().last() {
        Some((at, 'k' | 'K')) => (&plain[..at], 3),
        Some((at, 'm' | 'M')) => (&plain[..at], 6),
        Some((at, 'g' | 'G')) => (&plain[..at], 9),
        _ => (&plain[..], 0),
    };
    scaled(number, power).ok_or_else(|| {
        format!("{text:?} is no whole number: give one such as 1000000, 1_000_000, 1e6 or 1M")
    })
}

/// A decimal number, with or without an exponent, times a power of ten, if that is a whole number.
fn scaled(number: &str, power: i32) -> Option<u64> {
    let (digits, exponent) = match number.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain =
        !whole.is_empty() && [whole, fraction].concat().bytes().all(|b| b.is_ascii_digit());
    let fraction = fraction.trim_end_matches('0');
    let zeros = power.checked_add(exponent)?.checked_sub(fraction.len() as i32)?;
    let digits: u64 =
        if is_plain { [whole, fraction].concat().parse().ok()? } else { return None };
    if digits == 0 {
        Some(0)
    } else {
        digits.checked_mul(10u64.checked_pow(u32::try_from(zeros).ok()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts() {
        for (text, count) in [
            ("0", 0),
            ("1000", 1000),
            ("1_000_000", 1_000_000),
            ("1e6", 1_000_000),
            ("1E3", 1000),
            ("2.5e6", 2_500_000),
            ("64k", 64_000),
            ("1M", 1_000_000),
            ("1.5m", 1_500_000),
            ("2G", 2_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for text in [
            "",
            "x",
            "M",
            "1.5",
            "1e",
            "e6",
            "-1",
            "1e-3",
            "1e20",
            "1 000",
            "1..5M",
            "99999999999G",
            "1e999999999999",
        ] {
            let e = parse_count(text).expect_err(text);
            assert!(e.contains("1_000_000"), "{e}");
        }
    }

    #[test]
    fn usual_forms() {
        for (text, bytes) in [
            ("0", 0),
            ("0B", 0),
            ("4096", 4096),
            ("+5", 5),
            ("3b", 3),
            ("1_000kB", 1_000_000),
            ("1_000", 1000),
            ("64KiB", 65536),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            (" 1.5 mib\t", 3 << 19),
            (".5GiB", 1 << 29),
            ("5.MB", 5_000_000),
            ("1e3", 1000),
            ("1e3KB", 1_000_000),
            ("7.5GB", 7_500_000_000),
            ("2TiB", 2 << 40),
            ("3TB", 3_000_000_000_000),
            ("9007199254740993B", 9_007_199_254_740_993),
            ("16777215TiB", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_quoted() {
        for text in [
            "",
            "x",
            "MiB",
            "-1",
            "-0.5",
            "1.2.3",
            "12 parsecs",
            "99999999TiB",
            "20000000TiB",
            "99999999999999999999",
            "1e30",
            "inf",
            "nan",
            "\u{663}MiB",
        ] {
            let e = parse_bytes(text).expect_err(text);
            assert!(e.contains(&format!("{text:?}")) && e.contains("64MiB"), "{e}");
        }
    }

    proptest! {
        #[test]
        fn every_number_has_every_unit(n: u32, unit in 0..9usize, small: bool, gap in "[ _]?") {
            let powers = [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30),
                ("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000_u64)];
            let (unit, factor) = powers[unit];
            let unit = if small { unit.to_lowercase() } else { unit.to_owned() };
            let due = u64::from(n).checked_mul(factor);
            prop_assert_eq!(parse_bytes(&format!("{n}{gap}{unit}")).ok(), due);
        }

        #[test]
        fn no_text_is_too_strange(text: String) {
            let _ = parse_bytes(&text);
        }
    }
}
