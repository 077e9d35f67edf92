//! Mutation tests of systems, and their defects: which the checker finds, and with how many seeds.
//!
//! `mutants [--system NAME] [--seeds N] [MUTANT...]`: tables in Markdown, of the mutants of the
//! system, all or those named, and without names of its defects.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

use clap::Parser;
use dmtree_bench::{Result, registry};
use dmtree_check::peer::{defects, mutants};
use dmtree_check::verdict::keep_panics;

#[derive(Parser)]
struct Args {
    /// Names, `families` (one per family), or `all`.
    #[arg(long, default_value = "all")]
    system: Vec<String>,
    /// Most seeds until a mutant is found.
    #[arg(long, default_value_t = 600)]
    seeds: u64,
    /// Mutants; all of them without names.
    mutants: Vec<String>,
}

fn main() -> Result<()> {
    keep_panics();
    let args = Args::parse();
    for system in registry::select(&args.system)? {
        print!("{}", mutants::markdown(&system, args.seeds, &args.mutants)?);
        if args.mutants.is_empty() {
            print!("{}", defects::markdown(&system));
        }
    }
    Ok(())
}
