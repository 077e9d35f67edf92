//! `report-check`: a browser renders the report, and its numbers must be those of `results.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{root, run};

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Small experiments: bars beside published figures, curves, an open load, and speedups beside
/// published ones.
const RUNS: [&[&str]; 4] = [
    &[
        "smart-factors",
        "--systems",
        "smart-delegation,smart-published",
        "--workloads",
        "ycsb-a",
        "--keys",
        "20000",
        "--ops",
        "5000",
    ],
    &["quick-sim", "--systems", "dmtree", "--keys", "20000", "--ops", "6000"],
    &[
        "quick-sim",
        "--systems",
        "dmtree",
        "--keys",
        "20000",
        "--ops",
        "3000",
        "--sweep",
        "threads=1,6,12",
    ],
    &[
        "quick-sim",
        "--systems",
        "dmtree",
        "--keys",
        "20000",
        "--ops",
        "3000",
        "--threads",
        "4",
        "--load",
        "open:1M",
    ],
];

#[expect(clippy::disallowed_macros, reason = "a developer's tool prints, and a skip is loud")]
pub fn check(given: &[String]) -> Result<()> {
    let there = |name: &&&str| {
        Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success())
    };
    let Some(browser) = BROWSERS.iter().find(there) else {
        println!(
            "SKIPPED: no Chromium is installed (tried {}), so no browser has seen the report",
            BROWSERS.join(", ")
        );
        return Ok(());
    };
    if let Some(dir) = given.first() {
        return one(browser, Path::new(dir));
    }
    let place = root().join("target/report-check");
    for (n, args) in RUNS.iter().enumerate() {
        let dir = place.join(n.to_string());
        let _ = std::fs::remove_dir_all(&dir);
        let mut command = Command::new("cargo");
        command.args(["run", "--release", "-q", "-p", "dmtree-cli", "--", "bench"]);
        command.args(*args).args(["--quiet", "--json", "--out"]).arg(&dir);
        run(command.stdout(std::process::Stdio::null()))?;
        one(browser, &dir)?;
    }
    Ok(())
}

/// Checks the report of one directory.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
fn one(browser: &str, dir: &Path) -> Result<()> {
    let text = std::fs::read_to_string(dir.join("results.json")).context("results.json")?;
    let results: Value = serde_json::from_str(&text).context("results.json")?;
    let page = std::fs::canonicalize(dir.join("report.html")).context("report.html")?;
    let source = std::fs::read_to_string(&page)?;
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        if source.replace("http://www.w3.org/2000/svg", "").contains(outside) {
            bail!("{}: {outside:?}: the page must need nothing but itself", page.display());
        }
    }
    let dom = dumped(browser, &page)?;
    let attribute = |name: &str| -> Result<u64> {
        let after = dom.split(&format!("{name}=\"")).nth(1);
        let value = after.and_then(|t| t.split('"').next());
        value
            .and_then(|v| v.parse().ok())
            .with_context(|| format!("the page was not rendered: no {name}"))
    };
    let (charts, drawn) = (attribute("data-charts")?, dom.matches("<svg").count() as u64);
    // Folded charts are not checked.
    let hidden = dom.split("<details").skip(1).filter_map(|d| d.split("</details>").next());
    let hidden: u64 = hidden.map(|d| d.matches("<svg").count() as u64).sum();
    if charts == 0 || charts + hidden != drawn {
        bail!("{}: of {drawn} charts, {hidden} folded away, {charts} have a size", page.display());
    }
    if attribute("data-overlaps")? > 0 {
        bail!("{}: texts of charts overlap or leave their chart", page.display());
    }
    if attribute("data-overflow")? > 0 {
        bail!("{}: the page is wider than its window", page.display());
    }
    let compared = compare(&dom, &results).with_context(|| page.display().to_string())?;
    println!(
        "report-check: {}: {charts} charts, {compared} numbers as in results.json",
        dir.display()
    );
    Ok(())
}

