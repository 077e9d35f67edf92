//! Founding a pool, and joining one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::admin::{Admin, unexpected};
use super::data_path::{Common, DataPath, NicConfig};
use super::identity::KeyRole;
use super::io::{Listener, Net};
use super::kept_in::KeptIn;
use super::membership_server::{MembershipServer, PoolConfig, ready};
use super::node_directory::{NodeDirectory, NodeEntry};
use super::rdma::Rdma;
use super::rendezvous::{At, Rendezvous};
use super::roles::{Badges, Issued};
use super::server::Server;
use super::service::Inboxes;
use super::sessions::Sessions;
use super::sockets::System;
use super::verdicts::Verdicts;
use super::wire::{Answer, Ask, Introduction, JournalDirectory, PoolId, ShardMark};
use super::{NetFabric, Node, NodeShared, locked, service, transport};
use crate::addr::{NodeId, Role};
use crate::caps::Capabilities;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::membership::{InProcess, LeaseParameters, Member};
use crate::region::{Pages, Region};
use crate::transport::Nanos;

/// A journal node has no memory that others use.
const JOURNAL_REGION_BYTES: u64 = 4096;
/// Between two attempts to join a pool that is not ready.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// The place of a process in a pool.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// Where the first memory node listens, `HOST:PORT`.
    pub first: &'a str,
    /// Where this process is to listen; port 0 takes any.
    pub listen: &'a str,
    /// The number it wants among the nodes of its role, if it matters.
    pub wanted: Option<u16>,
    /// How long it waits for a pool that is not ready.
    pub within: Duration,
    /// What must carry the pool's verbs, if it matters.
    pub data_path: Option<DataPath>,
    /// Its NIC, which it needs in a pool over RDMA.
    pub nic_config: &'a NicConfig,
}

/// A node that is about to start: it has its memory, and listens.
struct Start<'a> {
    region: Region,
    common: Common,
    nic_config: &'a NicConfig,
    net: Arc<dyn Net>,
    listener: Box<dyn Listener>,
    /// Where it listens.
    listens: String,
}

/// The pool that it belongs to from then on.
struct Belonging {
    me: Member,
    pool: PoolId,
    badges: Badges,
    node_directory: NodeDirectory,
    at: At,
    /// Numeric address.
    first_address: String,
}

impl NetFabric {
    /// Founds a pool: this process is its first memory node, and the pool config selects the data
    /// path.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot listen there; `Full` when there is no memory, or it cannot
    /// be registered; `Incompatible` for keys without the role memory; `Unsupported` when the
    /// requested RDMA is missing, with how to get it.
    pub fn found(
        listen: &str,
        region_bytes: u64,
        pool_config: PoolConfig,
        lease_parameters: LeaseParameters,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        let at = (listen, None);
        Self::found_in(at, region_bytes, pool_config, lease_parameters, nic_config)
    }

