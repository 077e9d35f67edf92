//! Embedded pools that last: what a pool has when it is opened again, and what is refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dmtree::{
    Batch, Error, ErrorKind, Index, LoadOrder, Options, Outcome, Pool, PoolBuilder, Result,
};
use proptest::prelude::*;
use tempfile::TempDir;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn durable(path: &Path) -> PoolBuilder {
    Pool::embedded().memory("32MiB").compute_nodes(2).durable(path)
}

fn contents(index: &Index) -> Pairs {
    index.scan(..).pairs().collect::<Result<_>>().expect("a scan")
}

fn refused<T>(result: Result<T, Error>, kind: ErrorKind, says: &[&str]) {
    let e = result.err().expect("it is refused");
    assert_eq!(e.kind(), kind, "{e}");
    says.iter().for_each(|what| assert!(e.to_string().contains(what), "{what:?} in {e}"));
}

/// One call of a user.
#[derive(Clone, Debug)]
enum Call {
    Put(u8, Vec<u8>),
    Insert(u8, Vec<u8>),
    Update(u8, Vec<u8>),
    Delete(u8),
    CompareAndSet(u8, Vec<u8>, Vec<u8>),
    CompareAndDelete(u8, Vec<u8>),
    Batch(Vec<(u8, Vec<u8>)>, Vec<u8>),
    Reopen(bool),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    // Few values, so that comparisons hold now and then; some in blocks of their own.
    let value =
        || (0u8..3, prop_oneof![Just(0usize), Just(8), Just(300)]).prop_map(|(b, n)| vec![b; n]);
    let key = any::<u8>;
    let call = prop_oneof![
        8 => (key(), value()).prop_map(|(k, v)| Call::Put(k, v)),
        2 => (key(), value()).prop_map(|(k, v)| Call::Insert(k, v)),
        2 => (key(), value()).prop_map(|(k, v)| Call::Update(k, v)),
        4 => key().prop_map(Call::Delete),
        2 => (key(), value(), value()).prop_map(|(k, e, v)| Call::CompareAndSet(k, e, v)),
        1 => (key(), value()).prop_map(|(k, e)| Call::CompareAndDelete(k, e)),
        2 => (
            proptest::collection::vec((key(), value()), 0..40),
            proptest::collection::vec(key(), 0..5)
        ).prop_map(|(puts, deletes)| Call::Batch(puts, deletes)),
        1 => any::<bool>().prop_map(Call::Reopen),
    ];
    proptest::collection::vec(call, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn what_was_acknowledged_is_there_again(calls in calls(), sync: bool) {
        let dir = TempDir::new().expect("a directory");
        let open = |sync: bool| {
            let builder = durable(dir.path());
            let pool = if sync { builder.sync() } else { builder }.open().expect("opened");
            let index = pool.open_or_create("pairs", Options::default()).expect("opened");
            (pool, index)
        };
        let (mut pool, mut index) = open(sync);
        let mut model = Pairs::new();
        let key = |k: u8| format!("key {k:03}").into_bytes();
        for call in calls {
            match call {
                Call::Put(k, v) => {
                    index.put(key(k), &v).expect("put");
                    model.insert(key(k), v);
                }
                Call::Insert(k, v) => {
                    if index.insert(key(k), &v).expect("insert") == Outcome::Done {
                        model.insert(key(k), v);
                    }
                }
                Call::Update(k, v) => {
                    if index.update(key(k), &v).expect("update") == Outcome::Done {
                        model.insert(key(k), v);
                    }
                }
                Call::Delete(k) => {
                    index.delete(key(k)).expect("delete");
                    model.remove(&key(k));
                }
                Call::CompareAndSet(k, e, v) => {
                    if index.compare_and_set(key(k), &e, &v).expect("set") == Outcome::Done {
                        model.insert(key(k), v);
                    }
                }
                Call::CompareAndDelete(k, e) => {
                    if index.compare_and_delete(key(k), &e).expect("delete") == Outcome::Done {
                        model.remove(&key(k));
                    }
                }
                Call::Batch(puts, deletes) => {
                    let mut batch = Batch::new();
                    for (k, v) in puts {
                        batch.put(key(k), &v);
                        model.insert(key(k), v);
                    }
                    for k in deletes {
                        batch.delete(key(k));
                        model.remove(&key(k));
                    }
                    let outcomes = index.write_batch(&batch).expect("a batch");
                    prop_assert!(outcomes.iter().all(Result::is_ok));
                }
                Call::Reopen(sync) => {
                    drop((index, pool));
                    (pool, index) = open(sync);
                }
            }
        }
        prop_assert_eq!(&contents(&index), &model);
        drop((index, pool));
        let (_pool, index) = open(false);
        prop_assert_eq!(&contents(&index), &model);
    }
}

/// Splits, async clients, loads, and threads that write at once.
#[test]
fn everything_that_writes_lasts() {
    let dir = TempDir::new().expect("a directory");
    for sync in [false, true] {
        let path = dir.path().join(format!("{sync}"));
        let open = || {
            let builder = durable(&path);
            if sync { builder.sync() } else { builder }.open().expect("opened")
        };
        let keys = if sync { 40u32 } else { 2_000 };
        let mut due = Pairs::new();
        let pool = open();
        let options = || Options::default().value_inline_bytes(16);
        let loaded = pool.create("loaded", options()).expect("new");
        let pairs: Pairs = (0..5_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![1; 8])).collect();
        loaded.load(pairs.clone(), LoadOrder::Sorted).expect("loaded");
        let written = pool.create("written", options()).expect("new");
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let written = written.clone();
                scope.spawn(move || {
                    for n in 0..keys {
                        let key = (n * 4 + thread).to_be_bytes();
                        written.put(key, thread.to_string()).expect("put");
                    }
                });
            }
        });
        for n in 0..keys * 4 {
            due.insert(n.to_be_bytes().to_vec(), (n % 4).to_string().into_bytes());
        }
        let client = written.async_client().expect("a client");
        let puts = (0..100u32).map(|n| client.put(format!("async {n}"), "x"));
        for reply in puts.collect::<Vec<_>>() {
            pollster::block_on(reply).expect("put");
        }
        due.extend((0..100u32).map(|n| (format!("async {n}").into_bytes(), b"x".to_vec())));
        assert_eq!(contents(&written), due);
        drop((client, loaded, written, pool));
        let pool = open();
        assert_eq!(pool.list().expect("listed"), ["loaded", "written"]);
        let index = pool.open("written").expect("there");
        assert_eq!(index.options(), options());
        assert_eq!(contents(&index), due);
        assert_eq!(contents(&pool.open("loaded").expect("there")), pairs);
        index.shape().expect("whole");
    }
}

