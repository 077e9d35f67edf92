//! The behaviour that every index must have, checked against a `BTreeMap`. Each function runs on a
//! test cluster of its own; an index's test file calls them with its options. An operation that the
//! index lacks ([`TestCluster::ops`]) is called only once, to be refused. An index without
//! [`dmtree_parts::OpSet::any_length`] gets keys of the family's one length and values of 8 bytes.

mod at_once;

pub use at_once::snapshots_and_batches;

use std::collections::BTreeMap;
use std::ops::Bound;

use dmtree_fabric::ErrorKind;
use dmtree_parts::fill::distance;
use dmtree_parts::{Fill, OpSet, Outcome, Page, ScanRequest, Write};

use crate::rng::Rng;
use crate::test_cluster::{Client, TestCluster};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A family of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// A few bytes from a small alphabet: prefixes of each other, neighbours, repetitions.
    Short,
    /// The published form: 24 decimal digits, hashed.
    Hashed24,
    /// 8 bytes, ascending.
    Ascending,
    /// 8 bytes; seven in eight keys lie in a thousandth of the space.
    Clustered,
    /// 40 common bytes, then a few.
    LongPrefix,
    /// Any length from 1 to 1024, any bytes.
    AnyLength,
}

impl Keys {
    /// Key number `n` of the family; the same number gives the same key.
    pub fn key(self, n: u64) -> Vec<u8> {
        let mut rng = Rng::new(n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        match self {
            Self::Short => {
                let len = 1 + n % 5;
                (0..len).map(|_| rng.of(&[0u8, 1, 0x61, 0x62, 0xff])).collect()
            }
            Self::Hashed24 => format!("{:024}", rng.next_u64()).into_bytes(),
            Self::Ascending => n.to_be_bytes().to_vec(),
            Self::Clustered => {
                let (any, some) = (rng.next_u64(), rng.below(u64::MAX / 1000));
                let key = if n.is_multiple_of(8) { any } else { u64::MAX / 3 + some };
                key.to_be_bytes().to_vec()
            }
            Self::LongPrefix => {
                let mut key = vec![b'p'; 40];
                key.extend_from_slice(&n.to_be_bytes()[5..]);
                if n.is_multiple_of(3) {
                    key.extend_from_slice(&[0; 3]);
                }
                key
            }
            Self::AnyLength => {
                let len = match n % 4 {
                    0 => 1 + rng.below(24),
                    1 => 20 + rng.below(10),
                    2 => 1 + rng.below(200),
                    _ => 1 + rng.below(1024),
                };
                (0..len).map(|_| rng.next_u64() as u8).collect()
            }
        }
    }
}

/// A value: mostly small, sometimes empty, sometimes long.
pub fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => 0,
        1 => rng.below(9),
        2 => 9 + rng.below(60),
        3 => 64 + rng.below(4000),
        _ => 8,
    };
    let mut out = rng.next_u64().to_le_bytes().to_vec();
    out.resize(len as usize, out[0]);
    out
}

/// A value that the index takes.
fn value_for(rng: &mut Rng, ops: OpSet) -> Vec<u8> {
    if ops.any_length { value(rng) } else { rng.next_u64().to_le_bytes().to_vec() }
}

/// By how much long runs are shorter: `DMTREE_STEPS_DIVISOR`, for fabrics with slow verbs. Without
/// the variable: 1, and 12 in a debug build.
fn steps_divisor() -> u64 {
    let divisor = std::env::var("DMTREE_STEPS_DIVISOR").ok().and_then(|d| d.parse().ok());
    let usual = if cfg!(debug_assertions) { 12 } else { 1 };
    divisor.unwrap_or(usual).max(1)
}

/// Whether long runs leave nothing out.
pub(crate) fn is_whole() -> bool {
    steps_divisor() == 1
}

/// A long run, as long as it is here.
pub(crate) fn divided(n: u64) -> u64 {
    n.div_ceil(steps_divisor())
}

