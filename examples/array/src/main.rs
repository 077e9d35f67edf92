//! The command line of `dmtree`, with the array among its systems.

use std::process::ExitCode;

fn main() -> ExitCode {
    dmtree_cli::main_with(dmtree_array::systems())
}
