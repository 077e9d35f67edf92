//! Founding a pool, and joining one.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex, RwLock};
use std::time::Duration;

use super::admin::{Admin, unexpected};
use super::carrier::{Carrier, Common, Equipment};
use super::rdma::Rdma;
use super::registrar::{Charter, Registrar};
use super::roles::Badges;
use super::roster::{Place, Roster};
use super::verdicts::Verdicts;
use super::wire::{self, Answer, Ask, Introduction, PoolId};
use super::{NetFabric, Node, Shared, locked, server, service, transport};
use crate::addr::{NodeId, Role};
use crate::error::Result;
use crate::host::Host;
use crate::membership::{InProcess, Member, MemberChange, Terms};
use crate::region::{Pages, Region};

/// Between two attempts to join a pool that is not ready.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Start of the clock of all nodes of this process: the clients of several of them can share an executor, whose timers have one.
#[expect(clippy::disallowed_methods, reason = "this is the fabric's clock")]
static EPOCH: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// What a process that joins a pool says of itself.
#[derive(Clone, Debug)]
pub struct Joining<'a> {
    /// Where the first memory node listens.
    pub first: &'a str,
    /// Where this one is to listen; port 0 takes any.
    pub listen: &'a str,
    /// What it is.
    pub role: Role,
    /// The number it wants among the nodes of its role, if it matters.
    pub wanted: Option<u16>,
    /// How long it waits for a pool that is not ready.
    pub within: Duration,
    /// What must carry the verbs of the pool, if it matters.
    pub carrier: Option<Carrier>,
    /// Its NIC.
    pub equipment: &'a Equipment,
}

/// A node that is about to start.
struct Start<'a> {
    me: Member,
    pool: PoolId,
    region: Region,
    common: Common,
    equipment: &'a Equipment,
    badges: Badges,
    roster: Roster,
    registrar: Option<Registrar>,
    first_address: String,
    listener: TcpListener,
}

impl NetFabric {
    /// Founds a pool: this process is its first memory node, and its charter says what carries verbs.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot listen there; `Full` when there is no memory, or it cannot be registered; `Unsupported` when
    /// the RDMA that is asked for is not there, with how it can be had.
    pub fn found(
        listen: &str,
        region_bytes: u64,
        charter: Charter,
        terms: Terms,
        equipment: &Equipment,
    ) -> Result<Self> {
        let carrier = charter.carrier;
        let mtu = if carrier == Carrier::Rdma { Rdma::probe(equipment)? } else { 0 };
        let common = Common { carrier, mtu };
        let (listener, at) = server::listen(listen, &equipment.access)?;
        let me = Member { node: NodeId::memory(0), incarnation: 1 };
        let pool = PoolId(wire::draw()?);
        let region = common.region(region_bytes, equipment)?;
        let (badges, membership) = (Badges::draw()?, Arc::new(InProcess::new(terms)));
        let registrar = Registrar::new(pool, charter, common, badges.clone(), membership);
        let place = Place { member: me, address: String::new(), region_bytes, on_chip_bytes: 0 };
        registrar.enter(place);
        let (roster, registrar, first_address) =
            (registrar.roster(), Some(registrar), at.to_string());
        Start {
            me,
            pool,
            region,
            common,
            equipment,
            badges,
            roster,
            registrar,
            first_address,
            listener,
        }
        .run()
    }

    /// The charter of the pool whose first memory node listens at an address, and what carries its verbs.
    ///
    /// # Errors
    /// `Unreachable` when nobody answers within the time; `Incompatible` when it is something else or another version.
    pub fn charter(
        first: &str,
        equipment: &Equipment,
        within: Duration,
    ) -> Result<(Vec<u8>, Carrier)> {
        let (_, common, terms) = ask_charter(first, equipment, within)?;
        Ok((terms, common.carrier))
    }