/// The steps of a long run. [`parts`] are not scaled.
pub fn scaled(n: u64) -> u64 {
    divided(n).max(n.min(100))
}

/// The write itself, or a put in its place where the index lacks it.
fn possible<'a>(w: Write<'a>, value: &'a [u8], ops: OpSet) -> Write<'a> {
    match w {
        Write::Delete if !ops.delete => Write::Put(value),
        Write::CompareAndSet { .. } if !ops.compare_and_set => Write::Put(value),
        w => w,
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, step: u64, found: T, wanted: T) {
    assert!(found == wanted, "step {step}: {what}: found {found:?}, wanted {wanted:?}");
}

const ALL: ScanRequest<'static> = everything(100);

/// Random operations of clients on all compute nodes, one at a time, against a model; scans and
/// batches among them; maintenance now and then; at the end the structure is walked.
pub fn model(test_cluster: &TestCluster, seed: u64, keys: Keys, space: u64, steps: u64) {
    let mut clients: Vec<Client> =
        (0..test_cluster.places()).map(|cn| test_cluster.client(cn).expect("attach")).collect();
    let (rng, model) = (Rng::new(seed), Model::new());
    clients[0].foretell((0..space).map(|n| keys.key(n))).expect("foretell");
    let ops = test_cluster.ops();
    let mut run = ModelRun { rng, model, keys, ops, space, step: 0 };
    for step in 0..steps {
        run.step = step;
        let c = &mut clients[run.rng.below(test_cluster.places() as u64) as usize];
        let key = run.key();
        // Waves: growing for a while, then shrinking.
        let growing = (step * 6 / steps).is_multiple_of(2);
        match run.rng.below(20) {
            0..=5 => expect("get", step, c.get(&key).expect("get"), run.model.get(&key).cloned()),
            6 => run.scan(c),
            7 => run.get_many(c),
            8 => run.write_many(c),
            9 => c.maintain().expect("maintain"),
            _ => run.write(c, &key, growing),
        }
    }
    for c in &mut clients {
        c.maintain().expect("maintain");
    }
    let all = scan_all(&mut clients[0], &ScanRequest { limit: 37, ..ALL });
    assert!(all.into_iter().eq(run.model.clone()), "a last scan");
    let shape = clients[0].walk().expect("every invariant holds");
    assert_eq!(shape.keys, run.model.len() as u64);
}

/// A run of random operations.
struct ModelRun {
    rng: Rng,
    model: Model,
    keys: Keys,
    ops: OpSet,
    space: u64,
    step: u64,
}

impl ModelRun {
    fn key(&mut self) -> Vec<u8> {
        self.keys.key(self.rng.below(self.space))
    }

    fn write(&mut self, c: &mut Client, key: &[u8], growing: bool) {
        let v = value_for(&mut self.rng, self.ops);
        let w = match self.rng.below(10) {
            0..=2 => Write::Put(&v),
            3 => Write::Update(&v),
            4..=6 if growing => Write::Insert(&v),
            4..=8 => Write::Delete,
            _ => Write::CompareAndSet { expected: &v, new: Some(b"not this") },
        };
        let w = possible(w, &v, self.ops);
        let was_present = self.model.contains_key(key);
        let wanted = apply(&mut self.model, key, &w);
        expect("write", self.step, c.write(key, w).expect("write"), wanted);
        if was_present
            && self.step % 10 == 9
            && self.ops.compare_and_set
            && let Some(now) = self.model.get(key).cloned()
        {
            let new = (self.step % 20 == 9).then_some(&v[..]);
            let w = Write::CompareAndSet { expected: &now, new };
            let wanted = apply(&mut self.model, key, &w);
            assert_eq!(wanted, Outcome::Done);
            expect("compare_and_set", self.step, c.write(key, w).expect("cas"), wanted);
        }
    }

    fn scan(&mut self, c: &mut Client) {
        let (mut a, mut b) = (self.key(), self.key());
        if a > b {
            std::mem::swap(&mut a, &mut b);
        }
        let mut bound = |key| match self.rng.below(4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        };
        let (low, high) = (bound(&a[..]), bound(&b[..]));
        let reverse = self.ops.reverse_scan && self.rng.below(2) == 0;
        let limit = 1 + self.rng.below(60) as usize;
        let r = ScanRequest { low, high, reverse, limit };
        let found = scan_all(c, &r);
        let within = self.model.iter().filter(|(k, _)| r.contains(k));
        let mut wanted: Vec<_> = within.map(|(k, v)| (k.clone(), v.clone())).collect();
        if reverse {
            wanted.reverse();
        }
        let (step, n, m) = (self.step, found.len(), wanted.len());
        assert!(found == wanted, "step {step}: {r:?}: {n} pairs, wanted {m}");
    }

    fn get_many(&mut self, c: &mut Client) {
        let wanted: Vec<Vec<u8>> = (0..self.rng.below(70)).map(|_| self.key()).collect();
        let refs: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let values = c.get_many(&refs).expect("get_many");
        for (i, key) in wanted.iter().enumerate() {
            expect("get_many", self.step, values.get(i), self.model.get(key).map(Vec::as_slice));
        }
    }

    fn write_many(&mut self, c: &mut Client) {
        let n = 1 + self.rng.below(40);
        let pairs: Vec<(Vec<u8>, Vec<u8>, u64)> = (0..n)
            .map(|_| (self.key(), value_for(&mut self.rng, self.ops), self.rng.below(4)))
            .collect();
        let writes: Vec<(&[u8], Write<'_>)> = pairs
            .iter()
            .map(|(k, v, kind)| {
                let w = match kind {
                    0 => Write::Put(v),
                    1 => Write::Insert(v),
                    2 => Write::Update(v),
                    _ => Write::Delete,
                };
                (&k[..], possible(w, v, self.ops))
            })
            .collect();
        let outcomes = c.write_many(&writes).expect("write_many");
        assert_eq!(outcomes.len(), writes.len());
        for ((key, w), outcome) in writes.iter().zip(outcomes) {
            let wanted = apply(&mut self.model, key, w);
            expect("write_many", self.step, outcome.expect("write"), wanted);
        }
    }
}

fn apply(model: &mut Model, key: &[u8], w: &Write<'_>) -> Outcome {
    let present = model.get(key).cloned();
    let outcome = match (w, &present) {
        (Write::Insert(_), Some(_)) => Outcome::Exists,
        (Write::Update(_) | Write::Delete | Write::CompareAndSet { .. }, None) => Outcome::NotFound,
        (Write::CompareAndSet { expected, .. }, Some(now)) if *expected != &now[..] => {
            Outcome::Mismatch
        }
        _ => Outcome::Done,
    };
    if outcome == Outcome::Done {
        match w.value() {
            Some(v) => model.insert(key.to_vec(), v.to_vec()),
            None => model.remove(key),
        };
    }
    outcome
}

/// A scan of all keys, upwards, in pages of so many.
pub const fn everything(limit: usize) -> ScanRequest<'static> {
    ScanRequest { low: Bound::Unbounded, high: Bound::Unbounded, reverse: false, limit }
}

/// The same from a key on.
pub fn above(low: &[u8], limit: usize) -> ScanRequest<'_> {
    ScanRequest { low: Bound::Included(low), ..everything(limit) }
}

