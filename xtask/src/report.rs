//! `report-check`: a browser renders the page, and its numbers must be those of the JSON file
//! beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{listing, output, root, run, succeeds};

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Widths of a window, pixels.
const WIDTHS: [u32; 2] = [1300, 700];

/// Small experiments: speedups beside published ones; bars beside published figures, with times by
/// step; curves, one point of which was published; an open load; open loads over rates, with error
/// bars over seeds; error bars over rounds, and two settings that vary; a node that dies. `GAINS`
/// is an experiment with published speedups and its last two systems, `FIRST` the first system
/// there is.
const RUNS: [&str; 7] = [
    "GAINS --workloads ycsb-a --keys 20000 --ops 5000 -q",
    "quick-sim --systems FIRST --keys 20000 --ops 6000 --steps -q",
    "quick-sim --systems FIRST --keys 20000 --ops 3000 --sweep threads=1,12,72 -q",
    "quick-sim --systems FIRST --keys 20000 --ops 3000 --threads 4 --load open:1M -q",
    "quick-sim --systems FIRST --workloads search,update --keys 20000 --ops 3000 --threads 4 --sweep load=open:500k,open:1M --sweep seed=1,2,3 -q",
    "quick-sim --systems FIRST --workloads search,update --keys 20000 --ops 3000 --rounds 3 --sweep theta=0.5,0.99 --sweep profile.responder_ns.read=20,40 -q",
    "crash --keys 5000 --cns 3 --threads 2 --coroutines 2 --lease-us 2000 --crash-us 1000 --until-us 8000",
];

/// What stands for `GAINS` and `FIRST` in [`RUNS`].
fn names(list: &Value) -> Result<(String, &str)> {
    let first = list["systems"][0]["name"].as_str().context("no system")?;
    let experiments = list["experiments"].as_array().context("no experiments")?;
    let gains = experiments.iter().find(|e| e["published_gains"].is_string());
    let gains = gains.context("no experiment with published speedups")?;
    let systems = gains["systems"].as_array().context("no systems")?;
    let last = systems.iter().skip(systems.len().saturating_sub(2)).filter_map(Value::as_str);
    let last: Vec<_> = last.collect();
    let name = gains["name"].as_str().context("no name")?;
    Ok((format!("{name} --systems {}", last.join(",")), first))
}

