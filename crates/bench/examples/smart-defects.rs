//! Shows each published defect of SMART by itself, with nothing and with everything granted.
//!
//! `smart-defects [SHARE [WORD...]]` runs one in SHARE of the stated seeds, for the defects that
//! have a word in their names. The output is a table in Markdown.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

#[path = "../tests/suite/smart_defects/defects.rs"]
mod defects;

use defects::{DEFECTS, Defect, EVERYTHING, REAR_LOCK};
use dmtree_bench::system::System;
use dmtree_check::verdict::keep_panics;

/// Sets of grants for the rear lock.
const GRANTS: [&[&str]; 6] = [
    &[],
    &["line_atomic", "write_ascending"],
    &["cas_fail_is_readonly"],
    &["cas_fail_is_readonly", "line_atomic", "whole_write", "on_chip"],
    &["cas_fail_is_readonly", "write_ascending"],
    &EVERYTHING,
];

/// The number of seeds that went wrong, and the first of them.
fn wrong(h: &Defect, system: &System, seeds: u64, granted: &[&str]) -> String {
    let wrong: Vec<_> = (0..seeds).filter(|s| h.run(system, *s, granted).is_some()).collect();
    match wrong.first() {
        None => format!("none of {seeds}"),
        Some(first) => format!("{} of {seeds}, first {first}", wrong.len()),
    }
}

/// A row: the defect as published, beside the repaired system.
fn row(h: &Defect, share: u64, granted: &[&str], replaced: bool) {
    let seeds = h.seeds.div_ceil(share).max(h.seed + 1);
    let leaves = if replaced { "replaced" } else { "not replaced" };
    let found = wrong(h, &h.system(false, replaced), seeds, granted);
    let repaired = match h.repair {
        None => "-".to_owned(),
        Some(_) => wrong(h, &h.system(true, replaced), seeds, granted),
    };
    println!("| {} | {leaves} | {} | {found} | {repaired} |", h.name, granted.join(", "));
}

fn main() {
    keep_panics();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let share: u64 = args.first().map_or(1, |a| a.parse().expect("a share of the seeds"));
    let wanted = |h: &&Defect| args.len() < 2 || args[1..].iter().any(|w| h.name.contains(w));
    println!("| defect | leaves | granted | wrong | repaired |");
    println!("|---|---|---|---|---|");
    for h in DEFECTS.iter().filter(wanted) {
        if h.replaced {
            row(h, share, &[], true);
        }
        row(h, share, &EVERYTHING, false);
    }
    for granted in GRANTS.into_iter().filter(|_| wanted(&&REAR_LOCK)) {
        row(&REAR_LOCK, share, granted, false);
    }
}