/// The page as the browser has it after rendering.
fn dumped(browser: &str, page: &Path) -> Result<String> {
    let profile: PathBuf = root().join("target/report-check/browser");
    let out = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .with_context(|| format!("starting {browser}"))?;
    if !out.status.success() {
        bail!("{browser} failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Compares every shown number with the cell that it names, and every cell with the numbers shown.
fn compare(dom: &str, results: &Value) -> Result<usize> {
    let cells = results["cells"].as_array().context("no cells")?;
    let by_key: BTreeMap<String, &Value> = cells.iter().map(|c| (key(c), c)).collect();
    // Speedups have names of their own.
    let gains = results["gains"]["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let by_gain: BTreeMap<String, &Value> = gains.iter().map(|g| (gain_key(g), g)).collect();
    let mut shown: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut compared = 0;
    for part in dom.split("data-cell=\"").skip(1) {
        let (cell, rest) = part.split_once('"').context("an attribute without end")?;
        let field = between(rest, "data-field=\"").context("data-field")?;
        let value: f64 = between(rest, "data-value=\"").context("data-value")?.parse()?;
        let cell = unescaped(cell);
        let source = by_key
            .get(&cell)
            .or_else(|| by_gain.get(&cell))
            .with_context(|| format!("{cell:?} is no cell of results.json"))?;
        let due = figure(source, &field)?;
        if (value - due).abs() > 1e-9 * due.abs().max(1.0) {
            bail!("{cell}, {field}: the page has {value}, results.json {due}");
        }
        // The digits of a table cell are the rounded value.
        if field == "mops"
            && rest.contains("</td>")
            && let Some(text) = text_of(rest)
        {
            let number: f64 =
                text.split_whitespace().next().unwrap_or("").parse().unwrap_or(f64::NAN);
            if rest.find("</td>") < rest.find('<').map(|at| at + 5) && (number - due).abs() > 0.006
            {
                bail!("{cell}, {field}: the page shows {text:?}, results.json has {due}");
            }
        }
        *shown.entry((cell, field)).or_default() += 1;
        compared += 1;
    }
    for key in by_gain.keys() {
        let n = shown.get(&(key.clone(), "here".to_owned())).copied().unwrap_or(0);
        if n < 2 {
            bail!("{key}: shown {n} times, 2 expected (table and chart)");
        }
    }
    for (key, c) in &by_key {
        let saturated = c["open"]["saturated"] == true;
        for (field, least) in
            [("mops", 2), ("round_trips", 2), ("mn_verbs", 1), ("mn_bytes", 1), ("p99_ns", 1)]
        {
            let n = shown.get(&(key.clone(), field.to_owned())).copied().unwrap_or(0);
            if n < least && !(saturated && field == "p99_ns") {
                bail!("{key}: {field} is shown {n} times, {least} expected (table and chart)");
            }
        }
    }
    Ok(compared)
}

/// A cell's key: system, workload, distribution, fabric, point of a sweep.
fn key(c: &Value) -> String {
    let word = |name: &str| c[name].as_str().unwrap_or("");
    let all = ["system", "workload", "distribution", "fabric", "variant"].map(word).join(" ");
    all.trim_end().to_owned()
}

/// The name of a speedup: systems, workload, distribution.
fn gain_key(g: &Value) -> String {
    let word = |name: &str| g[name].as_str().unwrap_or("");
    format!(
        "gain of {} over {} {} {}",
        word("system"),
        word("over"),
        word("workload"),
        word("distribution")
    )
}

/// The figure of a cell that a field of the page names.
fn figure(c: &Value, field: &str) -> Result<f64> {
    let sum =
        |side: &str, names: &[&str]| names.iter().map(|n| c[side][n].as_f64()).sum::<Option<f64>>();
    let verbs = ["read", "write", "atomic"];
    let bytes = ["bytes_read", "bytes_written"];
    let value = match field {
        "p99_us" => c["p99_ns"].as_f64().map(|ns| ns / 1e3),
        "mn_verbs" => sum("mn", &verbs),
        "cn_verbs" => sum("cn", &verbs),
        "mn_bytes" => sum("mn", &bytes),
        "cn_bytes" => sum("cn", &bytes),
        "mn_bytes_per_key" => c["memory"]["mn_bytes_per_key"].as_f64(),
        other => c[other].as_f64(),
    };
    value.with_context(|| format!("results.json has no {field} of {}", key(c)))
}

fn between(text: &str, name: &str) -> Option<String> {
    let at = text.find(name)? + name.len();
    Some(text[at..].split('"').next()?.to_owned())
}

fn text_of(rest: &str) -> Option<String> {
    let text = rest.split_once('>')?.1;
    Some(text.split('<').next()?.to_owned())
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Value {
        serde_json::json!({"cells": [{
            "system": "s", "workload": "w", "distribution": "d", "fabric": "sim", "mops": 48.378, "round_trips": 1.5,
            "p99_ns": 2000, "mn": {"read": 1.0, "write": 0.5, "atomic": 0.0, "bytes_read": 40.0, "bytes_written": 2.0}
        }]})
    }

    fn page(mops: &str, text: &str) -> String {
        let one = |field: &str, value: &str, text: &str| {
            format!(
                "<td data-cell=\"s w d sim\" data-field=\"{field}\" data-value=\"{value}\">{text}</td>"
            )
        };
        let mut p = one("mops", mops, text) + &one("mops", "48.378", "48.38");
        for (field, value) in [
            ("round_trips", "1.5"),
            ("round_trips", "1.5"),
            ("mn_verbs", "1.5"),
            ("mn_bytes", "42"),
            ("p99_ns", "2000"),
        ] {
            p += &one(field, value, value);
        }
        p
    }

    #[test]
    fn numbers_that_differ_or_lack_are_found() {
        assert_eq!(compare(&page("48.378", "48.38"), &results()).unwrap(), 7);
        let e = compare(&page("48.4", "48.38"), &results()).unwrap_err().to_string();
        assert!(e.contains("results.json 48.378"), "{e}");
        let e = compare(&page("48.378", "49.38"), &results()).unwrap_err().to_string();
        assert!(e.contains("shows"), "{e}");
        let less = page("48.378", "48.38").replacen("p99_ns", "p50_us", 1);
        assert!(compare(&less, &results()).is_err());
        assert!(compare("", &results()).unwrap_err().to_string().contains("0 times"));
    }
}
