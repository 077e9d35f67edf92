//! The incarnations of this process in its pool: after the loss of a membership the process joins
//! again as a new incarnation.
//!
//! The membership agent reports when the membership is lost for good. One thread then joins the
//! pool again, opens the indexes by name and number, and puts the new incarnation in the place of
//! the old one. Sessions and coroutines see by a number (one relaxed load for each operation) that
//! something has changed, and switch to the new incarnation between two operations. An operation
//! that met the loss is tried again where that is sound: a read, and a write that reports no
//! effect. A new incarnation uses nothing of an old one, so no operation mixes the two.
//!
//! Order of a rejoin: the new cluster joins, the catalog is listed, every open index is prepared on
//! the new cluster, and only then, under the lock of the open indexes, all of them switch, the
//! number grows and the clients are notified. An error before that changes nothing, and the thread
//! tries again. An index that is not in the catalog any more is closed. `Incompatible` is final:
//! another pool is in the place of this one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dmtree_fabric::{Effect, Endpoint, Error, ErrorKind, Result};
use dmtree_pool::{Cluster, MembershipStatus, PoolNode};

use crate::open::OpenIndex;
use crate::pool::{PoolInner, locked};
use crate::status;

/// First pause between two checks of the standing of this process in its pool, ns; pauses double.
const FIRST_PAUSE_NS: u64 = 250_000;
/// Longest of these pauses, ns.
const LONGEST_PAUSE_NS: u64 = 8_000_000;
/// First pause between two attempts to join again; pauses double.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Longest of these pauses.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A membership of this process in its pool, from joining to its loss.
pub(crate) struct Incarnation {
    /// Counted from 1.
    pub(crate) number: u64,
    pub(crate) cluster: Cluster,
}

/// The present incarnation, and the state of the next.
pub(crate) struct Incarnations {
    pub(crate) now: Arc<Incarnation>,
    /// Whether a thread is joining again.
    is_joining: bool,
    /// Why there will be no other incarnation.
    gone: Option<Error>,
    /// Why the last attempt to join has failed.
    trouble: Option<Error>,
}

impl Incarnations {
    pub(crate) fn new(cluster: Cluster) -> Self {
        let now = Arc::new(Incarnation { number: 1, cluster });
        Self { now, is_joining: false, gone: None, trouble: None }
    }
}

/// The context of a client: its pool, incarnation, node and endpoint.
#[derive(Clone, Copy)]
pub(crate) struct ClientContext<'a> {
    pub(crate) pool: &'a Arc<PoolInner>,
    pub(crate) incarnation: &'a Incarnation,
    pub(crate) node: &'a PoolNode,
    pub(crate) ep: &'a Endpoint,
}

/// The next step after an error.
pub(crate) enum Next {
    /// The caller gets this error.
    Give(Error),
    /// The same again.
    Again,
    /// The same again in the newest incarnation.
    Newer,
}

/// The attempts at one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    /// When the operation must end; 0 before the first error.
    until: u64,
    failed: u32,
}

/// A read, or an operation without an effect, is tried so often while its connections break and the
/// node is still a member as far as it knows.
const BROKEN_TRIES: u32 = 5;

impl Attempts {
    /// Decides the next step of an operation after an error. It `reads` when it may be repeated
    /// whatever the error says of its effect.
    pub(crate) async fn after(&mut self, at: ClientContext<'_>, e: Error, reads: bool) -> Next {
        use ErrorKind::{Contended, Revoked, TimedOut, Unreachable};
        if !at.pool.joins_again()
            || !matches!(e.kind(), Revoked | Unreachable | TimedOut | Contended)
        {
            return Next::Give(e);
        }
        if self.until == 0 {
            self.until = at.ep.deadline();
        }
        self.failed += 1;
        let is_sound = reads || e.effect() == Effect::None;
        match at.node.membership().membership_status(at.ep) {
            MembershipStatus::Member if !is_sound => return Next::Give(e),
            // A host has refused this node, which learns of the loss soon; or the lease was renewed
            // meanwhile.
            MembershipStatus::Member if e.kind() == Revoked => {}
            // The connections of a node without access break before it learns why.
            MembershipStatus::Member if e.kind() == Unreachable && self.failed == 1 => {
                return Next::Again;
            }
            // It may take some tries until it learns of it.
            MembershipStatus::Member if e.kind() == Unreachable && self.failed <= BROKEN_TRIES => {}
            MembershipStatus::Member => return Next::Give(e),
            _ if !is_sound => return Next::Give(in_doubt(e)),
            _ => {}
        }
        if at.ep.now() >= self.until {
            return Next::Give(at.in_vain(&e));
        }
        at.ep.sleep(FIRST_PAUSE_NS << self.failed.min(5)).await;
        match at.wait(self.until).await {
            Ok(false) => Next::Again,
            Ok(true) => Next::Newer,
            Err(e) => Next::Give(e),
        }
    }