#[test]
fn a_dropped_index_is_gone_and_a_new_one_has_its_own_pairs() {
    let dir = TempDir::new().expect("a directory");
    let pool = durable(dir.path()).open().expect("opened");
    pool.create("a", Options::default()).expect("new").put("k", "1").expect("put");
    pool.create("b", Options::default()).expect("new").put("k", "2").expect("put");
    pool.drop_index("a").expect("dropped");
    pool.create("a", Options::default()).expect("new").put("l", "3").expect("put");
    pool.drop_index("b").expect("dropped");
    drop(pool);
    let pool = durable(dir.path()).open().expect("opened");
    assert_eq!(pool.list().expect("listed"), ["a"]);
    let pairs = contents(&pool.open("a").expect("there"));
    assert_eq!(pairs, Pairs::from([(b"l".to_vec(), b"3".to_vec())]));
}

/// A load that is refused in the middle leaves nothing, in memory and in the journal.
#[test]
fn a_load_that_fails_leaves_nothing() {
    let dir = TempDir::new().expect("a directory");
    let pool = durable(dir.path()).open().expect("opened");
    let index = pool.create("a", Options::default()).expect("new");
    let pair = |n: u32| (n.to_be_bytes().to_vec(), vec![0; 8]);
    let pairs = (0..1_000).chain([7]).map(pair);
    refused(index.load(pairs, LoadOrder::Sorted), ErrorKind::InvalidArgument, &["pair 1001"]);
    index.put("k", "v").expect("put");
    let due = Pairs::from([(b"k".to_vec(), b"v".to_vec())]);
    assert_eq!(contents(&index), due);
    drop((index, pool));
    let pool = durable(dir.path()).open().expect("opened");
    assert_eq!(contents(&pool.open("a").expect("there")), due);
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("j");
    let pool = durable(&path).open().expect("opened");
    assert!(pool.is_durable());
    refused(durable(&path).open(), ErrorKind::Busy, &["has it open"]);
    let index = pool.create("a", Options::default()).expect("new");
    let pairs = (0..100_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![0; 8]));
    index.load(pairs, LoadOrder::Sorted).expect("loaded");
    drop((index, pool));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let to = reports.clone();
    let report = move |p: &dmtree::OpenProgress| to.lock().expect("mine").push(p.pairs);
    let tight = Pool::embedded().memory("4MiB").durable(&path).on_progress(report);
    refused(tight.open(), ErrorKind::Full, &["4 MiB", "give it about"]);
    drop(durable(&path).open().expect("opened"));
    let to = reports.clone();
    let report = move |p: &dmtree::OpenProgress| to.lock().expect("mine").push(p.pairs);
    reports.lock().expect("mine").clear();
    drop(durable(&path).on_progress(report).open().expect("opened"));
    assert_eq!(*reports.lock().expect("mine"), [65_536, 100_000]);
    let without = Pool::embedded().sync_every(Duration::from_secs(1)).open();
    refused(without, ErrorKind::InvalidArgument, &["sync_every", "call `durable`"]);
}