#[expect(clippy::disallowed_macros, reason = "a developer's tool prints, and a skip is loud")]
pub fn check(given: &[String]) -> Result<()> {
    let Some(browser) = BROWSERS.iter().find(|name| succeeds(name, ["--version"])) else {
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
    let list = listing()?;
    let (gains, first) = names(&list)?;
    for (n, args) in RUNS.iter().enumerate() {
        let args = args.replace("GAINS", &gains).replace("FIRST", first);
        let dir = place.join(n.to_string());
        let _ = std::fs::remove_dir_all(&dir);
        let mut command = Command::new("cargo");
        command.args(["run", "--release", "-q", "-p", "dmtree-cli", "--", "bench"]);
        command.args(args.split(' ')).args(["--json", "--out"]).arg(&dir);
        run(command.stdout(std::process::Stdio::null()))?;
        one(browser, &dir)?;
    }
    Ok(())
}

/// Checks the page of one directory in windows of several widths.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
fn one(browser: &str, dir: &Path) -> Result<()> {
    let crash = dir.join("crash.json").exists();
    let (json, html) =
        if crash { ("crash.json", "crash.html") } else { ("results.json", "report.html") };
    let text = std::fs::read_to_string(dir.join(json)).context(json)?;
    let data: Value = serde_json::from_str(&text).context(json)?;
    let page = std::fs::canonicalize(dir.join(html)).context(html)?;
    let shown = page.display();
    // The browser enforces the policy, so a page with it can load nothing.
    if !std::fs::read_to_string(&page)?.contains("content=\"default-src 'none';") {
        bail!("{shown}: no content security policy: the page must need nothing but itself");
    }
    for width in WIDTHS {
        let shown = format!("{shown}, {width} pixels wide");
        let (charts, compared) =
            rendered(&dumped(browser, &page, width)?, &data).context(shown.clone())?;
        println!("report-check: {shown}: {charts} charts, {compared} numbers as in {json}");
    }
    Ok(())
}

/// Checks a rendered page; returns the numbers of charts and of numbers.
fn rendered(dom: &str, data: &Value) -> Result<(u64, usize)> {
    let attribute = |name: &str| -> Result<u64> {
        let after = dom.split(&format!("{name}=\"")).nth(1);
        let value = after.and_then(|t| t.split('"').next());
        value.and_then(|v| v.parse().ok()).with_context(|| format!("not rendered: no {name}"))
    };
    let drawn = dom.split("<figure").skip(1).filter_map(|f| f.split("</figure>").next());
    let drawn: u64 = drawn.map(|f| f.matches("<svg").count() as u64).sum();
    let charts = attribute("data-charts")?;
    if charts == 0 || charts != drawn {
        bail!("of {drawn} charts, {charts} have a size");
    }
    if attribute("data-overlaps")? > 0 {
        bail!("texts of charts overlap or leave their chart");
    }
    if attribute("data-overflow")? > 0 {
        bail!("the page is wider than its window, or a table wider than the page");
    }
    let (figures, sheets) = (attribute("data-figures")?, attribute("data-sheets")?);
    if figures != sheets {
        bail!("of {figures} figures, {sheets} can be saved as SVG with all their charts");
    }
    Ok((charts, compare(dom, data)?))
}

/// The content of the page, all of it unfolded, as the browser has it after rendering.
fn dumped(browser: &str, page: &Path, width: u32) -> Result<String> {
    let profile: PathBuf = root().join("target/report-check/browser");
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .arg(format!("--window-size={width},1000"))
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}#open", page.display()));
    let dom = output(&mut command)?;
    let content = dom.split_once("<body").context("no body")?.1;
    // The data and the scripts follow.
    Ok(content.split("<script").next().unwrap_or_default().to_owned())
}

/// What the numbers of the page are of: cells, speedups, cores, or a crash.
fn sources(data: &Value) -> BTreeMap<String, &Value> {
    let words = |v: &Value, names: &[&str]| -> Vec<String> {
        names.iter().map(|n| v[n].as_str().unwrap_or("").to_owned()).collect()
    };
    let mut out = BTreeMap::new();
    for c in data["cells"].as_array().into_iter().flatten() {
        let names = ["system", "workload", "distribution", "fabric", "variant"];
        out.insert(words(c, &names).join(" ").trim_end().to_owned(), c);
    }
    for g in data["gains"]["rows"].as_array().into_iter().flatten() {
        let of = words(g, &["system", "over", "workload", "distribution"]);
        out.insert(format!("gain of {} over {} {} {}", of[0], of[1], of[2], of[3]), g);
    }
    for m in data["matched"].as_array().into_iter().flatten() {
        let of = words(m, &["system", "other", "workload", "distribution"]);
        out.insert(format!("cores of {} for {} {} {}", of[0], of[1], of[2], of[3]), m);
    }
    if !data["moments"].is_null() {
        out.insert("crash".to_owned(), data);
    }
    out
}

/// The number that a JSON pointer names, or a sum of pointers, joined by +.
fn at(source: &Value, field: &str) -> Option<f64> {
    field.split('+').map(|pointer| source.pointer(pointer)?.as_f64()).sum()
}

/// Whether a setting varies in the sweep of a cell.
fn varies(cell: &Value, setting: &str) -> bool {
    let swept = cell["place"]["swept"].as_array();
    swept.is_some_and(|all| all.iter().any(|one| one[0] == setting))
}

/// Settings over which a figure shows latency by throughput.
const LOADS: [&str; 4] = ["load", "threads", "coroutines", "cns"];

