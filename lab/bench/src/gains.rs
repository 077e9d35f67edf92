//! Reference speedups, shipped as data: the published throughput of one system relative to another,
//! beside the same ratio measured here.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::Result;
use crate::published::Sheet;
use crate::results::Cell;
use crate::table::{Column, table_of};

/// The tables: name and text.
const TABLES: [(&str, &str); 2] = [
    ("smart-gains", include_str!("../../experiments/published/smart-gains.csv")),
    ("chime-gains", include_str!("../../experiments/published/chime-gains.csv")),
];

/// A table of published claims: the throughput, relative to that of another system, by the
/// technique or system of the claim, workload, system, and the other system.
pub type Claims = Sheet<4>;

/// A published speedup beside the one measured here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// The technique or system of the claim.
    pub claim: String,
    /// The workload.
    pub workload: String,
    /// The distribution here.
    pub distribution: String,
    /// The system with the technique.
    pub system: String,
    /// The system without it.
    pub over: String,
    /// Published throughput of the first system relative to the second.
    pub published: f64,
    /// The same ratio here.
    pub here: f64,
}

/// Speedups beside the published ones, and the source of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gains {
    /// The source of the published ones.
    pub source: String,
    /// Speedups of the cells that ran.
    pub rows: Vec<Gain>,
}

impl Claims {
    /// A shipped table by name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn named(name: &str) -> Result<Self> {
        Self::read("table of published gains", &TABLES, name)
    }

    /// The speedups for the given cells; none under other settings than the published ones.
    pub fn beside(&self, c: &Config, cells: &[Cell]) -> Gains {
        let applies = self.applies(c, "", "");
        let mut rows = Vec::new();
        for ([claim, workload, system, over], gain) in self.rows.iter().filter(|_| applies) {
            let of = |system: &'static str| {
                let of_all = |c: &&Cell| c.workload == *workload && c.variant.is_none();
                cells.iter().filter(move |c| c.system == system && of_all(c))
            };
            for with in of(system) {
                let same = |c: &&Cell| c.distribution == with.distribution && c.mops > 0.0;
                let Some(without) = of(over).find(same) else { continue };
                rows.push(Gain {
                    claim: (*claim).to_owned(),
                    workload: (*workload).to_owned(),
                    distribution: with.distribution.clone(),
                    system: (*system).to_owned(),
                    over: (*over).to_owned(),
                    published: *gain,
                    here: with.mops / without.mops,
                });
            }
        }
        Gains { source: self.source.clone(), rows }
    }
}

impl Gains {
    /// As text.
    pub fn text(&self) -> String {
        let columns: [Column<&Gain>; 6] = [
            ("gain", |g| g.claim.clone()),
            ("workload", |g| g.workload.clone()),
            ("system", |g| g.system.clone()),
            ("over", |g| g.over.clone()),
            ("here", |g| format!("{:.2}", g.here)),
            ("published", |g| format!("{:.1}", g.published)),
        ];
        let table = table_of((&columns, 4), &self.rows);
        format!("gains, throughput by throughput ({})\n{table}\n", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::find;

    #[test]
    fn the_tables_are_whole_and_name_systems() {
        let all = [
            ("smart-gains", 7, [16, 2, 24, 2], "OSDI'23"),
            ("chime-gains", 18, [10, 1, 32, 2], "SOSP'24"),
        ];
        for (name, rows, setup, source) in all {
            let t = Claims::named(name).unwrap();
            assert_eq!((t.rows.len(), t.setup), (rows, setup));
            assert!(t.source.contains(source));
            for ([_, workload, system, over], _) in &t.rows {
                assert!(find(system).is_ok() && find(over).is_ok());
                let known: dmtree_workload::Workload = workload.parse().unwrap();
                assert_eq!(known.name(), *workload);
            }
        }
        assert!(Claims::named("x").unwrap_err().to_string().contains("smart-gains"));
    }

    #[test]
    fn text_and_data_have_both_figures() {
        let gain = Gain { claim: "a <b>".into(), published: 1.5, here: 1.25, ..Gain::default() };
        let gains = Gains { source: "slides".into(), rows: vec![gain] };
        let text = gains.text();
        assert!(text.contains("a <b>") && text.contains("1.25") && text.contains("1.5"), "{text}");
        let data = serde_json::to_value(&gains).unwrap();
        let row = &data["rows"][0];
        assert_eq!((row["here"].as_f64(), row["published"].as_f64()), (Some(1.25), Some(1.5)));
    }
}
