//! Seeds on the adversarial fabric: those that must find nothing, and those that show a defect,
//! until it is repaired.

use std::fmt::Write as _;

use dmtree_fabric::Result;
use dmtree_parts::peer::{Defect, Setting};

use super::{Peer, each};
use crate::case::Case;
use crate::checked::{System, granted};
use crate::concurrent::seeds;
use crate::conformance::is_whole;
use crate::verdict::{Finding, Verdict};

/// Runs the seeds that must find nothing, and a few of each setting twice: the same seed gives the
/// same run, and another order of events another one. Returns what went wrong.
pub fn sound(peer: &Peer) -> Vec<String> {
    let mut cells = Vec::new();
    for (system, setting, range) in &peer.sound {
        let subject = peer.subject(system);
        let all = seeds(range.start, range.end - range.start);
        cells.extend(all.map(|seed| (subject, setting, seed, seed < range.start + 3)));
    }
    each(&cells, |(subject, setting, seed, twice)| {
        let case = subject.case(*seed, setting);
        run_sound(subject, &case, *twice)
            .map_err(|why| format!("{} seed {seed}: {why}", case.system))
    })
}

fn run_sound(subject: &System, case: &Case, twice: bool) -> Result<(), String> {
    let verdict = subject.check_again(case, twice).map_err(|e| e.to_string())?;
    if let Some(finding) = verdict.finding {
        return Err(format!("{finding}\n{}", case.to_json()));
    }
    let (ran, few) = (verdict.operations, verdict.operations < case.operations());
    if few && case.node_faults.is_empty() {
        return Err(format!("{ran} operations of {}", case.operations()));
    }
    let other = Case { order: 1 << 40, ..case.clone() };
    let same = |other: Verdict| other.trace_hash == verdict.trace_hash;
    if twice && subject.check(&other).map_err(|e| e.to_string()).map(same)? {
        return Err("another order of events gives the same run".to_owned());
    }
    Ok(())
}

fn shows(defect: &Defect, finding: &Finding) -> bool {
    defect.found.contains(&finding.kind()) && finding.to_string().contains(defect.says)
}

/// Looks for the defects of systems, in a run that is not whole for every third. Returns those that
/// no seed shows, and those that a seed shows in spite of the repair.
pub fn found(subjects: &[System]) -> Vec<String> {
    let all = subjects.iter().flat_map(|s| s.defects.iter().map(move |defect| (s, defect)));
    let all: Vec<(&System, &Defect)> = all.step_by(if is_whole() { 1 } else { 3 }).collect();
    each(&all, |(subject, defect)| {
        let run = |seed, s| subject.finding(seed, s).map_err(|e| e.to_string());
        let shown = |f: Option<Finding>| f.filter(|f| shows(defect, f));
        let mut tried = defect.seeds.clone().map(|seed| run(seed, &defect.setting).map(shown));
        if tried.find_map(Result::transpose).transpose()?.is_none() {
            return Err(format!("{}: no seed of {:?} shows it", defect.name, defect.seeds));
        }
        let Some(repaired) = defect.repaired() else { return Ok(()) };
        for seed in seeds(defect.clean.start, defect.clean.end - defect.clean.start) {
            let finding = run(seed, &repaired)?;
            if let Some(f) = finding.filter(|f| !defect.beside.contains(&f.kind())) {
                return Err(format!("{}, repaired: seed {seed}: {f}", defect.name));
            }
        }
        Ok(())
    })
}

/// The number of seeds that show a defect in a setting, and the first of them.
fn count(subject: &System, defect: &Defect, s: &Setting) -> String {
    let shown = |seed: &u64| matches!(subject.finding(*seed, s), Ok(Some(f)) if shows(defect, &f));
    let wrong: Vec<u64> = (0..defect.counted).filter(shown).collect();
    match wrong.first() {
        None => format!("none of {}", defect.counted),
        Some(first) => format!("{} of {}, first {first}", wrong.len(), defect.counted),
    }
}

/// The defects of a system as a Markdown table; nothing when it has none.
pub fn markdown(subject: &System) -> String {
    if subject.defects.is_empty() {
        return String::new();
    }
    let mut out =
        "| defect | system | granted | wrong | repaired |\n|---|---|---|---|---|\n".to_owned();
    for h in &subject.defects {
        let granted = granted(&h.setting.grants).join(", ");
        let wrong = count(subject, h, &h.setting);
        let repaired = match (h.repaired(), &h.repair) {
            (Some(setting), _) => count(subject, h, &setting),
            (None, repair) => format!("{repair:?}"),
        };
        let system = subject.name;
        let _ = writeln!(out, "| {} | {system} | {granted} | {wrong} | {repaired} |", h.name);
    }
    out
}
