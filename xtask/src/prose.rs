//! The language of the tree, counted: `cargo xtask prose`.
//!
//! Comments and documents name components, not persons, and use the field's terms. This verb counts
//! what departs from that, crate by crate, and fails beyond the limits below. The list of own words
//! pairs each with the term that replaces it; `docs/glossary.md` may name them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::{root, tracked};

/// Words that make a person of a component.
const PERSONS: &str = "who whoever whom whose somebody someone nobody anybody anyone everybody everyone he him his himself she her";
/// Most person words in a thousand words of comments and documents.
const MOST_PERSONS_PER_1000: f64 = 1.0;
/// Longest comment line, columns.
const MOST_COLUMNS: usize = 100;
/// Least share of comment lines in the sources of the crates that carry the protocol, per cent.
const LEAST_COMMENT_PERCENT: f64 = 14.0;
/// The crates that carry the protocol.
const PROTOCOL: [&str; 2] = ["crates/engine", "crates/pool"];
/// Where own words may stand: the glossary explains them, and this file lists them.
const SPARED: [&str; 2] = ["docs/glossary.md", "xtask/src/prose.rs"];

/// Own words, and the field's terms for them. A word stands for its inflections, too.
const OWN_WORDS: [(&[&str], &str); 31] = [
    (&["keeper", "keepers"], "membership agent"),
    (&["pulse"], "heartbeat"),
    (&["registrar"], "membership server"),
    (&["charter", "charters"], "pool configuration"),
    (&["roster", "rosters"], "node directory"),
    (&["rehome", "rehomed", "rehoming"], "reassign"),
    (&["homeless"], "unowned"),
    (&["homes"], "owners"),
    (&["hazard", "hazards"], "fabric faults"),
    (&["scene", "scenes"], "scenario"),
    (&["bed", "beds"], "test cluster"),
    (&["crew", "seat", "seats"], "placement"),
    (&["census", "censuses"], "garbage collection"),
    (&["mark_live"], "mark phase"),
    (&["quarantine", "quarantined", "wards"], "limbo list"),
    (&["orphan", "orphans"], "abandoned lock"),
    (&["mend", "mends", "mended", "mending", "mend_dead", "mend_inner"], "recover"),
    (&["heir", "heirs"], "successor"),
    (&["bury", "buries", "buried", "burial"], "retire"),
    (&["look_around", "lookaround"], "stall diagnosis"),
    (&["stroll", "strolls"], "paced walk"),
    (&["turnstile", "turnstiles"], "FIFO mutex"),
    (&["doubtful"], "unvalidated"),
    (&["equipment"], "NIC configuration"),
    (&["carrier", "carriers"], "data path"),
    (&["teeth"], "mutants"),
    (&["settler", "settlers"], "fault actor"),
    (&["tender", "tenders"], "maintenance actor"),
    (&["gardener", "gardeners"], "churn client"),
    (&["doom", "dooms"], "crash plan"),
    (&["words_mend", "words_write"], "lock-word mode"),
];

/// What was counted of a crate, or of the documents outside of crates.
#[derive(Default)]
struct Counts {
    words: u64,
    persons: u64,
    long_lines: Vec<String>,
    own_words: Vec<String>,
    /// Lines of sources that are not blank, and those of them that are comments.
    lines: u64,
    comments: u64,
}

impl Counts {
    fn persons_per_1000(&self) -> f64 {
        self.persons as f64 * 1000.0 / self.words.max(1) as f64
    }

    fn comment_percent(&self) -> f64 {
        self.comments as f64 * 100.0 / self.lines.max(1) as f64
    }

    /// A line of a source. Own words count in code as in comments, because names carry them.
    fn source(&mut self, at: &str, line: &str, is_product: bool) {
        let trimmed = line.trim_start();
        if trimmed.is_empty() {
            return;
        }
        self.own(at, line);
        self.lines += u64::from(is_product);
        let comment = trimmed.starts_with("//");
        self.comments += u64::from(is_product && comment);
        if comment {
            self.prose(trimmed.trim_start_matches(['/', '!']));
            if line.chars().count() > MOST_COLUMNS {
                self.long_lines.push(at.to_owned());
            }
        }
    }

    /// A line of a document. Tables and commands may be long.
    fn document(&mut self, at: &str, line: &str) {
        self.own(at, line);
        self.prose(line);
    }

    fn prose(&mut self, text: &str) {
        for word in words(text) {
            self.words += 1;
            let word = word.to_lowercase();
            self.persons += u64::from(PERSONS.split(' ').any(|p| p == word));
        }
    }

    fn own(&mut self, at: &str, line: &str) {
        if SPARED.iter().any(|file| at.starts_with(file)) {
            return;
        }
        for word in words(line).flat_map(parts) {
            for (own, standard) in OWN_WORDS {
                if own.contains(&word.as_str()) {
                    self.own_words.push(format!("{at}: \"{word}\": say {standard}"));
                }
            }
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}

/// A name, and the words that it is made of, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut out = vec![name.to_lowercase()];
    let mut part = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        let begins = c == '_' || c.is_uppercase() && was_lower;
        if begins && !part.is_empty() {
            out.push(std::mem::take(&mut part));
        }
        was_lower = c.is_lowercase();
        if c != '_' {
            part.extend(c.to_lowercase());
        }
    }
    if !part.is_empty() && part != out[0] {
        out.push(part);
    }
    out
}

