//! Many seeds of some systems: run on several threads, counted, and what went wrong made small.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dmtree_check::case::Case;
use dmtree_check::shrink::{Shrunk, shrink};
use dmtree_check::verdict::{Judged, Verdict};
use dmtree_fabric::mark;
use serde::Serialize;

use crate::checked::{self, Setting};
use crate::clock;
use crate::failure::{Failure, Result};
use crate::registry::System;

/// Time between two calls of an observer.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// What is run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The systems; every seed is run with each.
    pub systems: Vec<System>,
    /// The seeds.
    pub seeds: Range<u64>,
    /// What the fabric grants, and what happens to nodes.
    pub setting: Setting,
    /// No seed begins after this.
    pub until: Option<Instant>,
    /// Threads; every run has one to itself.
    pub threads: usize,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
}

/// A seed that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The system.
    pub system: String,
    /// The kind of what went wrong.
    pub kind: String,
    /// What went wrong.
    pub what: String,
}

/// How often a fault was drawn and happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCount {
    /// Cases that have it.
    pub drawn: u64,
    /// It happened.
    pub happened: u64,
    /// It happened inside an operation.
    pub inside: u64,
}

/// What has been run.
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
    /// How often which hazard was drawn with which value.
    pub hazards: BTreeMap<String, BTreeMap<String, u64>>,
    /// How often which fault happened, in how many seeds, and in how many of them inside an operation.
    pub faults: BTreeMap<String, FaultCount>,
    /// Seeds with faults.
    pub with_faults: u64,
    /// Seeds in which a fault happened inside an operation.
    pub inside: u64,
    /// Operations that failed as a fault lets them.
    pub excused: u64,
    /// Operations beside a fault that did not touch their leaf, and that ended within their bound.
    pub available: Judged,
    /// What went wrong, by seed and system.
    pub violations: Vec<Violation>,
    /// The rare branches of the systems' code, with how often each was taken.
    pub marks: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, case: &Case, verdict: &Verdict) {
        self.seeds += 1;
        self.operations += verdict.operations;
        self.virtual_ns += verdict.virtual_ns;
        let hazards = serde_json::to_value(case.hazards).unwrap_or_default();
        let schedule = serde_json::to_value(case.schedule).unwrap_or_default();
        let drawn = hazards.as_object().into_iter().flatten();
        for (name, value) in drawn.map(|(n, v)| (n.as_str(), v)).chain([("schedule", &schedule)]) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            *self.hazards.entry(name.to_owned()).or_default().entry(text).or_default() += 1;
        }
        for fault in &case.faults {
            self.faults.entry(fault.kind().to_owned()).or_default().drawn += 1;
        }
        for h in &verdict.happened {
            let count = self.faults.entry(h.fault.kind().to_owned()).or_default();
            count.happened += 1;
            count.inside += u64::from(h.inside > 0);
        }
        self.with_faults += u64::from(!case.faults.is_empty());
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

    /// The line that ends a campaign.
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
    /// Runs it. `tell` hears now and then how far it is.
    ///
    /// # Errors
    /// A case that cannot be run, no seed at all. An interrupt is none: the tally says what was run.
    pub fn run(&self, tell: &mut dyn FnMut(&Tally)) -> Result<Tally> {
        if self.seeds.is_empty() || self.systems.is_empty() {
            return Err(Failure::input("no seeds to run: give a range such as 0..200"));
        }
        let began = clock::now();
        let before = self.marks();
        mark::set_on(true);
        let next = AtomicU64::new(0);
        let tally = Mutex::new(Tally::default());
        let failed: Mutex<Option<Failure>> = Mutex::new(None);
        let live = AtomicU64::new(self.threads.max(1) as u64);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    let worked = self.work(&next, &tally);
                    if let Err(e) = worked {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                    }
                    live.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while live.load(Ordering::Relaxed) > 0 {
                std::thread::park_timeout(TELL_EVERY);
                let mut t = tally.lock().unwrap_or_else(PoisonError::into_inner);
                t.seconds = (clock::now() - began).as_secs_f64();
                tell(&t);
            }
        });
        if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(e);
        }
        let mut t = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        t.seconds = (clock::now() - began).as_secs_f64();
        t.violations.sort();
        t.marks = self.marks();
        for (name, hits) in before {
            t.marks.entry(name).and_modify(|now| *now -= hits);
        }
        Ok(t)
    }

    fn marks(&self) -> BTreeMap<String, u64> {
        let all = self.systems.iter().flat_map(System::marks);
        all.map(|(name, hits)| (name.to_owned(), hits)).collect()
    }

    /// Takes seeds until there are none, or no time.
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
            let case = checked::case(system, seed, self.setting);
            let verdict = system
                .check(&case)
                .map_err(|e| e.context(&format!("{} seed {seed}", system.name)))?;
            tally.lock().unwrap_or_else(PoisonError::into_inner).add(&case, &verdict);
        }
    }
}

/// Makes a case that goes wrong as small as it gets within a time.
///
/// # Errors
/// A case that cannot be run.
pub fn smallest(case: &Case, within: Duration, stop: &AtomicBool) -> Result<Shrunk> {
    let verdict = checked::run(case)?;
    let until = clock::now() + within;
    let mut more = || clock::now() < until && !stop.load(Ordering::Relaxed);
    Ok(shrink(case.clone(), verdict, &mut |c| checked::run(c).ok(), &mut more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::select;
    use dmtree_check::FaultSet;

    fn campaign(threads: usize) -> Campaign {
        Campaign {
            systems: select(&["dmtree".to_owned(), "dmtree-no-rtc".to_owned()]).unwrap(),
            seeds: 3..6,
            setting: Setting::default(),
            until: None,
            threads,
            stop: Arc::default(),
        }
    }

    #[test]
    fn all_seeds_are_run_on_any_number_of_threads() {
        let [one, two] = [1, 2].map(|threads| campaign(threads).run(&mut |_| {}).unwrap());
        assert_eq!((one.seeds, one.violations.len()), (6, 0), "{:?}", one.violations);
        assert!(one.operations >= 6 * 200);
        assert_eq!((one.line(), &one.hazards), (two.line(), &two.hazards));
        assert!(one.marks["lock: held by another"] > 0, "{:?}", one.marks);
        assert_eq!(one.hazards["words"].values().sum::<u64>(), 6);
    }

    /// Most seeds must show what they are for: a fault in the middle of an operation.
    #[test]
    fn faults_happen_inside_operations() {
        for faults in [FaultSet::Crash, FaultSet::All] {
            let systems = select(&["dmtree".to_owned()]).unwrap();
            let setting = Setting { faults, ..Setting::default() };
            let t = Campaign { systems, seeds: 0..6, setting, ..campaign(2) };
            let t = t.run(&mut |_| {}).unwrap();
            assert!(t.inside * 2 >= t.seeds, "{faults:?}: {} of {}", t.inside, t.seeds);
        }
        let systems = select(&["fptree".to_owned()]).unwrap();
        let setting = Setting { faults: FaultSet::Crash, ..Setting::default() };
        assert_eq!(checked::case(&systems[0], 1, setting).faults, []);
    }

    #[test]
    fn time_and_the_user_end_it() {
        let late = Campaign { until: Some(clock::now()), ..campaign(1) };
        assert_eq!(late.run(&mut |_| {}).unwrap().line(), "seeds 0 operations 0 violations 0");
        let none = Campaign { seeds: 5..5, ..campaign(1) };
        assert!(none.run(&mut |_| {}).unwrap_err().to_string().contains("0..200"));
    }
}
