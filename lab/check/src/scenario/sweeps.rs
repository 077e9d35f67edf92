//! Every crash point of a scenario, one run each; the count is told when it is asked for.

#![expect(clippy::disallowed_macros, reason = "what a test has run is told when it is asked for")]

use dmtree_fabric::sim::{How, Place};

use super::death::{CrashRun, ScriptedCrash, run};
use super::delay::{DelayScenario, delay_every_verb};
use super::{PLACES, Script};
use crate::verdict;

/// The sum of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Runs.
    pub points: u64,
    /// Crashes in them.
    pub crashes: u64,
}

/// Factor by which sweeps are sparser than the suites say, unless `DMTREE_CRASH_STEP` asks for all
/// points. (No multiple of the three places.)
const SPARSER: u64 = 64;

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

/// Every sixty-fourth of several expensive items, unless `DMTREE_CRASH_STEP` is set.
pub fn some_of<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let asked = std::env::var_os("DMTREE_CRASH_STEP").is_some();
    all.into_iter().step_by(if asked { 1 } else { SPARSER as usize })
}

/// Whether a sweep has as many points as these, scaled by its distance.
pub fn at_least(points: u64, wanted: u64) -> bool {
    points * every(1) >= wanted
}

/// A run; a panic is a failure.
pub(super) fn tried<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    verdict::caught(run).unwrap_or_else(|panic| Err(format!("a panic: {panic}")))
}

/// The three places of a verb. Returns which nodes have crashed in any of these runs.
fn each_place(
    script: &Script,
    tally: &mut Tally,
    cut: impl Fn(u64, Place) -> ScriptedCrash,
) -> CrashRun {
    let mut any = CrashRun::default();
    for (i, place) in (0..).zip(PLACES) {
        let cut = cut(i, place);
        let ran =
            run(script, cut).unwrap_or_else(|what| panic!("{}: {cut:?}: {what}", script.name));
        tally.points += 1;
        tally.crashes += u64::from(ran.died) + u64::from(ran.second_died);
        any.died |= ran.died;
        any.second_died |= ran.second_died;
    }
    any
}

/// The victim crashes at every `step`-th verb, before, inside and after it.
///
/// # Panics
/// When a run fails.
pub fn everywhere(script: &Script, step: u64) -> Tally {
    let step = every(step);
    let mut tally = Tally::default();
    for victim in [1, 0] {
        for whole_write in [false, true] {
            for verb in (1..).step_by(step as usize) {
                let cut = |i: u64, place| ScriptedCrash {
                    victim,
                    verb,
                    place,
                    how: [How::Machine, How::Hung, How::Process][(verb + i) as usize % 3],
                    whole_write,
                    seed: verb * 7 + i + u64::from(victim) * 1000,
                    second: None,
                };
                if !each_place(script, &mut tally, cut).died {
                    break;
                }
            }
        }
    }
    eprintln!("{}: {tally:?}", script.name);
    tally
}

/// A survivor that recovers crashes, too, at any of its verbs; the last one finishes.
///
/// # Panics
/// When a run fails.
pub fn double_crash(script: &Script, steps: (u64, u64)) -> Tally {
    let mut tally = Tally::default();
    // A sparser sweep leaves out crashes of both nodes.
    let (first_step, second_step) = match std::env::var_os("DMTREE_CRASH_STEP") {
        None => (32 * steps.0, 32 * 5 * steps.1),
        Some(full) if full == "full" => (steps.0, 5 * steps.1),
        Some(_) => (every(1).div_ceil(2) * steps.0, every(1) * steps.1),
    };
    for first in (1..).step_by(first_step as usize) {
        let mut died = false;
        for second in (1..).step_by(second_step as usize) {
            let cut = |i: u64, place| {
                let n: u64 = first + second + i;
                ScriptedCrash {
                    victim: (n % 2) as u16,
                    verb: first,
                    place: PLACES[n as usize % 3],
                    how: [How::Machine, How::Hung][n as usize % 2],
                    whole_write: n.is_multiple_of(5),
                    seed: first * 1000 + second * 10 + i,
                    second: Some((second, place)),
                }
            };
            let any = each_place(script, &mut tally, cut);
            died |= any.died;
            if !any.second_died {
                break;
            }
        }
        if !died {
            break;
        }
    }
    eprintln!("{}, two deaths: {tally:?}", script.name);
    tally
}

/// The first crash point at which an enabled mutant shows, and its failure.
pub fn caught(script: &Script) -> Option<(u64, String)> {
    let mut points = 0;
    for victim in [1, 0] {
        for verb in 1..400 {
            let mut died = false;
            for (i, place) in (0..).zip(PLACES) {
                for again in 0..if place == Place::Inside { 4 } else { 1 } {
                    points += 1;
                    let seed = verb * 7 + i + u64::from(victim) * 1000 + again * 100_000;
                    let (how, whole_write, second) = (How::Machine, false, None);
                    let cut = ScriptedCrash { victim, verb, place, how, whole_write, seed, second };
                    match tried(|| run(script, cut)) {
                        Ok(ran) => died |= ran.died,
                        Err(what) => return Some((points, what)),
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

/// How a mutant shows.
enum Trial {
    Crash(Script),
    Delay(DelayScenario),
}

/// Mutants by their names, each enabled in a script with a point at which it shows, or in a script
/// with a verb that shows it when it is late. Each has to be found. `DMTREE_MUTANTS=NAME,...` asks
/// for these alone; otherwise every sixty-fourth script runs.
///
/// # Panics
/// When one is not found.
pub fn find_mutants(
    by_crash: impl IntoIterator<Item = (&'static str, Script)>,
    by_delay: impl IntoIterator<Item = (&'static str, DelayScenario)>,
) {
    let mut missed = Vec::new();
    let mut judge = |name: &'static str, script: &str, points, found: Option<String>| match found {
        Some(what) => eprintln!("{name} in {script}: {points} runs: {what}"),
        None => missed.push(format!("{name} in {script}")),
    };
    let by_crash = by_crash.into_iter().map(|(name, script)| (name, Trial::Crash(script)));
    let by_delay = by_delay.into_iter().map(|(name, late)| (name, Trial::Delay(late)));
    for (name, trial) in some_of(by_crash.chain(by_delay)).filter(|(name, _)| is_asked_for(name)) {
        match trial {
            Trial::Crash(script) => {
                let (points, found) = caught(&script).unzip();
                judge(name, script.name, points.unwrap_or(0), found);
            }
            Trial::Delay(late) => {
                let (runs, found) = delay_every_verb(&late, 2);
                judge(name, late.script.name, runs, found);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// Whether a mutant is to be tried, by `DMTREE_MUTANTS`.
fn is_asked_for(name: &str) -> bool {
    let asked = std::env::var("DMTREE_MUTANTS");
    asked.map_or(true, |names| names.split(',').any(|n| n == name))
}
