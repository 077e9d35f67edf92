//! The calls and returns of all clients in one order, and whether they are linearizable.

use std::collections::BTreeMap;
use std::fmt;

use dmtree_fabric::{Effect, Error};
use dmtree_parts::Outcome;
use serde::{Deserialize, Serialize};

use crate::history::{Event, Op, Swap, ValueId, Violation, check_key};
use crate::instants::{batch_keys, narrowed};

/// A client's call. Keys are numbers, in the order of their bytes; values are identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Reads a key.
    Get(u64),
    /// Sets a key.
    Put(u64, ValueId),
    /// Sets an absent key.
    Insert(u64, ValueId),
    /// Sets a present key.
    Update(u64, ValueId),
    /// Removes a key.
    Delete(u64),
    /// Sets a key that has the first value to the second.
    CompareAndSet(u64, ValueId, ValueId),
    /// All keys from the first to the second, both included.
    Scan(u64, u64),
    /// The same downwards.
    ScanDown(u64, u64),
    /// Takes a snapshot, reads all keys from the first to the second there, and releases it.
    Snapshot(u64, u64),
    /// Sets keys from the first to the second, one in so many, to one value in an atomic batch.
    Batch(u64, u64, u64, ValueId),
}

impl Call {
    /// The first and the last key.
    pub fn range(self) -> (u64, u64) {
        match self {
            Self::Get(k)
            | Self::Put(k, _)
            | Self::Insert(k, _)
            | Self::Update(k, _)
            | Self::Delete(k)
            | Self::CompareAndSet(k, ..) => (k, k),
            Self::Scan(low, high)
            | Self::ScanDown(low, high)
            | Self::Snapshot(low, high)
            | Self::Batch(low, high, ..) => (low, high),
        }
    }

    /// The key of a call on one key.
    pub fn key(self) -> Option<u64> {
        let is_of_many = self.reads_range().is_some() || matches!(self, Self::Batch(..));
        (!is_of_many).then_some(self.range().0)
    }

    /// The range of a call that reads one.
    pub fn reads_range(self) -> Option<(u64, u64)> {
        let reads = matches!(self, Self::Scan(..) | Self::ScanDown(..) | Self::Snapshot(..));
        reads.then_some(self.range())
    }
}

/// The answer of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The value of a key, or none.
    Found(Option<ValueId>),
    /// A write took effect.
    Done,
    /// The key exists.
    Exists,
    /// The key does not exist.
    NotFound,
    /// The value is another one.
    Mismatch,
    /// The pairs of a scan, in the order in which they came.
    Pairs(Vec<(u64, ValueId)>),
    /// Bytes that no write stored as one value.
    Torn(String),
    /// An error. The effect of a write is unknown.
    Failed(String),
    /// The error of a put that took effect before it, or never will.
    Tried(String),
    /// An error without effect.
    Refused(String),
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::Exists => Self::Exists,
            Outcome::NotFound => Self::NotFound,
            Outcome::Mismatch => Self::Mismatch,
        }
    }
}

impl From<&Error> for Answer {
    fn from(e: &Error) -> Self {
        match e.effect() {
            Effect::None => Self::Refused(e.to_string()),
            _ => Self::Failed(e.to_string()),
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The client.
    pub client: u32,
    /// The call.
    pub call: Call,
    /// When, in the order of all calls and returns.
    pub called: u64,
    /// When in virtual time, ns.
    pub called_ns: u64,
    /// The return, if it has returned.
    pub ret: Option<Return>,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// When, in the order of all calls and returns.
    pub at: u64,
    /// When in virtual time, ns.
    pub at_ns: u64,
    /// The answer.
    pub answer: Answer,
}

/// All operations of a run, in the order in which they were called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    pub(crate) records: Vec<Record>,
    ticks: u64,
    /// The keys that are present from the beginning: those that are no multiple of this; 0 and 1:
    /// none.
    pub stride: u64,
    /// Number of possible keys.
    pub numbers: u64,
}

/// The failure of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A key's operations have no order that explains them.
    Order {
        /// The key.
        key: u64,
        /// The first operation that cannot be explained.
        violation: Box<Violation>,
    },
    /// An operation's answer is wrong by itself.
    Answer {
        /// Its number in the log.
        record: usize,
        /// Why.
        why: String,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { key, violation } => write!(f, "key k{key}: {violation}"),
            Self::Answer { why, .. } => f.write_str(why),
        }
    }
}

