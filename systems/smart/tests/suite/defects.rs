//! The published defects of SMART, each by itself: the part that is left as published, with
//! everything else repaired, and the clients that show it. DESIGN.md section 7 has the seeds.

use dmtree_check::case::{Case, KeyForm};
use dmtree_check::log::Call;
use dmtree_check::peer::prelude::*;
use dmtree_check::plan::{draws, operation};
use dmtree_check::{NodeFault, NodeFaultSet};
use dmtree_fabric::sim::Place;
use dmtree_parts::RangeIndex;
use dmtree_smart::{Options, Smart};

use crate::published::PUBLISHED;

/// What a rear lock needs: a leaf's last byte lands last, and a failing compare-and-swap writes
/// nothing.
const NEEDED: Capabilities =
    Capabilities { cas_fail_is_readonly: true, write_ascending: true, ..NOTHING };

fn on_one_key(case: Case) -> Case {
    crowd(case, 9, 1, 120)
}

/// The clients fill an empty tree, and search it.
fn sprout(case: Case) -> Case {
    with_cache(crowd(case, 9, 400, 100))
}

/// Keys differ in one digit: one node, which grows twice.
fn digits(case: Case) -> Case {
    with_cache(crowd(case, 9, 10, 10))
}

fn with_cache(mut case: Case) -> Case {
    case.pool.cache_bytes = 4 << 20;
    case
}

/// Ten of eleven keys share one byte more; a compute node crashes inside one of its verbs: the two
/// halves of a type switch are posted together, and executed in any order. No client updates, so
/// that no crashed client holds a lock.
fn crash(case: Case) -> Case {
    let mut case = with_cache(Case { key_form: KeyForm::Late, ..crowd(case, 4, 11, 30) });
    for fault in &mut case.node_faults {
        if let NodeFault::Crash { verb, place, back_ns, .. } = fault {
            (*verb, *place, *back_ns) = (1 + *verb % 40, Place::Inside, None);
        }
    }
    let kept = |client: u32, op: &u32| {
        let mut draws = draws(&case, client, *op);
        let call = operation(&case, Smart::OPS, (client, *op), &mut draws, None);
        matches!(call, Call::Get(_) | Call::Insert(..))
    };
    let of = |c| (0..case.ops).filter(|op| kept(c, op)).collect();
    Case { kept: Some((0..case.clients).map(of).collect()), ..case }
}

/// Leaves are replaced, so no lock depends on the hardware.
fn replaced(o: Options) -> Options {
    Options { in_place: false, rear_lock: false, ..o }
}

fn rear_lock(grants: Capabilities) -> Setting<Options> {
    Setting::new("smart-rear-lock", Options::rear_lock().repaired(), grants).clients(on_one_key)
}

/// Settings that find nothing, with every repair.
pub fn sound() -> Vec<(Setting<Options>, std::ops::Range<u64>)> {
    let of = |name, o: Options, grants| (Setting::new(name, o.repaired(), grants), 0..12);
    // The leader of a batch searched a key and did not find it. Another client put the key. A third
    // client then joined the batch with an update, and was told that the key is absent. The batch
    // was closed only at its end, because nothing was written.
    let batch = replaced(Options::published().repaired());
    let absent = Setting::new(PUBLISHED, batch, NOTHING).clients(digits);
    vec![
        // Only words change, and by compare-and-swap only.
        of("art", Options::art(), NOTHING),
        of("smart-lock-free", Options::lock_free(), NOTHING),
        of("smart-in-place", Options::in_place(), KIND),
        of("smart-rear-lock", Options::rear_lock(), KIND),
        of("smart-delegation", Options::delegation(), KIND),
        of(PUBLISHED, Options::published(), KIND),
        (rear_lock(NEEDED), 0..8),
        (absent, 970..971),
    ]
}

pub fn defects() -> Vec<Defect<Options>> {
    let published = Options::published().repaired();
    let of = |name, system, broken: &Options, clients, seed, repaired: &Options| {
        let setting = Setting::new(system, broken.clone(), EVERYTHING).clients(clients);
        Defect::new(name, setting, seed, Repair::Options(repaired.clone()))
    };
    let alone = Options { combining: false, ..published.clone() };
    let combined = Options { delegation: false, ..published.clone() };
    let open = |o: &Options| Options { closed_batches: false, ..o.clone() };
    let crashed = Options { keep_words: false, ..published.clone() };
    let delegation = Options::delegation().repaired();
    let handed = Options { locked_handover: false, ..delegation.clone() };
    let lock_free = Options::lock_free().repaired();
    let last = Options { invalidate_first: false, ..lock_free.clone() };
    let stale = Options { recheck_absent: false, ..published.clone() };
    let beyond = Options { help_types: false, ..published.clone() };
    let mut all = vec![
        of("stale delegated reads", PUBLISHED, &open(&alone), on_one_key, 1, &alone),
        of("lost combined writes", PUBLISHED, &open(&combined), on_one_key, 0, &combined),
        of("stale reverse pointers", PUBLISHED, &stale, sprout, 38, &published),
        of("slots beyond the type", PUBLISHED, &beyond, digits, 176, &published),
        crash_of(of("endless header splits", PUBLISHED, &crashed, crash, 871, &published)),
        of("a lock handed over", "smart-delegation", &handed, on_one_key, 0, &delegation),
        of("the old leaf invalid last", "smart-lock-free", &last, |case| case, 53, &lock_free),
    ];
    // Defects of the protocol: no capability prevents them.
    for (name, o) in [("stale delegated reads", &alone), ("lost combined writes", &combined)] {
        let repaired = replaced(o.clone());
        let defect = of(name, PUBLISHED, &open(&repaired), on_one_key, 10, &repaired);
        let setting = Setting { grants: NOTHING, ..defect.setting.clone() };
        all.push(Defect { setting, ..defect }.found(&["history"]));
    }
    // One of the two grants without the other, or with all others, is not enough.
    let missing = [
        Capabilities { cas_fail_is_readonly: false, ..EVERYTHING },
        Capabilities { write_ascending: false, ..EVERYTHING },
        NOTHING,
    ];
    all.extend(missing.map(|grants| {
        let defect = Defect::new("a rear lock", rear_lock(grants), 0, Repair::Grants(NEEDED));
        defect.found(&["history", "failed", "structure", "torn", "hung"]).seeds(0..12, 0..8)
    }));
    all
}

/// A client that splits a node's shared bytes compares with a word that is not in the slot, and
/// repeats this for ever. The crashed node leaves structure that only a recovery could repair, and
/// there is none.
fn crash_of(defect: Defect<Options>) -> Defect<Options> {
    let setting = defect.setting.clone().faults(NodeFaultSet::Crash);
    let says = "waiting for a slot to split";
    Defect { setting, says, beside: &["structure"], ..defect }.found(&["failed", "history"])
}