/// The crate that a file belongs to; documents at the root are "documents".
fn crate_of(path: &str) -> &str {
    for folder in ["crates/", "systems/", "lab/"] {
        if let Some(rest) = path.strip_prefix(folder) {
            let name = rest.split('/').next().unwrap_or(rest);
            return &path[..folder.len() + name.len()];
        }
    }
    match path.split_once('/') {
        Some((folder @ ("xtask" | "fuzz"), _)) => folder,
        _ => "documents",
    }
}

/// Counts the files that git tracks.
fn count() -> Result<BTreeMap<String, Counts>> {
    let mut all: BTreeMap<String, Counts> = BTreeMap::new();
    for path in tracked()?.lines() {
        let (is_source, is_document) = (path.ends_with(".rs"), path.ends_with(".md"));
        if !is_source && !is_document {
            continue;
        }
        let text = std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())?;
        let counts = all.entry(crate_of(path).to_owned()).or_default();
        for (i, line) in text.lines().enumerate() {
            let at = format!("{path}:{}", i + 1);
            match is_source {
                true => counts.source(&at, line, path.contains("/src/")),
                false => counts.document(&at, line),
            }
        }
    }
    Ok(all)
}

/// What lies beyond the limits, a line each.
fn beyond(all: &BTreeMap<String, Counts>) -> Vec<String> {
    let mut out = Vec::new();
    for (name, c) in all {
        if c.persons_per_1000() > MOST_PERSONS_PER_1000 {
            let found = c.persons_per_1000();
            out.push(format!(
                "{name}: {found:.2} person words in 1000, {MOST_PERSONS_PER_1000} at most"
            ));
        }
        if PROTOCOL.contains(&name.as_str()) && c.comment_percent() < LEAST_COMMENT_PERCENT {
            let found = c.comment_percent();
            out.push(format!(
                "{name}: {found:.1} % comment lines, {LEAST_COMMENT_PERCENT} at least"
            ));
        }
        let long = |at: &String| format!("{at}: a comment of more than {MOST_COLUMNS} columns");
        out.extend(c.long_lines.iter().map(long));
        out.extend(c.own_words.iter().cloned());
    }
    out
}

/// Prints the counts; fails when one lies beyond its limit.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run() -> Result<()> {
    let all = count()?;
    println!(
        "{:18} {:>7} {:>8} {:>9} {:>10} {:>10}",
        "", "words", "persons", "per 1000", "comments %", "own words"
    );
    for (name, c) in &all {
        println!(
            "{name:18} {:>7} {:>8} {:>9.2} {:>10.1} {:>10}",
            c.words,
            c.persons,
            c.persons_per_1000(),
            c.comment_percent(),
            c.own_words.len(),
        );
    }
    let beyond = beyond(&all);
    if beyond.is_empty() {
        return Ok(());
    }
    beyond.iter().for_each(|line| println!("{line}"));
    bail!("{} places depart from the language of the tree (docs/glossary.md)", beyond.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_words() {
        assert_eq!(parts("MendDead"), ["menddead", "mend", "dead"]);
        assert_eq!(parts("leave_orphans"), ["leave_orphans", "leave", "orphans"]);
        assert_eq!(parts("LEASE"), ["lease"]);
    }

    #[test]
    fn files_belong_to_crates() {
        assert_eq!(crate_of("crates/pool/src/lib.rs"), "crates/pool");
        assert_eq!(crate_of("docs/clusters.md"), "documents");
        assert_eq!(crate_of("xtask/src/main.rs"), "xtask");
    }

    #[test]
    fn what_departs_is_named() {
        let mut c = Counts::default();
        c.source("a.rs:1", "    // Whoever waits here waits for the leaf.", true);
        c.source("a.rs:2", "fn keeper_of() {}", true);
        c.source("a.rs:3", &format!("// {}", "x".repeat(MOST_COLUMNS)), true);
        assert_eq!((c.persons, c.lines, c.comments), (1, 3, 2));
        let all = BTreeMap::from([("crates/pool".to_owned(), c)]);
        let found = beyond(&all).join("\n");
        for part in ["person words", "\"keeper\": say membership agent", "a.rs:3: a comment of"] {
            assert!(found.contains(part), "{part} is not in {found}");
        }
    }

    #[test]
    fn a_plain_source_is_within_the_limits() {
        let mut c = Counts::default();
        c.source("a.rs:1", "// The reclaimer waits until every reader has left.", true);
        c.source("a.rs:2", "fn reclaim() {}", true);
        assert!(beyond(&BTreeMap::from([("crates/pool".to_owned(), c)])).is_empty());
    }
}
