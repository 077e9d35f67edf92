//! Requests, and how a coroutine runs one: again after a loss of the membership, where that is
//! sound.

use std::pin::Pin;

use dmtree_engine::{Begun, DmTree};
use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_parts::{Loaded, Outcome, Page, RangeIndex, Resume, ScanRequest, Values};

use super::reply::Sender;
use super::worker::Coroutine;
use crate::batch::{Batch, Repeats};
use crate::bounds::borrowed;
use crate::incarnation::{Attempts, Next};
use crate::index::LoadOrder;
use crate::scan::Cursor;
use crate::session::{LOAD_FILL, maintain};
use crate::stats::Operation;

/// An operation that travels to a worker.
pub(super) trait Request: Send + 'static {
    /// Its answer.
    type Out: Send + 'static;
    /// Whether it may be repeated whatever an error says of its effect.
    const READS: bool;

    /// As what it is counted, if it is.
    fn what(&self) -> Option<Operation>;

    /// Makes an attempt.
    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out>;

    /// The answer, after the last attempt.
    fn end(&mut self, last: Result<Self::Out>) -> Result<Self::Out> {
        last
    }

    /// How an answer is counted.
    fn outcome(&self, _out: &Self::Out) -> Outcome {
        Outcome::Done
    }
}

/// A request with its caller, to be run by a coroutine.
pub(crate) trait Errand: Send {
    /// Runs it. It comes back when it is to be run in a newer incarnation.
    fn run<'c>(
        self: Box<Self>,
        c: &'c mut Coroutine,
    ) -> Pin<Box<dyn Future<Output = Option<Job>> + 'c>>;

    /// Answers with an error.
    fn refuse(self: Box<Self>, e: Error);
}

/// A request in a mailbox.
pub(crate) type Job = Box<dyn Errand>;

pub(super) struct Asked<R: Request> {
    pub(super) request: R,
    pub(super) answer: Sender<R::Out>,
    pub(super) attempts: Option<Attempts>,
}

impl<R: Request> Errand for Asked<R> {
    fn run<'c>(
        mut self: Box<Self>,
        c: &'c mut Coroutine,
    ) -> Pin<Box<dyn Future<Output = Option<Job>> + 'c>> {
        Box::pin(async move {
            let began = c.begins_timed();
            let result = loop {
                c.client.limit(self.attempts.as_ref());
                let result = self.request.run(&mut c.client.tree).await;
                c.client.limit(None);
                let Err(e) = result else { break result };
                let attempts = self.attempts.get_or_insert_default();
                // Boxed, being rare and large.
                match Box::pin(c.client.after(&c.pool, attempts, e, R::READS)).await {
                    Next::Give(e) => break Err(e),
                    Next::Newer => return Some(self as Job),
                    Next::Again => {}
                }
            };
            let result = self.request.end(result);
            let outcome = result.as_ref().map(|out| self.request.outcome(out)).map_err(drop);
            if let Some(what) = self.request.what() {
                c.client.counters.count(what, outcome);
                if let Some(began) = began {
                    let ns = c.client.ep.now().saturating_sub(began);
                    c.client.counters.sample(what, ns);
                }
            }
            self.answer.send(result);
            if !R::READS {
                maintain(&mut c.client.tree, &c.client.counters).await;
            }
            None
        })
    }

    fn refuse(self: Box<Self>, e: Error) {
        self.answer.send(Err(e));
    }
}

pub(super) struct Get(pub(super) Vec<u8>);

impl Request for Get {
    type Out = Option<Vec<u8>>;
    const READS: bool = true;

    fn what(&self) -> Option<Operation> {
        Some(Operation::Get)
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out> {
        let mut out = Vec::new();
        Ok(tree.get(&self.0, &mut out).await?.then_some(out))
    }

    fn outcome(&self, out: &Self::Out) -> Outcome {
        if out.is_some() { Outcome::Done } else { Outcome::NotFound }
    }
}

pub(super) struct GetMany(pub(super) Vec<Vec<u8>>);

impl Request for GetMany {
    type Out = Vec<Option<Vec<u8>>>;
    const READS: bool = true;

