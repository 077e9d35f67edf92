//! A journal in parts: the journal nodes of a pool, as one compute node uses them.
//!
//! The part of a key is chosen by its hash, so that all records of a key go to one journal node, in
//! the order of their appends. An append with records for several parts is accepted when all of
//! them are.
//!
//! *Indexes.* Part 0 gives an index its number, and its list of names is the one that counts: an
//! index is named there last, and removed there first. What an interrupted change leaves in other
//! parts is never read, and goes with the next index of its number or name.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Endpoint, Error, Fabric, Member, NodeId, Result, WaitReason};
use xxhash_rust::xxh3::xxh3_64;

use crate::appends::Appends;
use crate::merge::{ShardedCut, list};
use crate::protocol::{Answer, Ask, BODY_BYTES, JOURNAL_SERVICE, Row, put_record};
use crate::sender::{Dial, Entry, Line, LineFuture, Queue, Sender, unexpected};
use crate::{Cut, IndexNumber, Journal, KnownIndex, Record, Ticket};

/// The slots of an executor's buffers: calls need none.
const SLAB_BYTES: u64 = 0;
/// Longest time of an attempt, ns: a host does not begin a call that has been under way for longer
/// than two thirds of it.
const ATTEMPT_NS: u64 = 3_000_000_000;
/// How many times as long an attempt may take as the pause before the next one.
const ATTEMPTS_PER_PAUSE: u64 = 300;

/// What works off the records for one journal node.
pub type SenderFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The journal nodes of a pool.
pub struct ShardedJournal {
    shards: Vec<Arc<Sender>>,
    appends: Arc<Appends>,
    has_threads: bool,
}

impl fmt::Debug for ShardedJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardedJournal({:?})", self.shards)
    }
}

impl ShardedJournal {
    /// The journal of a pool with so many journal nodes, for one incarnation of a compute node.
    /// Records for a node that `is_skipped` count as accepted.
    ///
    /// # Errors
    /// `Full` when there is no thread.
    pub fn open(
        fabric: &Arc<dyn Fabric>,
        me: Member,
        journal_nodes: u16,
        is_skipped: impl Fn(NodeId) -> bool + Clone + Send + 'static,
    ) -> Result<Self> {
        let dial = |n| -> (String, Dial) {
            let (fabric, to, is_skipped) = (fabric.clone(), NodeId::journal(n), is_skipped.clone());
            let dial = move || {
                let ep = Endpoint::alone(fabric.attach(me.node)?, SLAB_BYTES);
                ep.set_timeout(ATTEMPT_NS);
                Ok(Box::new(Calls { ep, to, is_skipped }) as Box<dyn Line>)
            };
            (to.to_string(), Box::new(dial))
        };
        Self::over(me.incarnation, (0..journal_nodes).map(dial))
    }

    /// The same without threads: each endpoint is that of a client of the compute node, which runs
    /// the future of its place to the end of the journal. An attempt takes `attempt_ns` at most.
    /// Nothing is skipped, only records are sent, and no operation may be dropped.
    ///
    /// # Errors
    /// `InvalidArgument` without endpoints.
    pub fn driven(
        incarnation: u32,
        endpoints: Vec<Endpoint>,
        attempt_ns: u64,
    ) -> Result<(Self, Vec<SenderFuture>)> {
        let appends = Arc::<Appends>::default();
        let (mut shards, mut futures) = (Vec::new(), Vec::new());
        for (ep, to) in endpoints.into_iter().zip((0..).map(NodeId::journal)) {
            ep.set_timeout(attempt_ns);
            let pause_ns = attempt_ns / ATTEMPTS_PER_PAUSE;
            let line = Box::new(DrivenCalls { ep, to, pause_ns });
            let (sender, future) =
                Sender::driven(to.to_string(), incarnation, appends.clone(), line);
            shards.push(Arc::new(sender));
            futures.push(Box::pin(future) as SenderFuture);
        }
        Ok((Self::of(shards, appends, false)?, futures))
    }

    fn over(incarnation: u32, parts: impl Iterator<Item = (String, Dial)>) -> Result<Self> {
        let appends = Arc::<Appends>::default();
        let start = |(to, dial)| Sender::start(to, incarnation, appends.clone(), dial);
        let shards = parts.map(|part| start(part).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        Self::of(shards, appends, true)
    }

    fn of(shards: Vec<Arc<Sender>>, appends: Arc<Appends>, has_threads: bool) -> Result<Self> {
        if shards.is_empty() {
            return Err(Error::invalid("a journal without parts"));
        }
        Ok(Self { shards, appends, has_threads })
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        (xxh3_64(key) % self.shards.len() as u64) as usize
    }

    fn shard(&self, part: u16) -> Result<&Sender> {
        let shard = self.shards.get(usize::from(part));
        shard.map(|shard| &**shard).ok_or_else(|| {
            let last = self.shards.len() - 1;
            Error::invalid(format!("no part {part}: the journal has parts 0 to {last}"))
        })
    }

    /// Has every part do something, the last one first.
    fn backwards(&self, ask: impl Fn() -> Ask<'static>) -> Result<()> {
        self.shards.iter().rev().try_for_each(|shard| done(shard.call(ask())?))
    }
}

/// The remote calls of a thread to one journal node.
struct Calls<S> {
    ep: Endpoint,
    to: NodeId,
    is_skipped: S,
}

impl<S: Fn(NodeId) -> bool> Line for Calls<S> {
    fn call<'l>(&'l mut self, request: &'l [u8]) -> LineFuture<'l, Result<Vec<u8>>> {
        let mut reply = Vec::new();
        self.ep.renew_deadline();
        let call = self.ep.rpc(self.to, JOURNAL_SERVICE, request, &mut reply);
        let called = self.ep.block_on(call);
        Box::pin(std::future::ready(called.map(|()| reply)))
    }

