use super::*;
use dmtree_fabric::GlobalAddr;

fn put(cache: &NodeCache, lo: u32, hi: u32, children: &[u32]) -> Arc<CachedNode> {
    let keys: Vec<_> = children.iter().map(|k| k.to_be_bytes()).collect();
    let records = children
        .iter()
        .map(|k| Record::new(GlobalAddr::from_bits(u64::from(*k) << 8), 1, 7, 32, 0))
        .collect();
    let (lo, hi) = (lo.to_be_bytes(), hi.to_be_bytes());
    let keys = keys.iter().map(|k| &k[..]);
    let addr = GlobalAddr::from_bits(64);
    cache.insert(1, NodeParts { addr, generation: 1, lo: &lo, hi: Some(&hi), keys, records })
}

fn child(cache: &NodeCache, key: u32) -> Option<u64> {
    cache.peek(1, &key.to_be_bytes()).map(|r| r.child.bits() >> 8)
}

/// How many slots a child uses according to its mirror.
fn mirror_live(node: &CachedNode, i: usize) -> Option<u32> {
    let (record, free) = node.record_with_slots(i, 0);
    Some(u32::from(record.capacity) - free?.len() as u32)
}

#[test]
fn finds_the_covering_child_and_nothing_else() {
    let cache = NodeCache::new(1 << 20, Some(1));
    for i in if cfg!(miri) { 110..130 } else { 0..1000u32 } {
        put(&cache, i * 100, i * 100 + 90, &[i * 100, i * 100 + 50]);
    }
    assert_eq!(child(&cache, 12_349), Some(12_300));
    assert_eq!(child(&cache, 12_350), Some(12_350));
    assert_eq!(child(&cache, 12_395), None, "between two cached nodes");
    let below = cache.lookup_below(1, Some(&12_300u32.to_be_bytes()));
    assert!(below.is_none(), "the node before ends at 12290");
    let below = cache.lookup_below(1, Some(&12_310u32.to_be_bytes())).expect("cached");
    assert_eq!(below.lo(), 12_300u32.to_be_bytes());
}

