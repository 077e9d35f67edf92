//! The common scenario, for DMTree.

pub use dmtree_check::scenario::delay::was_accepted;
pub use dmtree_check::scenario::{
    Op, PAUSE_NS, PLACES, READ_BOUND_NS, WRITE_BOUND_NS, changes, dropped_after, effect, get, key,
    one_holder, perform, value,
};
use dmtree_engine::{DmNode, Mutant, Options, Techniques};

pub type Script = dmtree_check::scenario::Script;
pub type Scenario = dmtree_check::scenario::Scenario;
pub type DelayScenario = dmtree_check::scenario::delay::DelayScenario;

/// Small nodes, nothing loaded.
pub fn script(name: &'static str) -> Script {
    let techniques = Techniques { adaptive_capacity: false, ..Techniques::default() };
    let options = Options { fanout: 8, key_inline_bytes: 8, techniques, ..Options::default() };
    Script { unmet: Some("inner lock"), ..Script::new(name, options) }
}

/// The same with a mutant enabled.
pub fn with_mutant(script: Script, mutant: Mutant) -> Script {
    script.enabling(move |node: &DmNode| node.set_mutants(&[mutant]))
}
