//! A crash at every verb of every operation, in small trees: nothing acknowledged is lost, reads go on, survivors finish or undo what
//! the dead have left, and every invariant holds afterwards.

mod scene;

use dmtree_engine::Options;
use dmtree_fabric::sim::{How, Place};
use scene::{Cut, Op, Play, Shown, run, value};

const PLACES: [Place; 3] = [Place::Before, Place::Inside, Place::After];

/// What a test has run.
#[derive(Debug, Default)]
struct Tally {
    points: u64,
    crashes: u64,
    longest_read_ns: u64,
    longest_write_ns: u64,
}

impl Tally {
    fn add(&mut self, s: &Shown) {
        self.points += 1;
        self.crashes += u64::from(s.died) + u64::from(s.second_died);
        self.longest_read_ns = self.longest_read_ns.max(s.longest_read_ns);
        self.longest_write_ns = self.longest_write_ns.max(s.longest_write_ns);
    }
}

fn every(name: &str, usual: u64) -> u64 {
    let asked = std::env::var("DMTREE_CRASH_STEP").ok().and_then(|n| n.parse().ok());
    let step = asked.unwrap_or(usual).max(1);
    let _ = name;
    step
}

/// The victim dies at every `step`-th verb, before, inside and after it.
fn everywhere(play: &Play, step: u64) -> Tally {
    let step = every(play.name, step);
    let mut tally = Tally::default();
    for victim in [1, 0] {
        for whole_write in [false, true] {
            for verb in (1..).step_by(step as usize) {
                let mut died = false;
                for (i, place) in PLACES.into_iter().enumerate() {
                    let how = [How::Machine, How::Hung, How::Process][(verb as usize + i) % 3];
                    let seed = verb * 7 + i as u64 + u64::from(victim) * 1000;
                    let cut = Cut { victim, verb, place, how, whole_write, seed, second: None };
                    match run(play, cut) {
                        Ok(shown) => {
                            tally.add(&shown);
                            died |= shown.died;
                        }
                        Err(what) => panic!("{}: {cut:?}: {what}", play.name),
                    }
                }
                if !died {
                    break;
                }
            }
        }
    }
    eprintln!("{}: {tally:?}", play.name);
    tally
}

fn one_leaf() -> Play {
    Play { load: ((0..20).map(|n| n * 10).collect(), 1.0), ..Play::new("one leaf") }
}

#[test]
fn insert_update_delete_set() {
    let play = Play {
        ops: vec![
            Op::Insert(55, value(1)),
            Op::Update(50, value(2)),
            Op::Put(60, value(3)),
            Op::Delete(70),
            Op::Set(80, value(80), Some(value(4))),
            Op::Set(90, value(90), None),
            Op::Insert(70, value(5)),
        ],
        ..one_leaf()
    };
    assert!(everywhere(&play, 1).points > 300);
}

#[test]
fn values_in_blocks() {
    let play = Play {
        options: Options { value_inline_bytes: 64, ..one_leaf().options },
        ops: vec![
            Op::Insert(55, vec![7; 300]),
            Op::Update(55, vec![8; 400]),
            Op::Update(50, vec![9; 60]),
            Op::Update(50, vec![9; 200]),
            Op::Delete(55),
        ],
        ..one_leaf()
    };
    everywhere(&play, 1);
}

#[test]
fn split() {
    for (name, new) in [("split low", 5), ("split high", 185), ("split right end", 999)] {
        let load = ((0..32).map(|n| n * 10).collect(), 1.0);
        let play = Play { name, load, ops: vec![Op::Insert(new, value(1))], ..one_leaf() };
        everywhere(&play, 1);
    }
}

#[test]
fn inner_split_and_new_root() {
    let load = ((0..256).map(|n| n * 10).collect(), 1.0);
    let ops = vec![Op::Insert(5, value(1)), Op::Insert(6, value(2))];
    everywhere(&Play { name: "inner split", load, ops, ..one_leaf() }, 1);
}

#[test]
fn several_at_once() {
    let load = ((0..96).map(|n| n * 10).collect(), 0.5);
    let ops = vec![Op::Many((0..8).map(|n| (n * 77, value(n))).collect())];
    everywhere(&Play { name: "several at once", load, ops, ..one_leaf() }, 1);
}

#[test]
fn relocation() {
    let options = Options { adaptive_capacity: true, ..one_leaf().options };
    let least =
        dmtree_engine::DmNode::least_cache_bytes(&dmtree_engine::format::Geometry::new(&options));
    let load = ((0..64).map(|n| n * 10).collect(), 1.0);
    let ops = vec![Op::Insert(5, value(1)), Op::Insert(405, value(1)), Op::Maintain];
    let play =
        Play { name: "relocation", options, cache_bytes: least + 64, load, ops, ..one_leaf() };
    everywhere(&play, 1);
}

#[test]
fn merge() {
    let before =
        (0..28).map(|n| Op::Delete(n * 10)).chain((36..62).map(|n| Op::Delete(n * 10))).collect();
    let load = ((0..64).map(|n| n * 10).collect(), 1.0);
    let play = Play { name: "merge", before, load, ops: vec![Op::Maintain], ..one_leaf() };
    everywhere(&play, 1);
}

#[test]
fn inner_merge() {
    let load = ((0..400).map(|n| n * 10).collect(), 0.5);
    let before = (0..390).map(|n| Op::Delete(n * 10)).collect();
    let play = Play { name: "inner merge", before, load, ops: vec![Op::Maintain], ..one_leaf() };
    everywhere(&play, 17);
}

#[test]
fn bulk_load() {
    for (name, n) in [("load one leaf", 10), ("load two levels", 400)] {
        let ops = vec![Op::Load((0..n).map(|n| n * 10).collect())];
        let play = Play { name, load: (Vec::new(), 1.0), ops, ..one_leaf() };
        everywhere(&play, if n > 100 { 7 } else { 1 });
    }
}
