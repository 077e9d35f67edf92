//! The clients of a run: they make calls, and note what comes back.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;

use dmtree_check::harness::Harness;
use dmtree_check::log::{Answer, Call};
use dmtree_check::rng::Rng;
use dmtree_check::scenario::dropped_after;
use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_parts::{AnyIndex, Outcome, Page, Resume, ScanRequest, Write};

use super::{CLIENTS, id, key, number, value};

/// Pause behind a call that has failed, ns: an error may come without any wait.
const PAUSE_NS: u64 = 5_000;

/// What the clients of a run share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The last identity of a value.
    last_id: Cell<u64>,
    /// The key that was written last: reads go there, to see effects as early as they show.
    written: Cell<u64>,
    /// The key that each client wrote last.
    written_by: [Cell<u64>; CLIENTS as usize],
}

/// Makes calls until the run is over, or so many.
pub struct Caller {
    pub harness: Rc<Harness>,
    pub index: AnyIndex,
    pub client: u32,
    pub rng: Rng,
    /// The last value that it wrote to each key.
    pub wrote: Vec<u64>,
    pub keys: u64,
    pub shared: Rc<Shared>,
    /// Some operations are dropped.
    pub drops: bool,
    /// Nodes are lost: calls may fail because of that.
    pub loses_nodes: bool,
    /// Clients of nodes that are lost. Others write what these wrote last, and may not have ended.
    pub lost: Rc<[u32]>,
}

impl Caller {
    fn new_id(&mut self) -> u64 {
        let id = self.shared.last_id.get() + 1;
        self.shared.last_id.set(id);
        id
    }

    pub async fn calls(mut self, calls: u64) {
        for _ in 0..calls {
            let (done, reads) = match self.rng.below(16) {
                0..3 => (self.get().await, true),
                3 => (self.scan().await, true),
                4 => (self.batch().await, false),
                5 => (self.index.maintain().await.map(drop), false),
                _ => (self.write().await, false),
            };
            let Err(e) = done else { continue };
            if !self.is_excused(&e, reads) {
                return self.harness.complain()(format!("client {}: {e}", self.client));
            }
            if e.kind() == ErrorKind::Revoked {
                return;
            }
            self.index.endpoint().sleep(PAUSE_NS).await;
        }
    }

    /// Whether a fault of the run explains an error: a node was lost, the device has failed, or the
    /// client that led a group has dropped its operation.
    fn is_excused(&self, e: &Error, reads: bool) -> bool {
        use ErrorKind::{Busy, Closed, Revoked, TimedOut, Unreachable};
        match e.kind() {
            Revoked | TimedOut | Unreachable => self.loses_nodes,
            Closed => !reads,
            Busy => !reads && self.drops,
            _ => false,
        }
    }

    fn key_to_write(&mut self) -> u64 {
        match !self.lost.is_empty() && self.rng.below(2) == 0 {
            true => self.shared.written_by[self.rng.of(&self.lost) as usize].get(),
            false => self.rng.below(self.keys),
        }
    }

    async fn get(&mut self) -> Result<()> {
        let n = match self.rng.below(2) {
            0 => self.shared.written.get(),
            _ => self.rng.below(self.keys),
        };
        let record = self.harness.call(self.client, Call::Get(n));
        let mut out = Vec::new();
        let found = self.index.get(&key(n), &mut out).await?;
        self.harness.ret(record, Answer::Found(found.then(|| id(&out))));
        Ok(())
    }

    async fn scan(&mut self) -> Result<()> {
        let record = self.harness.call(self.client, Call::Scan(0, self.keys - 1));
        let (mut low, mut page, mut pairs) = (Bound::Unbounded, Page::new(), Vec::new());
        loop {
            let low_ref = low.as_ref().map(|key: &Vec<u8>| &key[..]);
            let (high, reverse, limit) = (Bound::Unbounded, false, 1_000);
            let request = ScanRequest { low: low_ref, high, reverse, limit };
            let resume = self.index.scan(&request, &mut page).await?;
            pairs.extend(page.iter().map(|(k, v)| (number(k), id(v))));
            let Some(Resume(next)) = resume else { break };
            low = next;
        }
        self.harness.ret(record, Answer::Pairs(pairs));
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let (n, new) = (self.key_to_write(), self.new_id());
        self.shared.written.set(n);
        self.shared.written_by[self.client as usize].set(n);
        let was = std::mem::replace(&mut self.wrote[n as usize], new);
        let (bytes, expected) = (value(new), value(was));
        let set = Write::CompareAndSet { expected: &expected, new: Some(&bytes) };
        let (call, w) = match self.rng.below(8) {
            0 => (Call::Insert(n, new), Write::Insert(&bytes)),
            1 => (Call::Update(n, new), Write::Update(&bytes)),
            2 | 3 => (Call::Delete(n), Write::Delete),
            4 | 5 if was > 0 => (Call::CompareAndSet(n, was, new), set),
            _ => (Call::Put(n, new), Write::Put(&bytes)),
        };
        let record = self.harness.call(self.client, call);
        let polls = (self.drops && self.rng.below(16) == 0).then(|| 1 + self.rng.below(12));
        match dropped_after(polls.unwrap_or(u64::MAX), self.index.write(&key(n), w)).await {
            Some(done) => self.returned(record, done),
            // It may take effect, now or later.
            None => Ok(()),
        }
    }

    /// Each of them is a call of its own.
    async fn batch(&mut self) -> Result<()> {
        let mut numbers: Vec<u64> =
            (0..2 + self.rng.below(6)).map(|_| self.rng.below(self.keys)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.shared.written.set(numbers[0]);
        let new: Vec<(u64, u64)> = numbers.into_iter().map(|n| (n, self.new_id())).collect();
        let pairs: Vec<_> = new.iter().map(|(n, id)| (key(*n), value(*id))).collect();
        let writes: Vec<_> = pairs.iter().map(|(k, v)| (&k[..], Write::Put(v))).collect();
        let call = |(n, id): &(u64, u64)| self.harness.call(self.client, Call::Put(*n, *id));
        let records: Vec<usize> = new.iter().map(call).collect();
        let mut outcomes = Vec::new();
        let written = self.index.write_many(&writes, &mut outcomes).await;
        if let Err(e) = written {
            outcomes = records.iter().map(|_| Err(e.clone())).collect();
        }
        let mut done = Ok(());
        for (record, outcome) in records.into_iter().zip(outcomes) {
            done = done.and(self.returned(record, outcome));
        }
        done
    }

    /// A write has returned.
    fn returned(&self, record: usize, done: Result<Outcome>) -> Result<()> {
        self.harness.ret(record, done.as_ref().map_or_else(Answer::from, |o| (*o).into()));
        done.map(drop)
    }
}