/// The numbers of a source that the page must show, and how often: in its table and in its charts.
fn due(source: &Value) -> Vec<(String, usize)> {
    let numbered = |list: &str, fields: &[&str]| -> Vec<(String, usize)> {
        let n = source.pointer(list).and_then(Value::as_array).map_or(0, Vec::len);
        let all = (0..n)
            .flat_map(|i| fields.iter().map(move |f| (f.replace("{}", &format!("{list}/{i}")), 1)));
        all.collect()
    };
    let plain = |fields: &[(&str, usize)]| -> Vec<(String, usize)> {
        fields.iter().map(|(f, n)| ((*f).to_owned(), *n)).collect()
    };
    if !source["moments"].is_null() {
        let mut out = numbered("/survivors", &["{}/reads+{}/updates", "{}/updates"]);
        out.extend(numbered("/dead", &["{}/reads+{}/updates"]));
        out.extend(numbered("/moments", &["{}/at_ns"]));
        out.extend(plain(&[("/before_mops", 1), ("/least_mops", 1), ("/after_mops", 1)]));
        out.extend(plain(&[("/longest_read_ns", 1), ("/longest_update_ns", 1)]));
        out.extend(plain(&[("/keys_checked", 1), ("/keys_wrong", 1), ("/errors", 1)]));
        return out;
    }
    if !source["claim"].is_null() {
        return plain(&[("/here", 2), ("/published", 2)]);
    }
    if !source["most_cores"].is_null() {
        let mut out = plain(&[("/most_cores", 1), ("/share", 1)]);
        out.extend((!source["cores"].is_null()).then(|| ("/cores".to_owned(), 1)));
        return out;
    }
    let mut out = plain(&[("/mops", 2), ("/round_trips", 2), ("/errors", 1)]);
    out.extend(plain(&[
        ("/mn/read+/mn/write+/mn/atomic", 1),
        ("/cn/read+/cn/write+/cn/atomic", 1),
    ]));
    out.extend(plain(&[("/mn/bytes_read+/mn/bytes_written", 1)]));
    if source["open"]["saturated"] != true {
        let by_load = LOADS.iter().any(|name| source["place"]["setting"] == *name);
        let curves = usize::from(by_load);
        out.extend(plain(&[("/p99_ns", 2 + curves), ("/p50_ns", 1 + curves)]));
        out.extend(plain(&[("/p90_ns", 1), ("/p999_ns", 1)]));
        out.extend(numbered("/cdf", &["{}/0"]));
    }
    let rounds = &source["mops_summary"];
    if rounds["half_width_95"].is_number() {
        out.extend(plain(&[("/mops_summary/half_width_95", 1)]));
    } else if rounds["max"].is_number() && !varies(source, "seed") {
        out.extend(plain(&[("/mops_summary/max", 1)]));
    }
    if !source["published_figure"].is_null() {
        // In a chart the cells that differ in the seed are one, and so is what was published.
        let times = if varies(source, "seed") { 1 } else { 2 };
        out.extend(plain(&[("/published_figure/mops", times), ("/published_figure/ratio", 1)]));
    }
    if !source["memory"].is_null() {
        out.extend(plain(&[("/memory/mn_bytes_per_key", 1), ("/memory/cache_used_bytes", 1)]));
    }
    if !source["sim"].is_null() {
        out.extend(plain(&[("/sim/busiest/utilization", 1)]));
        out.extend(numbered("/sim/nodes", &["{}/mverbs", "{}/in_wire", "{}/responder"]));
    }
    for (kind, steps) in source["steps_ns"].as_object().into_iter().flatten() {
        let names = steps.as_object().into_iter().flatten();
        out.extend(names.map(|(name, _)| (format!("/steps_ns/{kind}/{name}"), 1)));
    }
    out
}

