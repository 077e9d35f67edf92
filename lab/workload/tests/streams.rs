//! Whole workloads: the operations that their clients draw, together and repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dmtree_workload::{
    Exhausted, KeyForm, LOADED, LoadOrder, Mix, Op, OpKind, OpStream, Plan, Seed, ValueSize,
    Workload, WorkloadSpec,
};

fn spec(workload: &str, records: u64) -> WorkloadSpec {
    WorkloadSpec { workload: Workload::named(workload).unwrap(), records, ..Default::default() }
}

type Owned = (OpKind, u64, Vec<u8>, Vec<u8>, u32);

fn owned(op: Op<'_>) -> Owned {
    (op.kind, op.record, op.key.to_vec(), op.value.to_vec(), op.len)
}

fn key(plan: &Plan, record: u64) -> Vec<u8> {
    let mut key = Vec::new();
    plan.key(record, &mut key);
    key
}

fn take(stream: &mut OpStream, count: usize) -> Vec<Owned> {
    (0..count).map_while(|_| stream.next().map(owned)).collect()
}

#[test]
fn the_same_seed_draws_the_same_and_another_does_not() {
    // Every pass is the same.
    for name in Workload::names().filter(|name| *name != "readseq") {
        let mut spec = spec(name, 5000);
        spec.distribution = "zipfian-ycsb".parse().unwrap();
        spec.value_size = ValueSize::Uniform { min: 0, max: 40 };
        let run =
            |spec: &WorkloadSpec, client| take(&mut spec.build().unwrap().stream(client), 300);
        let first = run(&spec, 1);
        assert_eq!(first.len(), 300);
        assert_eq!(first, run(&spec, 1), "{name}");
        spec.seed = Seed(43);
        assert_ne!(first, run(&spec, 1), "{name}");
        spec.seed = Seed(42);
        if name != "insert" && name != "insert-only" && name != "delete" {
            assert_ne!(first, run(&spec, 2), "{name}");
        }
    }
}

/// Compares operation by operation, so that a change of any part shows. A failure here means that
/// published seeds no longer replay.
#[test]
fn streams_are_frozen() {
    let mut hash = Vec::new();
    for name in ["ycsb-a", "ycsb-d", "ycsb-e", "delete", "search-absent"] {
        for form in ["hashed24", "u64", "random(9..=20)"] {
            let mut spec = spec(name, 2000);
            spec.keys = form.parse().unwrap();
            spec.value_size = "8..=20".parse().unwrap();
            for op in take(&mut spec.build().unwrap().stream(3), 500) {
                hash.extend_from_slice(&op.1.to_le_bytes());
                hash.extend_from_slice(&op.2);
                hash.extend_from_slice(&op.3);
                hash.extend_from_slice(&op.4.to_le_bytes());
            }
        }
    }
    assert_eq!(dmtree_workload::fnv1a(&hash), FROZEN);
}
const FROZEN: u64 = 16_973_428_252_772_818_436;

#[test]
fn clients_never_insert_the_same_record() {
    let plan = spec("ycsb-e", 1000).build().unwrap();
    let mut seen = BTreeSet::new();
    let mut streams: Vec<OpStream> = (0..12).map(|c| plan.stream(c)).collect();
    for _ in 0..2000 {
        for stream in &mut streams {
            let op = stream.next().unwrap();
            if op.kind == OpKind::Insert {
                assert!(op.record >= 1000);
                assert!(seen.insert(op.record), "{} twice", op.record);
                assert_eq!(plan.check_value(op.key, op.value), Ok(()));
            }
        }
    }
    assert!((1000..1400).contains(&seen.len()), "{}", seen.len());
}

#[test]
fn each_record_is_deleted_once_and_then_the_stream_ends() {
    let plan = spec("delete", 1000).build().unwrap();
    let mut seen = BTreeSet::new();
    let (mut a, mut b) = (plan.stream(0), plan.stream(1));
    for _ in 0..500 {
        seen.insert(a.next().unwrap().record);
        seen.insert(b.next().unwrap().record);
    }
    assert_eq!(a.next(), None);
    assert_eq!(a.exhausted(), Some(Exhausted::Deletes));
    assert_eq!((b.exhausted(), b.next()), (None, None));
    assert_eq!(seen, (0..1000).collect());
}

