//! A miniature of the experiment with several sweeps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::results::{Cell, Results};
use dmtree_bench::run::{self, Silent};
use dmtree_bench::{report, table};

fn miniature() -> Results {
    let mut e = Experiment::find("chime-sweeps").unwrap();
    for sweep in &mut e.config.sweep.0 {
        sweep.keys.iter_mut().for_each(|keys| *keys /= 100);
        sweep.cells.iter_mut().for_each(|own| own.keys = own.keys.map(|keys| keys / 20));
    }
    let small =
        ["--keys=3000", "--ops=4000", "--cns=2", "--threads=2", "--nominal=100000", "--fill=0.6"];
    let resolved = resolve(&e, &Flags::of(&small).unwrap()).unwrap();
    let outcome = run::run(&resolved, &[], &Arc::new(AtomicBool::new(false)), &mut Silent).unwrap();
    assert_eq!(outcome.failure, None);
    outcome.results
}

#[test]
fn each_sweep_has_its_figure() {
    let r = miniature();
    assert_eq!(r.errors(), 0, "{}", table::render(&r));
    let of = |setting: &str, system: &str, workload: &str| -> Vec<&Cell> {
        let at = |c: &&Cell| c.place.as_ref().is_some_and(|p| p.setting == setting);
        let is_it = |c: &&Cell| c.system == system && c.workload == workload;
        r.cells.iter().filter(at).filter(is_it).collect()
    };
    let ascends = |values: Vec<f64>| values.windows(2).all(|w| w[0] < w[1]);
    let chime = "chime-published";

    assert_eq!(r.groups(), ["distribution", "zipfian-exact(0.99)"]);
    assert_eq!(report::tables(&r).len(), 2);
    assert_eq!(of("distribution", chime, "ycsb-a").len(), 6);
    assert_eq!(of("cache-at-billion", "smart-published", "search").len(), 7);

    let near = of("chime-published.neighbourhood", chime, "insert");
    let splits = |of: fn(&Cell) -> f64| -> Vec<f64> { near.iter().map(|c| of(c)).collect() };
    assert!(ascends(splits(|c| c.splits.unwrap().load_factor)));
    let share = splits(|c| c.splits.unwrap().per_insert);
    assert!(share[0] > 2.0 * share[2] && share[2] > 0.0, "{share:?}");
    let near = of("chime-published.neighbourhood", chime, "search");
    assert!(ascends(near.iter().map(|c| c.mn.bytes_read).collect()));

    let bytes = |system| -> Vec<f64> {
        let cells = of("key-form", system, "search");
        cells.iter().map(|c| c.memory.as_ref().unwrap().leaf_metadata.unwrap()).collect()
    };
    let (fences, siblings) = (bytes("chime-replicas"), bytes("chime-sibling"));
    let gains: Vec<f64> = fences.iter().zip(&siblings).map(|(a, b)| a / b).collect();
    assert!(ascends(gains.clone()) && gains.len() == 6, "{gains:?}");

    let caches = of("keys", "chime-sibling", "search");
    assert!(caches.iter().all(|c| c.memory.as_ref().unwrap().cache_hit_rate > 0.99));
    let used = caches.iter().map(|c| c.memory.as_ref().unwrap().cache_used_bytes as f64);
    assert!(ascends(used.collect()));

    let text = table::render(&r);
    assert!(text.contains("full at") && text.contains("B/leaf besides pairs"), "{text}");
}

/// The example of the document on experiment files is one.
#[test]
fn the_documented_file_is_an_experiment() {
    let document = include_str!("../../../../docs/experiments.md");
    let example = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), example.expect("an example")).unwrap();
    let experiment = Experiment::find(file.path().to_str().unwrap()).unwrap();
    let resolved = resolve(&experiment, &Flags::of(&["--jobs=1"]).unwrap()).unwrap();
    // Two workloads and distributions; the sweep has two points for dmtree, and leaves sherman.
    assert_eq!(run::cells(&resolved).unwrap().len(), (2 + 1) * 2 * 2);
    let leaf = &resolved.config.options["dmtree"]["leaf_capacity"];
    assert_eq!(leaf.as_u64(), Some(64));
}
