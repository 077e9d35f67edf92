//! Progress: bars on a terminal, plain lines otherwise.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dmtree_bench::group::Progress;
use dmtree_bench::results::{Cell, Results};
use dmtree_bench::run::Observer;
use dmtree_bench::table;
use dmtree_bench::{clock, files};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// A plain line at most this often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Shows a run on standard error.
pub struct Shown {
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Instant,
    last_phase: String,
    keep: Option<PathBuf>,
}

impl Shown {
    /// Bars when standard error is a terminal, lines otherwise, nothing when `quiet`.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && output::fancy()).then(|| {
            let bar = ProgressBar::new(1000);
            let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3}% {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, quiet, last: clock::now(), last_phase: String::new(), keep: None }
    }

    /// Writes results.json into this directory after every cell, so that a run that is killed can
    /// be resumed.
    pub fn keeping(mut self, dir: Option<&Path>) -> Self {
        self.keep = dir.map(Path::to_path_buf);
        self
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Shows how far something without cells is.
    pub fn simple(&mut self, what: &str, done: u64, of: u64) {
        let share = done as f64 / of.max(1) as f64;
        self.progress(Progress { what, phase: "replay", cell: (1, 1), done, share });
    }
}

impl Observer for Shown {
    fn progress(&mut self, p: Progress<'_>) {
        if self.quiet {
            return;
        }
        let (n, of) = p.cell;
        let text = format!("{}: {}", p.what, p.phase);
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("{n}/{of}"));
            bar.set_message(text);
            bar.set_position((p.share.clamp(0.0, 1.0) * 1000.0) as u64);
            return;
        }
        if text != self.last_phase || clock::now() - self.last >= PLAIN_EVERY {
            // Short phases would only make noise.
            if text == self.last_phase || p.phase == "measure" || p.phase == "replay" {
                output::note(&format!("{n}/{of} {text} {:.0}%", p.share.clamp(0.0, 1.0) * 100.0));
            }
            self.last = clock::now();
            self.last_phase = text;
        }
    }

    fn measured(&mut self, cell: &Cell, so_far: &dyn Fn() -> Results) {
        if let Some(dir) = &self.keep {
            // What cannot be written now is said when everything is written.
            let _ = files::write_results(dir, &so_far());
        }
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| output::note(&table::line(cell))),
            None => output::note(&table::line(cell)),
        }
    }
}