/// FNV-1a of a text, 64 bits.
pub(crate) fn fnv1a(text: &str) -> u64 {
    let add = |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// The value of a key that is present from the beginning.
pub fn loaded(number: u64) -> ValueId {
    1 << 62 | number
}

/// A value's name: its writer, and the number of the operation.
pub fn name(value: ValueId) -> String {
    match value {
        0 => "nothing".to_owned(),
        v if v >> 62 == 1 => format!("loaded{}", v & 0xffff_ffff),
        v => format!("v{}.{}", (v >> 32).wrapping_sub(1), v & 0xffff_ffff),
    }
}

impl Log {
    /// An empty one.
    pub fn new(stride: u64, numbers: u64) -> Self {
        Self { stride, numbers, ..Self::default() }
    }

    /// All operations.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// An operation begins; its number.
    pub fn call(&mut self, client: u32, now: u64, call: Call) -> usize {
        let called = self.tick();
        self.records.push(Record { client, call, called, called_ns: now, ret: None });
        self.records.len() - 1
    }

    /// An operation ends.
    pub fn ret(&mut self, record: usize, now: u64, answer: Answer) {
        let at = self.tick();
        self.records[record].ret = Some(Return { at, at_ns: now, answer });
    }

    /// No put of a key that has not returned takes effect from now on.
    pub(crate) fn end_puts(&mut self, key: u64, now: u64) {
        let open = |r: &Record| r.ret.is_none() && matches!(r.call, Call::Put(k, _) if k == key);
        let all: Vec<usize> = (0..self.records.len()).filter(|i| open(&self.records[*i])).collect();
        all.into_iter().for_each(|r| self.ret(r, now, Answer::Tried("its writer ended".into())));
    }

    /// The next time.
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks - 1
    }

    /// A digest of all operations and answers.
    pub fn hash(&self) -> u64 {
        fnv1a(&format!("{:?}", self.records))
    }

    /// The first value of a key.
    pub fn initial(&self, key: u64) -> Option<ValueId> {
        (self.stride > 1 && !key.is_multiple_of(self.stride)).then(|| loaded(key))
    }

    /// The operations of every key; scans count as reads of all keys in their range, batches as
    /// writes of all their keys.
    ///
    /// # Errors
    /// An answer that is wrong by itself: bytes that no write stored, a scan out of order, out of
    /// range, or with a key twice; a snapshot of no one instant, or with a part of a batch.
    pub fn per_key(&self) -> Result<BTreeMap<u64, Vec<Op>>, Wrong> {
        let instants = narrowed(self)?;
        let mut keys: BTreeMap<u64, Vec<Op>> = BTreeMap::new();
        for (i, r) in self.records.iter().enumerate() {
            if matches!(&r.ret, Some(Return { answer: Answer::Refused(_), .. })) {
                continue;
            }
            let ret = r.ret.as_ref().filter(|ret| !matches!(ret.answer, Answer::Failed(_)));
            let (at, answer) = (ret.map(|ret| ret.at), ret.map(|ret| &ret.answer));
            let wrong = |why: String| Wrong::Answer { record: i, why };
            let (called, at) = instants.get(&i).copied().unwrap_or((r.called, at));
            if let Call::Batch(low, high, step, v) = r.call {
                if !matches!(answer, None | Some(Answer::Done)) {
                    return Err(wrong(wrong_answer(r.call, answer.unwrap_or(&Answer::Done))));
                }
                for key in batch_keys(low, high, step) {
                    let op = Op { call: called, ret: at, event: Event::Put(v) };
                    keys.entry(key).or_default().push(op);
                }
                continue;
            }
            if let Some((low, high)) = r.call.reads_range() {
                let Some(answer) = answer else { continue };
                let found = scanned(r.call, (low, high), answer).map_err(wrong)?;
                for key in (low..=high).take_while(|key| *key < self.numbers) {
                    let event = Event::Get(found.get(&key).copied());
                    keys.entry(key).or_default().push(Op { call: called, ret: at, event });
                }
                continue;
            }
            let (key, event) = event(r.call, answer).map_err(wrong)?;
            keys.entry(key).or_default().push(Op { call: r.called, ret: at, event });
        }
        Ok(keys)
    }

    /// Checks every key.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), Wrong> {
        for (key, ops) in self.per_key()? {
            check_key(&ops, self.initial(key))
                .map_err(|v| Wrong::Order { key, violation: Box::new(v) })?;
        }
        Ok(())
    }
}

