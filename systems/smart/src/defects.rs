//! The published defects of SMART, each by itself: the part that is left as published, with
//! everything else repaired, and the clients that show it. DESIGN.md section 7 has the seeds.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    ANY, Clients, Defect, EVERYTHING, NOTHING, NodeFaultSet, Repair, Setting,
};
use serde_json::json;

use crate::options::Options;

/// What a rear lock needs: a leaf's last byte lands last, and a failing compare-and-swap writes
/// nothing.
const NEEDED: Capabilities =
    Capabilities { cas_fail_is_readonly: true, write_ascending: true, ..NOTHING };

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "smart-published" => of_published(),
        "smart-delegation" => {
            let delegation = Options::delegation().repaired();
            let handed = Options { locked_handover: false, ..delegation.clone() };
            vec![of("a lock handed over", &handed, on_one_key(), 0, &delegation)]
        }
        "smart-lock-free" => {
            let lock_free = Options::lock_free().repaired();
            let last = Options { invalidate_first: false, ..lock_free.clone() };
            vec![of("the old leaf invalid last", &last, Clients::default(), 53, &lock_free)]
        }
        "smart-rear-lock" => rear_locks(),
        _ => Vec::new(),
    }
}

fn of(
    name: &'static str,
    broken: &Options,
    clients: Clients,
    seed: u64,
    repaired: &Options,
) -> Defect {
    Defect::between(name, EVERYTHING, (broken, repaired), seed).clients(clients)
}

fn on_one_key() -> Clients {
    Clients::crowd(9, 1, 120)
}

fn cached(clients: Clients) -> Clients {
    clients.with(json!({"pool": {"cache_bytes": 4 << 20}}))
}

fn of_published() -> Vec<Defect> {
    let published = Options::published().repaired();
    let alone = Options { combining: false, ..published.clone() };
    let combined = Options { delegation: false, ..published.clone() };
    let open = |o: &Options| Options { closed_batches: false, ..o.clone() };
    let crashed = Options { keep_words: false, ..published.clone() };
    let stale = Options { recheck_absent: false, ..published.clone() };
    let beyond = Options { help_types: false, ..published.clone() };
    // The clients fill an empty tree, and search it.
    let sprout = cached(Clients::crowd(9, 400, 100));
    // Keys differ in one digit: one node, which grows twice.
    let digits = cached(Clients::crowd(9, 10, 10));
    let mut all = vec![
        of("stale delegated reads", &open(&alone), on_one_key(), 1, &alone),
        of("lost combined writes", &open(&combined), on_one_key(), 0, &combined),
        of("stale reverse pointers", &stale, sprout, 38, &published),
        of("slots beyond the type", &beyond, digits, 176, &published),
        crash_of(of("endless header splits", &crashed, crash(), 871, &published)),
    ];
    // Defects of the protocol: no capability prevents them.
    for (name, o) in [("stale delegated reads", &alone), ("lost combined writes", &combined)] {
        // Leaves are replaced, so no lock depends on the hardware.
        let repaired = Options { in_place: false, rear_lock: false, ..o.clone() };
        let defect = of(name, &open(&repaired), on_one_key(), 10, &repaired);
        let setting = Setting { grants: NOTHING, ..defect.setting.clone() };
        all.push(Defect { setting, ..defect }.found(&["history"]));
    }
    all
}

/// One of the two grants without the other, or with all others, is not enough.
fn rear_locks() -> Vec<Defect> {
    let missing = [
        Capabilities { cas_fail_is_readonly: false, ..EVERYTHING },
        Capabilities { write_ascending: false, ..EVERYTHING },
        NOTHING,
    ];
    let defect = |grants| {
        let setting = Setting::new(&Options::rear_lock().repaired(), grants).clients(on_one_key());
        let defect = Defect::new("a rear lock", setting, 0, Repair::Grants(NEEDED));
        defect.found(ANY).seeds(0..12, 0..8)
    };
    missing.map(defect).into()
}

/// Ten of eleven keys share one byte more; a compute node crashes inside one of its verbs: the two
/// halves of a type switch are posted together, and executed in any order. No client updates, so
/// that no crashed client holds a lock.
fn crash() -> Clients {
    let crowd = cached(Clients::crowd(4, 11, 30)).with(json!({"key_form": "late"}));
    Clients { crash_inside: Some(40), only_gets_and_inserts: true, ..crowd }
}

/// A client that splits a node's shared bytes compares with a word that is not in the slot, and
/// repeats this for ever. The crashed node leaves structure that only a recovery could repair, and
/// there is none.
fn crash_of(defect: Defect) -> Defect {
    let setting = defect.setting.clone().faults(NodeFaultSet::Crash);
    let says = "waiting for a slot to split";
    Defect { setting, says, beside: &["structure"], ..defect }.found(&["failed", "history"])
}
