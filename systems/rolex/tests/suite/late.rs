//! READs that take long: a verb of a reader is late, in its midst too, while another client writes
//! (`dmtree_check::scenario::delay`).

use dmtree_check::scenario::delay::{DelayScenario, delay_every_verb};
use dmtree_check::scenario::{Op, Script, key};

use dmtree_rolex::Options;

use crate::published::NEEDED;

/// The pieces of a READ lie sixteen WRITEs of a leaf apart: four bits of version are the old ones.
#[test]
fn four_bits_of_version_wrap_in_a_late_read() {
    let shows = |version_bytes| {
        // Values that reach over a line.
        let long = |n: u8| vec![b'a' + n; 200];
        let options = Options {
            key_bytes: key(0).len() as u32,
            value_bytes: long(0).len() as u32,
            version_bytes,
            ..Options::published().repaired()
        };
        let script = Script {
            grants: NEEDED,
            before: vec![Op::Insert(0, long(0))],
            ops: vec![Op::Get(0)],
            ..Script::new("late", &options)
        };
        let updates = (1..17).map(|n| Op::Update(0, long(n)));
        delay_every_verb(&DelayScenario::new(script, updates.collect()), 10).1
    };
    assert_eq!(shows(2), None);
    assert!(shows(1).is_some());
}
