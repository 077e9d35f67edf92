//! Images of leaves at compute nodes (`Options::images`), and another cache budget while clients
//! work.

use dmtree::{ErrorKind, Index, Options, Outcome, Pool};

/// Half of a cache of 1 MiB is more than all leaves of [`KEYS`] take.
const CACHE_BYTES: u64 = 1 << 20;
const KEYS: u32 = 4_000;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn fill(index: &Index) {
    for n in 0..KEYS {
        index.put(key(n), n.to_le_bytes()).expect("room");
    }
}

fn is_whole(index: &Index) {
    for n in 0..KEYS {
        let value = index.get(key(n)).expect("get");
        assert_eq!(value.as_deref(), Some(&n.to_le_bytes()[..]), "key {n}");
    }
    assert_eq!(index.scan(..).into_iter().count(), KEYS as usize);
    assert_eq!(index.shape().expect("sound").shape.keys, u64::from(KEYS));
}

/// Bytes of images on each compute node, which are within the budget with the inner nodes.
fn image_bytes(index: &Index, budget: u64) -> Vec<u64> {
    let caches = index.stats().expect("stats").caches;
    for c in &caches {
        assert!(c.budget_bytes == budget && c.used_bytes + c.image_bytes <= budget, "{c:?}");
    }
    caches.iter().map(|c| c.image_bytes).collect()
}

#[test]
fn leaves_have_images_within_the_budget() {
    let pool = Pool::embedded().memory("64MiB").cache(CACHE_BYTES).compute_nodes(2);
    let pool = pool.open().expect("a pool");
    let index = pool.create("t", Options::default().images(0.5)).expect("new");
    fill(&index);
    let all = image_bytes(&index, CACHE_BYTES);
    assert!(all.iter().all(|bytes| *bytes > 0), "{all:?}");
    is_whole(&index);
    let smaller = CACHE_BYTES - all[0] / 2;
    index.set_cache(smaller).expect("it fits");
    image_bytes(&index, smaller);
    is_whole(&index);
    index.set_cache("64KiB").expect("it fits");
    assert_eq!(image_bytes(&index, 64 << 10), [0, 0], "images go before inner nodes");
    is_whole(&index);
}

/// A log that is smaller than the writes, and the budget given back meanwhile: every leaf that
/// loses its image has what was in the log.
#[test]
fn writes_are_durable_in_a_log() {
    let pool = Pool::embedded().memory("64MiB").cache(CACHE_BYTES).compute_nodes(2);
    let pool = pool.open().expect("a pool");
    let index = pool.create("t", Options::default().images(0.5).log_kib(64)).expect("new");
    fill(&index);
    is_whole(&index);
    for n in (0..KEYS).step_by(3) {
        assert_eq!(index.delete(key(n)).expect("delete"), Outcome::Done);
        index.put(key(n), b"other").expect("room");
    }
    fill(&index);
    index.set_cache("64KiB").expect("it fits");
    assert_eq!(image_bytes(&index, 64 << 10), [0, 0]);
    is_whole(&index);
}

/// There are as many images as table memory holds.
#[test]
fn images_fill_the_table_memory() {
    let bytes = |table_memory: u64| {
        let pool = Pool::embedded().memory("64MiB").cache("8MiB").table_memory(table_memory);
        let pool = pool.open().expect("a pool");
        let index = pool.create("t", Options::default().images(0.9)).expect("new");
        fill(&index);
        is_whole(&index);
        image_bytes(&index, 8 << 20)[0]
    };
    let (few, all) = (bytes(160 << 10), bytes(4 << 20));
    assert!((1..160 << 10).contains(&few) && all > u64::from(KEYS) * 44, "{few}, {all}");
}

#[test]
fn what_cannot_be_is_refused() {
    let pool = Pool::embedded().memory("64MiB").cache(CACHE_BYTES).open().expect("a pool");
    for share in [-0.1, 1.1, f64::NAN] {
        let e = pool.create("t", Options::default().images(share)).expect_err("no share");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains("it must be 0 to 1"), "{e}");
    }
    for (options, words) in [
        (Options::default().log_kib(64), "log_kib is 64; an index without images has no log, 0"),
        (
            Options::default().images(0.5).log_kib(31),
            "log_kib is 31; 4 groups with entries of 40 bytes need 32 at least",
        ),
        (
            Options::default().images(0.5).log_kib(64).log_past(1.5),
            "log_past is 1.5; it must be 0 to 1",
        ),
        (Options::default().log_past(0.5), "log_past is 0.5; an index without a log has none"),
    ] {
        let e = pool.create("t", options).expect_err(words);
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains(words), "{e}");
    }
    let index = pool.create("t", Options::default().images(0.25)).expect("new");
    assert_eq!(index.options().images, 0.25);
    let e = pool.open_or_create("t", Options::default()).expect_err("it has images");
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    assert!(e.to_string().contains("images 0.25, not 0"), "{e}");
    for size in ["64", "much"] {
        let e = index.set_cache(size).expect_err("no budget");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    image_bytes(&index, CACHE_BYTES);
}
