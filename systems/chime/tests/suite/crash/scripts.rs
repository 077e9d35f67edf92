//! What the crash suite runs: leaves with a span of sixteen, and neighbourhoods of four slots.

use dmtree_check::scenario::small_tree::{SmallTree, tens};
use dmtree_check::scenario::{Op, Script, inserts, key, value};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, Mutant, Options, Techniques};
use dmtree_fabric::OpOutcome;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

fn options() -> Options {
    let sound = dmtree_chime::sound::options();
    // A table of lock words fits a chunk of these pools.
    let techniques = Techniques { locks: 64, ..sound.techniques };
    Options {
        techniques,
        fanout: 8,
        key_inline_bytes: 8,
        leaf_capacity: 16,
        neighbourhood: 4,
        ..sound
    }
}

pub fn tree() -> SmallTree {
    let base = Script { unmet: Some("inner lock"), ..Script::new("chime", options()) };
    SmallTree { base, full: 16, full_node: 128, apart: 1000 }
}

/// A script with a mutant enabled, and its name.
pub fn with(mutant: Mutant, script: Script) -> (&'static str, Script) {
    (mutant.name(), script.enabling(move |node: &DmNode| node.set_mutants(&[mutant])))
}

/// A leaf: keys that are loaded, and further ones that are inserted.
#[derive(Clone, Copy)]
struct Filled {
    loaded: u64,
    inserted: u64,
}

impl Filled {
    fn load(self) -> impl Iterator<Item = u64> {
        tens(self.loaded)
    }

    fn inserts(self) -> impl Iterator<Item = u64> {
        tens(self.inserted).map(|n| n + 1)
    }

    fn keys(self) -> impl Iterator<Item = u64> {
        self.load().chain(self.inserts())
    }
}

/// The round trips of an insert into a leaf; `None` when this, or an insert before, splits it.
fn trips(leaf: Filled, new: u64) -> Option<u64> {
    let pool =
        PoolOptions { compute_nodes: 1, memory_bytes_per_node: 16 << 20, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, options()).expect("an index");
    let mut c = cluster.client(0).expect("a client");
    let pairs = leaf.load().map(|k| (key(k), value(k))).collect();
    c.load(pairs, true, 1.0).expect("room");
    let mut plain = |new| {
        c.get(&key(new)).expect("an answer");
        c.take_counts();
        c.write(&key(new), Write::Insert(&value(new))).expect("room");
        let counts = c.take_counts();
        let plain = counts.ops.iter().find(|(_, outcome, _)| *outcome == OpOutcome::InsertPlain);
        plain.map(|(_, _, totals)| totals.counts.round_trips)
    };
    leaf.inserts().try_for_each(|new| plain(new).map(|_| ()))?;
    plain(new)
}

/// A leaf, and a key for which so many of its entries have to move.
fn full_neighbourhood(moves: u64) -> (Filled, u64) {
    let filled = (0..18).map(|n| Filled { loaded: 12 + n / 6 * 2, inserted: n % 6 });
    let all = filled.flat_map(|leaf| (0..60).map(move |n| (leaf, n * 7 + 2)));
    let mut fitting = all.filter(|(leaf, new)| trips(*leaf, *new) == Some(3 + moves));
    fitting.next().expect("some key meets a full neighbourhood")
}

/// An insert for which so many entries move.
pub fn moving(moves: u64) -> Script {
    let (leaf, new) = full_neighbourhood(moves);
    let before = inserts(leaf.inserts()).collect();
    Script { before, ..tree().script("moving", leaf.load(), [Op::Insert(new, value(1))]) }
}

/// Moves, and then deletes and inserts of all that may have moved.
pub fn moving_and_deleting() -> Script {
    let (leaf, new) = full_neighbourhood(1);
    let insert = Op::Insert(new, value(1));
    let deletes = leaf.keys().map(Op::Delete);
    let again = (0..10).map(|k| Op::Insert(k * 10 + 5, value(k)));
    let ops = [insert].into_iter().chain(deletes).chain(again).collect();
    Script { name: "moving and deleting", ops, ..moving(1) }
}

/// The entry that moves, and the new one, have blocks.
pub fn moving_a_block() -> Script {
    let (leaf, new) = full_neighbourhood(1);
    let moving = moving(1);
    let updates = leaf.keys().map(|k| Op::Update(k, vec![k as u8; 200]));
    let before = moving.before.iter().cloned().chain(updates).collect();
    let ops = vec![Op::Insert(new, vec![7; 300])];
    Script { name: "moving a block", before, ops, ..moving }
}
