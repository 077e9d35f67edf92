//! The published defects of SMART, each by itself: the part that is left as published, with
//! everything else repaired, and the cases that show it.

use dmtree_bench::checked::{Setting, case, grants, switched};
use dmtree_bench::registry::find;
use dmtree_bench::system::System;
use dmtree_check::case::{Case, KeyForm};
use dmtree_check::log::Call;
use dmtree_check::plan::{draws, operation};
use dmtree_check::{NodeFault, NodeFaultSet};
use dmtree_fabric::sim::Place;

/// All grants of the adversarial fabric.
pub const EVERYTHING: [&str; 5] =
    ["cas_fail_is_readonly", "write_ascending", "line_atomic", "whole_write", "on_chip"];

/// Every repair.
pub const REPAIRED: [(&str, bool); 8] = [
    ("lazy_repairs", false),
    ("cached_scans", false),
    ("closed_batches", true),
    ("recheck_absent", true),
    ("help_types", true),
    ("keep_words", true),
    ("locked_handover", true),
    ("invalidate_first", true),
];

/// Leaves are replaced, so no lock depends on the hardware.
const REPLACED: [(&str, bool); 2] = [("in_place", false), ("rear_lock", false)];

/// The operations of the clients in the cases of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// As drawn.
    Usual,
    /// Nine clients on one key.
    Crowd,
    /// Nine clients fill an empty tree with 400 keys, and search them.
    Sprout,
    /// The same with ten keys that differ in one digit: one node, which grows twice.
    Digits,
    /// Four clients insert 11 keys, of which ten share one byte more; a compute node crashes
    /// inside one of its verbs.
    Crash,
}

/// A published defect.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    /// Its name.
    pub name: &'static str,
    /// The system, with all repairs except `otherwise`.
    pub system: &'static str,
    /// Options that are as published, or off to exclude other causes.
    pub otherwise: &'static [(&'static str, bool)],
    /// The operations that show it.
    pub scenario: Scenario,
    /// The option that repairs it.
    pub repair: Option<&'static str>,
    /// The first seed that shows it with everything granted.
    pub seed: u64,
    /// The number of seeds that are run to count findings.
    pub seeds: u64,
    /// Whether leaves may be replaced instead of updated in place, so that the rear lock's need of
    /// hardware does not hide it.
    pub replaced: bool,
}

/// The rear lock's need of hardware, which is no defect of the protocol. There is no repair.
pub const REAR_LOCK: Defect = Defect {
    name: "a rear lock",
    system: "smart-rear-lock",
    otherwise: &[],
    scenario: Scenario::Crowd,
    repair: None,
    seed: 0,
    seeds: 24,
    replaced: false,
};

/// The defects that DESIGN.md lists.
pub const DEFECTS: [Defect; 7] = [
    Defect {
        name: "stale delegated reads",
        system: "smart-published",
        otherwise: &[("closed_batches", false), ("combining", false)],
        scenario: Scenario::Crowd,
        repair: Some("closed_batches"),
        seed: 1,
        seeds: 60,
        replaced: true,
    },
    Defect {
        name: "lost combined writes",
        system: "smart-published",
        otherwise: &[("closed_batches", false), ("delegation", false)],
        scenario: Scenario::Crowd,
        repair: Some("closed_batches"),
        seed: 0,
        seeds: 60,
        replaced: true,
    },
    Defect {
        name: "stale reverse pointers",
        system: "smart-published",
        otherwise: &[("recheck_absent", false)],
        scenario: Scenario::Sprout,
        repair: Some("recheck_absent"),
        seed: 38,
        seeds: 600,
        replaced: true,
    },
    Defect {
        name: "slots beyond the type",
        system: "smart-published",
        otherwise: &[("help_types", false)],
        scenario: Scenario::Digits,
        repair: Some("help_types"),
        seed: 176,
        seeds: 1_000,
        replaced: true,
    },
    Defect {
        name: "header splits that never end",
        system: "smart-published",
        otherwise: &[("keep_words", false)],
        scenario: Scenario::Crash,
        repair: Some("keep_words"),
        seed: 871,
        seeds: 2_000,
        replaced: true,
    },
    Defect {
        name: "a lock handed over and released",
        system: "smart-delegation",
        otherwise: &[("locked_handover", false)],
        scenario: Scenario::Crowd,
        repair: Some("locked_handover"),
        seed: 0,
        seeds: 60,
        replaced: false,
    },
    Defect {
        name: "the old leaf invalid last",
        system: "smart-lock-free",
        otherwise: &[("invalidate_first", false)],
        scenario: Scenario::Usual,
        repair: Some("invalidate_first"),
        seed: 53,
        seeds: 200,
        replaced: false,
    },
];