/// Compares every shown number with its source, and every source with the numbers shown.
fn compare(dom: &str, data: &Value) -> Result<usize> {
    let sources = sources(data);
    let mut shown: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut compared = 0;
    for part in dom.split("data-cell=\"").skip(1) {
        let (cell, rest) = part.split_once('"').context("an attribute without end")?;
        let field = between(rest, "data-field=\"").context("data-field")?;
        let value: f64 = between(rest, "data-value=\"").context("data-value")?.parse()?;
        let cell = cell.replace("&lt;", "<").replace("&gt;", ">");
        let cell = cell.replace("&quot;", "\"").replace("&amp;", "&");
        let source = sources.get(&cell).with_context(|| format!("there is no {cell:?}"))?;
        let due = at(source, &field).with_context(|| format!("{cell} has no {field}"))?;
        if (value - due).abs() > 1e-9 * due.abs().max(1.0) {
            bail!("{cell}, {field}: the page has {value}, the file {due}");
        }
        if let Some(text) = text_of_cell(rest)
            && !is_rounded(text, due, field.ends_with("_bytes"))
        {
            bail!("{cell}, {field}: the page shows {text:?}, the file has {due}");
        }
        if text_of_cell(rest).is_some_and(|text| !is_apart(text)) {
            bail!("{cell}, {field}: the thousands of the number stand together");
        }
        *shown.entry((cell, field)).or_default() += 1;
        compared += 1;
    }
    for (name, source) in &sources {
        for (field, least) in due(source) {
            let n = shown.get(&(name.clone(), field.clone())).copied().unwrap_or(0);
            if n < least {
                bail!("{name}: {field} is shown {n} times, {least} expected (table and chart)");
            }
        }
    }
    Ok(compared)
}

/// Whether the thousands of the number that a text begins with are apart.
fn is_apart(text: &str) -> bool {
    text.bytes().take_while(u8::is_ascii_digit).count() <= 3
}

/// Whether the text of a table begins with the rounded value, in the unit that it names (MiB for
/// bytes).
fn is_rounded(text: &str, value: f64, bytes: bool) -> bool {
    let end = text.find(|c: char| !(c.is_ascii_digit() || ".,-".contains(c)));
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    let number = number.replace(',', "");
    let Ok(shown) = number.trim_end_matches('.').parse::<f64>() else {
        // A text that begins with a word: `mn0 responder 98 %`.
        let percent = text.strip_suffix(" %").and_then(|t| t.rsplit(' ').next()?.parse().ok());
        return percent.is_some_and(|p: f64| (p - value * 100.0).abs() < 0.501);
    };
    let factor = match rest.trim_start() {
        _ if bytes => 1.0 / f64::from(1 << 20),
        unit if unit.starts_with('%') => 100.0,
        unit if unit.starts_with("us") => 1e-3,
        unit if unit.starts_with("ms") => 1e-6,
        _ => 1.0,
    };
    let decimals = number.split_once('.').map_or(0, |(_, d)| d.len() as i32);
    (shown - value * factor).abs() <= 0.501 * 10f64.powi(-decimals)
}

fn between(text: &str, name: &str) -> Option<String> {
    let at = text.find(name)? + name.len();
    Some(text[at..].split('"').next()?.to_owned())
}