#[test]
fn operations_have_the_keys_and_values_of_their_records() {
    let mix = Mix {
        read: 1,
        read_absent: 1,
        insert: 1,
        update: 1,
        delete: 1,
        scan: 1,
        read_modify_write: 1,
        ..Mix::default()
    };
    for form in ["hashed24", "u64", "sequential", "random(4..=30)"] {
        let spec = WorkloadSpec {
            workload: Workload::custom("all", mix, None).unwrap(),
            distribution: "zipfian".parse().unwrap(),
            keys: form.parse().unwrap(),
            records: 4000,
            value_size: ValueSize::Uniform { min: 8, max: 64 },
            scan_length: "zipfian(5..=9)".parse().unwrap(),
            ..Default::default()
        };
        let plan = spec.build().unwrap();
        let stored: BTreeSet<_> = (0..8000).map(|record| key(&plan, record)).collect();
        let mut stream = plan.stream(0);
        let mut value = Vec::new();
        let mut kinds = BTreeMap::new();
        for _ in 0..7000 {
            let op = stream.next().unwrap();
            *kinds.entry(op.kind).or_insert(0) += 1;
            let key = key(&plan, op.record);
            match op.kind {
                OpKind::ReadAbsent => assert!(!stored.contains(op.key)),
                OpKind::Insert => {
                    assert!((4000..8000).contains(&op.record));
                    assert_ne!(op.version, LOADED);
                }
                OpKind::Scan => assert!((5..=9).contains(&op.len)),
                _ => assert!(op.record < 4000),
            }
            if op.kind != OpKind::ReadAbsent {
                assert_eq!(op.key, key);
            }
            let writes = [OpKind::Insert, OpKind::Update, OpKind::ReadModifyWrite];
            if writes.contains(&op.kind) {
                plan.value(op.record, &key, op.version, &mut value);
                assert_eq!(op.value, value);
                assert_eq!(plan.check_value(&key, op.value), Ok(()));
                assert!(plan.check_value(b"another", op.value).is_err());
            }
        }
        assert_eq!(kinds.len(), 7);
        assert!(kinds.values().all(|&count| (850..1150).contains(&count)), "{kinds:?}");
    }
}

#[test]
fn streams_do_not_grow_their_buffers() {
    let mut spec = spec("ycsb-a", 1000);
    spec.keys = "random(1..=60)".parse::<KeyForm>().unwrap();
    spec.records = 100;
    spec.value_size = "0..=500".parse().unwrap();
    let plan = spec.build().unwrap();
    let mut stream = plan.stream(0);
    let mut places = BTreeSet::new();
    for _ in 0..5000 {
        places.insert(stream.next().unwrap().key.as_ptr() as usize);
    }
    assert_eq!(places.len(), 1);
}

#[test]
fn latest_reads_what_was_inserted() {
    let spec = spec("ycsb-d", 1000);
    let plan = spec.build().unwrap();
    assert_eq!(plan.spec.distribution.to_string(), "latest");
    let mut stream = plan.stream(0);
    let (mut stored, mut recent, mut reads) = (1000, 0, 0);
    for _ in 0..20_000 {
        let op = stream.next().unwrap();
        if op.kind == OpKind::Insert {
            assert_eq!(op.record, stored);
            stored += 1;
        } else {
            assert_eq!(op.kind, OpKind::Read);
            assert!(op.record < stored, "{} is not stored yet", op.record);
            reads += 1;
            recent += u32::from(op.record + 10 >= stored);
        }
    }
    // The ten latest of 1000: the sum of k^-0.99 to 10 over that to 1000 is 0.39.
    let share = f64::from(recent) / f64::from(reads);
    assert!((0.37..0.41).contains(&share), "{share}");
}

#[test]
fn loads_are_complete_in_either_order() {
    for form in ["hashed24", "u64", "sequential", "random(2..=9)"] {
        let spec = WorkloadSpec { keys: form.parse().unwrap(), records: 3000, ..spec("search", 0) };
        let plan = spec.build().unwrap();
        let random = plan.load(LoadOrder::Random);
        let halves: Vec<u64> = random.records(0..1500).chain(random.records(1500..9999)).collect();
        assert_eq!(halves.iter().copied().collect::<BTreeSet<_>>(), (0..3000).collect());
        assert!(!halves.is_sorted());
        let sorted = plan.load(LoadOrder::Sorted);
        let keys: Vec<_> = sorted.records(0..9999).map(|record| key(&plan, record)).collect();
        assert!(keys.len() == 3000 && keys.is_sorted_by(|a, b| a < b), "{form}");
    }
}

