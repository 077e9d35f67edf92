//! The operations of a case's clients: each is a function of the seed, its client and its number,
//! so that leaving some out changes no other.

use dmtree_fabric::golden_hash;
use dmtree_parts::OpSet;

use crate::case::{Case, KeyForm};
use crate::history::ValueId;
use crate::log::Call;
use crate::rng::Rng;

/// Numbers of operations in the liveness phase begin here.
const LIVENESS: u64 = 1 << 30;

/// How far apart the numbers in key texts are, so that their order is that of the numbers.
fn spread(form: KeyForm) -> u64 {
    match form {
        KeyForm::Early => 10_000_000_000_000_000,
        KeyForm::Late => 100_000_000,
    }
}

/// The bytes of key number `n`: 24 of them, in the order of the numbers.
pub fn key(form: KeyForm, n: u64) -> Vec<u8> {
    let spread = spread(form);
    let tail = golden_hash(n) % spread;
    format!("key-{:020}", n.wrapping_mul(spread).wrapping_add(tail)).into_bytes()
}

/// The number of a key.
pub fn number(form: KeyForm, k: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(k.strip_prefix(b"key-")?).ok()?;
    let n = digits.parse::<u64>().ok()? / spread(form);
    (key(form, n) == k).then_some(n)
}

/// The bytes of a value: its identity, and then bytes that the identity determines.
pub fn value(id: ValueId, bytes: usize) -> Vec<u8> {
    let mut v = id.to_le_bytes().to_vec();
    let mut rng = Rng::new(id);
    while v.len() < bytes {
        v.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    v.truncate(bytes.max(8));
    v
}

/// The identity of a value, if it is whole.
pub fn identity(v: &[u8]) -> Option<ValueId> {
    let id = u64::from_le_bytes(v.get(..8)?.try_into().ok()?);
    (v == value(id, v.len())).then_some(id)
}

/// Draws for one operation.
pub fn draws(case: &Case, client: u32, op: u32) -> Rng {
    let mut mix = Rng::new(case.seed ^ (u64::from(client) << 32 | u64::from(op)));
    Rng::new(mix.next_u64())
}

/// The value that an operation writes.
fn value_of(client: u32, op: u64) -> ValueId {
    (u64::from(client) + 1) << 32 | op
}

/// How long a value is.
pub fn length(case: &Case, id: ValueId) -> usize {
    Rng::new(id ^ case.seed).of(&case.value_bytes) as usize
}

/// Operation number `op` of a client, for an index that has these operations. A compare-and-set
/// expects what the client read last, if it has read anything.
pub fn operation(
    case: &Case,
    ops: OpSet,
    (client, op): (u32, u32),
    rng: &mut Rng,
    read: Option<(u64, ValueId)>,
) -> Call {
    if client >= case.clients {
        return churn(case, ops, client, op);
    }
    if case.scan_one_in > 0 && rng.below(u64::from(case.scan_one_in)) == 0 {
        let (a, b) = (rng.below(case.numbers()), rng.below(case.numbers()));
        let (low, high) = (a.min(b), a.max(b));
        let down = ops.reverse_scan && rng.below(3) == 0;
        return if down { Call::ScanDown(low, high) } else { Call::Scan(low, high) };
    }
    if let Some(call) = of_many(case, ops, value_of(client, u64::from(op)), rng) {
        return call;
    }
    let k = rng.below(u64::from(case.keys)) * case.stride();
    let v = value_of(client, u64::from(op));
    let waves = case.wave_ops > 0;
    let shrinking = waves && !(op / case.wave_ops.max(1)).is_multiple_of(2);
    let draw = match rng.below(10) {
        // An operation that the index lacks is replaced.
        8 if !ops.delete => 3,
        9 if !ops.compare_and_set => 4,
        3..=7 if shrinking && ops.delete => 8,
        8 if waves && !shrinking => 6,
        draw => draw,
    };
    match draw {
        0..=2 => Call::Get(k),
        3..=4 => Call::Put(k, v),
        5 => Call::Update(k, v),
        6..=7 => Call::Insert(k, v),
        8 => Call::Delete(k),
        _ => {
            let (key, expected) = read.unwrap_or((k, 0));
            Call::CompareAndSet(key, expected, v)
        }
    }
}

/// The most keys of a batch.
const MAX_BATCH: u64 = 6;

/// A snapshot or an atomic batch, now and then, of an index that has them. For others nothing is
/// drawn: their seeds are as they were before there was any of both.
fn of_many(case: &Case, ops: OpSet, v: ValueId, rng: &mut Rng) -> Option<Call> {
    if ops.snapshots && rng.below(12) == 0 {
        let (a, b) = (rng.below(case.numbers()), rng.below(case.numbers()));
        return Some(Call::Snapshot(a.min(b), a.max(b)));
    }
    if ops.batch_writes > 0 && rng.below(12) == 0 {
        let first = rng.below(u64::from(case.keys));
        let most = MAX_BATCH.min(ops.batch_writes.into()).min(u64::from(case.keys) - first);
        let (stride, last) = (case.stride(), first + rng.below(most));
        return Some(Call::Batch(first * stride, last * stride, stride, v));
    }
    None
}

/// A churn client removes one neighbour after the other, then puts them back, and repeats. The
/// second client starts half way.
fn churn(case: &Case, ops: OpSet, client: u32, op: u32) -> Call {
    let span = u64::from(case.garden().max(1));
    let at = u64::from(op) + u64::from(client - case.clients) * span / 2;
    let k = case.neighbour(at % span);
    if ops.delete && (at / span).is_multiple_of(2) {
        return Call::Delete(k);
    }
    Call::Put(k, value_of(client, u64::from(op)))
}

/// A client's operations on every key in the liveness phase: it reads and writes each key; every
/// other client removes it in the end.
pub fn liveness(case: &Case, ops: OpSet, client: u32) -> Vec<Call> {
    let mut out = Vec::new();
    for i in 0..u64::from(case.keys) {
        // Clients begin at different keys.
        let k = (i + u64::from(client) * 7) % u64::from(case.keys) * case.stride();
        out.push(Call::Get(k));
        out.push(Call::Put(k, value_of(client, LIVENESS + i)));
        if ops.delete && !client.is_multiple_of(2) {
            out.push(Call::Delete(k));
        }
    }
    out
}
