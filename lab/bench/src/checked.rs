//! Checked runs of the systems of the registry.

use dmtree_check::NodeFaultSet;
use dmtree_check::case::Case;
use dmtree_check::peer::defects::EVERYTHING;
pub use dmtree_check::peer::defects::granted;
use dmtree_check::verdict::{Finding, Verdict};
use dmtree_fabric::Capabilities;

use crate::failure::{Failure, Result};
use crate::registry::find;
use crate::system::System;

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

/// A system with some switches among its options set.
#[must_use]
pub fn switched<'o>(
    mut system: System,
    switches: impl IntoIterator<Item = &'o (&'o str, bool)>,
) -> System {
    switches.into_iter().for_each(|(name, on)| system.options[*name] = (*on).into());
    system
}

/// The first of some seeds with a finding in a system.
///
/// # Panics
/// When a case cannot run.
pub fn first_wrong(
    system: &System,
    seeds: impl IntoIterator<Item = u64>,
    setting: Setting,
) -> Option<(u64, Finding)> {
    seeds.into_iter().find_map(|seed| {
        let verdict = system.check(&case(system, seed, setting)).expect("the case of a seed runs");
        verdict.finding.map(|finding| (seed, finding))
    })
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
pub fn grants(names: &[impl AsRef<str>]) -> Result<Capabilities> {
    let mut out = Capabilities::NONE;
    for name in names {
        match name.as_ref() {
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
        let names = ["line_atomic", "write_ascending", "cas_fail_is_readonly", "whole_write"];
        assert_eq!(granted(&grants(&names).unwrap()), names);
        assert!(granted(&grants(&["none"]).unwrap()).is_empty());
        assert!(grants(&["x"]).unwrap_err().to_string().contains("line_atomic"));
    }
}
