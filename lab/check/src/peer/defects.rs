//! Seeds on the adversarial fabric: those that must find nothing, and those that show a published
//! defect, until it is repaired.

use std::fmt::Write as _;
use std::ops::Range;

use dmtree_fabric::Capabilities;
use dmtree_parts::RangeIndex;

use super::{Peer, each};
use dmtree_parts::peer::Drawn;

use crate::case::Case;
use crate::concurrent::seeds;
use crate::fault::NodeFaultSet;
use crate::verdict::{Finding, Verdict};

/// Nothing beyond the contract of the fabric is granted.
pub const NOTHING: Capabilities = Capabilities::NONE;
/// A failing compare-and-swap writes nothing.
pub const READONLY: Capabilities = Capabilities { cas_fail_is_readonly: true, ..NOTHING };
/// WRITEs land in ascending order, and lines are whole.
pub const ORDERED: Capabilities =
    Capabilities { line_atomic: true, write_ascending: true, ..NOTHING };
/// Both.
pub const KIND: Capabilities = Capabilities { cas_fail_is_readonly: true, ..ORDERED };
/// The same, WRITEs of a packet whole, and a little on-chip memory.
pub const EVERYTHING: Capabilities =
    Capabilities { whole_write_bytes: 4096, on_chip_bytes: 1024, ..KIND };

/// What a seed runs: a system with these options, on a fabric with these grants.
#[derive(Clone, Debug)]
pub struct Setting<O> {
    /// The system.
    pub system: &'static str,
    /// Its options; a seed draws the geometry.
    pub options: O,
    /// The grants.
    pub grants: Capabilities,
    /// Faults of nodes.
    pub faults: NodeFaultSet,
    /// What the clients do instead of what the seed draws.
    pub clients: fn(Case) -> Case,
}

impl<O> Setting<O> {
    /// Clients as drawn, and no node fails.
    pub fn new(system: &'static str, options: O, grants: Capabilities) -> Self {
        Self { system, options, grants, faults: NodeFaultSet::None, clients: |case| case }
    }

    /// With other clients.
    #[must_use]
    pub fn clients(self, clients: fn(Case) -> Case) -> Self {
        Self { clients, ..self }
    }

    /// With faults of nodes.
    #[must_use]
    pub fn faults(self, faults: NodeFaultSet) -> Self {
        Self { faults, ..self }
    }
}

/// A case in which some clients do nothing but operations on so many keys.
#[must_use]
pub fn crowd(case: Case, clients: u32, keys: u32, ops: u32) -> Case {
    let quiet = Case { churn_clients: 0, neighbours: 0, scan_one_in: 0, wave_ops: 0, ..case };
    Case { clients, keys, ops, liveness: false, ..quiet }
}

/// What removes a defect.
#[derive(Clone, Debug)]
pub enum Repair<O> {
    /// These options.
    Options(O),
    /// These grants.
    Grants(Capabilities),
    /// Nothing that the system can be given.
    Nothing,
}

/// A published defect.
#[derive(Clone, Debug)]
pub struct Defect<O> {
    /// Its name.
    pub name: &'static str,
    /// A setting that has it.
    pub setting: Setting<O>,
    /// Seeds of which one at least shows it.
    pub seeds: Range<u64>,
    /// The kinds of findings that show it.
    pub found: &'static [&'static str],
    /// Kinds of findings that have other causes, with the repair or without it.
    pub beside: &'static [&'static str],
    /// Words of the finding.
    pub says: &'static str,
    /// The repair.
    pub repair: Repair<O>,
    /// Seeds that find nothing once it is repaired.
    pub clean: Range<u64>,
    /// How many seeds the printed table counts.
    pub counted: u64,
}

impl<O: Clone> Defect<O> {
    /// A defect that some seed around this one shows, as a wrong history or as a failed operation.
    pub fn new(name: &'static str, setting: Setting<O>, seed: u64, repair: Repair<O>) -> Self {
        Self {
            name,
            setting,
            seeds: seed.saturating_sub(10)..seed + 20,
            found: &["history", "failed"],
            beside: &[],
            says: "",
            repair,
            clean: seed.saturating_sub(2)..seed + 4,
            counted: 60,
        }
    }

    /// One of these seeds shows it, and none of those once it is repaired.
    #[must_use]
    pub fn seeds(self, seeds: Range<u64>, clean: Range<u64>) -> Self {
        Self { seeds, clean, ..self }
    }

    /// Findings of these kinds show it.
    #[must_use]
    pub fn found(self, found: &'static [&'static str]) -> Self {
        Self { found, ..self }
    }

    /// The setting with the repair.
    fn repaired(&self) -> Option<Setting<O>> {
        let setting = self.setting.clone();
        match &self.repair {
            Repair::Options(options) => Some(Setting { options: options.clone(), ..setting }),
            Repair::Grants(grants) => Some(Setting { grants: *grants, ..setting }),
            Repair::Nothing => None,
        }
    }

    fn shows(&self, finding: &Finding) -> bool {
        self.found.contains(&finding.kind()) && finding.to_string().contains(self.says)
    }
}

