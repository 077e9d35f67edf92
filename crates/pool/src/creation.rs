//! The creation of a named index: one creator has a name at a time, the others wait for it, and the
//! name of a creation without a creator is free again.
//!
//! The verbs of a creation, in order: draw a ticket (local), register the name (`catalog.rs`: the
//! slot is in state `Creating` and names the creator, a member and its ticket), let the index
//! format its memory, and publish: a compare-and-swap of the state word from `Creating` to `Ready`,
//! both with the index's id.
//!
//! A creation is *over* without an index when no verb of its creator executes any more (the member
//! is draining, reassigning or gone), or when the creator is this node and the ticket is not in
//! use. The next client that wants the name then swaps the state word to 0.
//!
//! Invariants. Every change of a registered slot is a compare-and-swap of the state word, which
//! carries the id: of several clients that free a slot one succeeds, and a creation that was
//! published meanwhile stays. A ticket is drawn before the name is registered and given back after
//! the state word has changed, so a node never takes its own running creation for one that is over.
//! A late verb of the former creator cannot reach the slot's next index, since none executes by
//! then.
//!
//! Crashes and drops. A creator that dies before registering leaves nothing; later, it leaves a
//! slot that is over once its access is revoked. A dropped future frees its name itself, as soon as
//! nothing that was posted for it executes any more. The chunks that a failed creation has taken
//! stay with its id until a purge (`purge.rs`). Others wait at most 30 s for a living creator.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dmtree_fabric::verb::cas;
use dmtree_fabric::{Endpoint, Error, ErrorKind, Member, MemberPhase, Result};

use crate::catalog::{IndexEntry, IndexState, NewIndex, exists};
use crate::node::PoolNode;
use crate::wire::locked;

/// How long others wait for a creation, ns.
const WAITS_WITHIN_NS: u64 = 30_000_000_000;
/// The first pause between two READs of the catalog, ns; pauses double.
const FIRST_PAUSE_NS: u64 = 250_000;
/// Longest of these pauses, ns.
const LONGEST_PAUSE_NS: u64 = 8_000_000;

/// The creator of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator {
    /// The compute node, in one of its incarnations.
    pub member: Member,
    /// Which of its creations.
    pub ticket: u64,
}

/// The creations of one incarnation of a node.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<Drawn>);

#[derive(Debug, Default)]
struct Drawn {
    last: u64,
    in_use: BTreeSet<u64>,
}

impl Tickets {
    fn draw(&self) -> u64 {
        let mut drawn = locked(&self.0);
        drawn.last += 1;
        let ticket = drawn.last;
        drawn.in_use.insert(ticket);
        ticket
    }

    fn is_in_use(&self, ticket: u64) -> bool {
        locked(&self.0).in_use.contains(&ticket)
    }

    fn give_back(&self, ticket: u64) {
        locked(&self.0).in_use.remove(&ticket);
    }
}

/// A ticket in use; given back when dropped.
#[derive(Debug)]
struct Ticket {
    of: Arc<Tickets>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.of.give_back(self.number);
    }
}

/// The result of opening a name.
#[derive(Debug)]
pub enum Opening {
    /// An index that can be opened.
    Ready(IndexEntry),
    /// The caller creates it.
    Begun(Creation),
}

/// An index that its holder creates: it is published, or abandoned. Dropped, as with a future, it
/// is abandoned as soon as nothing that was posted for it executes any more.
#[derive(Debug)]
pub struct Creation {
    node: Arc<PoolNode>,
    ep: Endpoint,
    entry: IndexEntry,
    ticket: Option<Ticket>,
}

impl Creation {
    /// The entry, in state `Creating`.
    pub fn entry(&self) -> &IndexEntry {
        &self.entry
    }

    /// Makes the index ready for all nodes.
    ///
    /// # Errors
    /// `NotFound` when it was dropped meanwhile; those of the fabric.
    pub async fn publish(mut self) -> Result<IndexEntry> {
        self.node.catalog().publish_index(&self.ep, &self.entry).await?;
        self.ticket = None;
        Ok(IndexEntry { state: IndexState::Ready, ..self.entry.clone() })
    }

    /// Frees the name.
    pub async fn abandon(mut self) -> Result<()> {
        self.node.creations().clear(&self.ep, &self.entry).await?;
        self.ticket = None;
        Ok(())
    }

    /// The name stays the caller's until `Catalog::publish_index` or `Catalog::drop_index`.
    fn keep(mut self) -> IndexEntry {
        // The ticket stays in use for the rest of this incarnation.
        if let Some(ticket) = self.ticket.take() {
            std::mem::forget(ticket);
        }
        self.entry.clone()
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let Ok(word) = self.entry.state_word() else { return };
        let (ep, creating) = (self.ep.clone(), self.entry.creating_word());
        self.ep.when_quiet(move || {
            ep.detach(cas(word, creating, 0), None);
            drop(ticket);
        });
    }
}

/// The state of a creation that another client has begun.
enum Progress {
    /// Its creator is living.
    Alive,
    /// Its creator is dead, and verbs of it may still execute.
    Dying,
    /// No verb of its creator executes any more.
    Over,
}

/// Indexes that come into being.
#[derive(Clone, Copy, Debug)]
pub struct Creations<'n>(pub(crate) &'n Arc<PoolNode>);

