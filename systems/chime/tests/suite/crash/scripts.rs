//! What the crash suite runs: leaves with a span of sixteen, and neighbourhoods of four slots.

use std::rc::Rc;

use dmtree_check::scenario::{Op, changes, key, value};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, Mutant, Options, Techniques};
use dmtree_fabric::OpOutcome;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

pub type Script = dmtree_check::scenario::Script;

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

fn script(name: &'static str, load: impl Iterator<Item = u64>) -> Script {
    let unmet = Some("inner lock");
    Script { load: (load.collect(), 1.0), unmet, ..Script::new(name, options()) }
}

/// The same with a mutant enabled.
pub fn with_mutant(script: Script, mutant: Mutant) -> Script {
    Script {
        enable: Some(Rc::new(move |node| node.typed::<DmNode>().set_mutants(&[mutant]))),
        ..script
    }
}

/// Inserts into free slots, updates in place, deletes.
pub fn changing() -> Script {
    Script { ops: changes(), ..script("changing", (0..10).map(|n| n * 10)) }
}

pub fn in_blocks() -> Script {
    let ops = vec![
        Op::Insert(55, vec![7; 300]),
        Op::Update(55, vec![8; 400]),
        Op::Update(50, vec![9; 60]),
        Op::Update(50, vec![9; 200]),
        Op::Delete(55),
    ];
    Script { name: "blocks", ops, ..changing() }
}

/// A leaf: keys that are loaded, and further ones that are inserted.
#[derive(Clone, Copy)]
struct Filled {
    loaded: u64,
    inserted: u64,
}

impl Filled {
    fn load(self) -> impl Iterator<Item = u64> {
        (0..self.loaded).map(|n| n * 10)
    }

    fn inserts(self) -> impl Iterator<Item = u64> {
        (0..self.inserted).map(|n| n * 10 + 1)
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
    let before = leaf.inserts().map(|n| Op::Insert(n, value(n))).collect();
    let ops = vec![Op::Insert(new, value(1))];
    Script { before, ops, ..script("moving", leaf.load()) }
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

/// Inserts until a leaf of sixteen keys is split.
pub fn splitting(new: u64) -> Script {
    let ops = (0..6).map(|n| Op::Insert(new + 1_000 * n, value(n))).collect();
    Script { name: "split", ops, ..script("split", (0..16).map(|n| n * 10)) }
}

pub fn inner_splitting() -> Script {
    let ops = (0..5).map(|n| Op::Insert(n * 10 + 5, value(n))).collect();
    Script { ops, ..script("inner split", (0..128).map(|n| n * 10)) }
}

pub fn merging() -> Script {
    let gone = (0..32).filter(|n| n % 8 != 0);
    let before = gone.map(|n| Op::Delete(n * 10)).collect();
    Script { before, ops: vec![Op::Maintain], ..script("merge", (0..32).map(|n| n * 10)) }
}

pub fn loading(n: u64) -> Script {
    let ops = vec![Op::Load((0..n).map(|n| n * 10).collect())];
    Script { ops, ..script("load", std::iter::empty()) }
}
