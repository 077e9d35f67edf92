//! Systems as the checker knows them, and their cases.

use std::ops::Deref;

use dmtree_fabric::sim::Place;
use dmtree_fabric::{Capabilities, Error, Result};
use dmtree_parts::peer::{Clients, EVERYTHING, NodeFaultSet, Setting, SystemSpec, merge};

use crate::case::Case;
use crate::fault::NodeFault;
use crate::log::Call;
use crate::plan::{draws, operation};
use crate::verdict::{Finding, Verdict};

/// A system that is measured and checked. Errors are of cases that cannot run; their messages name
/// system and seed.
#[derive(Clone, Debug)]
pub struct System(pub SystemSpec);

impl Deref for System {
    type Target = SystemSpec;

    fn deref(&self) -> &SystemSpec {
        &self.0
    }
}

impl System {
    /// A setting for this system: only systems that recover from crashes get node faults.
    #[must_use]
    pub fn spared(&self, setting: &Setting) -> Setting {
        let node_faults = if self.recovers { setting.node_faults } else { NodeFaultSet::None };
        Setting { node_faults, ..setting.clone() }
    }

    /// The case of a seed.
    ///
    /// # Panics
    /// When the clients of the setting are no clients of a case.
    pub fn case(&self, seed: u64, setting: &Setting) -> Case {
        let Setting { options, grants, node_faults, clients } = setting;
        let case = Case::of_seed(self.name, seed, (*grants, *node_faults), &|d| {
            self.drawn(options.as_ref(), &mut |n| d.below(n))
        });
        self.with_clients(self.owned(case), clients)
    }

    /// The small case of a seed; it has few enough orders to try all.
    pub fn tiny(&self, seed: u64, grants: Capabilities) -> Case {
        self.owned(Case::tiny(self.name, seed, grants, &|d| self.drawn(None, &mut |n| d.below(n))))
    }

    /// On one compute node, where one owns all keys.
    fn owned(&self, mut case: Case) -> Case {
        if let Ok(false) = self.options.with(case.options.clone()).any_node() {
            case.pool.compute_nodes = 1;
        }
        case
    }

    fn with_clients(&self, mut case: Case, clients: &Clients) -> Case {
        if !clients.fields.is_null() {
            let mut fields = serde_json::to_value(&case).unwrap_or_default();
            merge(&mut fields, clients.fields.clone());
            case = serde_json::from_value(fields).expect("fields of a case");
        }
        for fault in &mut case.node_faults {
            if let (NodeFault::Crash { verb, place, back_ns, .. }, Some(verbs)) =
                (fault, clients.crash_inside)
            {
                (*verb, *place, *back_ns) = (1 + *verb % verbs, Place::Inside, None);
            }
        }
        if clients.only_gets_and_inserts {
            let is_kept = |client: u32, op: &u32| {
                let mut draws = draws(&case, client, *op);
                let call = operation(&case, self.options.ops(), (client, *op), &mut draws, None);
                matches!(call, Call::Get(_) | Call::Insert(..))
            };
            let of = |c| (0..case.ops).filter(|op| is_kept(c, op)).collect();
            case.kept = Some((0..case.clients).map(of).collect());
        }
        case
    }

    /// Runs a seed; `None` when it finds nothing.
    pub fn finding(&self, seed: u64, setting: &Setting) -> Result<Option<Finding>> {
        Ok(self.check(&self.case(seed, setting))?.finding)
    }

    /// Runs a case. Findings of a run are in the verdict.
    pub fn check(&self, case: &Case) -> Result<Verdict> {
        let ran = crate::run(&self.options, case, &case.order());
        ran.map(|(verdict, _)| verdict)
            .map_err(|e| e.context(format!("{} seed {}", self.name, case.seed)))
    }

    /// The same, with a second run to compare with if `twice`.
    pub fn check_again(&self, case: &Case, twice: bool) -> Result<Verdict> {
        let mut verdict = self.check(case)?;
        if twice {
            verdict.compare(&self.check(case)?);
        }
        Ok(verdict)
    }
}

/// The names of grants; empty for none.
pub fn granted(c: &Capabilities) -> Vec<&'static str> {
    Capabilities::NONE.missing(c)
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
                return Err(Error::invalid(format!(
                    "{other:?} cannot be granted: give none or some of line_atomic, \
                     write_ascending, cas_fail_is_readonly, whole_write, on_chip"
                )));
            }
        }
    }
    Ok(out)
}