/// The case of a seed.
fn case<I: RangeIndex>(peer: &Peer<I>, setting: &Setting<I::Options>, seed: u64) -> Case {
    let case = Case::of_seed(setting.system, seed, (setting.grants, setting.faults), &|d| {
        let o = (peer.drawn)(&setting.options, &mut |n| d.below(n));
        let value_bytes = peer.value_bytes.map(|of| of(&o));
        let least_cache_bytes = (peer.least_cache)(&o);
        let options = serde_json::to_value(&o).unwrap_or_default();
        Drawn { options, least_cache_bytes, value_bytes }
    });
    (setting.clients)(case)
}

fn run_case<I: RangeIndex>(case: &Case) -> Result<Verdict, String> {
    crate::run::<I>(case).map_err(|e| format!("{} seed {}: {e}", case.system, case.seed))
}

/// Runs a seed of a setting.
fn run<I: RangeIndex>(
    peer: &Peer<I>,
    setting: &Setting<I::Options>,
    seed: u64,
) -> Result<Option<Finding>, String> {
    run_case::<I>(&case(peer, setting, seed)).map(|verdict| verdict.finding)
}

/// Runs the seeds that must find nothing, and a few of each setting twice: the same seed gives the
/// same run, and another order of events another one. Returns what went wrong.
pub fn sound<I: RangeIndex>(peer: &Peer<I>) -> Vec<String> {
    let of = |(setting, range): &(Setting<I::Options>, Range<u64>)| {
        let all = seeds(range.start, range.end - range.start);
        all.map(|seed| (case(peer, setting, seed), seed < range.start + 3)).collect::<Vec<_>>()
    };
    let cells: Vec<_> = peer.sound.iter().flat_map(of).collect();
    each(&cells, |(case, twice)| {
        let verdict = run_case::<I>(case)?;
        let name = format!("{} seed {}", case.system, case.seed);
        if let Some(finding) = verdict.finding {
            return Err(format!("{name}: {finding}\n{}", case.to_json()));
        }
        let (ran, few) = (verdict.operations, verdict.operations < case.operations());
        if few && case.node_faults.is_empty() {
            return Err(format!("{name}: {ran} operations of {}", case.operations()));
        }
        if *twice {
            let again = run_case::<I>(case)?;
            let other = run_case::<I>(&Case { order: 1 << 40, ..case.clone() })?;
            let same = (again.trace_hash, &again.log) == (verdict.trace_hash, &verdict.log);
            if !same || other.trace_hash == verdict.trace_hash {
                return Err(format!("{name}: a run is no function of its case"));
            }
        }
        Ok(())
    })
}

/// Looks for the defects of a peer. Returns those that no seed shows, and those that a seed shows
/// in spite of the repair.
pub fn found<I: RangeIndex>(peer: &Peer<I>) -> Vec<String> {
    each(&peer.defects, |defect| {
        let mut shown = false;
        for seed in defect.seeds.clone() {
            shown |= run(peer, &defect.setting, seed)?.is_some_and(|f| defect.shows(&f));
            if shown {
                break;
            }
        }
        if !shown {
            return Err(format!("{}: no seed of {:?} shows it", defect.name, defect.seeds));
        }
        let Some(repaired) = defect.repaired() else { return Ok(()) };
        for seed in defect.clean.clone() {
            let finding = run(peer, &repaired, seed)?;
            if let Some(f) = finding.filter(|f| !defect.beside.contains(&f.kind())) {
                return Err(format!("{}, repaired: seed {seed}: {f}", defect.name));
            }
        }
        Ok(())
    })
}

/// The number of seeds that show a defect, and the first of them.
fn count<I: RangeIndex>(
    peer: &Peer<I>,
    defect: &Defect<I::Options>,
    s: &Setting<I::Options>,
) -> String {
    let shows = |seed: &u64| matches!(run(peer, s, *seed), Ok(Some(f)) if defect.shows(&f));
    let wrong: Vec<u64> = (0..defect.counted).filter(shows).collect();
    match wrong.first() {
        None => format!("none of {}", defect.counted),
        Some(first) => format!("{} of {}, first {first}", wrong.len(), defect.counted),
    }
}

/// The defects as a Markdown table.
pub fn markdown<I: RangeIndex>(peer: &Peer<I>) -> String {
    let mut out =
        "| defect | system | granted | wrong | repaired |\n|---|---|---|---|---|\n".to_owned();
    for d in &peer.defects {
        let granted = granted(&d.setting.grants).join(", ");
        let wrong = count(peer, d, &d.setting);
        let repaired = d.repaired().map_or_else(|| "-".to_owned(), |s| count(peer, d, &s));
        let system = d.setting.system;
        let _ = writeln!(out, "| {} | {system} | {granted} | {wrong} | {repaired} |", d.name);
    }
    out
}

/// The names of grants; empty for none.
pub fn granted(c: &Capabilities) -> Vec<&'static str> {
    let all = [
        (c.line_atomic, "line_atomic"),
        (c.write_ascending, "write_ascending"),
        (c.cas_fail_is_readonly, "cas_fail_is_readonly"),
        (c.whole_write_bytes > 0, "whole_write"),
        (c.on_chip_bytes > 0, "on_chip"),
    ];
    all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect()
}