    /// The same with the membership kept elsewhere.
    ///
    /// # Errors
    /// As [`NetFabric::found`]; `Exists` when a pool of this name is there.
    pub fn found_in(
        (listen, kept_in): (&str, Option<KeptIn<'_>>),
        region_bytes: u64,
        pool_config: PoolConfig,
        lease_parameters: LeaseParameters,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        Self::found_on(
            System::of(&nic_config.access),
            (listen, kept_in),
            region_bytes,
            pool_config,
            lease_parameters,
            nic_config,
        )
    }

    /// The same on a network.
    pub(super) fn found_on(
        net: Arc<dyn Net>,
        (listen, kept_in): (&str, Option<KeptIn<'_>>),
        region_bytes: u64,
        pool_config: PoolConfig,
        lease_parameters: LeaseParameters,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        nic_config.access.keys.check_role(KeyRole::Memory, "founding a pool")?;
        let data_path = pool_config.data_path;
        let mtu = if data_path == DataPath::Rdma { Rdma::probe(nic_config)? } else { 0 };
        let common = Common { data_path, mtu, cores: nic_config.cores };
        let start = Start::new(net, listen, region_bytes, common, nic_config)?;
        let net = &*start.net;
        let me = Member { node: NodeId::memory(0), incarnation: 1 };
        let (pool, secret) = (PoolId(draw(net)?), net.nonce()?);
        let badges = Badges::of(Issued::Secret(secret));
        let entry =
            NodeEntry { member: me, address: String::new(), region_bytes, on_chip_bytes: 0 };
        let at = match kept_in {
            None => {
                let membership = Arc::new(InProcess::new(lease_parameters));
                let server =
                    MembershipServer::new(pool, pool_config, common, badges.clone(), membership);
                server.enter(entry);
                At::Here(Box::new(server))
            }
            Some(kept_in) => {
                let entry = NodeEntry { address: start.listens.clone(), ..entry };
                let foundation = (pool, pool_config, common, secret, lease_parameters);
                kept_in.found(&start.net, foundation, entry)?
            }
        };
        let node_directory = match at.ask(&Ask::NodeDirectory, net)? {
            Answer::NodeDirectory(node_directory) => node_directory,
            other => return Err(unexpected(&other)),
        };
        let first_address = start.listens.clone();
        start.run(Belonging { me, pool, badges, node_directory, at, first_address })
    }

    /// The config and the data path of the pool with its first memory node at an address.
    ///
    /// # Errors
    /// `Unreachable` when no answer comes within the time; `Incompatible` when another program or
    /// version answers.
    pub fn pool_config(
        first: &str,
        nic_config: &NicConfig,
        within: Duration,
    ) -> Result<(Vec<u8>, DataPath)> {
        let net = System::of(&nic_config.access);
        let found = ready(Box::pin(find(&net, first, within, None)));
        let Found { common, options, .. } = found?;
        Ok((options, common.data_path))
    }

    /// Joins a pool. The size of this node's region follows from the pool config.
    ///
    /// # Errors
    /// As [`NetFabric::pool_config`] and [`NetFabric::found`]; `Busy` when the pool is not ready
    /// within the time, or has no place; `Incompatible` when it has another data path than is
    /// insisted on, or packets are too small here; `Exists` for a memory node that comes back: its
    /// contents are lost.
    pub fn join(
        place: &Place<'_>,
        role: Role,
        region_bytes: impl FnOnce(&[u8]) -> Result<u64>,
    ) -> Result<Self> {
        // Nothing of it is left to be polled: it waits.
        let asks = (role, None);
        let net = System::of(&place.nic_config.access);
        let joined = ready(Box::pin(Self::join_on(net, place, asks, region_bytes, None)));
        joined.map(|(fabric, _)| fabric)
    }

    /// Joins a pool as a journal node with this directory. `check` sees the options of the pool
    /// first. The mark says what the directory is from now on.
    ///
    /// # Errors
    /// As [`NetFabric::join`]; `InvalidArgument` for a directory that is no part of the pool's
    /// journal.
    pub fn join_journal(
        place: &Place<'_>,
        directory: JournalDirectory,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<(Self, ShardMark)> {
        let asks = (Role::Journal, Some(directory));
        let region_bytes = |options: &[u8]| check(options).map(|()| JOURNAL_REGION_BYTES);
        let net = System::of(&place.nic_config.access);
        let joined = Self::join_on(net, place, asks, region_bytes, None);
        let (fabric, mark) = ready(Box::pin(joined))?;
        let mark = mark.ok_or_else(|| Error::corrupt("no mark for the directory"))?;
        Ok((fabric, mark))
    }

    /// The same on a network; `clock` pauses where nothing may block.
    pub(super) async fn join_on(
        net: Arc<dyn Net>,
        place: &Place<'_>,
        (role, journal): (Role, Option<JournalDirectory>),
        region_bytes: impl FnOnce(&[u8]) -> Result<u64>,
        clock: Option<&Endpoint>,
    ) -> Result<(Self, Option<ShardMark>)> {
        let until = net.now() + place.within.as_nanos() as Nanos;
        let Found { at, first: first_address, pool, common, options } =
            find(&net, place.first, place.within, clock).await?;
        common.check(place.first, place.data_path)?;
        if common.data_path == DataPath::Rdma && role != Role::Journal {
            common.check_mtu(place.first, Rdma::probe(place.nic_config)?)?;
        }
        let region_bytes = region_bytes(&options)?;
        // Before a number is taken: a failure here may be retried.
        let start = Start::new(net, place.listen, region_bytes, common, place.nic_config)?;
        let (access, net) = (&place.nic_config.access, start.net.clone());
        if matches!(at, At::First(_)) {
            access.check_reach(place.first, &start.listens)?;
        }
        let ask = Ask::Register(Introduction {
            role,
            wanted: place.wanted,
            listens: at.reached_at(&start.listens)?,
            region_bytes,
            nonce: draw(&*net)?,
            journal,
        });
        let register = async || at.ask_soon(&ask, &*net).await;
        let answer = again_until(&*net, until, clock, register).await?;
        let Answer::Registered { me, node_directory, issued, mark } = answer else {
            return Err(unexpected(&answer));
        };
        let badges = Badges::of(issued);
        let at = at.speaking_for(badges.credential(me))?;
        let again = at.speaking_for(badges.credential(me))?;
        let started = start.run(Belonging { me, pool, badges, node_directory, at, first_address });
        if started.is_err() {
            // Give the number back. If this message is lost, the pool has one number less.
            let _ = again.ask_soon(&Ask::Withdraw(me), &*net).await;
        }
        started.map(|fabric| (fabric, mark))
    }
}

impl<'a> Start<'a> {
    fn new(
        net: Arc<dyn Net>,
        listen: &str,
        region_bytes: u64,
        common: Common,
        nic_config: &'a NicConfig,
    ) -> Result<Self> {
        // Memory is registered with the NIC once, so it is allocated as the NIC requires.
        let huge = common.data_path == DataPath::Rdma && nic_config.huge_pages;
        let region = Region::map(region_bytes, if huge { Pages::Huge } else { Pages::Ordinary })?;
        let (listener, listens) = net.listen(listen)?;
        Ok(Self { region, common, nic_config, net, listener, listens })
    }

    fn run(self, belonging: Belonging) -> Result<NetFabric> {
        let Self { common, nic_config, net, .. } = self;
        let Belonging { me, pool, badges, node_directory, at, first_address } = belonging;
        let host = Arc::new(Host::new(me.node, me.incarnation, self.region));
        let on_chip = match me.node.role() {
            Role::Memory => nic_config.on_chip_bytes.unwrap_or(u32::MAX),
            Role::Compute | Role::Journal => 0,
        };
        let rdma = match common.data_path {
            // A journal node has no memory that verbs could reach.
            _ if me.node.role() == Role::Journal => None,
            DataPath::Frames => None,
            DataPath::Rdma => Some(Rdma::open(nic_config, me, host.clone(), on_chip)?),
        };
        let caps = rdma
            .as_ref()
            .map_or(transport::CAPS, |r| r.caps(common.mtu, node_directory.on_chip_bytes()));
        let caps = Capabilities { mn_cores: common.cores, ..caps };
        let shared = Arc::new(NodeShared {
            me,
            pool,
            host,
            common,
            rdma,
            caps,
            net: net.clone(),
            node_directory: Mutex::new(node_directory),
            refreshed_at: AtomicU64::new(0),
            incarnations: Mutex::default(),
            incarnations_news: AtomicU64::new(0),
            verdicts: Verdicts::default(),
            rendezvous: Rendezvous::new(at, net.now()),
            badges,
            first_address,
            admins: Mutex::<BTreeMap<_, _>>::default(),
            sessions: Sessions::default(),
            calls: Mutex::default(),
            inbox: Mutex::default(),
            next_link: AtomicU64::new(1),
            listens: self.listens,
            closing: AtomicBool::new(false),
            is_asked_to_leave: AtomicBool::new(false),
            acts: AtomicBool::new(false),
            report: Mutex::default(),
            hears_gaps: Mutex::default(),
        });
        let (control, inbox) = channel();
        let data = match (net.has_threads(), me.node.role()) {
            (true, Role::Memory) => service::start_cores(&shared, nic_config.cores)?,
            // A data service of a compute node may wait: control services go on meanwhile.
            (true, Role::Compute) => service::start_cores(&shared, 1)?,
            _ => control.clone(),
        };
        *locked(&shared.calls) = Some(Inboxes { control, data });
        match net.has_threads() {
            true => service::start(&shared, "dmtree services", move || inbox.recv().ok())?,
            false => *locked(&shared.inbox) = Some(inbox),
        }
        let server = Mutex::new(net.serve(Server::new(&shared, self.listener)?)?);
        Ok(NetFabric(Arc::new(Node { shared, server })))
    }
}

/// Asks again until it works, or fails for good, or the time is over.
pub(super) async fn again_until<T>(
    net: &dyn Net,
    until: Nanos,
    clock: Option<&Endpoint>,
    mut ask: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let pause = AGAIN.as_nanos() as Nanos;
    loop {
        match ask().await {
            Err(e) if e.is_retryable() && net.now() + pause < until => match clock {
                Some(ep) => ep.sleep(pause).await,
                None => std::thread::park_timeout(AGAIN),
            },
            Err(e) if e.is_retryable() => return Err(e.context("waited in vain")),
            done => return done,
        }
    }
}

/// A random number, unique to this process.
fn draw(net: &dyn Net) -> Result<u64> {
    let nonce = net.nonce()?;
    let (first, _) = nonce.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    Ok(u64::from_le_bytes(*first) | 1)
}

/// A pool, as its membership describes it.
pub(super) struct Found {
    pub(super) at: At,
    /// The first memory node's numeric address, where that is known.
    pub(super) first: String,
    pub(super) pool: PoolId,
    pub(super) common: Common,
    pub(super) options: Vec<u8>,
}

/// Finds the membership of a pool, and asks it again and again.
async fn find(
    net: &Arc<dyn Net>,
    first: &str,
    within: Duration,
    clock: Option<&Endpoint>,
) -> Result<Found> {
    let until = net.now() + within.as_nanos() as Nanos;
    if let Some(address) = KeptIn::parse(first) {
        let address = address?;
        return again_until(&**net, until, clock, async || address.open(net)).await;
    }
    let admin = |at| Admin::new(net, at, None, Some(Role::Memory));
    let admins: Vec<Admin> = net.resolve(first)?.into_iter().map(admin).collect();
    again_until(&**net, until, clock, async || {
        let mut trouble = None;
        for admin in &admins {
            match admin.ask_soon(&Ask::PoolConfig).await {
                Ok(Answer::PoolConfig { pool, common, options }) => {
                    let first = admin.address.clone();
                    let at = At::First(admin.again().of_pool(pool));
                    return Ok(Found { at, first, pool, common, options });
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(e) => trouble = Some(e),
            }
        }
        Err(trouble.unwrap_or_else(|| Error::invalid(format!("{first:?} is no address"))))
    })
    .await
}
