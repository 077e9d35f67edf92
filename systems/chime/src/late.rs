//! READs that take long: a verb of a reader is late, in its midst too, while another client writes
//! (`dmtree_check::scenario::delay`).

use dmtree_check::scenario::delay::{DelayScenario, delay_every_verb};
use dmtree_check::scenario::{Op, Script, key, value};
use dmtree_parts::peer::KIND;

use crate::format::{Geometry, Leaf};
use crate::options::Options;

/// A leaf or two of keys of the scenarios, without fence keys in the way of its entries.
fn small() -> Options {
    Options {
        key_bytes: key(0).len() as u32,
        value_bytes: value(0).len() as u32,
        span: 16,
        inner_span: 16,
        ..Options::replicas().repaired()
    }
}

/// The first wrong history when a read of a key is late while others do these operations.
fn wrong(options: &Options, before: &[Op], (n, others): (u64, Vec<Op>)) -> Option<String> {
    let (before, ops) = (before.to_vec(), vec![Op::Get(n)]);
    let script = Script { grants: KIND, before, ops, ..Script::new("late", options) };
    delay_every_verb(&DelayScenario::new(script, others), 10).1
}

/// The pieces of a READ lie sixteen WRITEs of a slot apart: four bits of version are the old ones.
#[test]
fn four_bits_of_version_wrap_in_a_late_read() {
    let shows = |version_bytes| {
        let o = Options { version_bytes, ..small() };
        let g = Geometry::new(&o);
        let spans_lines = |n: &u64| {
            let end = g.leaf.entry_at(g.home(&key(*n))) + g.leaf.entry;
            let raw = g.leaf.raw(end - g.value..end);
            raw.start / 64 < (raw.end - 1) / 64
        };
        (0..100).filter(spans_lines).take(2).find_map(|n| {
            let updates = (0..16).map(|i| Op::Update(n, vec![b'a' + i; value(0).len()]));
            wrong(&o, &[Op::Insert(n, value(n))], (n, updates.collect()))
        })
    };
    assert_eq!(shows(2), None);
    assert!(shows(1).is_some());
}

/// Keys of a leaf, and three operations after which a reader can miss one of them: a key takes the
/// slot of that one, which moves; it is deleted; and a key of the same home is put there.
fn missed(g: &Geometry) -> Option<(Vec<u64>, [u64; 3])> {
    let put = |leaf: &mut Leaf<'_>, n: u64| {
        let room = g.room(&leaf.offsets(), g.home(&key(n)))?;
        leaf.put_into(&room, &key(n), &value(n));
        Some(room)
    };
    let line =
        |slot: usize| g.leaf.raw(g.single(slot)).start / 64..=g.leaf.raw(g.single(slot)).end / 64;
    for seed in 0..20_000 {
        let mut before = g.empty_leaf();
        let keys: Vec<u64> = (seed..seed + 12).collect();
        if !keys.iter().all(|n| put(&mut before, *n).is_some()) {
            continue;
        }
        for other in seed + 12..seed + 40 {
            let mut after = before.clone();
            let Some(room) = put(&mut after, other) else { continue };
            let Some((from, to)) = room.moves.last().copied().filter(|m| m.0 == room.slot) else {
                continue;
            };
            let home = g.home(before.key(from));
            let x = keys.iter().find(|n| key(**n) == before.key(from))?;
            after.remove(from);
            let Some(y) = (seed + 40..seed + 400).find(|n| {
                let mut last = after.clone();
                g.home(&key(*n)) == home && put(&mut last, *n).is_some_and(|r| r.slot == from)
            }) else {
                continue;
            };
            // Other pieces of a READ than that of the slot.
            if line(from).all(|l| !line(to).contains(&l) && !line(home).contains(&l)) {
                return Some((keys.clone(), [*x, other, y]));
            }
        }
    }
    None
}

/// With deletes a reader misses a key that moves, and does not notice.
#[test]
fn with_deletes_a_late_read_misses_a_key_that_moves() {
    let o = Options { deletes: true, ..small() };
    let (keys, [x, other, y]) = missed(&Geometry::new(&o)).expect("some keys do");
    let before: Vec<Op> = keys.into_iter().map(|n| Op::Insert(n, value(n))).collect();
    let others = vec![Op::Insert(other, value(other)), Op::Delete(other), Op::Insert(y, value(y))];
    let shown = |o: &Options| wrong(o, &before, (x, others.clone()));
    assert_eq!(shown(&Options { whole_moves: true, ..o.clone() }), None);
    assert!(shown(&o).is_some());
}