#[test]
fn a_key_file_is_loaded_then_inserted_then_used_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.txt");
    let lines: String = (0..50).map(|i| format!("city-{:02}\n", (i * 7) % 50)).collect();
    std::fs::write(&path, lines).unwrap();
    let mut spec = spec("insert", 40);
    spec.keys = KeyForm::File(path);
    let plan = spec.build().unwrap();
    let mut stream = plan.stream(0);
    let inserted: Vec<Vec<u8>> =
        std::iter::from_fn(|| stream.next().map(|op| op.key.to_vec())).collect();
    let due: Vec<Vec<u8>> =
        (40..50).map(|i| format!("city-{:02}", (i * 7) % 50).into_bytes()).collect();
    assert_eq!(inserted, due);
    assert_eq!(stream.exhausted(), Some(Exhausted::Inserts));
    spec.records = 51;
    let why = spec.build().unwrap_err().to_string();
    assert!(why.contains("51 records are more than the 50"), "{why}");
}

#[test]
fn an_empty_index_takes_inserts_only() {
    let empty = spec("insert", 0).build().unwrap();
    assert_eq!(empty.stream(0).next().map(|op| op.record), Some(0));
    assert_eq!(empty.load(LoadOrder::Random).records(0..1).count(), 0);
    assert!(spec("ycsb-e", 0).build().unwrap_err().to_string().contains("no records"));
}

#[test]
fn settings_survive_files_and_bad_ones_are_refused() {
    let text = r#"
        workload = { name = "mine", mix = { read = 1, scan = 3 }, distribution = "latest" }
        distribution = "zipfian-ycsb(0.9)"
        nominal = 1000000
        keys = "random(16..=32)"
        records = 5000
        value-size = 100
        scan-length = 7
        seed = 9
    "#;
    let read: WorkloadSpec = toml::from_str(text).unwrap();
    assert_eq!(read.value_size, ValueSize::Fixed(100));
    assert_eq!(read.workload.mix().scan, 3);
    assert_eq!(read.build().unwrap().spec.distribution.to_string(), "latest");
    for again in [read, WorkloadSpec::default()] {
        let toml: WorkloadSpec = toml::from_str(&toml::to_string(&again).unwrap()).unwrap();
        let json: WorkloadSpec =
            serde_json::from_str(&serde_json::to_string(&again).unwrap()).unwrap();
        assert_eq!((&toml, &json), (&again, &again));
    }
    for (bad, why) in [
        ("workload = \"ycsb-z\"", "ycsb-f"),
        ("record = 5", "unknown field"),
        ("workload = { name = \"m\", mix = { reads = 5 } }", "unknown field"),
        ("workload = { name = \"m\", mix = { } }", "no operations"),
        ("distribution = \"zipf\"", "zipfian-exact"),
        ("value-size = -1", "value size"),
        ("keys = 5", "key form"),
    ] {
        let message = toml::from_str::<WorkloadSpec>(bad).unwrap_err().to_string();
        assert!(message.contains(why), "{bad}: {message}");
    }
    let fine = spec("search", 129);
    for (bad, why) in [
        (WorkloadSpec { nominal: Some(99), ..fine.clone() }, "nominal"),
        (WorkloadSpec { keys: KeyForm::Random { min: 0, max: 4 }, ..fine.clone() }, "key lengths"),
        (WorkloadSpec { keys: KeyForm::Random { min: 1, max: 4 }, ..fine.clone() }, "than the 128"),
        (WorkloadSpec { value_size: ValueSize::Uniform { min: 9, max: 8 }, ..fine }, "value size"),
    ] {
        let message = bad.build().unwrap_err().to_string();
        assert!(message.contains(why), "{bad:?}: {message}");
    }
}

