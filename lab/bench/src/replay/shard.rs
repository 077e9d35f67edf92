//! A client that executes the operations on its keys, and knows what each of them must find.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_check::conformance::above;
use dmtree_fabric::{Error, Result as FabricResult};
use dmtree_parts::{Outcome, Page, Write};
use dmtree_workload::OpKind;
use dmtree_workload::trace::{Action, Record, TraceOp, shard};

use super::feed::{Feed, Next};
use crate::latency::ByKind;
use crate::opened::PlacedClient;
use crate::oracle::shown;

/// Mismatches that a client keeps as text.
const SAMPLES: usize = 5;
/// How long a client waits for the others when much has been read, ns.
const WAIT_NS: u64 = 5_000;
/// Pairs of a page of a scan at most.
const PAGE: usize = 4096;

/// What a client has executed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub latency: ByKind,
    pub mismatches: BTreeMap<OpKind, u64>,
    pub samples: Vec<String>,
    /// Keys of this client in the end.
    pub keys: u64,
    /// Time from its start to its end, ns of the fabric's clock.
    pub elapsed_ns: u64,
}

impl Tally {
    fn wrong(&mut self, kind: OpKind, key: &[u8], why: &str) {
        *self.mismatches.entry(kind).or_default() += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(format!("{kind} of {}: {why}", shown(key)));
        }
    }
}

/// The keys of one client.
pub(super) struct Shard {
    placed: PlacedClient,
    clients: usize,
    feed: Arc<Feed>,
    model: BTreeMap<Vec<u8>, Record>,
    tally: Tally,
    /// Buffers that operations reuse.
    value: Vec<u8>,
    page: Page,
    has_ended: bool,
}

impl Drop for Shard {
    fn drop(&mut self) {
        if !self.has_ended {
            self.feed.break_off();
        }
    }
}

/// An operation that failed, as a mismatch.
fn failed(e: Error) -> String {
    e.to_string()
}

impl Shard {
    pub(super) fn new(placed: PlacedClient, clients: usize, feed: Arc<Feed>) -> Self {
        let (model, tally, value) = Default::default();
        Self { placed, clients, feed, model, tally, value, page: Page::new(), has_ended: false }
    }

    /// Executes what the feed gives, until it ends.
    pub(super) async fn work(mut self) -> Tally {
        let (ep, me) = (self.placed.ep.clone(), self.placed.number as usize);
        let start = ep.now();
        loop {
            match self.feed.next(me) {
                Next::End => break,
                Next::Wait => ep.sleep(WAIT_NS).await,
                Next::Batch(batch) => {
                    for op in &batch {
                        let began = ep.now();
                        let result = self.one(op).await;
                        let kind = op.action.kind();
                        self.tally.latency.record(kind, ep.now().saturating_sub(began));
                        if let Err(why) = result {
                            self.tally.wrong(kind, &op.key, &why);
                        }
                        self.feed.done.fetch_add(1, Ordering::Relaxed);
                        if self.placed.shares_thread {
                            ep.yield_now().await;
                        }
                    }
                }
            }
        }
        self.tally.elapsed_ns = ep.now().saturating_sub(start);
        if let Err(e) = ep.drain().await {
            self.tally.samples.push(format!("finishing detached verbs: {e}"));
        }
        self.tally.keys = self.model.len() as u64;
        self.has_ended = true;
        std::mem::take(&mut self.tally)
    }

    async fn one(&mut self, op: &TraceOp) -> Result<(), String> {
        let key = op.key.as_slice();
        match &op.action {
            Action::Read(fields) => {
                let found = self.read(key).await?;
                let project = |r: &Record| r.project(fields);
                let due = self.model.get(key);
                // The whole record is compared, and so are the requested fields.
                match (found.as_ref(), due) {
                    (found, due) if found == due => Ok(()),
                    (Some(f), Some(d)) if project(f) == project(d) => {
                        Err("another field than those read differs".to_owned())
                    }
                    (Some(_), Some(_)) => Err("the record differs from the one written".to_owned()),
                    (Some(_), None) => Err("a record is found where none must be".to_owned()),
                    _ => Err("the record is missing".to_owned()),
                }
            }
            Action::Insert(_) => {
                let after = op.action.apply(None);
                self.put(key, after).await
            }
            Action::Update(_) => {
                let found = self.read(key).await?;
                let same = found.as_ref() == self.model.get(key);
                let after = op.action.apply(found);
                self.put(key, after).await?;
                if same {
                    Ok(())
                } else {
                    Err("the record to update is not the one written".to_owned())
                }
            }
            Action::Delete => {
                let was = self.model.remove(key).is_some();
                let outcome = self.placed.client.write(key, Write::Delete).await.map_err(failed)?;
                let due = if was { Outcome::Done } else { Outcome::NotFound };
                if outcome == due {
                    Ok(())
                } else {
                    Err(format!("{outcome:?} where {due:?} must be"))
                }
            }
            Action::Scan { count, .. } => self.scan(key, *count as usize).await,
        }
    }

