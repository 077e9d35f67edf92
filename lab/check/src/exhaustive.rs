//! Every order of the verbs of a small case.
//!
//! A run is a path through a tree; its branches are the verbs that could execute next; the search
//! is depth first, and keeps only the path. A bound on switches (choices other than to continue
//! with the same client) keeps trees finite in practice: most bugs need one or two.

use dmtree_fabric::Result;
use dmtree_fabric::sim::{Order, next_choices};

use crate::case::Case;
use crate::checked::System;
use crate::run::run;
use crate::verdict::Verdict;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Most switches in a path; `u32::MAX` for no bound.
    pub switches: u32,
    /// Most paths.
    pub paths: u64,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Paths taken.
    pub paths: u64,
    /// Operations, all paths together.
    pub operations: u64,
    /// Choices of the longest path.
    pub longest: usize,
    /// All paths within the bound of switches were taken.
    pub complete: bool,
    /// The case with the choices of a failing path, and its finding.
    pub wrong: Option<(Box<Case>, Box<Verdict>)>,
}

impl System {
    /// Tries the orders of a case one by one until one goes wrong, `go_on` says no, or there are no
    /// more.
    ///
    /// # Errors
    /// A case that cannot be run.
    pub fn explore(&self, case: &Case, depth: Depth, go_on: &dyn Fn() -> bool) -> Result<Explored> {
        let mut out = Explored::default();
        let mut next = Some(Vec::new());
        while let Some(choices) = next {
            if out.paths == depth.paths || !go_on() {
                return Ok(out);
            }
            let order = Order::Listed { choices, switches: depth.switches };
            let (verdict, made) = run(&self.options, case, &order)?;
            out.paths += 1;
            out.operations += verdict.operations;
            out.longest = out.longest.max(made.len());
            if verdict.finding.is_some() {
                let choices = Some(made.iter().map(|c| c.taken).collect());
                let case = Case { choices, ..case.clone() };
                out.wrong = Some((Box::new(case), Box::new(verdict)));
                return Ok(out);
            }
            next = next_choices(&made);
        }
        out.complete = true;
        Ok(out)
    }
}
