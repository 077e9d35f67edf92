//! Reference speedups, shipped as data: the published throughput of one system relative to another,
//! beside the same ratio measured here.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::offered::LoadShape;
use crate::panel::{Bar, Bars, Source, colour};
use crate::published::Sheet;
use crate::results::Cell;
use crate::svg::escaped;

/// The tables: name and text.
const TABLES: [(&str, &str); 1] = [("smart-gains", include_str!("../published/smart-gains.csv"))];

/// A published claim: the throughput of a system relative to another.
#[derive(Clone, Debug, PartialEq)]
struct Claim {
    claim: String,
    workload: String,
    system: String,
    over: String,
    gain: f64,
}

/// A table of published claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    /// The source, as text.
    pub source: String,
    setup: [u32; 4],
    claims: Vec<Claim>,
}

/// A published speedup beside the one measured here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

impl Gain {
    /// The name of this speedup among the numbers of the report.
    pub fn key(&self) -> String {
        format!(
            "gain of {} over {} {} {}",
            self.system, self.over, self.workload, self.distribution
        )
    }

    fn source(&self) -> Source {
        Source { cell: self.key(), field: "here" }
    }
}

impl Claims {
    /// A shipped table by name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn named(name: &str) -> Result<Self> {
        match TABLES.iter().find(|(n, _)| *n == name) {
            Some((n, text)) => Self::parse(n, text),
            None => Err(Failure::input(format!(
                "unknown table of published gains {name:?}: give one of {}",
                TABLES.map(|(n, _)| n).join(", ")
            ))),
        }
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let bad = |what: &str| Failure::input(format!("published gains {name}: {what}"));
        let sheet = Sheet { name, text };
        let claims = sheet.rows().map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            let [claim, workload, system, over, gain] = f[..] else { return Err(bad(line)) };
            Ok(Claim {
                claim: claim.to_owned(),
                workload: workload.to_owned(),
                system: system.to_owned(),
                over: over.to_owned(),
                gain: gain.parse().map_err(|_| bad(line))?,
            })
        });
        Ok(Self {
            source: sheet.comment("source:"),
            setup: sheet.setup()?,
            claims: claims.collect::<Result<_>>()?,
        })
    }

    /// The speedups for the given cells; none under other settings than the published ones.
    pub fn beside(&self, c: &Config, cells: &[Cell]) -> Gains {
        let here = [c.cns.into(), c.mns.into(), c.threads, c.coroutines];
        let applies = c.simulated() && c.load == LoadShape::Closed && here == self.setup;
        let mut rows = Vec::new();
        for claim in self.claims.iter().filter(|_| applies) {
            let of = |system: &str| {
                let (system, workload) = (system.to_owned(), claim.workload.clone());
                cells.iter().filter(move |c| {
                    c.system == system && c.workload == workload && c.variant.is_none()
                })
            };
            for with in of(&claim.system) {
                let same = |c: &&Cell| c.distribution == with.distribution && c.mops > 0.0;
                let Some(without) = of(&claim.over).find(same) else { continue };
                rows.push(Gain {
                    claim: claim.claim.clone(),
                    workload: claim.workload.clone(),
                    distribution: with.distribution.clone(),
                    system: claim.system.clone(),
                    over: claim.over.clone(),
                    published: claim.gain,
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
        let mut t = crate::table::Table::new(
            &["gain", "workload", "system", "over", "here", "published"],
            4,
        );
        for g in &self.rows {
            t.row(vec![
                g.claim.clone(),
                g.workload.clone(),
                g.system.clone(),
                g.over.clone(),
                format!("{:.2}", g.here),
                format!("{:.1}", g.published),
            ]);
        }
        format!("gains, throughput by throughput ({})\n{}\n", self.source, t.text())
    }

    /// As a section of the report: a chart with the published marks, and a table.
    pub fn html(&self) -> String {
        let mut h = format!(
            "<h2>Gains beside those published</h2>\n<p>Throughput of a system by that of the one before it. Published: {}.</p>\n<p class=\"legend\"><span><i class=\"line\"></i>published</span></p>\n<div class=\"panels\">\n",
            escaped(&self.source)
        );
        let mut workloads: Vec<&str> = Vec::new();
        for g in &self.rows {
            if !workloads.contains(&g.workload.as_str()) {
                workloads.push(&g.workload);
            }
        }
        for w in workloads {
            h += &self.bars(w).panel().svg();
        }
        h += "</div>\n<div class=\"wide\"><table>\n<tr><th class=\"l\">what</th><th class=\"l\">workload</th><th class=\"l\">system</th><th class=\"l\">over</th><th>here</th><th>published</th></tr>\n";
        for g in &self.rows {
            let names = [&g.claim, &g.workload, &g.system, &g.over];
            let cells: String =
                names.map(|n| format!("<td class=\"l\">{}</td>", escaped(n))).concat();
            h += &format!(
                "<tr>{cells}<td{}>{:.2}</td><td>{:.1}</td></tr>\n",
                g.source().attributes(g.here),
                g.here,
                g.published
            );
        }
        h + "</table></div>\n"
    }

    fn bars(&self, workload: &str) -> Bars {
        let mine = self.rows.iter().enumerate().filter(|(_, g)| g.workload == workload);
        let bar = |(i, g): (usize, &Gain)| Bar {
            name: format!("{} over {}: {}", g.system, g.over, g.claim),
            colour: colour(i),
            value: g.here,
            mark: Some(g.published),
            source: g.source(),
        };
        let bars: Vec<Bar> = mine.map(bar).collect();
        Bars { title: format!("{workload}: gains"), axis: "throughput by throughput".into(), bars }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_names_systems() {
        let t = Claims::named("smart-gains").unwrap();
        assert_eq!((t.claims.len(), t.setup), (7, [16, 2, 24, 2]));
        assert!(t.source.contains("OSDI'23"));
        for c in &t.claims {
            assert!(crate::registry::known(&c.system) && crate::registry::known(&c.over));
            let workload: dmtree_workload::Workload = c.workload.parse().unwrap();
            assert_eq!(workload.name(), c.workload);
        }
        assert!(Claims::named("x").unwrap_err().to_string().contains("smart-gains"));
    }

    #[test]
    fn charts_and_tables_have_both() {
        let gain = |workload: &str, here| Gain {
            claim: "a <b>".into(),
            workload: workload.into(),
            distribution: "zipfian".into(),
            system: "s".into(),
            over: "t".into(),
            published: 1.5,
            here,
        };
        let gains = Gains {
            source: "slides".into(),
            rows: vec![gain("insert", 1.25), gain("ycsb-a", 3.0)],
        };
        let h = gains.html();
        assert_eq!(h.matches("<svg").count(), 2, "a chart per workload");
        assert_eq!(h.matches("class=\"published\"").count(), 2);
        assert_eq!(h.matches("data-value=\"1.25\"").count(), 2, "in a chart and in the table");
        assert!(h.contains("a &lt;b&gt;") && gains.text().contains("1.25"));
    }
}
