//! Checked runs of the systems of the registry.

use dmtree_check::NodeFaultSet;
use dmtree_check::case::{Case, Draw, Drawn};
use dmtree_check::peer::defects::EVERYTHING;
pub use dmtree_check::peer::defects::granted;
use dmtree_check::verdict::Verdict;
use dmtree_engine::{DmNode, Options};
use dmtree_fabric::Capabilities;
use dmtree_fabric::mark::Reached;
use dmtree_fptree::{FpNode, Options as FpOptions};
use dmtree_sherman::{Options as ShermanOptions, ShermanNode};
use dmtree_smart::{Options as SmartOptions, SmartNode};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::registry::{System, find};

/// How a family draws random options for one of its systems, from the system's name and options.
pub(crate) type DrawOptions = fn(&str, &Value, &mut Draw) -> Drawn;

fn value(options: &impl Serialize) -> Value {
    serde_json::to_value(options).unwrap_or_default()
}

/// For a system without random options.
pub(crate) fn as_they_are(_: &str, options: &Value, _: &mut Draw) -> Drawn {
    let value_bytes = options["value_bytes"].as_u64().and_then(|n| u32::try_from(n).ok());
    Drawn { options: options.clone(), least_cache_bytes: 1 << 20, value_bytes }
}

/// DMTree. For the first system of the family the techniques are drawn, too.
pub(crate) fn dmtree(name: &str, options: &Value, d: &mut Draw) -> Drawn {
    let base: Options = serde_json::from_value(options.clone()).unwrap_or_default();
    let o = base.drawn(name == "dmtree", &mut |n| d.below(n));
    let g = o.geometry();
    let least_cache_bytes = DmNode::least_cache_bytes(&g);
    Drawn { options: value(&o), least_cache_bytes, value_bytes: None }
}

/// The coverage marks of DMTree and of the pool under it.
pub(crate) fn dmtree_marks() -> Vec<Reached> {
    [dmtree_engine::Mark::reached(), dmtree_pool::Mark::reached()].concat()
}

/// Draws of systems with values of one length.
macro_rules! one_length {
    ($($(#[$about:meta])* $name:ident: $options:ty, $node:ty, $geometry:ty;)*) => {$(
        $(#[$about])*
        pub(crate) fn $name(_: &str, options: &Value, d: &mut Draw) -> Drawn {
            let base: $options = serde_json::from_value(options.clone()).unwrap_or_default();
            let o = base.drawn(&mut |n| d.below(n));
            let least_cache_bytes = <$node>::least_cache_bytes(&<$geometry>::new(&o));
            Drawn { options: value(&o), least_cache_bytes, value_bytes: Some(o.value_bytes) }
        }
    )*};
}

one_length! {
    /// FPTree and DMTree as published.
    fptree: FpOptions, FpNode, dmtree_fptree::format::Geometry;
    /// Sherman and FG.
    sherman: ShermanOptions, ShermanNode, dmtree_sherman::format::Geometry;
    /// ART and SMART.
    smart: SmartOptions, SmartNode, dmtree_smart::format::Geometry;
}

/// The sound SMART.
pub(crate) fn smart_sound(_: &str, options: &Value, d: &mut Draw) -> Drawn {
    let base: dmtree_smart::sound::Options =
        serde_json::from_value(options.clone()).unwrap_or_default();
    let o = base.drawn(&mut |n| d.below(n));
    Drawn { options: value(&o), least_cache_bytes: 300, value_bytes: None }
}

/// The setting of a seed. The same seed in another setting is another case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The grants of the fabric.
    pub grants: Capabilities,
    /// The node faults.
    pub node_faults: NodeFaultSet,
}

impl Setting {
    /// The setting for a system: only systems that recover from crashes get node faults.
    #[must_use]
    pub fn of(self, system: &System) -> Self {
        Self {
            node_faults: if system.recovers { self.node_faults } else { NodeFaultSet::None },
            ..self
        }
    }
}

/// The case of a system and a seed.
pub fn case(system: &System, seed: u64, setting: Setting) -> Case {
    let Setting { grants, node_faults } = setting.of(system);
    Case::of_seed(system.name, seed, (grants, node_faults), &|d| system.draw(d))
}

/// The small case of a system and a seed; it has few enough orders to try all.
pub fn tiny(system: &System, seed: u64, grants: Capabilities) -> Case {
    Case::tiny(system.name, seed, grants, &|d| system.draw(d))
}

/// Runs a case with the system that the case names.
///
/// # Errors
/// An unknown system, or a case that cannot run.
pub fn run(case: &Case) -> Result<Verdict> {
    find(&case.system)?.check(case)
}

/// Runs a case given as JSON, for regression tests.
///
/// # Errors
/// Text that is no case of this version, and the errors of [`run`].
pub fn replay(json: &str) -> Result<Verdict> {
    run(&Case::parse(json)?)
}

/// Capabilities by name.
///
/// # Errors
/// An unknown name, or one that the adversarial fabric cannot grant.
pub fn grants(names: &[String]) -> Result<Capabilities> {
    let mut out = Capabilities::NONE;
    for name in names {
        match name.as_str() {
            "line_atomic" => out.line_atomic = true,
            "write_ascending" => out.write_ascending = true,
            "cas_fail_is_readonly" => out.cas_fail_is_readonly = true,
            "whole_write" => out.whole_write_bytes = EVERYTHING.whole_write_bytes,
            "on_chip" => out.on_chip_bytes = EVERYTHING.on_chip_bytes,
            "none" => {}
            other => {
                return Err(Failure::input(format!(
                    "{other:?} cannot be granted: give none or some of line_atomic, write_ascending, cas_fail_is_readonly, whole_write, on_chip"
                )));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_have_names() {
        let names = ["line_atomic".to_owned(), "write_ascending".to_owned()];
        assert_eq!(granted(&grants(&names).unwrap()), names);
        assert!(granted(&grants(&["none".to_owned()]).unwrap()).is_empty());
        assert!(grants(&["x".to_owned()]).unwrap_err().to_string().contains("line_atomic"));
    }
}
