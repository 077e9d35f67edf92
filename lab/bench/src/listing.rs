//! What there is: systems, experiments, workloads and fabrics, as one JSON document.

use dmtree_workload::Workload;
use serde_json::{Value, json};

use crate::experiment::{BUILTIN, Experiment};
use crate::fabrics::FABRICS;
use crate::failure::Result;
use crate::registry::systems;
use crate::system::System;

/// Everything that a name can be given of.
///
/// # Errors
/// A built-in experiment that cannot be read.
pub fn listing() -> Result<Value> {
    let names = BUILTIN.iter().map(|(name, _)| Experiment::find(name));
    let experiments: Vec<Value> =
        names.map(|e| e.map(|e| of_experiment(&e))).collect::<Result<_>>()?;
    Ok(json!({
        "systems": systems().iter().map(of_system).collect::<Vec<_>>(),
        "experiments": experiments,
        "workloads": Workload::names().collect::<Vec<_>>(),
        "fabrics": FABRICS,
    }))
}

fn of_system(s: &System) -> Value {
    let ops = json!({
        "delete": s.options.ops().delete,
        "compare_and_set": s.options.ops().compare_and_set,
        "reverse_scan": s.options.ops().reverse_scan,
        "any_length": s.options.ops().any_length,
    });
    json!({
        "name": s.name,
        "family": s.family,
        "description": s.description,
        "published": s.published,
        "recovers": s.recovers,
        "sound": s.sound,
        "ops": ops,
        "options": s.options,
        "mutants": s.mutants.iter().map(|m| m.name).collect::<Vec<_>>(),
        "defects": s.defects.iter().map(|h| h.name).collect::<Vec<_>>(),
    })
}

fn of_experiment(e: &Experiment) -> Value {
    json!({
        "name": e.name,
        "description": e.config.description,
        "fabric": e.config.fabric,
        "systems": e.config.systems,
        "published": e.config.published,
        "published_gains": e.config.published_gains,
    })
}