    /// Joins a pool. The size of this node's region follows from the charter.
    ///
    /// # Errors
    /// As [`NetFabric::charter`] and [`NetFabric::found`]; `Busy` when the pool is not ready within the time, or has no place;
    /// `Incompatible` when its verbs are carried by something else than is insisted on, or packets are too small here; `Exists` for
    /// a memory node that comes back: what it held is lost.
    pub fn join(
        how: &Joining<'_>,
        region_bytes: impl FnOnce(&[u8]) -> Result<u64>,
    ) -> Result<Self> {
        let until = deadline(how.within);
        let (pool, common, charter) = ask_charter(how.first, how.equipment, how.within)?;
        common.check(how.first, how.carrier)?;
        if common.carrier == Carrier::Rdma {
            common.check_mtu(how.first, Rdma::probe(how.equipment)?)?;
        }
        let region_bytes = region_bytes(&charter)?;
        // Before a number is taken: what fails here may be tried again.
        let region = common.region(region_bytes, how.equipment)?;
        let (listener, at) = server::listen(how.listen, &how.equipment.access)?;
        how.equipment.access.check_reach(how.first, &at)?;
        let first = Admin::new(how.first.to_string(), Some(pool), how.equipment.access.key.clone());
        let ask = Ask::Register(Introduction {
            role: how.role,
            wanted: how.wanted,
            listens: at.to_string(),
            region_bytes,
            nonce: wire::draw()?,
        });
        let answer = again_until(until, || first.ask(&ask))?;
        let Answer::Registered { me, roster, secret } = answer else {
            return Err(unexpected(&answer));
        };
        let badges = Badges::of(secret);
        let first = first.speaking_for(badges.pass(me));
        let (first_address, equipment) = (how.first.to_string(), how.equipment);
        let registrar = None;
        let start = Start {
            me,
            pool,
            region,
            common,
            equipment,
            badges,
            roster,
            registrar,
            first_address,
            listener,
        };
        // Its number is of no use to anybody. If that is not heard, the pool has one place less.
        start.run().inspect_err(|_| drop(first.ask(&Ask::Withdraw(me))))
    }
}

impl Common {
    /// A node's memory: a NIC is told of it once, so that it is mapped as it wishes.
    fn region(self, bytes: u64, equipment: &Equipment) -> Result<Region> {
        let huge = self.carrier == Carrier::Rdma && equipment.huge_pages;
        Region::map(bytes, if huge { Pages::Huge } else { Pages::Ordinary })
    }
}

impl Start<'_> {
    fn run(self) -> Result<NetFabric> {
        let Self { me, common, equipment, roster, registrar, first_address, .. } = self;
        let listens = self.listener.local_addr().map(|a| a.to_string()).unwrap_or_default();
        let host = Arc::new(Host::new(me.node, me.incarnation, self.region));
        let on_chip = match me.node.role() {
            Role::Memory => equipment.on_chip_bytes.unwrap_or(u32::MAX),
            Role::Compute => 0,
        };
        let rdma = match common.carrier {
            Carrier::Frames => None,
            Carrier::Rdma => Some(Rdma::open(equipment, me, host.clone(), on_chip)?),
        };
        let caps =
            rdma.as_ref().map_or(transport::CAPS, |r| r.caps(common.mtu, roster.on_chip_bytes()));
        let shared = Arc::new(Shared {
            me,
            pool: self.pool,
            host,
            common,
            rdma,
            caps,
            epoch: *EPOCH,
            roster: RwLock::new(roster),
            refreshed_at: AtomicU64::new(0),
            lives: Mutex::default(),
            lives_news: AtomicU64::new(0),
            verdicts: Verdicts::default(),
            registrar,
            key: equipment.access.key.clone(),
            first: Admin::new(first_address.clone(), Some(self.pool), equipment.access.key.clone())
                .speaking_for(self.badges.pass(me)),
            badges: self.badges,
            first_address,
            admins: Mutex::<BTreeMap<_, _>>::default(),
            sessions: server::Sessions::default(),
            calls: Mutex::default(),
            next_link: AtomicU64::new(1),
            listens,
            closing: AtomicBool::new(false),
            acts: AtomicBool::new(false),
            log: Mutex::default(),
        });
        let calls = service::start(&shared)?;
        *locked(&shared.calls) = Some(calls);
        server::start(&shared, self.listener)?;
        shared.note(me, MemberChange::Joined);
        Ok(NetFabric(Arc::new(Node { shared })))
    }
}

#[expect(clippy::disallowed_methods, reason = "connection set-up is in real time")]
fn deadline(within: Duration) -> std::time::Instant {
    std::time::Instant::now() + within
}

/// Asks again until it works, or fails for good, or the time is over.
fn again_until<T>(until: std::time::Instant, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match ask() {
            Err(e) if e.is_retryable() && deadline(AGAIN) < until => {
                std::thread::park_timeout(AGAIN);
            }
            Err(e) if e.is_retryable() => return Err(e.context("waited in vain")),
            done => return done,
        }
    }
}

fn ask_charter(
    first: &str,
    equipment: &Equipment,
    within: Duration,
) -> Result<(PoolId, Common, Vec<u8>)> {
    let admin = Admin::new(first.to_string(), None, equipment.access.key.clone());
    match again_until(deadline(within), || admin.ask(&Ask::Charter))? {
        Answer::Charter { pool, common, terms } => Ok((pool, common, terms)),
        other => Err(unexpected(&other)),
    }
}
