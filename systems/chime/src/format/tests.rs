//! What the format and the checks of readers keep, and what they do not.

use super::*;
use dmtree_parts::blink::Inner;
use proptest::prelude::*;

#[test]
fn sizes_are_the_published_ones() {
    let of = |o: Options| {
        let g = Geometry::new(&o);
        let inner = g.inner.raw_bytes();
        (g.leaf.entry, g.leaf.head, g.leaf.raw_bytes(), g.words_at(), inner, g.inner_lock_at())
    };
    let o = Options::published();
    assert_eq!(of(o.clone()), (35, 10, 1178, 1184, 1148, 1152));
    assert_eq!(of(o.original()), (19, 10, 1316, 1320, 1148, 1152));
    assert_eq!(of(Options::base()).2, 1132);
    assert_eq!(of(Options::base().original()).2, 1132);
    assert_eq!(of(Options::replicas()).2, 1373);
    assert_eq!(of(Options::replicas().original()).2, 1446);
    assert_eq!(Geometry::new(&o).inner.head, 75);
}

#[test]
fn a_free_slot_has_a_key_that_cannot_be_there() {
    for key_bytes in [1, 8, 24] {
        let g = Geometry::new(&Options { key_bytes, neighbourhood: 16, ..Options::published() });
        for (i, key) in g.free_keys.iter().enumerate() {
            assert!(key.len() == g.key && g.distance(g.home(key), i) >= 16, "slot {i}");
        }
    }
}

proptest! {
    #[test]
    fn garbage_is_no_page_or_a_sane_one(bytes in proptest::collection::vec(any::<u8>(), 1148)) {
        let g = Geometry::new(&Options::published());
        if let Some(plain) = g.plain(&bytes) && let Some(n) = Inner::check(&g, &plain) {
            prop_assert!(n.h.level <= LEVELS && n.h.records <= 32);
        }
    }
}

/// A small leaf with these keys, put in in order; the states between two inserts.
fn history(g: &Geometry, keys: impl Iterator<Item = u64>) -> Vec<Leaf<'_>> {
    let mut states = vec![g.empty_leaf()];
    for key in keys {
        let mut leaf = states[states.len() - 1].clone();
        let key = key.to_be_bytes();
        let Some(room) = g.room(&leaf.offsets(), g.home(&key)) else { break };
        leaf.put_into(&room, &key, &key);
        states.push(leaf);
    }
    states
}

fn small() -> Geometry {
    let o = Options::sibling().original();
    Geometry::new(&Options { span: 8, neighbourhood: 4, ..o })
}

/// What a reader has that READs slot `i` as it was in state `states(i)`.
fn mixed<'g>(g: &Geometry, all: &[Leaf<'g>], states: impl Fn(usize) -> usize) -> Leaf<'g> {
    let mut leaf = all[0].clone();
    for i in 0..g.span {
        let part = g.leaf.entry_at(i)..g.leaf.entry_at(i) + g.leaf.entry;
        leaf.bytes[part.clone()].copy_from_slice(&all[states(i)].bytes[part]);
    }
    leaf
}

proptest! {
    /// Slots from different moments, while keys are only inserted: a key that was present
    /// throughout is found, or the bitmap of its home does not fit.
    #[test]
    fn a_reader_misses_no_key_that_moves(
        seed: u64, draws in proptest::collection::vec(any::<usize>(), 9),
    ) {
        let g = small();
        let key = |n| seed.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let all = history(&g, (0..8).map(key));
        let first = draws[8] % all.len();
        let leaf = mixed(&g, &all, |i| first + draws[i] % (all.len() - first));
        for slot in all[first].used().collect::<Vec<_>>() {
            let key = all[first].key(slot);
            let is_seen = leaf.find(key).is_some() || !leaf.agrees(g.home(key));
            prop_assert!(is_seen, "key in slot {slot}");
        }
    }
}

