//! The calls that users of maps know give what `BTreeMap` gives.

use std::collections::BTreeMap;

use dmtree::{ErrorKind, Index, LoadOrder, OpKind, Options, Outcome, Pool, Result, Session};
use proptest::prelude::*;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn index() -> (Pool, Index) {
    let pool = Pool::embedded().memory("16MiB").open().expect("a pool");
    let index = pool.create("pairs", Options::default()).expect("a new index");
    (pool, index)
}

fn all<T>(pairs: impl Iterator<Item = Result<T>>) -> Vec<T> {
    pairs.collect::<Result<_>>().expect("a scan")
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..4, 1..4)
}

/// In a slot, or so long that it lies in a block.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![bytes(), any::<u8>().prop_map(|b| vec![b; 700])]
}

#[derive(Clone, Debug)]
enum Call {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Add(Vec<u8>, i64),
    PopFirst,
    PopLast,
    GetOrInsert(Vec<u8>, Vec<u8>),
    Append(Vec<u8>, u8),
    Take(Vec<u8>),
    Replace(Vec<u8>, Vec<u8>),
    CompareAndSwap(Vec<u8>, Vec<u8>, Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Retain(u8),
    Clear,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        12 => (bytes(), bytes()).prop_map(|(k, v)| Call::Put(k, v)),
        2 => (bytes(), bytes()).prop_map(|(k, v)| Call::Insert(k, v)),
        2 => bytes().prop_map(Call::Delete),
        2 => (bytes(), any::<i64>()).prop_map(|(k, n)| Call::Add(k, n)),
        1 => Just(Call::PopFirst),
        1 => Just(Call::PopLast),
        2 => (bytes(), bytes()).prop_map(|(k, v)| Call::GetOrInsert(k, v)),
        2 => (bytes(), any::<u8>()).prop_map(|(k, b)| Call::Append(k, b)),
        2 => bytes().prop_map(Call::Take),
        4 => (bytes(), value()).prop_map(|(k, v)| Call::Replace(k, v)),
        4 => (bytes(), bytes(), value()).prop_map(|(k, v, new)| Call::CompareAndSwap(k, v, new)),
        1 => (bytes(), bytes()).prop_map(|(a, b)| Call::DeleteRange(a.clone().min(b.clone()), a.max(b))),
        1 => (0u8..4).prop_map(Call::Retain),
        1 => Just(Call::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// The 19 names that users of `BTreeMap` and of embedded stores try first: `get`, `contains`,
    /// `insert`, `iter`, `range`, `prefix`, `keys`, `values`, `first`, `last`, `pop_first`,
    /// `pop_last`, `len`, `is_empty`, `get_or_insert`, `fetch_update`, `delete_range`, `retain`,
    /// `clear`; and `put`, `delete`, `fetch_add`, `replace`, `take`, `compare_and_swap`.
    #[test]
    fn they_give_what_a_map_gives(calls in proptest::collection::vec(call(), 0..120)) {
        let (_pool, index) = index();
        let mut model = Pairs::new();
        for call in calls {
            match call {
                Call::Put(k, v) => {
                    index.put(&k, &v).expect("put");
                    model.insert(k, v);
                }
                Call::Insert(k, v) => {
                    let done = index.insert(&k, &v).expect("insert") == Outcome::Done;
                    prop_assert_eq!(done, !model.contains_key(&k));
                    model.entry(k).or_insert(v);
                }
                Call::Delete(k) => {
                    let done = index.delete(&k).expect("delete") == Outcome::Done;
                    prop_assert_eq!(done, model.remove(&k).is_some());
                    prop_assert!(!index.contains(&k).expect("read"));
                    prop_assert_eq!(index.get(&k).expect("read"), None);
                }
                Call::Add(k, n) => {
                    let old = model.get(&k).map_or(Some(0), |old| {
                        Some(i64::from_le_bytes(old[..].try_into().ok()?))
                    });
                    prop_assert_eq!(index.fetch_add(&k, n).ok(), old, "an error if it is no counter");
                    if let Some(old) = old {
                        model.insert(k, old.wrapping_add(n).to_le_bytes().to_vec());
                    }
                }
                Call::PopFirst => prop_assert_eq!(index.pop_first().expect("pop"), model.pop_first()),
                Call::PopLast => prop_assert_eq!(index.pop_last().expect("pop"), model.pop_last()),
                Call::GetOrInsert(k, v) => {
                    let found = index.get_or_insert(&k, &v).expect("got");
                    prop_assert_eq!(&found, model.entry(k).or_insert(v));
                }
                Call::Append(k, b) => {
                    let append = |old: Option<&[u8]>| Some([old.unwrap_or(&[]), &[b]].concat());
                    let old = index.fetch_update(&k, append).expect("updated");
                    prop_assert_eq!(old.as_ref(), model.get(&k));
                    model.entry(k).or_default().push(b);
                }
                Call::Take(k) => {
                    let old = index.take(&k).expect("taken");
                    prop_assert_eq!(old, model.remove(&k));
                }
                Call::Replace(k, v) => {
                    let old = index.replace(&k, &v).expect("replaced");
                    prop_assert_eq!(old, model.insert(k, v));
                }
                Call::CompareAndSwap(k, expected, new) => {
                    let old = index.compare_and_swap(&k, &expected, &new).expect("swapped");
                    prop_assert_eq!(old.as_ref(), model.get(&k));
                    if old.is_some_and(|old| old == expected) {
                        model.insert(k, new);
                    }
                }
                Call::DeleteRange(a, b) => {
                    let deleted = index.delete_range(&a[..]..&b[..]).expect("deleted");
                    let before = model.len();
                    model.retain(|k, _| !(&a..&b).contains(&k));
                    prop_assert_eq!(deleted as usize, before - model.len());
                }
                Call::Retain(least) => {
                    let removed = index.retain(|_, v| v[0] >= least).expect("retained");
                    let before = model.len();
                    model.retain(|_, v| v[0] >= least);
                    prop_assert_eq!(removed as usize, before - model.len());
                }
                Call::Clear => {
                    index.clear().expect("cleared");
                    model.clear();
                }
            }
            prop_assert_eq!(index.len().expect("len") as usize, model.len());
            prop_assert_eq!(index.is_empty().expect("is_empty"), model.is_empty());
            let owned = |(k, v): (&Vec<u8>, &Vec<u8>)| (k.clone(), v.clone());
            prop_assert_eq!(index.first().expect("first"), model.first_key_value().map(owned));
            prop_assert_eq!(index.last().expect("last"), model.last_key_value().map(owned));
        }
        for (key, value) in &model {
            prop_assert_eq!(index.get(key).expect("read"), Some(value.clone()));
            prop_assert!(index.contains(key).expect("read"));
        }
        prop_assert_eq!(all(index.keys()), model.keys().cloned().collect::<Vec<_>>());
        prop_assert_eq!(all(index.values()), model.values().cloned().collect::<Vec<_>>());
        let from_one: Vec<_> = model.range(vec![1]..).map(|(k, v)| (k.clone(), v.clone())).collect();
        prop_assert_eq!(all(index.range([1u8].as_slice()..)), from_one);
        let ones = model.iter().filter(|(k, _)| k.starts_with(&[1]));
        let ones: Vec<_> = ones.map(|(k, v)| (k.clone(), v.clone())).collect();
        prop_assert_eq!(all(index.prefix([1])), ones);
        prop_assert_eq!(all(index.iter()), model.into_iter().collect::<Vec<_>>());
    }
}

/// Callers at once: no addition is lost, each popped pair has one owner, one value is inserted.
#[test]
fn calls_at_once_are_atomic() {
    let (_pool, index) = index();
    for n in 0..400u32 {
        index.put(n.to_be_bytes(), "x").expect("put");
    }
    let popped = std::thread::scope(|scope| {
        let work = |thread: u8| {
            let index = index.clone();
            scope.spawn(move || {
                let mut popped = Vec::new();
                for _ in 0..100 {
                    index.fetch_add("\u{ff}counter", 3).expect("added");
                    popped.extend(index.pop_first().expect("popped"));
                }
                let got = index.get_or_insert("\u{ff}one", [thread]).expect("got");
                (popped, got)
            })
        };
        let running: Vec<_> = (0..3).map(work).collect();
        running.into_iter().map(|t| t.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(index.fetch_add("\u{ff}counter", 0).expect("read"), 3 * 3 * 100);
    assert!(popped.iter().all(|(_, got)| *got == popped[0].1));
    let mut keys: Vec<_> = popped.into_iter().flat_map(|(popped, _)| popped).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 300);
    let e = index.fetch_add("\u{ff}one", 1).expect_err("it is no counter");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Pairs from both ends in any order are those of a map, and the rest is what a cursor keeps.
    #[test]
    fn pairs_come_from_both_ends(
        keys in proptest::collection::btree_set(bytes(), 0..40),
        (a, b) in (bytes(), bytes()),
        ends in proptest::collection::vec(any::<bool>(), 0..50),
        page in 1usize..6,
        limit in 0u64..50,
        rev: bool,
        keeps in 0usize..50,
    ) {
        let (_pool, index) = index();
        for key in &keys {
            index.put(key, "v").expect("put");
        }
        let (low, high) = (a.clone().min(b.clone()), a.max(b));
        let scan = index.scan(&low[..]..=&high[..]).page_size(page).limit(limit);
        let mut pairs = if rev { scan.rev() } else { scan }.pairs();
        let mut model: Vec<_> = keys.range(low..=high).cloned().collect();
        if rev {
            model.reverse();
        }
        let mut model = std::collections::VecDeque::from(model);
        let mut left = limit;
        for (i, from_back) in ends.into_iter().enumerate() {
            if i == keeps {
                pairs = index.resume(pairs.cursor()).expect("a cursor").pairs();
            }
            let wanted = match (left, from_back) {
                (0, _) => None,
                (_, true) => model.pop_back(),
                (_, false) => model.pop_front(),
            };
            left -= u64::from(wanted.is_some());
            let found = if from_back { pairs.next_back() } else { pairs.next() };
            prop_assert_eq!(found.map(|pair| pair.expect("a scan").0), wanted);
        }
        prop_assert_eq!(all(pairs).len() as u64, left.min(model.len() as u64));
        prop_assert_eq!(all(index.keys().rev()), keys.into_iter().rev().collect::<Vec<_>>());
    }
}

/// Each value that was set is what one other call has found, or is there in the end: also while
/// writers of the key share their verbs.
#[test]
fn every_value_is_the_former_one_of_one_other() {
    let (_pool, index) = index();
    let threads = 4u32;
    let found: Vec<Vec<u8>> = std::thread::scope(|s| {
        let worker = |thread: u32| {
            let index = index.clone();
            s.spawn(move || {
                let mut found = Vec::new();
                for n in 0..2_000u32 {
                    let value = (n << 3 | thread).to_be_bytes();
                    let old = match n % 4 {
                        3 => index.take("key"),
                        _ => index.replace("key", value),
                    };
                    found.extend(old.expect("a former value"));
                }
                found
            })
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a thread")).collect()
    });
    let mut seen: Vec<_> = found.into_iter().chain(index.get("key").expect("get")).collect();
    seen.sort();
    let set =
        (0..2_000u32).filter(|n| n % 4 != 3).flat_map(|n| (0..threads).map(move |t| n << 3 | t));
    let mut set: Vec<_> = set.map(|n| n.to_be_bytes().to_vec()).collect();
    set.sort();
    assert_eq!(seen, set);
}

/// A former value costs no verb more than the write.
#[test]
fn former_values_cost_nothing() {
    let (_pool, index) = index();
    index
        .load((0..1_000u32).map(|n| (n.to_be_bytes().to_vec(), b"v".to_vec())), LoadOrder::Sorted)
        .expect("room");
    let costs = |kind, call: &dyn Fn(&mut Session, &[u8])| {
        let total = || {
            let total = index.stats().expect("stats").costs.total(&[kind]);
            [total.ops, total.counts.mn.verbs(), total.counts.cn.verbs()]
        };
        let before = total();
        let mut session = index.session().expect("a session");
        (100..900u32).for_each(|n| call(&mut session, &n.to_be_bytes()));
        drop(session);
        let after = total();
        [0, 1, 2].map(|i| after[i] - before[i])
    };
    let put = |s: &mut Session, k: &[u8]| _ = s.put(k, b"w").expect("put");
    // The first pass learns fingerprints.
    costs(OpKind::Put, &put);
    let put = costs(OpKind::Put, &put);
    let replace = |s: &mut Session, k: &[u8]| assert!(s.replace(k, b"x").expect("put").is_some());
    assert_eq!(put[0], 800);
    assert_eq!(costs(OpKind::Put, &replace), put);
    let set = |s: &mut Session, k: &[u8]| _ = s.compare_and_set(k, b"x", b"y").expect("set");
    let set = costs(OpKind::CompareAndSet, &set);
    let swap = |s: &mut Session, k: &[u8]| _ = s.compare_and_swap(k, b"y", b"z").expect("set");
    assert_eq!(costs(OpKind::CompareAndSet, &swap), set);
}

#[test]
fn an_estimate_is_near_the_count() {
    let (_pool, index) = index();
    let near = |keys: u64| {
        let estimate = index.len_estimate().expect("an estimate");
        assert_eq!(index.len().expect("a count"), keys);
        assert!(estimate.abs_diff(keys) <= keys / 5, "{estimate} of {keys} keys");
    };
    near(0);
    index.put("one", "1").expect("put");
    near(1);
    index.clear().expect("cleared");
    let key = |n: u32| (n.wrapping_mul(0x9e37_79b1)).to_be_bytes();
    index
        .load((0..50_000).map(|n| (key(n).to_vec(), b"v".to_vec())), LoadOrder::Unsorted)
        .expect("room");
    near(50_000);
    (0..50_000).step_by(3).for_each(|n| _ = index.delete(key(n)).expect("deleted"));
    near(33_333);
}
