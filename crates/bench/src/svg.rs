//! What every chart needs: escaped text, axis marks, numbers.

/// Text for SVG and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A step between axis marks: 1, 2 or 5 times a power of ten, so that `high` takes four to ten of them.
pub(crate) fn step(high: f64) -> f64 {
    let raw = high / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(power * 10.0)
}

pub(crate) fn number(v: f64) -> String {
    let digits = if v >= 100.0 {
        0
    } else if v >= 10.0 {
        1
    } else if v >= 1.0 {
        2
    } else {
        3
    };
    let text = format!("{v:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for (high, due) in [(1.0, 0.2), (55.0, 20.0), (0.07, 0.02), (4.9, 1.0), (1234.0, 500.0)] {
            assert!((step(high) - due).abs() < due * 1e-9, "{high}: {}", step(high));
        }
        assert_eq!(
            (number(0.25), number(50.0), number(1000.0)),
            ("0.25".into(), "50".into(), "1000".into())
        );
    }
}