/// Of several keys at once each finds what it finds alone, the ones that are not cached too.
#[test]
fn several_keys_find_what_each_finds_alone() {
    let cache = NodeCache::new(1 << 20, Some(1));
    for i in if cfg!(miri) { 110..130 } else { 0..1000u32 } {
        put(&cache, i * 100, i * 100 + 90, &[i * 100, i * 100 + 50]);
    }
    for step in [7, 1] {
        let keys: Vec<_> = (12_300..12_500u32).step_by(step).map(u32::to_be_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let mut seen = 0;
        cache.lookup_many(1, &keys, &reading(), |i, found| {
            assert_eq!(i, seen);
            seen += 1;
            let found = found.map(|(node, child)| node.record(child).child.bits() >> 8);
            let key = u32::from_be_bytes(keys[i].try_into().expect("4 bytes"));
            assert_eq!(found, child(&cache, key), "{key}");
        });
        assert_eq!(seen, keys.len());
    }
}

/// A split adds a child: the copy with it is that of all the parts, with the mirrors of before.
#[test]
fn a_node_with_one_more_child_is_as_if_made_of_its_parts() {
    let (cache, whole) = (NodeCache::new(1 << 20, Some(1)), NodeCache::new(1 << 20, Some(1)));
    let old = put(&cache, 100, 190, &[100, 120, 150]);
    (0..3).for_each(|i| old.fill_mirror(i, &[i as u8 + 1; 32]));
    let low = 130u32.to_be_bytes();
    let new = Record::new(GlobalAddr::from_bits(130 << 8), 1, 7, 32, 77);
    let with = cache.insert_child(1, (&old, 1), (&low, 5), &new).expect("between two");
    let made = put(&whole, 100, 190, &[100, 120, 130, 150]);
    let keys = |node: &CachedNode| -> Vec<Vec<u8>> {
        (0..node.len()).map(|i| node.keys().get(i).to_vec()).collect()
    };
    assert_eq!((keys(&with), with.lo(), with.hi()), (keys(&made), made.lo(), made.hi()));
    let fences: Vec<_> = with.records().map(|r| r.fence).collect();
    assert_eq!(fences, [0, 5, 0, 0], "the child before ends where the new one begins");
    for (i, (a, b)) in with.records().zip(made.records()).enumerate() {
        assert_eq!(Record { fence: 0, ..a }, b);
        assert!(with.has_child(i, b.child, 1) && !with.has_child(i, b.child, 2));
    }
    let fps = |i: usize| {
        (1..=3).find(|fp| with.record_with_slots(i, *fp).1.is_some_and(|s| !s.is_empty()))
    };
    assert_eq!([0, 1, 2, 3].map(fps), [Some(1), Some(2), None, Some(3)]);
    assert_eq!((child(&cache, 129), child(&cache, 130)), (Some(120), Some(130)));
    assert!(!old.is_cached() && with.is_cached());
    assert_eq!(cache.stats().used_bytes, whole.stats().used_bytes);
    let first = 100u32.to_be_bytes();
    assert!(cache.insert_child(1, (&with, 3), (&170u32.to_be_bytes(), 5), &new).is_some());
    let none = cache.insert_child(1, (&with, 0), (&first, 5), &Record { capacity: 128, ..new });
    assert!(none.is_none(), "no room for its fingerprints");
}

/// Digest 8.5 #20 and #21: a newer image always replaces an older one, and a removed node is
/// not counted twice.
#[test]
fn a_newer_image_replaces_the_covered_nodes_and_keeps_mirrors() {
    let cache = NodeCache::new(1 << 20, Some(1));
    let old = put(&cache, 0, 100, &[0, 50]);
    old.fill_mirror(1, &[9; 32]);
    put(&cache, 100, 200, &[100]);
    let new = put(&cache, 0, 200, &[0, 50, 70, 100]);
    assert_eq!(cache.stats().nodes, 1);
    assert_eq!(mirror_live(&new, 1), Some(32), "the mirror of an unchanged child is kept");
    assert_eq!(mirror_live(&new, 2), None);
    cache.invalidate(1, &old);
    assert_eq!(child(&cache, 75), Some(70), "dropping an old copy leaves the new one");
    cache.invalidate(1, &new);
    let s = cache.stats();
    assert_eq!((s.nodes, s.used_bytes, s.mirror_bytes), (0, 0, 0));
}

/// A node with the range of an older one replaces what was cached inside the range since, too. A
/// merge gives a node back the range that it had before a split: the image of the emptied neighbour
/// stayed.
#[test]
fn a_newer_image_of_the_same_range_replaces_what_is_inside() {
    let cache = NodeCache::new(1 << 20, Some(1));
    put(&cache, 0, 100, &[0]);
    put(&cache, 50, 100, &[50]);
    assert_eq!((child(&cache, 60), cache.stats().nodes), (Some(50), 2));
    put(&cache, 0, 100, &[0, 70]);
    assert_eq!((child(&cache, 60), child(&cache, 80)), (Some(0), Some(70)));
    assert_eq!(cache.stats().nodes, 1);
}

/// A replaced node stayed in memory until the budget was spent, uncounted: endless refreshes
/// leaked memory.
#[test]
fn replaced_nodes_are_let_go_of() {
    let cache = NodeCache::new(1 << 20, Some(1));
    let first = Arc::downgrade(&put(&cache, 0, 100, &[0]));
    // Memory comes free when the readers that may have it have ended, and a while later. Other
    // tests read, too, and their threads may have to wait for a processor.
    for _ in 0..if cfg!(miri) { 400 } else { 1_000_000 } {
        put(&cache, 0, 100, &[0]);
        if first.strong_count() == 0 {
            break;
        }
    }
    assert_eq!(cache.stats().nodes, 1);
    assert_eq!(first.strong_count(), 0);
    assert!(cache.clock.lock().unwrap().len() <= 19);
}

#[test]
fn the_budget_holds() {
    let one = NodeCache::new(1 << 20, Some(1));
    let node = put(&one, 0, 100, &[0, 50]);
    let size = node.node_bytes() + node.mirror_bytes();
    assert!(size <= CachedNode::most_bytes(2, 4) && size + 80 > CachedNode::most_bytes(2, 4));
    assert_eq!((one.stats().used_bytes, one.stats().mirror_bytes), (size, 2 * 32));
    let cache = NodeCache::new(size * 3, Some(1));
    for i in 0..50 {
        put(&cache, i * 100, i * 100 + 100, &[i * 100, i * 100 + 50]).fill_mirror(0, &[1; 32]);
        assert!(cache.stats().used_bytes <= size * 3);
    }
    let s = cache.stats();
    assert!(s.evictions == 47 && s.nodes == 3, "{s:?}");
}

/// Leaves of several sizes under one node, and larger ones than a line has fingerprints for.
#[test]
fn mirrors_of_large_leaves() {
    let cache = NodeCache::new(1 << 20, Some(1));
    let keys: [&[u8]; 4] = [&[0], &[1], &[2], &[3]];
    let capacities = [16u16, 128, 32, 64];
    let record = |(i, c): (usize, u16)| {
        Record::new(GlobalAddr::from_bits(i as u64 + 1), i as u16, 7 + i as u64, c, 9)
            .with_version(u32::MAX - i as u32)
            .at_place(i % (MOST_PLACES + 1))
    };
    let records = || (0..).zip(capacities).map(record).collect::<Vec<_>>();
    let parts = |hi| NodeParts {
        addr: GlobalAddr::from_bits(64),
        generation: 1,
        lo: keys[0],
        hi,
        keys: keys.into_iter(),
        records: records(),
    };
    let old = cache.insert(1, parts(None));
    for (i, c) in (0..).zip(capacities) {
        assert_eq!(old.record_with_slots(i, 0).1, None);
        old.fill_mirror(i, &vec![1; usize::from(c)]);
        old.note_fingerprint(i, usize::from(c) - 1, 5);
        old.note_fingerprint(i, usize::from(c) / 2, 0);
    }
    let new = cache.insert(1, parts(Some(&[9])));
    for (i, c) in (0..).zip(capacities) {
        for node in [&old, &new] {
            let c = usize::from(c);
            let slots = |fp| node.record_with_slots(i, fp).1.map(Iterator::collect::<Vec<_>>);
            assert_eq!((slots(5), slots(0)), (Some(vec![c - 1]), Some(vec![c / 2])));
            assert_eq!(mirror_live(node, i), Some(c as u32 - 1));
            assert_eq!(node.reach(i), Some(c), "as the mirror has it");
        }
    }
    assert!(new.records().eq(records()));
}

/// Uses stay with a child that stays the same, whether its mirror is filled or not, and leave its
/// mirror and version alone.
#[test]
fn uses_are_counted_and_halved() {
    let cache = NodeCache::new(1 << 20, Some(1));
    let old = put(&cache, 0, 100, &[0, 50]);
    old.fill_mirror(0, &[3; 32]);
    assert_eq!([old.uses(0), old.add_uses(0, 8), old.add_uses(1, 5)], [0, 8, 5]);
    assert_eq!([old.halve_uses(0), old.uses(0), old.halve_uses(0), old.uses(0)], [8, 4, 4, 2]);
    assert_eq!(old.add_uses(0, u64::from(u32::MAX)), u64::from(u16::MAX), "no more than that");
    assert_eq!([old.halve_uses(0), old.uses(1)], [u64::from(u16::MAX), 5]);
    let new = put(&cache, 0, 100, &[0, 50, 70]);
    let uses = [new.uses(0), new.uses(1), new.uses(2), new.halve_uses(2)];
    assert_eq!(uses, [u64::from(u16::MAX / 2), 5, 0, 0]);
    assert_eq!(new.record_with_slots(0, 3).1.map(Iterator::count), Some(32));
    assert!(new.record_with_slots(1, 3).1.is_none() && new.records().take(2).eq(old.records()));
    let plain = NodeCache::new(1 << 20, None);
    assert_eq!(put(&plain, 0, 100, &[0, 50]).add_uses(0, 1), 0, "no mirrors");
    assert_eq!(old.reach(1), None, "neither a mirror nor a scan");
    for slots in [24, 16, 32] {
        old.note_reach(1, slots);
        assert_eq!((old.reach(1), old.uses(1), mirror_live(&old, 1)), (Some(slots), 5, None));
    }
}

/// The nodes from the right end down, those beside a gap too.
#[test]
fn all_nodes_are_passed() {
    let cache = NodeCache::new(1 << 20, Some(1));
    [0, 200, 500].iter().for_each(|lo| _ = put(&cache, *lo, lo + 100, &[*lo]));
    let (mut below, mut seen) = (None, Vec::new());
    while let Some(node) = cache.pass_below(1, below.as_deref()) {
        below = Some(node.lo().to_vec());
        seen.push(node.record(0).child.bits() >> 8);
    }
    assert_eq!(seen, [500, 200, 0]);
}

#[test]
fn readers_and_writers_together() {
    let cache = NodeCache::new(40_000, Some(1));
    let rounds = if cfg!(miri) { 8 } else { 5_000 };
    std::thread::scope(|s| {
        for t in 0..2u32 {
            let cache = &cache;
            s.spawn(move || {
                for i in 0..rounds {
                    let at = (i * 7 + t * 3) % 300 * 100;
                    let node = put(cache, at, at + 100, &[at, at + 40]);
                    node.fill_mirror(0, &[t as u8 + 1; 32]);
                }
            });
            s.spawn(move || {
                for i in 0..rounds {
                    let key = (i * 13 + t) % 30_000;
                    if let Some(c) = child(cache, key) {
                        let base = u64::from(key / 100 * 100);
                        assert!(c == base || c == base + 40);
                    }
                }
            });
        }
    });
    cache.clear();
    let s = cache.stats();
    assert_eq!((s.nodes, s.used_bytes, s.mirror_bytes), (0, 0, 0));
}