    async fn read(&mut self, key: &[u8]) -> Result<Option<Record>, String> {
        let found = self.placed.client.get(key, &mut self.value).await.map_err(failed)?;
        found.then(|| Record::decode(&self.value)).transpose().map_err(|e| e.to_string())
    }

    async fn put(&mut self, key: &[u8], record: Option<Record>) -> Result<(), String> {
        let record = record.unwrap_or_default();
        record.encode(&mut self.value);
        let put = Write::Put(&self.value);
        let outcome = self.placed.client.write(key, put).await.map_err(failed)?;
        self.model.insert(key.to_vec(), record);
        if outcome == Outcome::Done { Ok(()) } else { Err(format!("a put gives {outcome:?}")) }
    }

    /// Checks order, number and readability of all pairs. Of this client's keys, it also checks
    /// that none is missing or has another value than written.
    async fn scan(&mut self, from: &[u8], count: usize) -> Result<(), String> {
        let Self { placed, clients, model, page, .. } = self;
        let mut check = ScanCheck {
            me: placed.number as usize,
            clients: *clients,
            from,
            mine: model.range(from.to_vec()..).peekable(),
            last: None,
            pairs: 0,
        };
        let (mut resume, mut left) = (None, count);
        let mut wrong = None;
        while left > 0 {
            page.clear();
            let request = above(from, left.min(PAGE));
            let scanned: FabricResult<_> =
                placed.client.scan(&request.after(resume.as_ref()), page).await;
            resume = scanned.map_err(failed)?;
            for (key, value) in page.iter() {
                wrong = wrong.or(check.pair(key, value).err());
            }
            left = left.saturating_sub(page.len());
            if resume.is_none() {
                break;
            }
        }
        wrong.map_or_else(|| check.end(count), Err)
    }
}

/// The check of one scan.
struct ScanCheck<'m, I: Iterator<Item = (&'m Vec<u8>, &'m Record)>> {
    me: usize,
    clients: usize,
    from: &'m [u8],
    /// The keys of this client from there on.
    mine: std::iter::Peekable<I>,
    last: Option<Vec<u8>>,
    pairs: usize,
}

impl<'m, I: Iterator<Item = (&'m Vec<u8>, &'m Record)>> ScanCheck<'m, I> {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.pairs += 1;
        let is_behind = self.last.as_ref().is_none_or(|last| last.as_slice() < key);
        self.last = Some(key.to_vec());
        if key < self.from || !is_behind {
            return Err(format!("{} is out of order", shown(key)));
        }
        let record = Record::decode(value).map_err(|e| e.to_string())?;
        if shard(key, self.clients) != self.me {
            return Ok(());
        }
        match self.mine.next() {
            Some((due, of)) if due.as_slice() == key && *of == record => Ok(()),
            Some((due, _)) if due.as_slice() == key => Err(format!("{} differs", shown(key))),
            Some((due, _)) => Err(format!("{} where {} must be", shown(key), shown(due))),
            None => Err(format!("{} was never written, or deleted", shown(key))),
        }
    }

    fn end(mut self, count: usize) -> Result<(), String> {
        if self.pairs > count {
            return Err(format!("{} records where {count} were asked for", self.pairs));
        }
        let is_before = |due: &Vec<u8>| self.last.as_ref().is_some_and(|last| due <= last);
        match self.mine.next() {
            Some((due, _)) if self.pairs < count || is_before(due) => {
                Err(format!("{} is missing", shown(due)))
            }
            _ => Ok(()),
        }
    }
}
