//! Mutation tests of systems, and their defects: which the checker finds, and with how many seeds.
//!
//! `mutants [--system NAME] [--seeds N] [MUTANT...]`: tables in Markdown, of the mutants of the
//! system, all or those named, and without names of its defects.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

use dmtree_bench::{Failure, Result, registry};
use dmtree_check::peer::{defects, mutants};
use dmtree_check::verdict::keep_panics;

fn main() -> Result<()> {
    keep_panics();
    let (mut systems, mut seeds, mut names) = (Vec::new(), 600, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--system" => systems.extend(args.next()),
            "--seeds" => {
                let number = args.next().and_then(|n| n.parse().ok());
                seeds = number.ok_or_else(|| Failure::input("--seeds: give a number"))?;
            }
            _ => names.push(arg),
        }
    }
    if systems.is_empty() {
        systems.push("all".to_owned());
    }
    for system in registry::select(&systems)? {
        print!("{}", mutants::markdown(&system, seeds, &names)?);
        if names.is_empty() {
            print!("{}", defects::markdown(&system));
        }
    }
    Ok(())
}
