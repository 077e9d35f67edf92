//! Every crash point of a scenario, one run each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dmtree_fabric::sim::{How, Place};
use dmtree_parts::RangeIndex;

use super::death::{CrashRun, ScriptedCrash, run};
use super::{PLACES, Script};

/// The sum of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Runs.
    pub points: u64,
    /// Crashes in them.
    pub crashes: u64,
    /// Longest read of a survivor, ns.
    pub longest_read_ns: u64,
    /// Longest write, ns.
    pub longest_write_ns: u64,
}

impl Tally {
    fn add(&mut self, s: &CrashRun) {
        self.points += 1;
        self.crashes += u64::from(s.died) + u64::from(s.second_died);
        self.longest_read_ns = self.longest_read_ns.max(s.longest_read_ns);
        self.longest_write_ns = self.longest_write_ns.max(s.longest_write_ns);
    }
}

/// Factor by which sweeps are sparser than the suites say, unless `DMTREE_CRASH_STEP` asks for all
/// points. (No multiple of the three places.)
const SPARSER: u64 = 8;

/// The distance of the verbs of a sweep. `DMTREE_CRASH_STEP`: `full` is the suite's distance, a
/// number is a number.
///
/// # Panics
/// When it is neither.
pub fn every(full: u64) -> u64 {
    match std::env::var("DMTREE_CRASH_STEP").as_deref() {
        Err(_) => full * SPARSER,
        Ok("full") => full,
        Ok(n) => n.parse().ok().filter(|n| *n > 0).expect("DMTREE_CRASH_STEP: full, or a number"),
    }
}

/// Every eighth of several expensive items, unless `DMTREE_CRASH_STEP` is set.
pub fn some_of<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let asked = std::env::var_os("DMTREE_CRASH_STEP").is_some();
    all.into_iter().step_by(if asked { 1 } else { SPARSER as usize })
}

/// Whether a sweep has as many points as these, scaled by its distance.
pub fn at_least(points: u64, wanted: u64) -> bool {
    points * every(1) >= wanted
}

/// The victim crashes at every `step`-th verb, before, inside and after it.
///
/// # Panics
/// When a run fails.
pub fn everywhere<I: RangeIndex>(script: &Script<I>, step: u64) -> Tally {
    let step = every(step);
    let mut tally = Tally::default();
    for victim in [1, 0] {
        for whole_write in [false, true] {
            for verb in (1..).step_by(step as usize) {
                let mut died = false;
                for (i, place) in PLACES.into_iter().enumerate() {
                    let how = [How::Machine, How::Hung, How::Process][(verb as usize + i) % 3];
                    let seed = verb * 7 + i as u64 + u64::from(victim) * 1000;
                    let cut =
                        ScriptedCrash { victim, verb, place, how, whole_write, seed, second: None };
                    match run(script, cut) {
                        Ok(shown) => {
                            tally.add(&shown);
                            died |= shown.died;
                        }
                        Err(what) => panic!("{}: {cut:?}: {what}", script.name),
                    }
                }
                if !died {
                    break;
                }
            }
        }
    }
    tally
}

/// A survivor that recovers crashes, too, at any of its verbs; the last one finishes.
///
/// # Panics
/// When a run fails.
pub fn double_crash<I: RangeIndex>(script: &Script<I>, steps: (u64, u64)) -> Tally {
    let mut tally = Tally::default();
    for first in (1..).step_by(steps.0 as usize) {
        let mut died = false;
        for second in (1..).step_by((steps.1 * every(5)) as usize) {
            let mut second_died = false;
            for (i, place) in PLACES.into_iter().enumerate() {
                let n = first + second + i as u64;
                let cut = ScriptedCrash {
                    victim: (n % 2) as u16,
                    verb: first,
                    place: PLACES[n as usize % 3],
                    how: [How::Machine, How::Hung][n as usize % 2],
                    whole_write: n.is_multiple_of(5),
                    seed: first * 1000 + second * 10 + i as u64,
                    second: Some((second, place)),
                };
                match run(script, cut) {
                    Ok(shown) => {
                        tally.add(&shown);
                        died |= shown.died;
                        second_died |= shown.second_died;
                    }
                    Err(what) => panic!("{}: {cut:?}: {what}", script.name),
                }
            }
            if !second_died {
                break;
            }
        }
        if !died {
            break;
        }
    }
    tally
}

/// The first crash point at which an enabled mutant shows, and its failure.
pub fn caught<I: RangeIndex>(script: &Script<I>) -> Option<(u64, String)> {
    let mut points = 0;
    for victim in [1, 0] {
        for verb in 1..400 {
            let mut died = false;
            for (i, place) in PLACES.into_iter().enumerate() {
                for again in 0..4 {
                    points += 1;
                    let seed = verb * 7 + i as u64 + u64::from(victim) * 1000 + again * 100_000;
                    let how = How::Machine;
                    let cut = ScriptedCrash {
                        victim,
                        verb,
                        place,
                        how,
                        whole_write: false,
                        seed,
                        second: None,
                    };
                    let ran = catch_unwind(AssertUnwindSafe(|| run(script, cut)));
                    match ran {
                        Ok(Ok(shown)) => died |= shown.died,
                        Ok(Err(what)) => return Some((points, what)),
                        Err(_) => return Some((points, "a panic".into())),
                    }
                    if place != Place::Inside {
                        break;
                    }
                }
            }
            if !died {
                break;
            }
        }
    }
    None
}