/// All pages of a scan.
pub fn scan_all(c: &mut Client, r: &ScanRequest<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    let mut page = Page::new();
    let mut resume = None;
    loop {
        resume = c.scan(&r.after(resume.as_ref()), &mut page).expect("scan");
        assert!(page.len() <= r.limit, "a page keeps its limit");
        out.extend(page.iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
        if resume.is_none() {
            return out;
        }
    }
}

/// The empty index, the first key, every outcome of every operation.
pub fn basics(test_cluster: &TestCluster) {
    match test_cluster.ops().any_length {
        true => basics_of_any_length(test_cluster),
        false => basics_of_fixed_lengths(test_cluster),
    }
}

fn basics_of_any_length(test_cluster: &TestCluster) {
    let c = &mut test_cluster.client(0).expect("attach");
    assert_eq!(c.get(b"k").expect("get"), None);
    assert_eq!(scan_all(c, &ALL), []);
    assert_eq!(c.write(b"k", Write::Update(b"1")).expect("update"), Outcome::NotFound);
    assert_eq!(c.write(b"k", Write::Delete).expect("delete"), Outcome::NotFound);
    assert_eq!(c.write(b"k", Write::Insert(b"1")).expect("insert"), Outcome::Done);
    assert_eq!(c.write(b"k", Write::Insert(b"2")).expect("insert"), Outcome::Exists);
    assert_eq!(c.get(b"k").expect("get").as_deref(), Some(&b"1"[..]));
    let cas = |expected: &'static [u8], new| Write::CompareAndSet { expected, new };
    assert_eq!(c.write(b"k", cas(b"2", Some(b"3"))).expect("cas"), Outcome::Mismatch);
    assert_eq!(c.write(b"k", cas(b"1", Some(b"3"))).expect("cas"), Outcome::Done);
    assert_eq!(c.write(b"x", cas(b"1", Some(b"3"))).expect("cas"), Outcome::NotFound);
    assert_eq!(c.write(b"k", Write::Put(b"")).expect("put"), Outcome::Done);
    assert_eq!(c.get(b"k").expect("get").as_deref(), Some(&b""[..]), "the empty value is a value");
    assert_eq!(c.write(b"k", cas(b"", None)).expect("cas"), Outcome::Done);
    assert_eq!(c.get(b"k").expect("get"), None);
    for bad in [&b""[..], &[0; 1025]] {
        assert!(c.get(bad).is_err() && c.write(bad, Write::Put(b"")).is_err());
    }
    assert!(c.write(b"k", Write::Put(&vec![0; (1 << 20) + 1])).is_err());
    assert_eq!(c.walk().expect("walk").keys, 0);
}

/// For an index with keys of 24 bytes and values of 8: an unsupported operation is refused and
/// changes nothing.
fn basics_of_fixed_lengths(test_cluster: &TestCluster) {
    let c = &mut test_cluster.client(0).expect("attach");
    // Both ends of the key space are keys.
    for (n, key) in [[b'k'; 24], [0; 24], [0xff; 24]].iter().enumerate() {
        assert_eq!(c.get(key).expect("get"), None);
        assert_eq!(scan_all(c, &ALL).len(), n);
        assert_eq!(c.write(key, Write::Update(&[1; 8])).expect("update"), Outcome::NotFound);
        assert_eq!(c.write(key, Write::Insert(&[0; 8])).expect("insert"), Outcome::Done);
        assert_eq!(c.write(key, Write::Insert(&[2; 8])).expect("insert"), Outcome::Exists);
        assert_eq!(c.get(key).expect("get"), Some(vec![0; 8]), "zero is a value");
        assert_eq!(c.write(key, Write::Update(&[3; 8])).expect("update"), Outcome::Done);
        assert_eq!(c.write(key, Write::Put(&[4; 8])).expect("put"), Outcome::Done);
        assert_eq!(c.get(key).expect("get"), Some(vec![4; 8]));
    }
    let refused = |r: dmtree_fabric::Result<Outcome>, kind| {
        let e = r.expect_err("refused");
        assert!(e.kind() == kind && e.effect() == dmtree_fabric::Effect::None, "{e}");
    };
    let (lacking, invalid) = (ErrorKind::Unsupported, ErrorKind::InvalidArgument);
    let cas = Write::CompareAndSet { expected: &[4; 8], new: Some(&[5; 8]) };
    match test_cluster.ops().compare_and_set {
        true => assert_eq!(c.write(&[b'k'; 24], cas).expect("cas"), Outcome::Done),
        false => refused(c.write(&[b'k'; 24], cas), lacking),
    }
    if test_cluster.ops().delete {
        assert_eq!(c.write(&[b'k'; 24], Write::Delete).expect("delete"), Outcome::Done);
        assert_eq!(c.write(&[b'k'; 24], Write::Delete).expect("delete"), Outcome::NotFound);
        assert_eq!(c.write(&[b'k'; 24], Write::Put(&[4; 8])).expect("put"), Outcome::Done);
    } else {
        refused(c.write(&[b'k'; 24], Write::Delete), lacking);
    }
    for bad in [&b""[..], &[1; 23], &[1; 25], &[1; 1025]] {
        assert_eq!(c.get(bad).expect_err("refused").kind(), invalid);
        refused(c.write(bad, Write::Put(&[1; 8])), invalid);
    }
    for bad in [&b""[..], &[1; 7], &[1; 9]] {
        refused(c.write(&[b'k'; 24], Write::Put(bad)), invalid);
    }
    let mut page = Page::new();
    let reverse = ScanRequest { reverse: true, ..ALL };
    assert_eq!(c.scan(&reverse, &mut page).expect_err("refused").kind(), lacking);
    assert_eq!(scan_all(c, &ALL).len(), 3);
    assert_eq!(c.walk().expect("walk").keys, 3);
}

/// Keys of every length, values of many lengths up to the limit, rewritten with other lengths.
pub fn lengths(test_cluster: &TestCluster) {
    let c = &mut test_cluster.client(0).expect("attach");
    let mut model = Model::new();
    for round in 0..3u64 {
        let step = if round == 0 { 1 } else { 7 };
        for len in (1..=1024usize).step_by(step) {
            let mut key = vec![b'k'; len];
            key[len - 1] = (len % 251) as u8;
            let mut v = vec![round as u8; (len * 7 + round as usize * 13) % 100];
            v.extend_from_slice(&(len as u32).to_le_bytes());
            assert_eq!(c.write(&key, Write::Put(&v)).expect("put"), Outcome::Done);
            model.insert(key, v);
        }
    }
    let odd = [0usize, 1, 7, 8, 9, 63, 64, 65, 4095, 4096, 65_535, 65_536, 300_000];
    for (i, len) in odd.iter().chain(&[1 << 20]).enumerate() {
        let key = format!("value-{i}").into_bytes();
        let v = vec![i as u8 ^ 0x5a; *len];
        assert_eq!(c.write(&key, Write::Put(&v)).expect("put"), Outcome::Done);
        model.insert(key, v);
    }
    for (k, v) in &model {
        assert_eq!(c.get(k).expect("get").as_ref(), Some(v), "key of {} bytes", k.len());
    }
    for reverse in [false, test_cluster.ops().reverse_scan] {
        let mut wanted: Vec<_> = model.clone().into_iter().collect();
        if reverse {
            wanted.reverse();
        }
        assert!(scan_all(c, &ScanRequest { reverse, ..ALL }) == wanted);
    }
    assert_eq!(c.walk().expect("walk").keys, model.len() as u64);
    for k in model.keys() {
        assert_eq!(c.write(k, Write::Delete).expect("delete"), Outcome::Done);
    }
    c.maintain().expect("maintain");
    assert_eq!(c.walk().expect("walk").keys, 0);
}

/// What becomes of the memory of leaves without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyLeaves {
    /// Merges give it back.
    GoBack,
    /// An index without merges keeps it, and uses it for the next keys of their ranges.
    Stay,
}

