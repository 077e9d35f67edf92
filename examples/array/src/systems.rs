//! What the crate says of its systems.

use dmtree_parts::peer::{
    self, Defect, Fit, NOTHING, NodeFaultSet, Repair, Setting, Soon, SystemSpec, typed, value,
};

use crate::{Array, Mutant, Options};

/// The array, and the array with its defect.
pub fn systems() -> Vec<SystemSpec> {
    let sound = Options::default();
    let unlocked = Options { locked_reads: false, ..sound.clone() };
    let (setting, repair) = (Setting::new(&unlocked, NOTHING), Repair::Options(value(&sound)));
    let defect = Defect::new("reads without the lock", setting, 10, repair);
    let soon = Soon { node_faults: NodeFaultSet::None, seeds: 40, kind: "history" };
    let spec = |name, about, o| SystemSpec {
        published: true,
        ranges: Options::RANGES,
        fit: |o, fit| value(&fitted(typed(o), fit)),
        value_bytes: |o| Some(typed::<Options>(o).value_bytes as u32),
        ..SystemSpec::of((name, "array"), about, o)
    };
    let whole = SystemSpec {
        sound: true,
        mutants: peer::Mutant::list(Mutant::ALL.iter().map(|m| m.name()), &[("NoLock", soon)]),
        enable: Mutant::enable_named,
        ..spec("array", "a sorted array under one lock", &sound)
    };
    let broken = SystemSpec {
        defects: vec![defect.found(&["history", "failed", "torn"])],
        ..spec("array-unlocked", "reads without the lock", &unlocked)
    };
    vec![whole, broken]
}

dmtree_parts::any_options! { Options => Array }

fn fitted(o: Options, fit: &Fit) -> Options {
    Options { key_bytes: fit.key_bytes as usize, value_bytes: fit.value_bytes as usize, ..o }
}