impl Defect {
    /// The system that shows it, or the same with the last repair, too.
    pub fn system(&self, repaired: bool, replaced: bool) -> System {
        let replaced: &[_] = if replaced { &REPLACED } else { &[] };
        let switches = REPAIRED.iter().chain(self.otherwise).chain(replaced);
        let mut system = switched(find(self.system).expect("a system"), switches);
        if let (true, Some(name)) = (repaired, self.repair) {
            system.options[name] = true.into();
        }
        // The system is not marked as recovering, and would not get the crash.
        system.recovers |= self.scenario == Scenario::Crash;
        system
    }

    /// Runs a seed; returns the kind of the finding and its text.
    pub fn run(&self, system: &System, seed: u64, granted: &[&str]) -> Option<(String, String)> {
        let node_faults =
            if self.scenario == Scenario::Crash { NodeFaultSet::Crash } else { NodeFaultSet::None };
        let setting =
            Setting { grants: grants(granted).expect("names of capabilities"), node_faults };
        let case = self.scenario.of(system, case(system, seed, setting));
        let finding = system.check(&case).expect("a case").finding?;
        // The crashed node leaves structure that only a recovery could repair, and there is none.
        let kind = finding.kind();
        (self.scenario != Scenario::Crash || kind != "structure")
            .then(|| (kind.to_owned(), finding.to_string()))
    }
}

impl Scenario {
    /// The case of a seed, changed for these operations.
    fn of(self, system: &System, case: Case) -> Case {
        if self == Self::Usual {
            return case;
        }
        let mut case = Case {
            clients: 9,
            churn_clients: 0,
            neighbours: 0,
            scan_one_in: 0,
            wave_ops: 0,
            liveness: false,
            ..case
        };
        if self != Self::Crowd {
            case.pool.cache_bytes = 4 << 20;
        }
        match self {
            Self::Usual => {}
            Self::Crowd => (case.keys, case.ops) = (1, 120),
            Self::Sprout => (case.keys, case.ops) = (400, 100),
            Self::Digits => (case.keys, case.ops) = (10, 10),
            Self::Crash => {
                (case.clients, case.keys, case.ops) = (4, 11, 30);
                case.key_form = KeyForm::Late;
                case.node_faults.iter_mut().for_each(inside_an_early_verb);
                case.kept = Some(without_updates(system, &case));
            }
        }
        case
    }
}

/// The two halves of a type switch are posted together, and executed in any order.
fn inside_an_early_verb(fault: &mut NodeFault) {
    if let NodeFault::Crash { verb, place, back_ns, .. } = fault {
        (*verb, *place, *back_ns) = (1 + *verb % 40, Place::Inside, None);
    }
}

/// The operations without updates, so that no crashed client holds a lock.
fn without_updates(system: &System, case: &Case) -> Vec<Vec<u32>> {
    let kept = |client: u32, op: &u32| {
        let mut rng = draws(case, client, *op);
        let call = operation(case, system.ops, (client, *op), &mut rng, None);
        matches!(call, Call::Get(_) | Call::Insert(..))
    };
    (0..case.clients).map(|c| (0..case.ops).filter(|op| kept(c, op)).collect()).collect()
}