/// With deletes, which the paper has and the public code has not, a reader misses a key: it moves,
/// the key that took its slot is deleted, and one of the same home is put there.
#[test]
fn with_deletes_a_reader_misses_a_key_that_moves() {
    let g = small();
    let with_home = |home, from: u64| {
        (from..).map(u64::to_be_bytes).find(|k| g.home(k) == home).expect("a key of this home")
    };
    let (x, other, y) = (with_home(0, 0), with_home(1, 0), with_home(0, 1_000));
    let mut before = g.empty_leaf();
    before.fill(1, &x, &x);
    let mut after = before.clone();
    after.relocate(1, 3);
    after.fill(1, &other, &other);
    after.clear(1);
    after.fill(1, &y, &y);
    // Slot 1 afterwards, and everything else, the bitmap of the home too, before.
    let leaf = mixed(&g, &[before, after], |i| usize::from(i == 1));
    assert!(leaf.find(&x).is_none() && leaf.agrees(0));
}

/// A line from before 16 WRITEs of its slot, and a line from after them.
#[test]
fn four_bits_of_version_wrap() {
    for (version_bytes, accepted) in [(1, true), (2, false)] {
        let o = Options { version_bytes, value_bytes: 100, ..Options::sibling().original() };
        let g = Geometry::new(&o);
        let part = g.single(1);
        let image = |leaf: &Leaf<'_>| {
            let mut raw = vec![0; g.leaf.written(part.clone()).len()];
            g.leaf.encode(part.clone(), &leaf.bytes, &mut raw);
            raw
        };
        let mut leaf = g.empty_leaf();
        leaf.fill(1, &[0; 8], &[1; 100]);
        let mut raw = image(&leaf);
        (0..16).for_each(|_| leaf.set_value(1, &[2; 100]));
        let late = image(&leaf);
        let line = 64 - g.leaf.written(part.clone()).start % 64;
        raw[line..].copy_from_slice(&late[line..]);
        let skip = g.leaf.raw(part.clone()).start - g.leaf.written(part.clone()).start;
        assert_eq!(g.unread().take(part.clone(), &raw[skip..]), accepted);
    }
}

/// A reader that has lines of an inner node from before a record was added, and lines from after
/// it, sees one of the two, or none.
#[test]
fn a_reader_of_unsorted_records_sees_a_new_one_whole_or_not_at_all() {
    let g = Geometry::new(&Options { unsorted_inner: true, ..Options::published() });
    let key = |n: u8| vec![n; g.key];
    let (low, high, child) = (key(0), key(0xff), |n: u64| GlobalAddr::from_bits(n << 6));
    let mut before = vec![0; g.inner_bytes()];
    let null = GlobalAddr::NULL;
    let h = Header { leftmost: child(1), level: 1, ..Header::of_leaf(null, &low, &high) };
    g.put_header(&mut before, &h);
    g.seal(&mut before);
    for (count, n) in [7, 3, 9, 1, 5, 2].into_iter().enumerate() {
        let mut written = vec![0; g.inner_bytes()];
        let plain = g.plain(&before).expect("whole");
        written[..plain.len()].copy_from_slice(&plain);
        let rank = Inner::check(&g, &plain).expect("sorted").h.records;
        assert_eq!(rank, count);
        g.insert_record(&mut written, (0, count), &key(n), child(n.into()));
        let part = g.seal_added(&mut written, count);
        assert!(part.len() < 40);
        let mut after = before.clone();
        after[part.clone()].copy_from_slice(&written[part]);
        let counts: Vec<usize> = (0..g.inner_bytes().div_ceil(64))
            .filter_map(|line| {
                // The lines before this one as they were, the others as they will be.
                let mut mixed = after.clone();
                mixed[..line * 64].copy_from_slice(&before[..line * 64]);
                let plain = g.plain(&mixed)?;
                Some(Inner::check(&g, &plain).expect("sorted").h.records)
            })
            .collect();
        assert!(counts.contains(&count) && counts.contains(&(count + 1)), "{counts:?}");
        assert!(counts.iter().all(|n| *n == count || *n == count + 1), "{counts:?}");
        before = after;
    }
}
