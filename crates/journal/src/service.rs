//! What a journal node serves: appends of compute nodes, and reading what the journal has.
//!
//! Calls run one at a time, in the order of their arrival, and a call that is too old is not begun.
//! So when the sender of a call has waited for longer than that, nothing that arrives later comes
//! before it, whether the call was executed or not. A compute node that the membership has declared
//! dead is refused from the moment at which this node has revoked its access.
//!
//! *A part that is refilled* has no indexes at first, and refuses records as a node does that is
//! not there. When it has them again, it accepts records, and the rest is up to the membership: it
//! has a gap until memory has been written to it.
//!
//! *A cut over all parts.* While a cut is held this node changes nothing: it refuses what would,
//! and senders try again. A sender takes the cuts of all parts, and then releases them. When every
//! part says that its standstill has lasted until it was released, there was a moment, after the
//! last cut and before the first release, at which nothing was under way in any part: the cuts
//! together are what the journal had at that moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmtree_fabric::{Endpoint, Error, Failure, NodeId, Result, Service, WaitReason};

use crate::protocol::{
    Answer, Ask, BODY_BYTES, Request, Row, decode, encode, put_pair, take_record,
};
use crate::{Cut, IndexNumber, Journal, KnownIndex, Pairs, Record, Ticket};

/// Longest standstill of a cut that its sender does not release, ns.
pub(crate) const HOLD_NS: u64 = 2_000_000_000;
/// A cut that has not been read for so long is dropped, ns: the engine keeps what it has.
const MOST_UNREAD_NS: u64 = 300_000_000_000;

/// The most bytes of records that come in several calls: a pair and what surrounds it.
const MOST_STAGED_BYTES: usize = 2 << 20;

/// The service of a journal node.
#[derive(Debug)]
pub struct JournalService {
    journal: Arc<dyn Journal>,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    hold: Mutex<Option<Hold>>,
    /// The part lacks its indexes, until it is refilled.
    is_empty: AtomicBool,
}

/// The standstill of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    by: NodeId,
    sender: u32,
    until: u64,
}

/// A compute node, as its last sender has left it.
#[derive(Debug, Default)]
struct Peer {
    sender: u32,
    /// The last call, and its answer.
    number: u64,
    answer: Vec<u8>,
    /// Bytes of records, the last of which are still to come.
    staged: Vec<u8>,
    cut: Option<OpenCut>,
}

/// A cut that is being read.
#[derive(Debug)]
struct OpenCut {
    cut: Box<dyn Cut>,
    reading: Option<Reading>,
    /// When it was used last, ns.
    used: u64,
}

/// Pairs that are being read.
struct Reading {
    pairs: Pairs,
    rest: Vec<u8>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reading({} bytes ahead)", self.rest.len())
    }
}

impl JournalService {
    /// Of a journal. `is_empty`: it has begun anew, and lacks its indexes.
    pub fn new(journal: Arc<dyn Journal>, is_empty: bool) -> Self {
        let is_empty = AtomicBool::new(is_empty);
        Self { journal, peers: Mutex::default(), hold: Mutex::default(), is_empty }
    }

    /// Refuses what needs the indexes of a part that lacks them.
    fn check_filled(&self, ask: &Ask<'_>) -> Result<()> {
        let needs = matches!(
            ask,
            Ask::Part { .. } | Ask::Append { .. } | Ask::Indexes(_) | Ask::Cut | Ask::Clear(_)
        );
        match needs && self.is_empty.load(SeqCst) {
            true => Err(Error::busy(
                "its directory was begun anew: `dmtree journal refill` writes what it lacks",
            )),
            false => Ok(()),
        }
    }