impl Creations<'_> {
    /// Registers a name. The entry is `Creating` and the caller's: it fills the index and publishes
    /// it, or drops it. A name that a dead creator has left is free.
    ///
    /// # Errors
    /// `Exists`, `Full` when the catalog is, `InvalidArgument` for names and options of impossible
    /// length; those of the fabric.
    pub async fn create_index(
        self,
        ep: &Endpoint,
        name: &str,
        system: &str,
        options: &[u8],
    ) -> Result<IndexEntry> {
        Ok(self.begin_index(ep, NewIndex { name, system, options }).await?.keep())
    }

    /// As [`Creations::create_index`], for a creation that ends with the value returned.
    pub async fn begin_index(self, ep: &Endpoint, new: NewIndex<'_>) -> Result<Creation> {
        let mut waits = Waits::new(ep);
        let mut purges = true;
        loop {
            match self.try_begin(ep, new).await {
                Err(e) if e.kind() == ErrorKind::Exists => {}
                // Dropped indexes have slots of the catalog until they are purged.
                Err(e) if e.kind() == ErrorKind::Full && std::mem::take(&mut purges) => {
                    self.0.catalog().purge_dropped(ep).await.map_err(|_| e)?;
                    continue;
                }
                done => return done,
            }
            match self.0.catalog().find_index(ep, new.name).await? {
                // It was dropped between the two READs.
                None => {}
                Some(e) if e.state == IndexState::Ready => return Err(exists(&e)),
                Some(e) => match self.progress(ep, &e).await? {
                    Progress::Alive => return Err(exists(&e)),
                    Progress::Dying => waits.check(&e)?,
                    Progress::Over => self.clear(ep, &e).await?,
                },
            }
            waits.pause().await;
        }
    }

    /// The index of this name, when it can be opened: one that a living node is creating is waited
    /// for.
    ///
    /// # Errors
    /// `InvalidArgument` for an impossible name; `Busy` when its creation takes too long; those of
    /// the fabric.
    pub async fn find_ready_index(self, ep: &Endpoint, name: &str) -> Result<Option<IndexEntry>> {
        let mut waits = Waits::new(ep);
        loop {
            match self.0.catalog().find_index(ep, name).await? {
                Some(e) if e.state == IndexState::Creating => match self.progress(ep, &e).await? {
                    Progress::Alive | Progress::Dying => waits.check(&e)?,
                    Progress::Over => self.clear(ep, &e).await?,
                },
                found => return Ok(found),
            }
            waits.pause().await;
        }
    }

    /// The index of this name, when it can be opened, else its creation by the caller.
    ///
    /// # Errors
    /// As [`Creations::create_index`] and [`Creations::find_ready_index`], but for `Exists`.
    pub async fn open_or_begin_index(self, ep: &Endpoint, new: NewIndex<'_>) -> Result<Opening> {
        let mut waits = Waits::new(ep);
        loop {
            if let Some(e) = self.find_ready_index(ep, new.name).await? {
                return Ok(Opening::Ready(e));
            }
            match self.begin_index(ep, new).await {
                // Another client was faster.
                Err(e) if e.kind() == ErrorKind::Exists && !waits.are_over() => {}
                begun => return begun.map(Opening::Begun),
            }
            waits.pause().await;
        }
    }

    async fn try_begin(self, ep: &Endpoint, new: NewIndex<'_>) -> Result<Creation> {
        // Drawn before the call, so that no client of this node takes the creation for one that is
        // over.
        let ticket = Ticket { of: self.0.creating.clone(), number: self.0.creating.draw() };
        let entry = self.0.catalog().register_index(ep, new, ticket.number).await?;
        Ok(Creation { node: self.0.clone(), ep: ep.clone(), entry, ticket: Some(ticket) })
    }

    async fn progress(self, ep: &Endpoint, e: &IndexEntry) -> Result<Progress> {
        let Creator { member, ticket } = e.creator;
        if member == self.0.member() {
            return Ok(match self.0.creating.is_in_use(ticket) {
                true => Progress::Alive,
                false => Progress::Over,
            });
        }
        // Read after the catalog: a creator that the catalog names has joined before.
        let state = self.0.membership.state(self.0.member(), ep.now()).await?;
        if state.members.is_empty() {
            // No member has joined: all nodes count as living.
            return Ok(Progress::Alive);
        }
        Ok(match state.phase(member) {
            Some(MemberPhase::Living) => Progress::Alive,
            Some(MemberPhase::Revoking) => Progress::Dying,
            Some(_) | None => Progress::Over,
        })
    }

    /// Frees the name of a creation that is over, unless that has been done or it has been
    /// published.
    async fn clear(self, ep: &Endpoint, e: &IndexEntry) -> Result<()> {
        ep.cas(e.state_word()?, e.creating_word(), 0).await.map(|_| ())
    }
}

/// Repeated READs of the catalog, for a bounded time.
struct Waits<'e> {
    ep: &'e Endpoint,
    until: u64,
    pause_ns: u64,
}

impl<'e> Waits<'e> {
    fn new(ep: &'e Endpoint) -> Self {
        Self { ep, until: ep.now() + WAITS_WITHIN_NS, pause_ns: FIRST_PAUSE_NS }
    }

    fn are_over(&self) -> bool {
        self.ep.now() >= self.until
    }

    fn check(&self, e: &IndexEntry) -> Result<()> {
        if !self.are_over() {
            return Ok(());
        }
        Err(Error::busy(format!(
            "{} has been creating the index {:?} for {} s: try again, or drop the index",
            e.creator.member,
            e.name,
            WAITS_WITHIN_NS / 1_000_000_000
        )))
    }

    async fn pause(&mut self) {
        self.ep.sleep(self.pause_ns).await;
        self.pause_ns = (self.pause_ns * 2).min(LONGEST_PAUSE_NS);
        // Each READ has the deadline of an operation to itself.
        self.ep.renew_deadline();
    }
}