/// Fills with ascending or descending keys, empties, and fills again: first splits, merges, reuse.
pub fn fill_and_empty(
    test_cluster: &TestCluster,
    (keys, n): (Keys, u64),
    descending: bool,
    leaves: EmptyLeaves,
) {
    let n = scaled(n);
    let c = &mut test_cluster.client(0).expect("attach");
    let mut structure = Vec::new();
    for round in 0..3u64 {
        for i in 0..n {
            let i = if descending { n - 1 - i } else { i };
            let v = (i ^ round).to_le_bytes();
            let outcome = c.write(&keys.key(i), Write::Put(&v)).expect("put");
            assert_eq!(outcome, Outcome::Done);
        }
        let shape = c.walk().expect("walk");
        let all = scan_all(c, &ScanRequest { limit: 1000, ..ALL });
        assert_eq!(all.len() as u64, shape.keys);
        assert!(all.windows(2).all(|w| w[0].0 < w[1].0));
        for i in 0..n {
            c.write(&keys.key(i), Write::Delete).expect("delete");
            if i % 64 == 0 {
                c.maintain().expect("maintain");
            }
        }
        c.maintain().expect("maintain");
        let empty = c.walk().expect("walk");
        assert_eq!(empty.keys, 0);
        structure.push((shape.structure_bytes, empty.structure_bytes));
    }
    let ((first, _), (full, empty)) = (structure[0], structure[2]);
    match leaves {
        EmptyLeaves::GoBack => {
            assert!(empty * 4 < full || full < 200_000, "merges give memory back: {structure:?}");
        }
        EmptyLeaves::Stay => assert!(full <= first, "empty leaves are filled: {structure:?}"),
    }
}

