//! Operations that execute at once, on memory of this process, against posted ones.

use std::ops::Bound;

use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_engine::Options;
use dmtree_fabric::local::Knobs;
use dmtree_fabric::{OpOutcome, Snapshot};
use dmtree_parts::{Outcome, Page, Resume, ScanRequest, Write};
use dmtree_pool::PoolOptions;

/// Keys that are drawn: leaves split, shrink and are merged.
const KEYS: u64 = 3_000;
const OPS: u64 = 20_000;

/// An index with verbs that execute at once, or are posted one and all.
fn index(is_posted: bool, o: &Options) -> (TestCluster, Client) {
    let knobs = Knobs { suspend_one_in: is_posted.into(), seed: 1 };
    let pool = PoolOptions { knobs, memory_bytes_per_node: 16 << 20, ..PoolOptions::default() };
    let test_cluster = TestCluster::new(&pool, 4 << 20, o).expect("a pool and an index");
    let client = test_cluster.client(0).expect("attach");
    (test_cluster, client)
}

/// A key: one in 50 is longer than a slot has room for.
fn key(n: u64) -> Vec<u8> {
    let long = if n.is_multiple_of(50) { 40 } else { 0 };
    [format!("k{n:08}").into_bytes(), vec![b'x'; long]].concat()
}

/// The answer of an operation.
#[derive(Debug, PartialEq)]
enum Answer {
    Wrote(Outcome),
    Read(Option<Vec<u8>>),
    ReadMany(Vec<Option<Vec<u8>>>),
    Scanned(Vec<(Vec<u8>, Vec<u8>)>, Option<Resume>),
}

/// The answers and the costs of one client's operations of all kinds.
fn run(is_posted: bool, o: &Options) -> (Vec<Answer>, Snapshot) {
    let (_test_cluster, mut c) = index(is_posted, o);
    let mut rng = Rng::new(7);
    let mut answers = Vec::new();
    for _ in 0..OPS {
        let key = key(rng.below(KEYS));
        // One value in 30 is longer than a slot has room for.
        let value = vec![rng.below(2) as u8; if rng.below(30) == 0 { 100 } else { 8 }];
        let w = match rng.below(8) {
            0 | 1 => Write::Put(&value),
            2 => Write::Insert(&value),
            3 => Write::Update(&value),
            4 => Write::Delete,
            5 => Write::CompareAndSet { expected: &[1; 8], new: Some(&value) },
            6 if rng.below(4) == 0 => Write::CompareAndSet { expected: &[0; 8], new: None },
            _ if rng.below(16) == 0 => {
                let (from, limit) = (self::key(rng.below(KEYS)), 1 + rng.below(80) as usize);
                let (low, high, reverse) = match rng.below(3) {
                    0 => (Bound::Included(&from[..]), Bound::Unbounded, false),
                    1 => (Bound::Excluded(&from[..]), Bound::Included(&b"k00002500"[..]), false),
                    _ => (Bound::Unbounded, Bound::Included(&from[..]), true),
                };
                let mut page = Page::new();
                let request = ScanRequest { low, high, reverse, limit };
                let resume = c.scan(&request, &mut page).expect("works");
                let pairs = page.iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
                answers.push(Answer::Scanned(pairs.collect(), resume));
                continue;
            }
            _ if rng.below(4) == 0 => {
                let keys: Vec<_> =
                    (0..1 + rng.below(9)).map(|_| self::key(rng.below(KEYS))).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = c.get_many(&keys).expect("works");
                let found = (0..keys.len()).map(|i| found.get(i).map(<[u8]>::to_vec));
                answers.push(Answer::ReadMany(found.collect()));
                continue;
            }
            _ => {
                answers.push(Answer::Read(c.get(&key).expect("works")));
                continue;
            }
        };
        answers.push(Answer::Wrote(c.write(&key, w).expect("works")));
    }
    (answers, c.take_counts())
}

/// The verbs, bytes, round trips and doorbells of every kind and outcome, the nodes that they go
/// to, and the answers: what executes at once has those of what is posted.
#[test]
fn operations_cost_and_answer_as_posted_ones() {
    let wide = Options { value_inline_bytes: 64, ..Options::default() };
    for o in [Options::default(), wide] {
        let (direct, posted) = (run(false, &o), run(true, &o));
        assert_eq!(direct.0, posted.0);
        let outcomes: Vec<_> = posted.1.ops.iter().map(|(k, o, t)| (*k, *o, t.ops)).collect();
        let seen: Vec<_> = direct.1.ops.iter().map(|(k, o, t)| (*k, *o, t.ops)).collect();
        assert_eq!(seen, outcomes);
        assert!(outcomes.iter().any(|(_, o, _)| *o == OpOutcome::InsertSplit), "{outcomes:?}");
        assert_eq!(direct.1, posted.1);
    }
}
