//! Campaigns: checked runs of many seeds of some systems on several threads, with counts, and
//! minimized cases of findings.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, Result, mark};
use dmtree_parts::peer::Setting;
use serde::Serialize;

use crate::case::Case;
use crate::checked::System;
use crate::clock;
use crate::shrink::{Shrunk, shrink};
use crate::verdict::{Judged, Verdict, on_threads};

/// A campaign: the runs to do.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// The systems; every seed is run with each.
    pub systems: Vec<System>,
    /// The seeds.
    pub seeds: Range<u64>,
    /// The grants of the fabric, and the node faults.
    pub setting: Setting,
    /// Runs each case twice, and reports a difference between the two runs as a finding.
    pub twice: bool,
    /// No seed begins after this time.
    pub until: Option<Instant>,
    /// Threads; a thread runs one seed at a time.
    pub threads: usize,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
}

/// A seed with a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The system.
    pub system: String,
    /// The kind of the finding.
    pub kind: String,
    /// The finding.
    pub what: String,
}

/// How often a fault was drawn, and how often it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCount {
    /// Cases that have the fault.
    pub drawn: u64,
    /// Cases in which it happened.
    pub happened: u64,
    /// Cases in which it happened inside an operation.
    pub inside: u64,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Seeds, those of each system counted.
    pub seeds: u64,
    /// Operations.
    pub operations: u64,
    /// Virtual time of all runs together, ns.
    pub virtual_ns: u64,
    /// Real time, s.
    pub seconds: f64,
    /// How often each fabric fault was drawn with each value.
    pub fabric_faults: BTreeMap<String, BTreeMap<String, u64>>,
    /// How often each node fault happened: in how many seeds, and in how many of them inside an
    /// operation.
    pub node_faults: BTreeMap<String, FaultCount>,
    /// Seeds with faults.
    pub with_faults: u64,
    /// Seeds in which a fault happened inside an operation.
    pub inside: u64,
    /// Operations that failed in a way that a fault permits.
    pub excused: u64,
    /// Operations during a fault that did not touch their leaf, and that ended within their bound.
    pub available: Judged,
    /// Findings, by seed and system.
    pub violations: Vec<Violation>,
    /// The rare branches of the systems' code, with how often each was taken.
    pub marks: BTreeMap<String, u64>,
    /// Seeds that run, with their systems.
    #[serde(skip)]
    pub running: BTreeSet<(u64, String)>,
}

impl Tally {
    fn add(&mut self, case: &Case, verdict: &Verdict) {
        self.running.remove(&(case.seed, case.system.clone()));
        self.seeds += 1;
        self.operations += verdict.operations;
        self.virtual_ns += verdict.virtual_ns;
        let fabric_faults = serde_json::to_value(case.fabric_faults).unwrap_or_default();
        let schedule = serde_json::to_value(case.schedule).unwrap_or_default();
        let drawn = fabric_faults.as_object().into_iter().flatten();
        for (name, value) in drawn.map(|(n, v)| (n.as_str(), v)).chain([("schedule", &schedule)]) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            *self.fabric_faults.entry(name.to_owned()).or_default().entry(text).or_default() += 1;
        }
        for fault in &case.node_faults {
            self.node_faults.entry(fault.kind().to_owned()).or_default().drawn += 1;
        }
        for h in &verdict.happened {
            let count = self.node_faults.entry(h.fault.kind().to_owned()).or_default();
            count.happened += 1;
            count.inside += u64::from(h.inside > 0);
        }
        self.with_faults += u64::from(!case.node_faults.is_empty());
        self.inside += u64::from(verdict.happened.iter().any(|h| h.inside > 0));
        self.excused += verdict.excused;
        self.available.gets += verdict.available.gets;
        self.available.writes += verdict.available.writes;
        if let Some(finding) = &verdict.finding {
            self.violations.push(Violation {
                seed: case.seed,
                system: case.system.clone(),
                kind: finding.kind().to_owned(),
                what: finding.to_string(),
            });
        }
    }

    /// The last line of a campaign's output.
    pub fn line(&self) -> String {
        let violations = self.violations.len();
        format!("seeds {} operations {} violations {violations}", self.seeds, self.operations)
    }

    /// Seeds per second.
    pub fn rate(&self) -> f64 {
        self.seeds as f64 / self.seconds.max(1e-9)
    }
}

impl Campaign {
    /// Runs the campaign, and reports progress to `tell` at intervals. Errors are of a case that
    /// cannot run, and of an empty range of seeds. An interrupt is no error: the tally shows what
    /// ran.
    pub fn run(&self, tell: &mut dyn FnMut(&Tally)) -> Result<Tally> {
        if self.seeds.is_empty() || self.systems.is_empty() {
            return Err(Error::invalid("no seeds to run: give a range such as 0..200"));
        }
        let began = clock::now();
        let before = self.marks();
        mark::set_on(true);
        let next = AtomicU64::new(0);
        let tally = Mutex::new(Tally::default());
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let fail = |e| {
            locked(&failed).get_or_insert(e);
            next.store(u64::MAX / 2, Ordering::Relaxed);
        };
        let work = |_| self.work(&next, &tally).unwrap_or_else(fail);
        let ended = on_threads(self.threads.max(1), work, &mut || {
            let mut t = locked(&tally);
            t.seconds = (clock::now() - began).as_secs_f64();
            tell(&t);
        });
        // A panic of an index is a finding. This panic was the checker's own.
        let panicked = |what| Error::corrupt(format!("a checking thread panicked: {what}"));
        ended.into_iter().filter_map(Result::err).map(panicked).for_each(fail);
        if let Some(e) = locked(&failed).take() {
            return Err(e);
        }
        let mut t = std::mem::take(&mut *locked(&tally));
        t.seconds = (clock::now() - began).as_secs_f64();
        t.violations.sort();
        t.marks = self.marks();
        for (name, hits) in before {
            t.marks.entry(name).and_modify(|now| *now -= hits);
        }
        Ok(t)
    }

    fn marks(&self) -> BTreeMap<String, u64> {
        let all = self.systems.iter().flat_map(|s| (s.marks)());
        all.map(|(name, hits)| (name.to_owned(), hits)).collect()
    }

    /// Runs seeds until none is left, or the time is over.
    fn work(&self, next: &AtomicU64, tally: &Mutex<Tally>) -> Result<()> {
        let systems = self.systems.len() as u64;
        loop {
            let late = self.until.is_some_and(|until| clock::now() >= until);
            if late || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let job = next.fetch_add(1, Ordering::Relaxed);
            let seed = self.seeds.start.saturating_add(job / systems);
            if seed >= self.seeds.end {
                return Ok(());
            }
            let system = &self.systems[(job % systems) as usize];
            let case = system.case(seed, &system.spared(&self.setting));
            locked(tally).running.insert((seed, system.name.to_owned()));
            let verdict = system.check_again(&case, self.twice)?;
            locked(tally).add(&case, &verdict);
        }
    }
}

/// Minimizes a case with a finding, within a time limit; with each run `twice` if two runs differ.
/// Errors are of a case that cannot run.
pub fn smallest(
    (system, twice): (&System, bool),
    case: &Case,
    within: Duration,
    stop: &AtomicBool,
) -> Result<Shrunk> {
    let verdict = system.check_again(case, twice)?;
    let until = clock::now() + within;
    let mut more = || clock::now() < until && !stop.load(Ordering::Relaxed);
    let mut run = |c: &Case| system.check_again(c, twice).ok();
    Ok(shrink(case.clone(), verdict, &mut run, &mut more))
}
