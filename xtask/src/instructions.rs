//! Instructions of an operation: exact on any machine, unlike its time.
//!
//! Callgrind runs `dmtree-instructions`, which has a function for each kind of operation, and
//! counts what each of them executes. The counts are compared with the table in
//! `docs/instructions.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{root, run, succeeds};

/// Numbers of keys: the columns of the table.
const KEYS: [u64; 2] = [100_000, 1_000_000];
/// Operations: the rows of the table, and how many the program executes.
const OPERATIONS: [(&str, u64); 7] = [
    ("get", 20_000),
    ("absent", 20_000),
    ("get_many", 20_000),
    ("update", 20_000),
    ("delete", 20_000),
    ("insert", 20_000),
    ("scan", 1_000),
];
/// How the index is made: what follows the name of an operation in the table, and the argument of
/// the program.
const KINDS: [(&str, Option<&str>); 3] =
    [("", None), (" (images)", Some("images")), (" (log)", Some("log"))];
/// The functions of the program that are counted.
const COUNTED: &str = "dmtree_instructions::count_";
/// Difference to the table that is tolerated.
const TOLERANCE: f64 = 0.05;
const TABLE: &str = "docs/instructions.md";

/// Counts by operation, a column for each number of keys.
type Table = BTreeMap<String, Vec<u64>>;

/// Counts and compares; `--update` writes the table.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn compare(args: &[String]) -> Result<()> {
    let update = match args {
        [] => false,
        [flag] if flag == "--update" => true,
        _ => bail!("instructions [--update]"),
    };
    if !succeeds("valgrind", ["--version"]) {
        println!("SKIPPED: counting instructions needs valgrind: apt-get install valgrind");
        return Ok(());
    }
    run(Command::new("cargo").args(["build", "--release", "-p", "dmtree-bench-compare"]).args([
        "--features",
        "instructions",
        "--bin",
        "dmtree-instructions",
    ]))?;
    let mut counted = Table::new();
    for (keys, (kind, argument)) in KEYS.into_iter().flat_map(|keys| KINDS.map(|kind| (keys, kind)))
    {
        let counts = count(keys, argument).with_context(|| format!("{keys} keys{kind}"))?;
        for (name, operations) in OPERATIONS {
            let all = counts.get(name).with_context(|| format!("{name} was not counted"))?;
            counted.entry(format!("{name}{kind}")).or_default().push(all / operations);
        }
    }
    print!("{}", text(&counted));
    let path = root().join(TABLE);
    let document = std::fs::read_to_string(&path).with_context(|| TABLE.to_owned())?;
    let (before, old, after) = split(&document)?;
    if update {
        return Ok(std::fs::write(path, format!("{before}{}{after}", text(&counted)))?);
    }
    if !has_kernels() {
        println!("SKIPPED: the table is of a processor with AVX2; this one executes other code");
        return Ok(());
    }
    let differences = differences(&parse(old)?, &counted);
    ensure!(
        differences.is_empty(),
        "{}; `cargo xtask instructions --update` writes the table",
        differences.join("; ")
    );
    Ok(())
}

/// Whether this processor executes the kernels that the table was counted with.
fn has_kernels() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The document before, in and behind its table.
fn split(document: &str) -> Result<(&str, &str, &str)> {
    let head = header();
    let from = document.find(&head).with_context(|| format!("{TABLE} has no line {head:?}"))?;
    let rows = &document[from..];
    let len = rows.split_inclusive('\n').take_while(|l| l.starts_with('|')).map(str::len).sum();
    Ok((&document[..from], &rows[..len], &rows[len..]))
}

fn header() -> String {
    let columns: Vec<String> = KEYS.iter().map(|k| format!(" {k} keys |")).collect();
    format!("| operation |{}", columns.concat())
}

fn rows() -> impl Iterator<Item = String> {
    KINDS.into_iter().flat_map(|(kind, _)| OPERATIONS.map(|(name, _)| format!("{name}{kind}")))
}

fn text(table: &Table) -> String {
    let mut out = format!("{}\n|---|{}\n", header(), "---:|".repeat(KEYS.len()));
    for name in rows() {
        let counts = table.get(&name).map_or(&[][..], Vec::as_slice);
        let cells: Vec<String> = counts.iter().map(|n| format!(" {n} |")).collect();
        out += &format!("| {name} |{}\n", cells.concat());
    }
    out
}

fn parse(table: &str) -> Result<Table> {
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default().to_owned();
        let counts = cells.map(str::parse).collect::<Result<Vec<u64>, _>>();
        Ok((name, counts.with_context(|| format!("{TABLE}: {line}"))?))
    };
    table.lines().skip(2).map(row).collect()
}

fn differences(table: &Table, counted: &Table) -> Vec<String> {
    let mut out = Vec::new();
    for (name, counts) in counted {
        let old = table.get(name).map_or(&[][..], Vec::as_slice);
        for (i, (keys, n)) in KEYS.iter().zip(counts).enumerate() {
            let known = old.get(i).copied().unwrap_or(0);
            let differs = known.abs_diff(*n) as f64 > TOLERANCE * known as f64;
            if differs {
                out.push(format!("{name} of {keys} keys takes {n} instructions, {known} before"));
            }
        }
    }
    out
}

/// Instructions of each counted function, its callees included.
fn count(keys: u64, kind: Option<&str>) -> Result<BTreeMap<String, u64>> {
    let file = root().join("target/callgrind.out");
    run(Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={COUNTED}*"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(root().join("target/release/dmtree-instructions"))
        .arg(keys.to_string())
        .args(kind))?;
    inclusive(&file)
}

/// Reads a profile: the costs of the lines of a function are its own and, behind each `calls=`,
/// those of a callee.
fn inclusive(file: &Path) -> Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    let mut of = None;
    for line in text.lines() {
        if let Some((kind, name)) = line.split_once('=')
            && (kind == "fn" || kind == "cfn")
        {
            // A name is written out where its number occurs first.
            let (number, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(number, name.to_owned());
            }
            if kind == "fn" {
                let name = names.get(number).map_or("", String::as_str);
                of = name.split_once(COUNTED).map(|(_, name)| name.to_owned());
            }
        } else if let Some(of) = &of
            && line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
        {
            let cost = line.split(' ').nth(1).unwrap_or("0");
            let cost: u64 = cost.parse().with_context(|| format!("cost in {line:?}"))?;
            *counts.entry(of.clone()).or_default() += cost;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back_and_a_difference_is_named() {
        let row = |n| vec![n; KEYS.len()];
        let table: Table = rows().map(|name| (name, row(1000))).collect();
        let document = format!("before\n\n{}\nbehind\n", text(&table));
        let (before, rows, after) = split(&document).expect("a table");
        assert_eq!((before, after), ("before\n\n", "\nbehind\n"));
        assert_eq!(parse(rows).expect("rows"), table);
        let mut more = table.clone();
        more.insert("get".to_owned(), row(1040));
        assert!(differences(&table, &more).is_empty());
        more.insert("get".to_owned(), row(1060));
        assert_eq!(differences(&table, &more).len(), KEYS.len());
    }
}
