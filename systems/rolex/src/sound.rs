//! The sound ROLEX: models in the place of cached inner nodes, trained on the fences that bottom
//! nodes list, while clients work. Every leaf carries its fences, so a model is a hint: an old one
//! is a longer way. It has every operation of the contract, for keys of any length, and survivors
//! take abandoned locks and trainings over.
//!
//! Leaves, inner nodes, structure changes, blocks and recovery are those of DMTree without
//! fingerprint tables. DESIGN.md, "The sound system".

use dmtree_engine::{Models, Options, Techniques};

pub use dmtree_engine::{DmNode as Node, DmTree as Rolex};

/// Slots of a leaf, as in the geometry of the artifact; the error bound there is 8, too.
const SPAN: u32 = 8;

/// The options of `rolex`.
pub fn options() -> Options {
    with(|t| t.models = Models::Window)
}

/// Those of `rolex-no-retraining`: models are trained once.
pub fn without_retraining() -> Options {
    with(|t| (t.models, t.retrain_after) = (Models::Window, 0))
}

/// Those of `rolex-coarse`: a search READs the likeliest leaf instead of a window.
pub fn coarse() -> Options {
    with(|t| t.models = Models::Likeliest)
}

fn with(set: impl FnOnce(&mut Techniques)) -> Options {
    let mut o = Options { leaf_capacity: SPAN, ..Options::default().without_tables() };
    set(&mut o.techniques);
    o
}
