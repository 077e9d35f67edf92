//! What is made of results: `report.html`, and tables in the form of the published artifact.
//!
//! The page is static, with the data in it. Its script makes every table and chart from the data,
//! and needs no network and no other file. The tables are `Index,Workload,Total,Node1,...`, million
//! operations per second.

use crate::csv::quoted;
use crate::results::{Results, file_stem};

/// The page, and the parts that its `{{name}}` stand for.
const PAGE: &str = include_str!("../assets/report/index.html");
const PARTS: [(&str, &str); 4] = [
    ("report.css", include_str!("../assets/report/report.css")),
    ("report.js", include_str!("../assets/report/report.js")),
    ("vendor/d3.min.js", include_str!("../assets/report/vendor/d3.min.js")),
    ("vendor/plot.umd.min.js", include_str!("../assets/report/vendor/plot.umd.min.js")),
];

/// The page of results.
pub fn html(r: &Results) -> String {
    page(&r.to_json())
}

/// The page of a JSON text: of `results.json`, or of `crash.json`.
pub fn page(json: &str) -> String {
    // A `<` is found in strings only. Without it no text can end the element that the data is in.
    let data = json.replace('<', "\\u003c");
    let part = |name: &str| match PARTS.iter().find(|(n, _)| *n == name) {
        Some((_, text)) => text.trim_end(),
        None => &data,
    };
    let mut out = String::with_capacity(data.len() + (1 << 19));
    let mut pieces = PAGE.split("{{");
    out += pieces.next().unwrap_or_default();
    for piece in pieces {
        let (name, after) = piece.split_once("}}").unwrap_or(("", piece));
        out += part(name);
        out += after;
    }
    out
}

/// File names and texts, one per distribution.
pub fn tables(r: &Results) -> Vec<(String, String)> {
    let all = r.groups();
    let name = |d| format!("simple_results_{}.csv", file_stem(d, &all));
    all.iter().map(|d| (name(d), table(r, d))).collect()
}

fn table(r: &Results, group: &str) -> String {
    let nodes = usize::from(r.config.cns);
    let mut out = "Index,Workload,Total".to_owned();
    for n in 1..=nodes {
        out += &format!(",Node{n}");
    }
    out.push('\n');
    for c in r.cells.iter().filter(|c| c.group() == group) {
        out += &format!("{},{},{:.6}", quoted(&c.label()), quoted(&c.csv_name), c.mops);
        let mops = c.nodes.iter().filter_map(|n| n.mops).chain(std::iter::repeat(0.0));
        mops.take(nodes).for_each(|mops| out += &format!(",{mops:.6}"));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_part_and_the_data_reads_back() {
        let hostile = serde_json::json!({"note": "</script><!--<script> {{report.js}} &amp; é"});
        let page = page(&hostile.to_string());
        for (name, text) in PARTS {
            assert!(page.contains(text.trim_end()), "{name}");
            assert!(!text.contains("</script"), "{name} would end its element");
        }
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        assert_eq!(serde_json::from_str::<serde_json::Value>(data).unwrap(), hostile);
        assert_eq!(page.matches("</script>").count(), 4, "the data and three scripts");
        assert!(page.contains("default-src 'none'") && page.ends_with("</html>\n"));
    }
}
