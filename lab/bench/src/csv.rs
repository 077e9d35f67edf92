//! Tables in the form of the published artifact: `Index,Workload,Total,Node1,...`, million
//! operations per second.

use crate::results::{Results, file_stem};

/// File names and texts, one per distribution.
pub fn tables(r: &Results) -> Vec<(String, String)> {
    let all = r.distributions();
    all.iter()
        .map(|d| {
            let name = format!("simple_results_{}.csv", file_stem(d, &all));
            (name, table(r, d))
        })
        .collect()
}

fn table(r: &Results, distribution: &str) -> String {
    let nodes = usize::from(r.config.cns);
    let mut out = "Index,Workload,Total".to_owned();
    for n in 1..=nodes {
        out += &format!(",Node{n}");
    }
    out.push('\n');
    for c in r.cells.iter().filter(|c| c.distribution == distribution) {
        out += &format!("{},{},{:.6}", quoted(&c.label()), quoted(&c.csv_name), c.mops);
        let mops = c.per_compute_node();
        for n in 0..nodes {
            out += &format!(",{:.6}", mops.get(n).copied().unwrap_or(0.0));
        }
        out.push('\n');
    }
    out
}

/// A field, quoted if necessary.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
