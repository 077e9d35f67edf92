//! The registry of systems that can be measured and used, and what there is: systems, experiments,
//! workloads and fabrics, as one JSON document.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use dmtree_check::checked::System;
use dmtree_check::{Case, Verdict};
use dmtree_fabric::suggest::unknown;
use dmtree_parts::peer::SystemSpec;
use dmtree_workload::Workload;
use serde_json::{Value, json};

use crate::experiment::{BUILTIN, Experiment};
use crate::fabrics::FABRICS;
use crate::failure::{Failure, Result};

/// What the crates describe: a line for each.
fn described() -> Vec<SystemSpec> {
    let crates = [
        dmtree_engine::systems(),
        crate::ablation::systems(),
        dmtree_fptree::systems(),
        dmtree_sherman::systems(),
        dmtree_smart::systems(),
        dmtree_chime::systems(),
        dmtree_rolex::systems(),
        dmtree_rpc::systems(),
        dmtree_dlsm::systems(),
    ];
    let all = crates.into_iter().flatten();
    all.map(|spec| SystemSpec { charges_cpu: true, ..spec }).collect()
}

static ADDED: RwLock<Vec<System>> = RwLock::new(Vec::new());

/// Adds the systems of a crate, `add(that_crate::systems())`, for as long as this process
/// runs: a program with an index of its own needs no line in the list of crates. Names must be new;
/// where one is taken no system is added.
pub fn add(more: Vec<SystemSpec>) -> Result<()> {
    let mut names: BTreeSet<&str> = systems().iter().map(|s| s.name).collect();
    if let Some(taken) = more.iter().find(|s| !names.insert(s.name)) {
        return Err(Failure::input(format!("there is a system {:?} already", taken.name)));
    }
    ADDED.write().unwrap_or_else(PoisonError::into_inner).extend(more.into_iter().map(System));
    Ok(())
}

/// Every system.
pub fn systems() -> Vec<System> {
    let mut all: Vec<System> = described().into_iter().map(System).collect();
    all.extend(ADDED.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
    all
}

/// A system by name.
///
/// # Errors
/// An unknown name; the message lists the valid ones.
pub fn find(name: &str) -> Result<System> {
    let all = systems();
    let names: Vec<&str> = all.iter().map(|s| s.name).collect();
    all.iter()
        .find(|s| s.name == name)
        .cloned()
        .ok_or_else(|| Failure::input(unknown("system", name, &names)))
}

/// Systems by names, in this order, each once. `families` is the first of each family that takes
/// any key from any compute node, `all` is all.
///
/// # Errors
/// An unknown name.
pub fn select(names: &[String]) -> Result<Vec<System>> {
    let all = systems();
    let (mut out, mut chosen) = (Vec::new(), BTreeSet::new());
    for name in names {
        let mut families = BTreeSet::new();
        let some: Vec<System> = match name.as_str() {
            "all" => all.clone(),
            "families" => {
                let any = |s: &&System| s.options.any_node().unwrap_or(false);
                all.iter().filter(any).filter(|s| families.insert(s.family)).cloned().collect()
            }
            name => vec![find(name).map_err(|e| match e {
                Failure::Input(m) => Failure::Input(format!("{m}; or families, or all")),
                other => other,
            })?],
        };
        out.extend(some.into_iter().filter(|s| chosen.insert(s.name)));
    }
    Ok(out)
}

/// Runs a case with the system that it names.
///
/// # Errors
/// An unknown system, or a case that cannot run.
pub fn check(case: &Case) -> Result<Verdict> {
    Ok(find(&case.system)?.check(case)?)
}

/// Everything that a name can be given of.
///
/// # Errors
/// A built-in experiment that cannot be read.
pub fn listing() -> Result<Value> {
    let names = BUILTIN.iter().map(|(name, _)| Experiment::find(name));
    let experiment = |e: Experiment| {
        json!({
            "name": e.name,
            "description": e.config.description,
            "fabric": e.config.fabric,
            "systems": e.config.systems,
            "published": e.config.published,
            "published_gains": e.config.published_gains,
        })
    };
    let experiments: Vec<Value> = names.map(|e| e.map(experiment)).collect::<Result<_>>()?;
    Ok(json!({
        "systems": systems().iter().map(of_system).collect::<Vec<_>>(),
        "experiments": experiments,
        "workloads": Workload::names().collect::<Vec<_>>(),
        "fabrics": FABRICS,
    }))
}

fn of_system(s: &System) -> Value {
    json!({
        "name": s.name,
        "family": s.family,
        "description": s.description,
        "published": s.published,
        "recovers": s.recovers,
        "sound": s.sound,
        "ops": s.options.ops(),
        "options": s.options,
        "mutants": s.mutants.iter().map(|m| m.name).collect::<Vec<_>>(),
        "defects": s.defects.iter().map(|h| h.name).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use dmtree_parts::peer::Repair;

    use super::*;

    /// A defect with a repair that changes nothing, or names no sound system, would be seen only in
    /// a long run.
    #[test]
    fn every_defect_has_a_repair() {
        for system in systems() {
            for h in &system.defects {
                let name = format!("{}: {}", system.name, h.name);
                let options = h.setting.options.as_ref().unwrap_or(&system.options);
                let check = |o: &serde_json::Value| system.options.with(o.clone()).check();
                check(options).unwrap_or_else(|e| panic!("{name}: {e}"));
                match &h.repair {
                    Repair::Options(repaired) => {
                        assert_ne!(repaired, options, "{name}");
                        check(repaired).unwrap_or_else(|e| panic!("{name}: {e}"));
                    }
                    Repair::Grants(grants) => assert_ne!(*grants, h.setting.grants, "{name}"),
                    Repair::System(other) => assert!(!find(other).unwrap().published, "{name}"),
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_selectable() {
        let all = systems();
        for (i, s) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|t| t.name != s.name), "{}", s.name);
            assert_eq!(find(s.name).unwrap().name, s.name);
        }
        let names = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|s| (*s).to_owned()).collect();
            select(&list).unwrap().iter().map(|s| s.name).collect::<Vec<_>>()
        };
        let families = [
            "dmtree",
            "fptree",
            "dmtree-published",
            "sherman",
            "smart",
            "chime",
            "rolex",
            "rpc",
            "dlsm",
        ];
        assert_eq!(names(&["families"]), families);
        assert_eq!(names(&["all"]).len(), all.len());
        assert_eq!(names(&["dmtree-no-rtc", "dmtree", "dmtree"]), ["dmtree-no-rtc", "dmtree"]);
        assert!(find("x").unwrap_err().to_string().contains("dmtree-no-rtc"));
    }
}