/// Bulk load, sorted and unsorted, into an empty index and into one with keys; then everything else
/// works on it.
pub fn load(test_cluster: &TestCluster, keys: Keys, n: u64) {
    let c = &mut test_cluster.client(0).expect("attach");
    let mut model = Model::new();
    let pair = |i: u64| (keys.key(i), i.to_le_bytes().to_vec());
    c.foretell((0..3 * n).map(|i| keys.key(i))).expect("foretell");
    let mut pairs: Vec<_> = (0..n).map(pair).collect();
    pairs.push((keys.key(0), b"the last".to_vec()));
    model.extend(pairs.iter().cloned());
    let loaded = c.load(pairs, false, 0.7).expect("load");
    assert_eq!(loaded.pairs, model.len() as u64);
    assert_eq!(c.walk().expect("walk").keys, model.len() as u64);
    let more: Model = (n..n + n / 10).map(pair).collect();
    model.extend(more.clone());
    c.load(more.into_iter().collect(), true, 0.7).expect("load into an index with keys");
    let unsorted = vec![pair(1), pair(1)];
    assert!(c.load(unsorted, true, 0.7).is_err(), "sorted means ascending strictly");
    let mut other = test_cluster.client(test_cluster.places() - 1).expect("attach");
    for (k, v) in &model {
        assert_eq!(other.get(k).expect("get").as_ref(), Some(v));
    }
    for i in 0..n / 3 {
        let key = keys.key(n * 2 + i);
        other.write(&key, Write::Put(b"another.")).expect("put");
        model.insert(key, b"another.".to_vec());
    }
    assert_eq!(other.walk().expect("walk").keys, model.len() as u64);
}