/// The pairs of a scan by key.
fn scanned(
    call: Call,
    (low, high): (u64, u64),
    answer: &Answer,
) -> Result<BTreeMap<u64, ValueId>, String> {
    let down = matches!(call, Call::ScanDown(..));
    let Answer::Pairs(pairs) = answer else { return Err(wrong_answer(call, answer)) };
    for w in pairs.windows(2) {
        let (a, b) = if down { (w[1].0, w[0].0) } else { (w[0].0, w[1].0) };
        if a == b {
            return Err(format!("{call}: k{a} came twice"));
        }
        if a > b {
            return Err(format!("{call}: k{} came before k{}", w[0].0, w[1].0));
        }
    }
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !(low..=high).contains(key)) {
        return Err(format!("{call}: k{key} lies outside"));
    }
    Ok(pairs.iter().copied().collect())
}

fn wrong_answer(call: Call, answer: &Answer) -> String {
    format!("{call} was answered {answer}")
}

/// A point operation as the checker of one key takes it.
pub(crate) fn event(call: Call, answer: Option<&Answer>) -> Result<(u64, Event), String> {
    use Answer as A;
    Ok(match (call, answer) {
        (Call::Get(k), None) => (k, Event::Get(None)),
        (Call::Get(k), Some(A::Found(v))) => (k, Event::Get(*v)),
        (Call::Put(k, v), None | Some(A::Done)) => (k, Event::Put(v)),
        (Call::Put(k, v), Some(A::Tried(_))) => (k, Event::Tried(v)),
        (Call::Insert(k, v), None | Some(A::Done)) => (k, Event::Insert(v, true)),
        (Call::Insert(k, v), Some(A::Exists)) => (k, Event::Insert(v, false)),
        (Call::Update(k, v), None | Some(A::Done)) => (k, Event::Update(v, true)),
        (Call::Update(k, v), Some(A::NotFound)) => (k, Event::Update(v, false)),
        (Call::Delete(k), None | Some(A::Done)) => (k, Event::Delete(true)),
        (Call::Delete(k), Some(A::NotFound)) => (k, Event::Delete(false)),
        (Call::CompareAndSet(k, e, v), None | Some(A::Done)) => {
            (k, Event::CompareAndSet(e, v, Swap::Done))
        }
        (Call::CompareAndSet(k, e, v), Some(A::Mismatch)) => {
            (k, Event::CompareAndSet(e, v, Swap::Mismatch))
        }
        (Call::CompareAndSet(k, e, v), Some(A::NotFound)) => {
            (k, Event::CompareAndSet(e, v, Swap::NotFound))
        }
        (_, Some(other)) => return Err(wrong_answer(call, other)),
        (Call::Scan(..) | Call::ScanDown(..) | Call::Snapshot(..) | Call::Batch(..), None) => {
            return Err("no point operation".to_owned());
        }
    })
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(k) => write!(f, "get k{k}"),
            Self::Put(k, v) => write!(f, "put k{k} = {}", name(*v)),
            Self::Insert(k, v) => write!(f, "insert k{k} = {}", name(*v)),
            Self::Update(k, v) => write!(f, "update k{k} = {}", name(*v)),
            Self::Delete(k) => write!(f, "delete k{k}"),
            Self::CompareAndSet(k, e, v) => {
                write!(f, "compare-and-set k{k} from {} to {}", name(*e), name(*v))
            }
            Self::Scan(a, b) => write!(f, "scan k{a}..=k{b}"),
            Self::ScanDown(a, b) => write!(f, "scan k{b}..=k{a} downwards"),
            Self::Snapshot(a, b) => write!(f, "snapshot of k{a}..=k{b}"),
            Self::Batch(a, b, step, v) => {
                write!(f, "batch k{a}..=k{b} by {step} = {}", name(*v))
            }
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(None) => f.write_str("absent"),
            Self::Found(Some(v)) => f.write_str(&name(*v)),
            Self::Done => f.write_str("done"),
            Self::Exists => f.write_str("exists"),
            Self::NotFound => f.write_str("not found"),
            Self::Mismatch => f.write_str("another value"),
            Self::Pairs(pairs) => {
                write!(f, "{} pairs:", pairs.len())?;
                pairs.iter().try_for_each(|(k, v)| write!(f, " k{k}={}", name(*v)))
            }
            Self::Torn(bytes) => write!(f, "bytes that no write stored as one value: {bytes}"),
            Self::Failed(why) | Self::Tried(why) => write!(f, "error: {why}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}
