//! Summarizes several rounds.

use serde::{Deserialize, Serialize};

/// The summary of rounds: for one round its value; for two to four the average and the extremes;
/// for five and more the average and a 95 % interval of Student's t.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of rounds.
    pub rounds: usize,
    /// Their average.
    pub average: f64,
    /// The lowest; from two rounds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The highest; from two rounds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Half the width of the 95 % interval; from five rounds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_width_95: Option<f64>,
}

/// The 0.975 quantile of Student's t for 4 degrees of freedom or more, with an error up to 0.001
/// (Abramowitz and Stegun, 26.7.5).
pub fn t975(degrees: usize) -> f64 {
    let (z, v) = (1.959_964_f64, degrees as f64);
    let [z1, z3, z5, z7, z9] = [1, 3, 5, 7, 9].map(|n| z.powi(n));
    z + (z3 + z1) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z1) / (96.0 * v.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z1) / (384.0 * v.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * z1) / (92160.0 * v.powi(4))
}

impl Summary {
    /// Summarizes values; `None` for no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let average = values.iter().sum::<f64>() / n as f64;
        let of_two = |of: fn(f64, f64) -> f64| values.iter().copied().reduce(of).filter(|_| n >= 2);
        let half_width_95 = (n >= 5).then(|| {
            let squares = values.iter().map(|v| (v - average).powi(2)).sum::<f64>();
            let deviation = (squares / (n - 1) as f64).sqrt();
            t975(n - 1) * deviation / (n as f64).sqrt()
        });
        let (min, max) = (of_two(f64::min), of_two(f64::max));
        Some(Self { rounds: n, average, min, max, half_width_95 })
    }

    /// As text for tables.
    pub fn text(&self) -> String {
        match (self.half_width_95, self.min, self.max) {
            (Some(h), _, _) => format!("{:.3} ±{h:.3}", self.average),
            (None, Some(low), Some(high)) => format!("{:.3} ({low:.3}..{high:.3})", self.average),
            _ => format!("{:.3}", self.average),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_number_of_rounds() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[2.0]).unwrap().text(), "2.000");
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0]).unwrap().text(), "2.000 (1.000..3.000)");
        let five = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // s = sqrt(2.5), t(4) = 2.776
        assert!((five.half_width_95.unwrap() - 2.776 * 2.5f64.sqrt() / 5f64.sqrt()).abs() < 1e-3);
        assert_eq!(five.text(), "3.000 ±1.963");
    }

    #[test]
    fn quantiles_are_students() {
        for (degrees, due) in [(4, 2.776), (10, 2.228), (30, 2.042), (40, 2.021), (120, 1.980)] {
            assert!((t975(degrees) - due).abs() < 1.5e-3, "{degrees}: {}", t975(degrees));
        }
    }
}