/// The text of an element, if it is a cell of a table.
fn text_of_cell(rest: &str) -> Option<&str> {
    let (text, after) = rest.split_once('>')?.1.split_once('<')?;
    after.starts_with("/td>").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Value {
        serde_json::json!({"cells": [{
            "system": "s", "workload": "w", "distribution": "d", "fabric": "sim", "mops": 48.378,
            "round_trips": 1.5, "p50_ns": 1000, "p90_ns": 1500, "p99_ns": 2004, "p999_ns": 12_340_000,
            "errors": 0,
            "mn": {"read": 1.0, "write": 0.5, "atomic": 0.0, "bytes_read": 40.0, "bytes_written": 2.0},
            "cn": {"read": 0.0, "write": 0.0, "atomic": 0.0}
        }]})
    }

    fn page(mops: &str, text: &str) -> String {
        let one = |field: &str, value: &str, text: &str| {
            format!(
                "<td data-cell=\"s w d sim\" data-field=\"{field}\" data-value=\"{value}\">{text}</td>"
            )
        };
        let mut p = one("/mops", mops, text) + &one("/mops", "48.378", "48.38");
        for (field, value, text) in [
            ("/round_trips", "1.5", "1.50"),
            ("/round_trips", "1.5", "1.5"),
            ("/mn/read+/mn/write+/mn/atomic", "1.5", "1.50"),
            ("/cn/read+/cn/write+/cn/atomic", "0", "0.00"),
            ("/mn/bytes_read+/mn/bytes_written", "42", "42"),
            ("/p50_ns", "1000", "1.00us"),
            ("/p90_ns", "1500", "1,500ns"),
            ("/p99_ns", "2004", "2.00us"),
            ("/p99_ns", "2004", "2,004"),
            ("/p999_ns", "12340000", "12.3ms"),
            ("/errors", "0", "0"),
        ] {
            p += &one(field, value, text);
        }
        p
    }

    #[test]
    fn numbers_that_differ_or_lack_are_found() {
        let good = page("48.378", "48.38");
        assert_eq!(compare(&good, &results()).unwrap(), 13);
        for (found, instead, words) in [
            ("\"48.378\">48.38", "\"48.4\">48.38", "the file 48.378"),
            (">48.38<", ">49.38<", "shows \"49.38\""),
            (">2.00us<", ">2.01us<", "shows \"2.01us\""),
            (">1,500ns<", ">1500ns<", "thousands"),
            ("/p50_ns", "/p51_ns", "has no /p51_ns"),
            ("s w d sim", "s w d local", "there is no"),
        ] {
            let e = compare(&good.replacen(found, instead, 1), &results()).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
        let once = good.replacen("data-field=\"/p99_ns\"", "data-field=\"/p50_ns\"", 1);
        assert!(compare(&once.replacen("2004", "1000", 1), &results()).is_err());
        assert!(compare("", &results()).unwrap_err().to_string().contains("0 times"));
    }

    /// Each new chart is missed where it is not drawn.
    #[test]
    fn charts_of_sweeps_and_rounds_are_due() {
        let mut cell = results()["cells"][0].clone();
        let plain = due(&cell).len();
        let least = |cell: &Value, field: &str| {
            due(cell).iter().find(|(f, _)| f == field).map_or(0, |(_, least)| *least)
        };
        assert_eq!((least(&cell, "/p99_ns"), least(&cell, "/p50_ns")), (2, 1));
        cell["place"] = serde_json::json!({"setting": "load"});
        assert_eq!((least(&cell, "/p99_ns"), least(&cell, "/p50_ns")), (3, 2));
        cell["cdf"] = serde_json::json!([[900, 0.5], [2004, 1.0]]);
        assert_eq!(due(&cell).len(), plain + 2);
        assert_eq!(least(&cell, "/cdf/1/0"), 1);
        cell["mops_summary"] = serde_json::json!({"max": 3.0});
        assert_eq!(least(&cell, "/mops_summary/max"), 1);
        cell["mops_summary"]["half_width_95"] = 0.1.into();
        assert_eq!(least(&cell, "/mops_summary/half_width_95"), 1);
    }

    #[test]
    fn texts_are_rounded_values_in_their_units() {
        for (text, value, bytes) in [
            ("97 %", 0.9712, false),
            ("mn0 responder 98 %", 0.9799, false),
            ("1.5", 1_572_864.0, true),
            ("0.970 OUTSIDE 0.99..1.01", 0.9701, false),
            ("2.000 (1.000..3.000)", 2.0001, false),
            ("1,234,567", 1_234_567.0, false),
        ] {
            assert!(is_rounded(text, value, bytes), "{text}");
            assert!(!is_rounded(text, value * 1.1, bytes), "{text}");
        }
        assert!(!is_rounded("saturated", 1.0, false));
    }
}