/// Clients on threads share a plan.
#[test]
#[allow(clippy::disallowed_methods)] // threads are what is tested
fn plans_are_shared_between_threads() {
    let plan = spec("ycsb-d", 1000).build().unwrap();
    let threads: Vec<_> = (0..3)
        .map(|client| {
            let plan: Arc<Plan> = plan.clone();
            std::thread::spawn(move || {
                let mut stream = plan.stream(client);
                let ops = take(&mut stream, 5000);
                stream.acknowledge();
                let inserts = ops.into_iter().filter(|op| op.0 == OpKind::Insert);
                inserts.map(|op| op.1).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut inserted: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    inserted.sort_unstable();
    assert_eq!(inserted, (1000..1000 + inserted.len() as u64).collect::<Vec<_>>());
    assert_eq!(plan.inserts().acknowledged(), inserted.len() as u64);
}

/// Every kind of operation stays in its slice; the slices cover the key space, and no two meet.
#[test]
fn streams_of_slices_do_not_meet() {
    for form in ["hashed24", "u64", "random(9..=20)", "sequential"] {
        for name in Workload::names().filter(|name| *name != "readseq") {
            let spec = WorkloadSpec { slices: 3, keys: form.parse().unwrap(), ..spec(name, 900) };
            let Ok(plan) = spec.build() else {
                assert_eq!(form, "sequential", "{name}");
                continue;
            };
            let mut slices: Vec<BTreeSet<Vec<u8>>> = (0..3)
                .map(|slice| {
                    let mut stream = plan.stream_of(slice, slice);
                    take(&mut stream, 2000).into_iter().map(|op| op.2).collect()
                })
                .collect();
            slices.iter().for_each(|keys| assert!(keys.len() > 100, "{form} {name}"));
            slices.sort_by(|a, b| a.first().cmp(&b.first()));
            for pair in slices.windows(2) {
                assert!(pair[0].last() < pair[1].first(), "{form} {name}");
            }
        }
    }
}

/// Each benchmark of db_bench draws numbers of its own, of all below the number of operations.
#[test]
fn phases_draw_numbers_of_their_own() {
    let records = 20_000;
    let ops = |name: &str, count| {
        let keys = KeyForm::DbBench;
        let plan = WorkloadSpec { keys, ..spec(name, records) }.build().unwrap();
        take(&mut plan.stream(0), count)
    };
    let numbers = |name| ops(name, records as usize).iter().map(|op| op.1).collect::<Vec<_>>();
    let (filled, read) = (numbers("fillrandom"), numbers("readrandom"));
    assert_ne!(filled, read);
    let filled: BTreeSet<u64> = filled.into_iter().collect();
    assert!(filled.iter().all(|n| *n < records));
    let found = read.iter().filter(|n| filled.contains(n)).count() as f64 / records as f64;
    assert!((found - 0.632).abs() < 0.01, "{found} of the reads find a key");
    for reads in [0, 30, 100] {
        let kinds: Vec<_> = ops(&format!("readrandomwriterandom({reads})"), 250);
        for (i, (kind, _, key, value, _)) in kinds.iter().enumerate() {
            assert_eq!(*kind, if i % 100 < reads { OpKind::Get } else { OpKind::Put }, "{i}");
            assert!(key.len() == 20 && value.is_empty() == (*kind == OpKind::Get));
        }
    }
    let (kind, _, key, _, len) = ops("readseq", 1).remove(0);
    assert!(kind == OpKind::Pass && key.is_empty() && len > 1000);
}

/// Folding keeps the law: the popular keys of a slice are as hot as those of the whole.
#[test]
fn the_distribution_within_a_slice_is_kept() {
    let hottest = |slices: u32, slice: u32| {
        let distribution = "zipfian".parse().unwrap();
        let spec = WorkloadSpec { slices, distribution, ..spec("search", 40_000) };
        let mut hits = BTreeMap::<u64, u32>::new();
        let mut stream = spec.build().unwrap().stream_of(7, slice);
        (0..200_000).for_each(|_| *hits.entry(stream.next().unwrap().record).or_default() += 1);
        let mut hits: Vec<u32> = hits.into_values().collect();
        hits.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
        [1, 10, 100].map(|n| f64::from(hits[..n].iter().sum::<u32>()) / 200_000.0)
    };
    let whole = hottest(1, 0);
    for slice in 0..4 {
        for (here, there) in hottest(4, slice).iter().zip(whole) {
            assert!((here / there - 1.0).abs() < 0.05, "{here} {there}");
        }
    }
    let uniform = WorkloadSpec { slices: 4, ..spec("search", 40_000) };
    let plan = uniform.build().unwrap();
    let mut stream = plan.stream_of(0, 3);
    let drawn: BTreeSet<u64> = (0..200_000).map(|_| stream.next().unwrap().record).collect();
    let loaded = plan.loaded_in(3).unwrap().iter().copied().collect();
    assert_eq!(drawn, loaded, "every key of the slice");
}

#[test]
fn slices_without_keys_are_refused() {
    let refused = |spec: WorkloadSpec, words: &str| {
        let e = spec.build().unwrap_err().to_string();
        assert!(e.contains(words) && spec.check_slices().is_err(), "{e}");
    };
    refused(WorkloadSpec { slices: 0, ..spec("search", 10) }, "0 slices");
    refused(WorkloadSpec { slices: 11, ..spec("search", 10) }, "11 slices of 10 records");
    let sequential = WorkloadSpec { keys: KeyForm::Sequential, ..spec("insert", 10) };
    refused(WorkloadSpec { slices: 2, ..sequential }, "another key form");
}