/// Bulk load with a target distribution leaves leaves (and inner nodes) as full as inserts in
/// random order do: Kolmogorov's distance of the two histograms is below 1 %. Both test clusters
/// are empty and alike; `n` is some 10^5, so that chance stays below that. A run that is not whole
/// has fewer keys, and its bound is that of the test of Kolmogorov and Smirnov at a level of 5 %;
/// a hundred inner nodes may differ by a tenth.
pub fn random_fill(inserted: &TestCluster, loaded: &TestCluster, n: u64) {
    let is_whole = is_whole();
    // Inner nodes are fewer by their fan-out: their number needs some more keys than other rows.
    let n = n.min(scaled(2 * n));
    let pair = |i: u64| (Keys::Hashed24.key(i), i.to_le_bytes().to_vec());
    let c = &mut inserted.client(0).expect("attach");
    for (k, v) in (0..n).map(pair) {
        assert_eq!(c.write(&k, Write::Put(&v)).expect("put"), Outcome::Done);
    }
    let real = c.walk().expect("walk");
    let c = &mut loaded.client(0).expect("attach");
    let fill = Fill::RandomInserts { seed: 1 };
    assert_eq!(c.load((0..n).map(pair).collect(), false, fill).expect("load").pairs, n);
    let made = c.walk().expect("walk");
    assert_eq!((real.keys, made.keys), (n, n));
    let floats = |fill: &[u64]| fill.iter().map(|c| *c as f64).collect::<Vec<_>>();
    let d = distance(&floats(&real.fill), &floats(&made.fill));
    let leaves = real.fill.iter().sum::<u64>() as f64;
    let (most, most_inner) =
        if is_whole { (0.01, 0.05) } else { (1.36 * (2.0 / leaves).sqrt(), 0.1) };
    assert!(d < most, "distance {d}: inserted {:?}, loaded {:?}", real.fill, made.fill);
    let ratio = made.inner_nodes as f64 / real.inner_nodes as f64;
    assert!(
        (ratio - 1.0).abs() < most_inner,
        "{} and {} inner nodes",
        made.inner_nodes,
        real.inner_nodes
    );
}