    fn is_skipped(&self) -> bool {
        (self.is_skipped)(self.to)
    }
}

/// The remote calls of a client among others of its thread.
struct DrivenCalls {
    ep: Endpoint,
    to: NodeId,
    pause_ns: u64,
}

impl Line for DrivenCalls {
    fn call<'l>(&'l mut self, request: &'l [u8]) -> LineFuture<'l, Result<Vec<u8>>> {
        Box::pin(async move {
            let mut reply = Vec::new();
            self.ep.renew_deadline();
            self.ep.rpc(self.to, JOURNAL_SERVICE, request, &mut reply).await?;
            Ok(reply)
        })
    }

    fn rest<'l>(&'l mut self, queue: &'l Queue) -> LineFuture<'l, ()> {
        Box::pin(async move {
            let listener = queue.work.listen();
            if queue.is_idle() {
                self.ep.renew_deadline();
                let why = WaitReason { what: "records for a journal node", at: 0 };
                // At its deadline it looks, and waits again.
                let _ = listener.wait(&self.ep, why).await;
            }
        })
    }

    fn pause(&mut self) -> LineFuture<'_, ()> {
        Box::pin(self.ep.sleep(self.pause_ns))
    }
}

fn done(answer: Answer) -> Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn created(answer: Answer) -> Result<IndexNumber> {
    match answer {
        Answer::Created(number) => Ok(IndexNumber(number)),
        other => Err(unexpected(&other)),
    }
}

impl Journal for ShardedJournal {
    fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Result<Ticket> {
        let ticket = self.appends.begin(records.len());
        let mut parts: Vec<Vec<Entry>> = self.shards.iter().map(|_| Vec::new()).collect();
        for record in records {
            let mut bytes = Vec::new();
            put_record(&mut bytes, index, record);
            parts[self.shard_of(record.key())].push(Entry { ticket, index, bytes });
        }
        for (shard, entries) in self.shards.iter().zip(parts) {
            if !entries.is_empty() {
                shard.send(entries.into_iter());
            }
        }
        Ok(Ticket(ticket))
    }

    fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        self.appends.is_accepted(ticket)
    }

    fn news(&self) -> &WaitQueue {
        self.appends.news()
    }

    fn settle(&self, ticket: Ticket) -> bool {
        self.appends.settle(ticket)
    }

    fn has_threads(&self) -> bool {
        self.has_threads
    }

    fn trouble(&self) -> Option<Error> {
        self.shards.iter().find_map(|shard| shard.trouble())
    }

    fn create(&self) -> Result<IndexNumber> {
        let (first, others) = self.shards.split_first().expect("one at least");
        let number = created(first.call(Ask::Create(None))?)?;
        for shard in others {
            created(shard.call(Ask::Create(Some(number.0)))?)?;
        }
        Ok(number)
    }

    fn create_numbered(&self, _: IndexNumber) -> Result<()> {
        Err(Error::unsupported("the parts of a journal number its indexes"))
    }

    fn name(&self, indexes: &[KnownIndex]) -> Result<()> {
        let rows: Vec<Row> = indexes.iter().map(Row::from).collect();
        if rows.iter().map(Row::bytes).sum::<usize>() > BODY_BYTES {
            return Err(Error::invalid("too many indexes to be named together"));
        }
        self.backwards(|| Ask::Name(rows.clone()))
    }

    fn remove(&self, index: IndexNumber) -> Result<()> {
        self.shards.iter().try_for_each(|shard| done(shard.call(Ask::Remove(index.0))?))
    }

    fn clear(&self, index: IndexNumber) -> Result<()> {
        self.backwards(|| Ask::Clear(index.0))
    }

    fn refill(&self, part: u16, indexes: &[KnownIndex]) -> Result<()> {
        let shard = self.shard(part)?;
        done(shard.call(Ask::Empty)?)?;
        for known in indexes {
            created(shard.call(Ask::Create(Some(known.number.0)))?)?;
        }
        for known in indexes {
            done(shard.call(Ask::Name(vec![Row::from(known)]))?)?;
        }
        done(shard.call(Ask::Fill)?)
    }

    fn indexes_beside(&self, part: u16) -> Result<Vec<KnownIndex>> {
        let other = if part == 0 && self.shards.len() > 1 { 1 } else { 0 };
        list(self.shard(other)?, Ask::Indexes)
    }

    fn part_of(&self, key: &[u8]) -> u16 {
        self.shard_of(key) as u16
    }

    fn indexes(&self) -> Result<Vec<KnownIndex>> {
        list(&self.shards[0], Ask::Indexes)
    }

    fn cut(&self) -> Result<Box<dyn Cut>> {
        Ok(Box::new(ShardedCut::take(&self.shards)?))
    }
}
