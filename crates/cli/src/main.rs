//! The binary `dmtree`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dmtree_cli::main()
}