/// An index with one length of keys and of values. Half of the keys differ in their first bytes;
/// the others in their last ones, and, where they are long, in the middle.
pub fn one_length(test_cluster: &TestCluster, key_bytes: usize, value_bytes: usize) {
    let key = |n: u32| {
        let hash = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
        let mut key =
            if n.is_multiple_of(2) { Vec::new() } else { vec![7; key_bytes - 4.min(key_bytes)] };
        key.extend_from_slice(&hash);
        key.resize(key_bytes, n as u8);
        if key_bytes > 100 && !n.is_multiple_of(2) {
            key[50 + n as usize % 3] = 9;
        }
        key
    };
    let c = &mut test_cluster.client(0).expect("attach");
    let mut model = Model::new();
    c.foretell((0..1_000).map(key)).expect("foretell");
    for n in 0..1_000 {
        let value = vec![n as u8; value_bytes];
        c.write(&key(n), Write::Put(&value)).expect("put");
        model.insert(key(n), value);
    }
    for (k, v) in &model {
        assert_eq!(c.get(k).expect("get").as_ref(), Some(v));
    }
    assert_eq!(c.walk().expect("walk").keys, model.len() as u64);
}

/// Loads that end with the highest of all keys of 24 bytes. It is alone in the position where the
/// last leaf would begin.
pub fn highest_key(cluster: &dyn Fn() -> TestCluster) {
    for (n, fill) in [(33u64, 1.0), (34, 1.0), (2, 0.01), (23, 0.7)] {
        let test_cluster = cluster();
        let mut c = test_cluster.client(0).expect("attach");
        let pair = |n: u64| (Keys::Hashed24.key(n), n.to_le_bytes().to_vec());
        let mut pairs: Vec<_> = (1..n).map(pair).collect();
        pairs.push((vec![0xff; 24], vec![1; 8]));
        let sorted = n % 2 == 0;
        if sorted {
            pairs.sort();
        }
        c.load(pairs, sorted, fill).expect("load");
        for more in [0, 100] {
            for (k, v) in (n..n + more).map(pair) {
                c.write(&k, Write::Put(&v)).expect("put");
            }
            assert_eq!(c.get(&[0xff; 24]).expect("get"), Some(vec![1; 8]));
            assert_eq!(c.walk().expect("walk").keys, n + more);
        }
    }
}

