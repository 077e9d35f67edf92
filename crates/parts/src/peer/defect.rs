//! What the crate of a system says of its mistakes: published defects, as data that checkers run.

use std::ops::Range;

use dmtree_fabric::Capabilities;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Nothing beyond the contract of the fabric is granted.
pub const NOTHING: Capabilities = Capabilities::NONE;
/// A failing compare-and-swap writes nothing.
pub const READONLY: Capabilities = Capabilities { cas_fail_is_readonly: true, ..NOTHING };
/// WRITEs land in ascending order, lines are whole, and a failing compare-and-swap writes nothing.
pub const KIND: Capabilities =
    Capabilities { line_atomic: true, write_ascending: true, ..READONLY };
/// The same, WRITEs of a packet whole, and a little on-chip memory.
pub const EVERYTHING: Capabilities =
    Capabilities { whole_write_bytes: 4096, on_chip_bytes: 1024, ..KIND };

/// Every kind of finding that a protocol can cause.
pub const ANY: &[&str] = &["history", "failed", "structure", "torn", "hung"];

/// The set of faults that a checked run draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeFaultSet {
    /// No fault.
    #[default]
    None,
    /// Compute nodes crash, and some come back.
    Crash,
    /// Every fault that hits single nodes.
    All,
    /// Nodes end and come back, again and again, all at once too; all nodes stall; memory nodes are
    /// lost; clocks jump.
    Restarts,
}

impl NodeFaultSet {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Crash => "crash",
            Self::All => "all",
            Self::Restarts => "restarts",
        }
    }
}

/// What the clients of a checked run do instead of what its seed draws.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    /// Fields of the case, by their names in its file; null for none.
    pub fields: Value,
    /// A compute node crashes inside one of its first so many verbs, and does not come back.
    pub crash_inside: Option<u64>,
    /// They execute only the gets and inserts among their operations.
    pub only_gets_and_inserts: bool,
}

impl Clients {
    /// So many clients with so many operations each on so many keys, and nothing else.
    pub fn crowd(clients: u32, keys: u32, ops: u32) -> Self {
        let fields = json!({
            "clients": clients, "keys": keys, "ops": ops, "churn_clients": 0, "neighbours": 0,
            "scan_one_in": 0, "wave_ops": 0, "liveness": false,
        });
        Self { fields, ..Self::default() }
    }

    /// With more fields of the case.
    #[must_use]
    pub fn with(mut self, fields: Value) -> Self {
        merge(&mut self.fields, fields);
        self
    }
}

/// Replaces what a patch names, in objects field by field.
pub fn merge(value: &mut Value, patch: Value) {
    match (value, patch) {
        (_, Value::Null) => {}
        (Value::Object(fields), Value::Object(patch)) => {
            for (name, patch) in patch {
                merge(fields.entry(name).or_insert(Value::Null), patch);
            }
        }
        (value, patch) => *value = patch,
    }
}

/// What surrounds a checked run: the same seed in another setting is another case.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Creation options, of which the seed draws the geometry; `None`: those of the system.
    pub options: Option<Value>,
    /// The grants of the fabric.
    pub grants: Capabilities,
    /// The node faults.
    pub node_faults: NodeFaultSet,
    /// The clients.
    pub clients: Clients,
}

impl Setting {
    /// Options and grants; clients as drawn, and no node fails.
    pub fn new(options: &impl Serialize, grants: Capabilities) -> Self {
        Self { options: Some(super::value(options)), grants, ..Self::default() }
    }

    /// With other clients.
    #[must_use]
    pub fn clients(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// With faults of nodes.
    #[must_use]
    pub fn faults(self, node_faults: NodeFaultSet) -> Self {
        Self { node_faults, ..self }
    }
}

/// What removes a defect.
#[derive(Clone, Debug)]
pub enum Repair {
    /// These options.
    Options(Value),
    /// These grants.
    Grants(Capabilities),
    /// Another system.
    System(&'static str),
}

/// A published defect: seeds show it, and none does once it is repaired.
#[derive(Clone, Debug)]
pub struct Defect {
    /// Its name.
    pub name: &'static str,
    /// A setting that has it.
    pub setting: Setting,
    /// Seeds of which one at least shows it.
    pub seeds: Range<u64>,
    /// The kinds of findings that show it.
    pub found: &'static [&'static str],
    /// Kinds of findings that have other causes, with the repair or without it.
    pub beside: &'static [&'static str],
    /// Words of the finding.
    pub says: &'static str,
    /// The repair.
    pub repair: Repair,
    /// Seeds that find nothing once it is repaired.
    pub clean: Range<u64>,
    /// How many seeds the printed table counts.
    pub counted: u64,
}

impl Defect {
    /// A defect that this seed or one of the next shows, as a wrong history or a failed operation.
    pub fn new(name: &'static str, setting: Setting, seed: u64, repair: Repair) -> Self {
        Self {
            name,
            setting,
            seeds: seed..seed + 30,
            found: &["history", "failed"],
            beside: &[],
            says: "",
            repair,
            clean: seed.saturating_sub(2)..seed + 4,
            counted: 60,
        }
    }

    /// The difference of two options: broken ones, and the same repaired.
    pub fn between<O: Serialize>(
        name: &'static str,
        grants: Capabilities,
        (broken, repaired): (&O, &O),
        seed: u64,
    ) -> Self {
        let repair = Repair::Options(super::value(repaired));
        Self::new(name, Setting::new(broken, grants), seed, repair)
    }

    /// The same with everything granted, found as anything, and with nothing granted, found in the
    /// history: no capability prevents it. (Without grants locks are lost, and data is torn.)
    pub fn twice<O: Serialize>(
        name: &'static str,
        options: (&O, &O),
        clients: &Clients,
        seeds: (u64, u64),
    ) -> [Self; 2] {
        let of = |grants, seed| Self::between(name, grants, options, seed).clients(clients.clone());
        let bare = of(NOTHING, seeds.1).found(&["history"]);
        [of(EVERYTHING, seeds.0).found(ANY), Self { beside: ANY, ..bare }]
    }

    /// One of these seeds shows it, and none of those once it is repaired.
    #[must_use]
    pub fn seeds(self, seeds: Range<u64>, clean: Range<u64>) -> Self {
        Self { seeds, clean, ..self }
    }

    /// Findings of these kinds show it.
    #[must_use]
    pub fn found(self, found: &'static [&'static str]) -> Self {
        Self { found, ..self }
    }

    /// With other clients.
    #[must_use]
    pub fn clients(self, clients: Clients) -> Self {
        Self { setting: self.setting.clients(clients), ..self }
    }

    /// The setting with the repair; `None` when the repair is another system.
    pub fn repaired(&self) -> Option<Setting> {
        let setting = self.setting.clone();
        match &self.repair {
            Repair::Options(options) => Some(Setting { options: Some(options.clone()), ..setting }),
            Repair::Grants(grants) => Some(Setting { grants: *grants, ..setting }),
            Repair::System(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_replaces_what_it_names() {
        let mut value = json!({"a": 1, "b": {"c": [1, 2], "d": 3}});
        merge(&mut value, json!({"b": {"c": [4]}, "e": 5}));
        assert_eq!(value, json!({"a": 1, "b": {"c": [4], "d": 3}, "e": 5}));
        merge(&mut value, Value::Null);
        assert_eq!(value["a"], 1);
    }
}
