//! `--log`: rare events of a node as lines on standard error.

use dmtree_command::{Failure, Result};

use crate::args::LogArgs;

/// Begins to write events, if it is asked for.
///
/// # Errors
/// A program that was built without the feature `log`.
#[cfg(feature = "log")]
pub fn begin(a: &LogArgs) -> Result<()> {
    use crate::args::LogForm;
    dmtree_fabric::trace::set_slow_ns(a.slow_ms * 1_000_000);
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    let begun = match a.log {
        None => return Ok(()),
        Some(LogForm::Text) => lines.try_init(),
        Some(LogForm::Json) => lines.json().try_init(),
    };
    begun.map_err(|e| Failure::input(format!("--log: {e}")))
}

/// Refuses, if it is asked for.
#[cfg(not(feature = "log"))]
pub fn begin(a: &LogArgs) -> Result<()> {
    match a.log {
        None => Ok(()),
        Some(_) => Err(Failure::input(
            "--log: this program was built without the feature log: cargo build --release -p dmtree-cli --features log",
        )),
    }
}
