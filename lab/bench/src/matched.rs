//! How many cores of memory nodes do what a system does that has no use for them.
//!
//! Of a sweep over such cores (`mn-cores`), each system with several points is compared with each
//! that has one. Between two points the throughput is taken as a straight line.

use serde::{Deserialize, Serialize};

use crate::results::{Cell, distinct};
use crate::table::{Column, table_of};

/// The setting that varies.
pub const SETTING: &str = "mn-cores";

/// A system with data services beside one without.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Matched {
    /// The system that uses cores of memory nodes.
    pub system: String,
    /// The system that it is to match.
    pub other: String,
    /// The workload.
    pub workload: String,
    /// The distribution.
    pub distribution: String,
    /// Cores of a memory node at which it does as much; without them more than were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// Most cores that were tried.
    pub most_cores: f64,
    /// Its throughput there by that of the other system.
    pub share: f64,
}

/// The comparisons of all cells, by workload; none where no sweep varies the cores.
pub fn of(cells: &[Cell]) -> Vec<Matched> {
    let place = |c: &Cell| {
        c.place.as_ref().filter(|p| p.setting == SETTING && p.besides.is_empty()).map(|p| p.x)
    };
    let mut out = Vec::new();
    for (workload, law) in distinct(cells.iter().map(|c| (&c.workload, &c.distribution))) {
        let here: Vec<&Cell> =
            cells.iter().filter(|c| c.workload == *workload && c.distribution == *law).collect();
        let points = |system: &str| {
            let its = here.iter().filter(|c| c.system == system);
            let mut points: Vec<_> = its.filter_map(|c| Some((place(c)?, c.mops))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let systems = distinct(here.iter().map(|c| c.system.as_str()));
        let with = systems.iter().map(|s| (*s, points(s))).filter(|(_, points)| points.len() > 1);
        let with: Vec<_> = with.collect();
        for other in here.iter().filter(|c| !with.iter().any(|(s, _)| *s == c.system)) {
            for (system, points) in &with {
                let Some((most_cores, mops)) = points.last().copied() else { continue };
                out.push(Matched {
                    system: (*system).to_owned(),
                    other: other.system.clone(),
                    workload: workload.clone(),
                    distribution: law.clone(),
                    cores: cores_for(points, other.mops),
                    most_cores,
                    share: mops / other.mops.max(f64::MIN_POSITIVE),
                });
            }
        }
    }
    out
}

/// Where points of cores and throughput reach a throughput.
fn cores_for(points: &[(f64, f64)], mops: f64) -> Option<f64> {
    let at = points.iter().position(|(_, reached)| *reached >= mops)?;
    let (cores, reached) = points[at];
    let Some((before, less)) = at.checked_sub(1).map(|i| points[i]) else { return Some(cores) };
    Some(before + (cores - before) * (mops - less) / (reached - less))
}

/// As text; empty without any.
pub fn text(all: &[Matched]) -> String {
    let columns: [Column<&Matched>; 6] = [
        ("workload", |m| format!("{} {}", m.workload, m.distribution)),
        ("does as much as", |m| m.other.clone()),
        ("system", |m| m.system.clone()),
        ("cores", |m| match m.cores {
            Some(cores) => format!("{cores:.1}"),
            None => format!("over {:.0}", m.most_cores),
        }),
        ("at most cores", |m| format!("{:.0}", m.most_cores)),
        ("share there", |m| format!("{:.2}", m.share)),
    ];
    match all.is_empty() {
        true => String::new(),
        false => format!("cores of a memory node\n{}\n", table_of((&columns, 3), all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_points_is_a_straight_line() {
        let points = [(1.0, 2.0), (2.0, 4.0), (4.0, 6.0)];
        let reached = [1.0, 2.0, 3.0, 5.0, 6.0, 6.1].map(|mops| cores_for(&points, mops));
        assert_eq!(reached, [Some(1.0), Some(1.0), Some(1.5), Some(3.0), Some(4.0), None]);
        // More cores may do less.
        assert_eq!(cores_for(&[(1.0, 2.0), (2.0, 1.0), (4.0, 3.0)], 2.5), Some(3.5));
    }

    #[test]
    fn the_text_says_what_was_not_reached() {
        let reached = Matched { cores: Some(19.6), share: 3.3, ..Matched::default() };
        let not = Matched { cores: None, most_cores: 64.0, share: 0.7, ..Matched::default() };
        let text = text(&[reached, not]);
        assert!(
            text.contains("19.6") && text.contains("over 64") && text.contains("0.70"),
            "{text}"
        );
        assert!(super::text(&[]).is_empty());
    }
}