/// A pool that fills up: stored pairs stay, and no operation stays incomplete. The pool has room
/// for `least` keys. An index that `updates` in place does so in a full pool, too.
pub fn full(test_cluster: &TestCluster, least: u64, updates: bool) {
    let c = &mut test_cluster.client(0).expect("attach");
    let (mut stored, mut failures) = (0, 0);
    for n in 0..6 * least {
        match c.write(&Keys::Hashed24.key(n), Write::Insert(&n.to_le_bytes())) {
            Ok(_) => stored += 1,
            Err(e) => {
                assert!(e.kind() == ErrorKind::Full, "{e}");
                failures += 1;
            }
        }
    }
    assert!(failures > 0 && stored > least, "{stored} stored, {failures} refused");
    assert_eq!(c.walk().expect("walk").keys, stored);
    if updates {
        let w = Write::Update(&[1; 8]);
        assert_eq!(c.write(&Keys::Hashed24.key(0), w).expect("update"), Outcome::Done);
    }
}

/// Clients on all compute nodes write at once: keys of their own, neighbours of other clients'
/// keys, and some that all of them write. The last write of a client to its own keys is present; a
/// key that all write holds the last write of one of them.
fn run_at_once(test_cluster: &TestCluster, keys: Keys, n: u64) {
    let places = test_cluster.places() as u64;
    let value = |place: u64, i: u64| (place << 32 | i).to_le_bytes();
    let (own, common) = (|place: u64, i: u64| keys.key(i * places + place), n / 10);
    let all = (0..places * n + common.max(1)).map(|i| keys.key(i));
    test_cluster.client(0).expect("attach").foretell(all).expect("foretell");
    std::thread::scope(|s| {
        for place in 0..places {
            s.spawn(move || {
                let c = &mut test_cluster.client(place as usize).expect("attach");
                for i in 0..n {
                    c.write(&own(place, i), Write::Put(&value(place, i))).expect("put");
                    let shared = keys.key(places * n + i % common.max(1));
                    c.write(&shared, Write::Put(&value(place, i))).expect("put");
                    let found = c.get(&own(place, i / 2)).expect("get");
                    assert_eq!(found.as_deref(), Some(&value(place, i / 2)[..]), "{place}: {i}");
                }
            });
        }
    });
    let c = &mut test_cluster.client(0).expect("attach");
    for place in 0..places {
        for i in 0..n {
            let found = c.get(&own(place, i)).expect("get");
            assert_eq!(found.as_deref(), Some(&value(place, i)[..]), "of {place}: {i}");
        }
    }
    for k in 0..common.max(1) {
        let last = (0..n).rev().find(|i| i % common.max(1) == k).unwrap_or(0);
        let found = c.get(&keys.key(places * n + k)).expect("get").expect("written");
        let is_one_of_them = (0..places).any(|place| found == value(place, last));
        assert!(is_one_of_them, "common {k}: {found:?}");
    }
    c.maintain().expect("maintain");
    assert_eq!(c.walk().expect("walk").keys, places * n + common.max(1));
}

/// A part of the suite: its name, and its function on a test cluster of its own. The index there
/// has keys of 24 bytes and values of 8 if it has one length only.
pub type Part = (&'static str, Box<dyn Fn(&TestCluster) + Sync>);

/// The suite in a few parts, for expensive test clusters. `steps` operations in the longest;
/// several clients at once only if `together`.
pub fn parts(ops: OpSet, seed: u64, steps: u64, together: bool) -> Vec<Part> {
    let few = steps / 10;
    let (keys, neighbours) = match ops.any_length {
        true => (Keys::AnyLength, Keys::LongPrefix),
        false => (Keys::Hashed24, Keys::Hashed24),
    };
    let mut parts: Vec<Part> = vec![
        ("basics", Box::new(basics)),
        ("model", Box::new(move |c| model(c, seed, keys, few.max(50), steps))),
        ("load", Box::new(move |c| load(c, keys, few))),
    ];
    if ops.snapshots || ops.batch_writes > 0 {
        let check =
            move |c: &TestCluster| snapshots_and_batches(c, seed, neighbours, 60, few.max(50));
        parts.push(("snapshots and batches", Box::new(check)));
    }
    if together {
        parts.push(("at once", Box::new(move |c| run_at_once(c, neighbours, few))));
    }
    parts
}
