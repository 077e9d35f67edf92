//! `conform`: the conformance suite on processes.

use dmtree_bench::{Failure, Result};

use crate::args_nodes::ConformArgs;

/// `conform`.
pub fn run(_a: &ConformArgs) -> Result<()> {
    Err(Failure::input("not there"))
}