    /// Leaves an operation that is tried again the rest of its time.
    pub(crate) fn limit(&self, ep: &Endpoint) {
        ep.set_timeout(self.until.saturating_sub(ep.now()).max(1_000_000));
    }
}

impl ClientContext<'_> {
    /// Waits while it is open whether this node belongs to the pool, and while the process joins
    /// again. True when there is a newer incarnation.
    ///
    /// # Errors
    /// Why there will be none; `TimedOut` at `until`.
    async fn wait(self, until: u64) -> Result<bool> {
        let mut pause = FIRST_PAUSE_NS;
        loop {
            if self.pool.incarnation_number() != self.incarnation.number {
                return Ok(true);
            }
            match self.node.membership().membership_status(self.ep) {
                MembershipStatus::Member => return Ok(false),
                MembershipStatus::Lapsed => {}
                MembershipStatus::Lost => {
                    self.pool.lost(self.incarnation.number);
                    if let Some(gone) = &locked(&self.pool.incarnations).gone {
                        return Err(gone.clone());
                    }
                }
            }
            if self.ep.now() >= until {
                let lapsed = Error::revoked("the operation has not begun");
                return Err(self.in_vain(&lapsed));
            }
            self.ep.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE_NS);
        }
    }

    /// Before an operation, after a change: whether there is a newer incarnation. Waits for it when
    /// this one is over.
    ///
    /// # Errors
    /// Why there is none in time.
    pub(crate) async fn is_superseded(self, timeout_ns: u64) -> Result<bool> {
        match self.pool.incarnation_number() == self.incarnation.number
            && self.node.membership().membership_status(self.ep) != MembershipStatus::Lost
        {
            true => Ok(false),
            false => self.wait(self.ep.now() + timeout_ns).await,
        }
    }

    /// The error of an operation that runs out of time while this process is no member.
    #[cold]
    fn in_vain(self, e: &Error) -> Error {
        let member = self.node.member();
        let (state, trouble) = match self.node.membership().membership_status(self.ep) {
            MembershipStatus::Lost => (
                format!(
                    "{member} has lost its membership, and the process has not joined again yet"
                ),
                locked(&self.pool.incarnations).trouble.clone(),
            ),
            MembershipStatus::Lapsed => (
                format!("the lease of {member} has ended and has not been renewed yet"),
                self.node.membership().trouble(),
            ),
            MembershipStatus::Member => (format!("{member} was refused, and is a member"), None),
        };
        let is_silent = trouble.as_ref().is_some_and(|t| t.kind() == ErrorKind::Unreachable);
        let why = trouble.map_or_else(
            || "is the first memory node up, and the way to it?".to_owned(),
            |t| t.to_string(),
        );
        let text = format!("{state} ({why}): try again, it goes on when the pool answers; {e}");
        match is_silent {
            true => Error::unreachable(text),
            false => Error::timed_out(text),
        }
    }
}

/// The error of a write that may have happened.
#[cold]
fn in_doubt(e: Error) -> Error {
    e.context("the membership ended during the write").effect_unknown()
}

impl PoolInner {
    /// The present incarnation.
    pub(crate) fn incarnation(&self) -> Arc<Incarnation> {
        locked(&self.incarnations).now.clone()
    }

    /// Its number.
    pub(crate) fn incarnation_number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Whether this process can lose its membership and get another one.
    fn joins_again(&self) -> bool {
        self.how.is_some()
    }

