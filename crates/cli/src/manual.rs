//! The manual pages, made from the command line's own description.

use std::path::Path;

use clap::CommandFactory;
use dmtree_command::{Failure, Result};

use crate::args::Cli;
use crate::output;

/// Writes a page for each command into a directory, which is made if it is not there.
pub fn write(directory: &Path) -> Result<()> {
    let at = directory.display();
    let failed = |e: std::io::Error| Failure::input(format!("{at}: {e}"));
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
    output::line(&format!("{at}: the manual pages of dmtree"));
    Ok(())
}
