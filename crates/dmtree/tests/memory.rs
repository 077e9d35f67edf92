//! Exports and imports hold little memory, whatever their size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dmtree::{LoadOrder, Options, Pool};

/// Counts the bytes of the heap.
struct Counting;

static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = HEAP_BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(now, Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let now = HEAP_BYTES.fetch_add(bytes, Relaxed) + bytes - layout.size();
        HEAP_BYTES.fetch_sub(layout.size(), Relaxed);
        PEAK_BYTES.fetch_max(now, Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that the heap has had more than at the beginning.
fn peak_bytes<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = HEAP_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    let out = run();
    (out, PEAK_BYTES.load(Relaxed) - before)
}

const PAIRS: u32 = 60_000;
const VALUE_BYTES: usize = 1_000;
/// What an export or import may hold: what a scan and a file have, and not all of the pairs.
const MOST_BYTES: usize = 40 << 20;

#[test]
fn exports_and_imports_hold_little() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = Pool::embedded().memory("1GiB").open().expect("a pool");
    let options = || Options::default().value_inline_bytes(1000);
    let index = pool.create("pairs", options()).expect("a new index");
    let pair = |n: u32| (n.to_be_bytes().to_vec(), vec![n as u8; VALUE_BYTES]);
    let (loaded, bytes) = peak_bytes(|| index.load((0..PAIRS).map(pair), LoadOrder::Sorted));
    assert_eq!(loaded.expect("loaded").pairs, u64::from(PAIRS));
    assert!(bytes < MOST_BYTES, "a load: {bytes} bytes");
    for format in ["jsonl", "parquet"] {
        let path = dir.path().join(format!("pairs.{format}"));
        let (exported, bytes) = peak_bytes(|| index.export(&path));
        assert_eq!(exported.expect("exported"), u64::from(PAIRS));
        assert!(bytes < MOST_BYTES, "export to {format}: {bytes} bytes");
        let name = format!("copy {format}");
        for index in ["empty", "with keys"] {
            let (loaded, bytes) = peak_bytes(|| match index {
                "empty" => pool.import_into_new(&name, &[&path]).expect("imported").1,
                _ => pool.open(&name).expect("open").import(&[&path]).expect("imported"),
            });
            assert_eq!(loaded.pairs, u64::from(PAIRS));
            assert!(bytes < MOST_BYTES, "import from {format}, {index}: {bytes} bytes");
        }
        pool.drop_index(&name).expect("dropped");
    }
}