    fn hold(&self) -> MutexGuard<'_, Option<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses what changes the journal while a cut is held, and another cut.
    fn check_hold(&self, ep: &Endpoint, ask: &Ask<'_>) -> Result<()> {
        let reads = matches!(
            ask,
            Ask::Part { .. }
                | Ask::Indexes(_)
                | Ask::Release
                | Ask::CutIndexes(_)
                | Ask::Read(_)
                | Ask::Page
                | Ask::EndCut
        );
        match &*self.hold() {
            Some(hold) if !reads && ep.now() < hold.until => {
                Err(Error::busy(format!("{} takes a cut", hold.by)))
            }
            _ => Ok(()),
        }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn execute(
        &self,
        ep: &Endpoint,
        (from, peer): (NodeId, &mut Peer),
        ask: Ask<'_>,
    ) -> Result<Answer> {
        self.check_hold(ep, &ask)?;
        self.check_filled(&ask)?;
        let staged = std::mem::take(&mut peer.staged);
        Ok(match ask {
            Ask::Part { at, .. } | Ask::Append { at, .. } if at != staged.len() as u64 => {
                Answer::BeginAgain
            }
            Ask::Part { bytes, .. } => {
                if staged.len() + bytes.len() > MOST_STAGED_BYTES {
                    return Err(Error::invalid("records that are too long"));
                }
                peer.staged = staged;
                peer.staged.extend(bytes);
                Answer::Done
            }
            Ask::Append { bytes, .. } if staged.is_empty() => self.append(ep, bytes).await?,
            Ask::Append { bytes, .. } => self.append(ep, &[&staged, bytes].concat()).await?,
            Ask::Create(None) => Answer::Created(self.journal.create()?.0),
            Ask::Create(Some(number)) => {
                self.journal.create_numbered(IndexNumber(number))?;
                Answer::Created(number)
            }
            Ask::Name(rows) => {
                let known: Vec<KnownIndex> = rows.into_iter().map(KnownIndex::from).collect();
                self.journal.name(&known)?;
                Answer::Done
            }
            Ask::Remove(number) => {
                self.journal.remove(IndexNumber(number))?;
                Answer::Done
            }
            Ask::Clear(number) => {
                self.journal.clear(IndexNumber(number))?;
                Answer::Done
            }
            Ask::Indexes(from) => Answer::Indexes(rows(&self.journal.indexes()?, from)),
            Ask::Cut => {
                let (cut, now) = (self.journal.cut()?, ep.now());
                let number = cut.number();
                peer.cut = Some(OpenCut { cut, reading: None, used: now });
                *self.hold() = Some(Hold { by: from, sender: peer.sender, until: now + HOLD_NS });
                Answer::Cut(number)
            }
            Ask::Release => Answer::Released(self.release(ep, from, peer.sender)),
            Ask::CutIndexes(from) => Answer::Indexes(rows(peer.open_cut(ep)?.cut.indexes(), from)),
            Ask::Read(number) => {
                peer.open_cut(ep)?.read(IndexNumber(number))?;
                Answer::Done
            }
            Ask::Page => Answer::Page(peer.open_cut(ep)?.page()?),
            Ask::Empty => {
                self.is_empty.store(true, SeqCst);
                for known in self.journal.indexes()? {
                    self.journal.remove(known.number)?;
                }
                Answer::Done
            }
            Ask::Fill => {
                self.is_empty.store(false, SeqCst);
                Answer::Done
            }
            Ask::EndCut => {
                peer.cut = None;
                Answer::Done
            }
        })
    }

    /// Whether the standstill of this sender has lasted until now, which ends it.
    fn release(&self, ep: &Endpoint, by: NodeId, sender: u32) -> bool {
        let mut hold = self.hold();
        let is_own = hold.is_some_and(|hold| (hold.by, hold.sender) == (by, sender));
        let former = if is_own { hold.take() } else { None };
        former.is_some_and(|hold| ep.now() < hold.until)
    }

    /// Appends records, and waits until they are accepted at the level of this node.
    async fn append(&self, ep: &Endpoint, mut bytes: &[u8]) -> Result<Answer> {
        let (mut refused, mut last) = (Vec::<(u32, Failure)>::new(), None);
        let mut records = Vec::<(IndexNumber, Record<'_>)>::new();
        // All of them are checked before one is appended.
        while !bytes.is_empty() {
            records.push(take_record(&mut bytes)?);
        }
        for of_index in records.chunk_by(|(a, _), (b, _)| a == b) {
            let index = of_index[0].0;
            let these: Vec<_> = of_index.iter().map(|(_, record)| *record).collect();
            match self.journal.append(index, &these) {
                Ok(ticket) => last = Some(ticket),
                Err(e) => refused.push((index.0, (&e).into())),
            }
        }
        if let Some(ticket) = last {
            self.accepted(ep, ticket).await?;
        }
        Ok(Answer::Appended(refused))
    }

    async fn accepted(&self, ep: &Endpoint, ticket: Ticket) -> Result<()> {
        let why = WaitReason { what: "the device of a journal", at: ticket.0 };
        while !self.journal.is_accepted(ticket)? {
            let listener = self.journal.news().listen();
            if self.journal.is_accepted(ticket)? {
                break;
            }
            listener.wait(ep, why).await?;
        }
        Ok(())
    }
}

impl Service for JournalService {
    fn waits(&self) -> bool {
        true
    }

    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let Request { sender, number, ask } = decode::<Request<'_>>(request)?;
        let former = self.peers().remove(&from).filter(|peer| peer.sender == sender);
        let mut peer = former.unwrap_or_else(|| Peer { sender, ..Peer::default() });
        let answered = match number.cmp(&peer.number) {
            std::cmp::Ordering::Equal => Ok(peer.answer.clone()),
            std::cmp::Ordering::Less => Err(Error::invalid("a call that came too late")),
            std::cmp::Ordering::Greater => {
                self.execute(ep, (from, &mut peer), ask).await.and_then(|answer| {
                    peer.answer = encode(&answer)?;
                    peer.number = number;
                    Ok(peer.answer.clone())
                })
            }
        };
        let mut peers = self.peers();
        peers.insert(from, peer);
        for peer in peers.values_mut() {
            let is_unread = |cut: &OpenCut| cut.used + MOST_UNREAD_NS < ep.now();
            if peer.cut.as_ref().is_some_and(is_unread) {
                peer.cut = None;
            }
        }
        answered
    }
}

impl Peer {
    fn open_cut(&mut self, ep: &Endpoint) -> Result<&mut OpenCut> {
        let cut = self.cut.as_mut().ok_or_else(|| {
            Error::closed("the journal node has restarted while it was being read: begin again")
        })?;
        cut.used = ep.now();
        Ok(cut)
    }
}

/// Indexes from one on, as many as an answer has room for.
fn rows(indexes: &[KnownIndex], from: u32) -> Vec<Row> {
    let mut bytes = 0;
    let rows = indexes.iter().skip(from as usize).map(Row::from);
    rows.take_while(|row| {
        bytes += row.bytes();
        bytes <= BODY_BYTES
    })
    .collect()
}

impl OpenCut {
    fn read(&mut self, index: IndexNumber) -> Result<()> {
        let pairs = self.cut.pairs(index)?;
        self.reading = Some(Reading { pairs, rest: Vec::new() });
        Ok(())
    }

    fn page(&mut self) -> Result<Vec<u8>> {
        let reading = self.reading.as_mut();
        let Reading { pairs, rest } = reading.ok_or_else(|| Error::invalid("nothing is read"))?;
        while rest.len() < BODY_BYTES {
            let Some(pair) = pairs.next() else { break };
            let (key, value) = pair?;
            put_pair(rest, &key, &value);
        }
        let after = rest.split_off(rest.len().min(BODY_BYTES));
        Ok(std::mem::replace(rest, after))
    }
}