    /// Has [`PoolInner::lost`] called when the membership of an incarnation is lost; its node says
    /// what the indexes do.
    pub(crate) fn watch(self: &Arc<Self>, incarnation: &Incarnation) -> Result<()> {
        incarnation.cluster.compute_node(0)?.set_index_reports(status::reports(self));
        let (pool, number) = (Arc::downgrade(self), incarnation.number);
        incarnation.cluster.when_lost(move || {
            if let Some(pool) = pool.upgrade() {
                pool.lost(number);
            }
        })
    }

    /// An incarnation is over: every client is notified, and one thread joins again.
    pub(crate) fn lost(self: &Arc<Self>, number: u64) {
        {
            let mut incarnations = locked(&self.incarnations);
            if incarnations.now.number != number
                || incarnations.is_joining
                || incarnations.gone.is_some()
            {
                return;
            }
            let pool = Arc::downgrade(self);
            let named = std::thread::Builder::new().name("dmtree joins again".into());
            match named.spawn(move || join_again(&pool)) {
                Ok(_) => incarnations.is_joining = true,
                Err(e) => {
                    let text = format!("no thread for joining again: {e}");
                    incarnations.trouble = Some(Error::busy(text));
                }
            }
        }
        locked(&self.opened).values().for_each(|open| open.notify());
    }

    /// Joins once; then the new incarnation is the present one.
    fn try_join(self: &Arc<Self>, former: &Incarnation) -> Result<()> {
        let Some(how) = &self.how else {
            return Err(Error::incompatible("an embedded pool has one incarnation"));
        };
        let cluster = how.join_again(&former.cluster)?;
        let incarnation = Arc::new(Incarnation { number: former.number + 1, cluster });
        if let Some(durable) = &self.durable {
            durable.enter(&incarnation.cluster)?;
        }
        let known: Vec<u32> = locked(&self.opened).values().map(|open| open.id).collect();
        let there = list(&incarnation.cluster)?;
        let former = {
            let opened = locked(&self.opened);
            let is_there = |open: &OpenIndex| there.contains(&open.id) || !known.contains(&open.id);
            let prepare = |open: &Arc<OpenIndex>| match is_there(open) {
                true => {
                    Ok((open.clone(), Some(open.prepare(&incarnation, self.durable.as_ref())?)))
                }
                false => Ok((open.clone(), None)),
            };
            let prepared = opened.values().map(prepare).collect::<Result<Vec<_>>>()?;
            let mut left = Vec::with_capacity(prepared.len());
            for (open, nodes) in prepared {
                match nodes {
                    Some(nodes) => left.push(open.enter(nodes)),
                    None => open.close(),
                }
            }
            let mut incarnations = locked(&self.incarnations);
            (incarnations.is_joining, incarnations.trouble) = (false, None);
            let former = std::mem::replace(&mut incarnations.now, incarnation.clone());
            self.number.store(incarnation.number, Ordering::Release);
            drop(incarnations);
            opened.values().for_each(|open| open.notify());
            (left, former)
        };
        let watched = self.watch(&incarnation);
        // The threads of the former one end here, outside the locks: clients work again meanwhile.
        drop(former);
        watched
    }
}

/// The numbers of the indexes in the catalog.
fn list(cluster: &Cluster) -> Result<Vec<u32>> {
    let node = cluster.compute_node(0)?;
    let ep = node.endpoint(0)?;
    let all = ep.block_on(node.catalog().list_indexes(&ep))?;
    Ok(all.into_iter().map(|e| e.id).collect())
}

/// Joins until it works, there is no pool to join, or the last handle of the pool is gone.
fn join_again(pool: &std::sync::Weak<PoolInner>) {
    let mut pause = FIRST_RETRY_PAUSE;
    while let Some(pool) = pool.upgrade() {
        let former = pool.incarnation();
        match pool.try_join(&former) {
            Ok(()) => return,
            Err(e) => {
                let mut incarnations = locked(&pool.incarnations);
                if e.kind() == ErrorKind::Incompatible {
                    (incarnations.is_joining, incarnations.gone) = (false, Some(e));
                    return;
                }
                incarnations.trouble = Some(e);
            }
        }
        drop((former, pool));
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(LONGEST_RETRY_PAUSE);
    }
}