/// A file system of its own, of so many MiB; none where the machine does not allow one.
pub struct SmallDevice(pub TempDir);

impl SmallDevice {
    pub fn new(mib: u32) -> Option<Self> {
        let dir = TempDir::new().expect("a directory");
        let options = format!("size={mib}m");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir.path());
        let mounted = mount.output().is_ok_and(|o| o.status.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for SmallDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

/// A durable pool on a device of its own, and the calls that fill it.
struct FullDevice {
    device: SmallDevice,
    sync_every: Duration,
}

impl FullDevice {
    /// A device with so much room; none where the machine does not allow one.
    fn new(room_mib: usize, sync_every: Duration) -> Option<Self> {
        let Some(device) = SmallDevice::new(48) else {
            eprintln!("SKIPPED: no small file system can be mounted here (it takes root)");
            return None;
        };
        let ballast = vec![1; (48 - room_mib) << 20];
        std::fs::write(device.0.path().join("ballast"), ballast).expect("there is room");
        Some(Self { device, sync_every })
    }

    fn open(&self) -> Pool {
        let at = self.device.0.path().join("j");
        let pool = Pool::embedded().memory("256MiB").durable(at).sync_every(self.sync_every);
        pool.open().expect("opened")
    }

    fn make_room(&self) {
        std::fs::remove_file(self.device.0.path().join("ballast")).expect("removed");
    }

    /// Values that no compression of the engine makes smaller.
    fn value(n: u32) -> Vec<u8> {
        let scrambled = |word: u64| word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let words = (0..125).map(|at| scrambled(scrambled(u64::from(n) << 32 | at)));
        words.flat_map(u64::to_be_bytes).collect()
    }

    /// Puts until one fails, with pauses after the memory of a table has got full: what is there,
    /// the number that failed, and why.
    #[expect(clippy::disallowed_methods, reason = "a real device")]
    fn fill(index: &Index, pause: Duration) -> (Pairs, u32, Error) {
        let mut due = Pairs::new();
        for n in 0..60_000u32 {
            if n > 15_000 && n % 64 == 0 {
                std::thread::sleep(pause);
            }
            match index.put(n.to_be_bytes(), Self::value(n)) {
                Ok(_) => _ = due.insert(n.to_be_bytes().to_vec(), Self::value(n)),
                Err(e) => return (due, n, e),
            }
        }
        panic!("the device does not get full");
    }
}

/// On a full device writes fail and say so, reads go on, and after room is made writes work again.
#[test]
#[expect(clippy::disallowed_methods, reason = "a real device")]
fn a_full_device_refuses_writes_until_there_is_room() {
    let Some(device) = FullDevice::new(18, Duration::from_millis(100)) else { return };
    let pool = device.open();
    let options = Options::default().value_inline_bytes(1000);
    let index = pool.create("a", options).expect("new");
    let (mut due, n, e) = FullDevice::fill(&index, Duration::ZERO);
    assert_eq!((e.kind(), e.effect()), (ErrorKind::Full, dmtree::Effect::Unknown), "{e}");
    assert!(due.len() > 1_000, "{} pairs", due.len());
    refused(index.put("another", "x"), ErrorKind::Full, &["make room"]);
    assert_eq!(contents(&index), due, "reads go on");
    device.make_room();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while let Err(e) = index.put("another", "x") {
        assert!(std::time::Instant::now() < until, "there is room: {e}");
        std::thread::sleep(Duration::from_millis(100));
    }
    due.insert(b"another".to_vec(), b"x".to_vec());
    assert_eq!(contents(&index), due);
    drop((index, pool));
    let pool = device.open();
    let mut found = contents(&pool.open("a").expect("there"));
    // The write that failed first may have happened.
    if found.remove(&n.to_be_bytes()[..]).is_some_and(|found| found != FullDevice::value(n)) {
        panic!("it has another value");
    }
    assert!(found == due, "{} pairs, {} are due", found.len(), due.len());
}

/// The same error where a table of the engine finds no room, and a sync meets its failure before
/// any write does.
#[test]
fn a_sync_that_finds_no_room_says_so() {
    let Some(device) = FullDevice::new(24, Duration::from_millis(19)) else { return };
    let pool = device.open();
    let options = Options::default().value_inline_bytes(1000);
    let index = pool.create("a", options).expect("new");
    let (due, _, e) = FullDevice::fill(&index, Duration::from_millis(20));
    assert_eq!(e.kind(), ErrorKind::Full, "{e}");
    assert_eq!(contents(&index), due, "reads go on");
}