    fn what(&self) -> Option<Operation> {
        Some(Operation::GetMany)
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out> {
        let keys: Vec<&[u8]> = self.0.iter().map(Vec::as_slice).collect();
        let mut out = Values::new();
        tree.get_many(&keys, &mut out).await?;
        Ok((0..keys.len()).map(|i| out.get(i).map(<[u8]>::to_vec)).collect())
    }
}

/// The first write of a batch, by itself.
pub(super) struct WriteOne(pub(super) Batch);

impl Request for WriteOne {
    type Out = Outcome;
    const READS: bool = false;

    fn what(&self) -> Option<Operation> {
        self.0.writes().next().map(|(_, w)| Operation::of(w))
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Outcome> {
        match self.0.writes().next() {
            Some((key, w)) => tree.write(key, w).await,
            None => Err(Error::invalid("a batch without a write")),
        }
    }

    fn outcome(&self, out: &Outcome) -> Outcome {
        *out
    }
}

/// The first write of a batch, by itself, for the value that its key had; and how it ended.
pub(super) struct Exchange(pub(super) Batch, pub(super) Outcome);

impl Request for Exchange {
    type Out = Option<Vec<u8>>;
    const READS: bool = false;

    fn what(&self) -> Option<Operation> {
        self.0.writes().next().map(|(_, w)| Operation::of(w))
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out> {
        let Some((key, w)) = self.0.writes().next() else {
            return Err(Error::invalid("a batch without a write"));
        };
        self.1 = match tree.begin_exchange(key, w) {
            Begun::Ended(outcome) => outcome?,
            Begun::Waits(rest) => rest.await?,
        };
        Ok(tree.former())
    }

    fn outcome(&self, _out: &Self::Out) -> Outcome {
        self.1
    }
}

pub(super) struct LenEstimate;

impl Request for LenEstimate {
    type Out = u64;
    const READS: bool = true;

    fn what(&self) -> Option<Operation> {
        None
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<u64> {
        tree.len_estimate().await
    }
}

pub(super) struct WriteMany {
    batch: Batch,
    repeats: Repeats,
}

impl WriteMany {
    pub(super) fn new(batch: Batch) -> Self {
        Self { batch, repeats: Repeats::default() }
    }
}

impl Request for WriteMany {
    type Out = Vec<Result<Outcome>>;
    const READS: bool = false;

    fn what(&self) -> Option<Operation> {
        Some(Operation::WriteBatch)
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out> {
        let writes: Vec<_> = self.batch.writes().collect();
        // The outcomes of all attempts come with the end.
        self.repeats.attempt(&writes, tree).await.map(|()| Vec::new())
    }

    fn end(&mut self, last: Result<Self::Out>) -> Result<Self::Out> {
        std::mem::take(&mut self.repeats).end(last.map(drop))
    }
}

pub(super) struct Load(pub(super) Vec<(Vec<u8>, Vec<u8>)>, pub(super) LoadOrder);

impl Request for Load {
    type Out = Loaded;
    const READS: bool = false;

    fn what(&self) -> Option<Operation> {
        Some(Operation::Load)
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Loaded> {
        let mut pairs = std::mem::take(&mut self.0).into_iter();
        let sorted = self.1 == LoadOrder::Sorted;
        tree.load(&mut pairs, sorted, LOAD_FILL).await.map_err(|e| match e.kind() {
            // Some of it may be stored, and the pairs are gone: it is not repeated.
            ErrorKind::Revoked | ErrorKind::Unreachable | ErrorKind::TimedOut => e.effect_unknown(),
            _ => e,
        })
    }
}

/// A page of a scan, of so many pairs at most.
pub(super) struct ScanPage(pub(super) Cursor, pub(super) usize);

impl Request for ScanPage {
    type Out = (Page, Option<Resume>);
    const READS: bool = true;

    fn what(&self) -> Option<Operation> {
        Some(Operation::Scan)
    }

    async fn run(&mut self, tree: &mut DmTree) -> Result<Self::Out> {
        let Self(plan, limit) = self;
        let request = ScanRequest {
            low: borrowed(&plan.low),
            high: borrowed(&plan.high),
            reverse: plan.reverse,
            limit: *limit,
        };
        let mut page = Page::new();
        let resume = tree.scan(&request, &mut page).await?;
        Ok((page, resume))
    }
}
