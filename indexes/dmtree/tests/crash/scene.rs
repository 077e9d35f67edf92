//! The common scene, with DMTree in it.

use std::rc::Rc;

pub use dmtree_check::scene::late::later;
pub use dmtree_check::scene::{
    Op, PAUSE_NS, PLACES, READ_BOUND_NS, WRITE_BOUND_NS, effect, get, key, one_holder, perform,
    value,
};
use dmtree_engine::{Defect, DmTree, Options};

pub type Play = dmtree_check::scene::Play<DmTree>;
pub type Scene = dmtree_check::scene::Scene<DmTree>;
pub type Beside = dmtree_check::scene::late::Beside<DmTree>;

/// Small nodes, nothing loaded.
pub fn play(name: &'static str) -> Play {
    let options =
        Options { fanout: 8, key_inline_bytes: 8, adaptive_capacity: false, ..Options::default() };
    Play { unmet: Some("inner lock"), ..Play::new(name, options) }
}

/// The same with something wrong on purpose.
pub fn with_defect(play: Play, defect: Defect) -> Play {
    Play { plant: Some(Rc::new(move |node| node.set_defects(&[defect]))), ..play }
}
