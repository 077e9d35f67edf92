//! Resumes a run that ended early.

use crate::config::Resolved;
use crate::failure::{Failure, Result};
use crate::results::{Cell, Results};

/// The cells of earlier results that need not run again: those with all their rounds.
///
/// # Errors
/// Results of other settings, because their cells are not comparable.
pub fn resumable(have: &Results, r: &Resolved) -> Result<Vec<Cell>> {
    let due = r.config.hash();
    if have.config_hash != due || have.experiment != r.name {
        return Err(Failure::input(format!(
            "holds results of experiment {} with config {}, and this is {} with config {due}: resume with the same settings, or write to another directory",
            have.experiment, have.config_hash, r.name
        )));
    }
    let whole = |c: &&Cell| c.rounds.len() == r.config.rounds as usize;
    Ok(have.cells.iter().filter(whole).cloned().collect())
}
