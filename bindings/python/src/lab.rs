//! The benchmark and the simulator, in this process.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::{BUILTIN, Experiment};
use dmtree_bench::{Failure, Result, run};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// How often a run looks at signals.
const LOOK: Duration = Duration::from_millis(100);

/// Runs an experiment with these settings, as the command line has them (`--keys=1000`); the text
/// of `results.json`. Ctrl-C ends it.
#[pyfunction]
#[expect(clippy::disallowed_methods, reason = "the run has a thread, this one looks at signals")]
pub(crate) fn run_experiment(
    py: Python<'_>,
    name: &str,
    settings: Vec<String>,
) -> PyResult<String> {
    dmtree_bench::results::built_from(dmtree_commit::COMMIT);
    let resolved = Experiment::find(name)
        .and_then(|experiment| resolve(&experiment, &Flags::of(&settings)?))
        .and_then(|resolved| run::preflight(&resolved).map(|()| resolved))
        .map_err(|e| PyValueError::new_err(e.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = channel();
    let receiver = Mutex::new(receiver);
    let its = stop.clone();
    let running = std::thread::spawn(move || {
        let outcome = run::run(&resolved, &[], &its, &mut run::Silent);
        let _ = sender.send(text(outcome));
    });
    let done = loop {
        match py
            .detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK))
        {
            Ok(done) => break done.map_err(|e| PyRuntimeError::new_err(e.to_string())),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(PyRuntimeError::new_err("the run has ended without results"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = py.check_signals() {
                    stop.store(true, Relaxed);
                    break Err(signal);
                }
            }
        }
    };
    let _ = py.detach(|| running.join());
    done
}

fn text(outcome: Result<run::Outcome>) -> Result<String> {
    let outcome = outcome?;
    match outcome.failure {
        Some(failure) => Err(failure),
        None if outcome.results.errors() > 0 => {
            let count = outcome.results.errors();
            Err(Failure::violation(format!("{count} wrong results or failed operations")))
        }
        None => Ok(outcome.results.to_json()),
    }
}

/// The experiments: their names, and what they are for.
#[pyfunction]
pub(crate) fn list_experiments() -> PyResult<Vec<(String, String)>> {
    let described = |(name, _): &(&str, &str)| {
        let experiment =
            Experiment::find(name).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(((*name).to_owned(), experiment.config.description))
    };
    BUILTIN.iter().map(described).collect()
}
