//! Pools of several processes: the process of a memory node, and the place of a compute node's
//! process in the pool.
//!
//! **Memory node** ([`MemoryNode`]): the first one founds the pool with its options
//! (`pool_config.rs`), the others join and get them. Each starts its services, writes and reads
//! back its superblock, and only then reports that it is ready. The pool opens when all memory
//! nodes are ready.
//!
//! **Compute node** ([`Cluster::join`]), in order: register at the first memory node and get the
//! options; start the node's services; start the membership agent's thread, which joins the
//! membership; check the superblock of every memory node that is present; wait until this node owns
//! tables or another compute node answers, two leases at most. A process that is several compute
//! nodes then waits until each has seen all others.
//!
//! **Leaving** ([`Partitions::depart`]): hand the tables over (planned moves, repeated, 5 s at
//! most, if there is a peer), hand in free memory, and leave the membership. The thread does this
//! when the last handle is dropped.
//!
//! **Losing the membership**: the agent closes the fabric, so that the address is free, and reports
//! the loss (`membership_status.rs`). The process may join again as a new incarnation, which shares
//! no memory and no connection with the old one; it must find the same pool there.
//!
//! Invariants. No service is announced before it runs, and no client runs before the node has
//! joined. A pool is known by an id that its founder draws: a restarted first memory node is
//! another pool, and joining it again is refused.
//!
//! Crashes. A process that dies between two of these steps has either registered only (its number
//! is free again after a while) or joined, and is then found dead when its lease ends. What a
//! departure does not hand in is found by garbage collection; tables that it does not hand over are
//! reassigned after its death.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use dmtree_fabric::net::{
    DataPath, JournalDirectory, KeptIn, KeyRole, NetFabric, NicConfig, NodeStatus, Place,
    PoolConfig, PoolId, ShardMark,
};
use dmtree_fabric::{
    Endpoint, Error, Fabric, GlobalAddr, LeaseParameters, News, NodeId, Result, Role,
};

use crate::cluster::{Cluster, serve_memory, start_node, write_heads};
use crate::layout::{NodeLayout, SUPERBLOCK, SUPERBLOCK_BYTES};
use crate::node::PoolNode;
use crate::options::{PoolJournal, PoolOptions};
use crate::pool_config;
use crate::reassign::Partitions;
use crate::shape::Shape;
use crate::status::{report_compute, report_memory};
use crate::wire::locked;

/// Steps of a membership agent in a lease, and while a death or a move is under way: other nodes
/// wait for every step.
const STEPS_PER_LEASE: u64 = 32;
const STEPS_PER_LEASE_OF_A_DEATH: u64 = 256;
/// Pause between two attempts at a memory node that does not answer, ns.
const LOOK_NS: u64 = 50_000_000;
/// Longest time for a departure, ns.
const LEAVES_WITHIN_NS: u64 = 5_000_000_000;
/// Longest time that a joining node waits for tables to own, in leases.
const SHARE_WITHIN_LEASES: u64 = 2;
/// Longest time for joining, once registered.
const JOINS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of buffers of a membership agent.
const MEMBERSHIP_AGENT_SLAB_BYTES: u64 = 4 << 20;

/// A memory node's process: its region is served until this is dropped, and is lost then.
#[derive(Debug)]
pub struct MemoryNode {
    fabric: NetFabric,
}

/// What a pool of several processes has in this one, beside its compute nodes.
pub(crate) struct Processes {
    /// The id of the pool.
    pub(crate) pool: Option<PoolId>,
    /// The agents of its compute nodes. They leave before the memory nodes go.
    pub(crate) agents: Vec<MembershipAgent>,
    /// Its memory nodes.
    _memory: Vec<MemoryNode>,
}

/// Takes the place of a journal node in a pool, for a directory. `check` sees what the pool says of
/// its journal, if it has one. The mark says what the directory is from now on.
///
/// # Errors
/// Those of [`NetFabric::join_journal`], and of `check`.
pub fn join_as_journal(
    place: &Place<'_>,
    directory: JournalDirectory,
    check: impl FnOnce(Option<PoolJournal>) -> Result<()>,
) -> Result<(NetFabric, ShardMark)> {
    NetFabric::join_journal(place, directory, |config| check(pool_config::decode(config)?.journal))
}

/// The options of the pool with its first memory node at an address.
///
/// # Errors
/// `Unreachable` when no node answers within the time; `Incompatible` when it is something else or
/// another version.
pub fn open_pool_config(
    first: &str,
    nic_config: &NicConfig,
    within: Duration,
) -> Result<PoolOptions> {
    pool_config::decode(&NetFabric::pool_config(first, nic_config, within)?.0)
}

impl MemoryNode {
    /// Founds a pool of these options: this process is its first memory node.
    ///
    /// # Errors
    /// Those of [`PoolOptions::validate`] and of [`NetFabric::found`].
    pub fn found(
        listen: &str,
        options: &PoolOptions,
        lease_parameters: LeaseParameters,
        data_path: DataPath,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        Self::found_in((listen, None), options, lease_parameters, data_path, nic_config)
    }

    /// The same with the membership kept elsewhere.
    ///
    /// # Errors
    /// Those of [`PoolOptions::validate`] and of [`NetFabric::found_in`].
    pub fn found_in(
        at: (&str, Option<KeptIn<'_>>),
        options: &PoolOptions,
        lease_parameters: LeaseParameters,
        data_path: DataPath,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        options.validate()?;
        let config = PoolConfig {
            memory_nodes: options.memory_nodes,
            compute_nodes: options.compute_nodes,
            journal_nodes: options.journal.map_or(0, |journal| journal.nodes),
            skips_journal: options.journal.is_some_and(|journal| journal.goes_on),
            data_path,
            options: pool_config::encode(options),
        };
        let bytes = options.memory_bytes_per_node;
        let fabric = NetFabric::found_in(at, bytes, config, lease_parameters, nic_config)?;
        Self::serve(fabric, bytes, options)
    }

    /// Joins a pool as one of its further memory nodes, with a region of `bytes`.
    ///
    /// # Errors
    /// Those of [`NetFabric::join`]; `InvalidArgument` when the region is too small for the pool's
    /// chunks.
    pub fn join(place: &Place<'_>, bytes: u64) -> Result<Self> {
        let mut options = PoolOptions::default();
        let fabric = NetFabric::join(place, Role::Memory, |config| {
            options = PoolOptions { memory_bytes_per_node: bytes, ..pool_config::decode(config)? };
            options.validate()?;
            Ok(bytes)
        })?;
        Self::serve(fabric, bytes, &options)
    }

    fn serve(fabric: NetFabric, bytes: u64, options: &PoolOptions) -> Result<Self> {
        let node = fabric.me().node;
        let layout = NodeLayout::new(node, bytes, options.chosen_chunk_bytes());
        report_memory(&fabric, serve_memory(&fabric, &layout, options)?);
        let ep = Endpoint::alone(fabric.attach(node)?, 0);
        ep.block_on(write_heads(&ep, &[layout]))?;
        fabric.ready()?;
        Ok(Self { fabric })
    }

    /// The node of this process.
    pub fn node(&self) -> NodeId {
        self.fabric.me().node
    }

    /// Where it listens.
    pub fn listens(&self) -> &str {
        self.fabric.listens()
    }

    /// What has happened to the members of the pool since the last call, a line each. Only the
    /// first memory node knows.
    pub fn take_news(&self) -> Vec<String> {
        let line = |news: &News| match news {
            News::Away(m, ..) if m.node.role() == Role::Memory => {
                let mib = self.fabric.region_bytes(m.node).unwrap_or(0) >> 20;
                format!("{news}; it held what was put in {mib} MiB")
            }
            other => other.to_string(),
        };
        self.fabric.take_news().iter().map(line).collect()
    }

    /// Its fabric.
    pub fn fabric(&self) -> &NetFabric {
        &self.fabric
    }
}

impl Cluster {
    /// Joins a pool of several processes as a compute node. It leaves in good order when the last
    /// clone goes.
    ///
    /// # Errors
    /// Those of [`NetFabric::join`]; `Corrupt` when a memory node's region is not formatted for
    /// this pool; `Unsupported` for a pool with journal nodes, where effects of writes go first.
    pub fn join(place: &Place<'_>) -> Result<Self> {
        Self::join_as(place, 1)
    }

    /// Joins a pool as several compute nodes, each with its own connections, caches and locks: for
    /// measuring and for tests. With a number wanted, the others get those that follow.
    pub fn join_as(place: &Place<'_>, compute_nodes: u16) -> Result<Self> {
        Self::gather((place, false), compute_nodes, Vec::new(), None)
    }

    /// As [`Cluster::join`], also for a pool with journal nodes: the caller keeps its journal.
    pub fn join_with_journal(place: &Place<'_>) -> Result<Self> {
        Self::gather((place, true), 1, Vec::new(), None)
    }

    /// Joins the same pool again, after this process has lost its membership: as a new incarnation,
    /// with nothing of what it had.
    ///
    /// # Errors
    /// As [`Cluster::join`]; `Incompatible` when another pool is where this one was.
    pub fn join_again(&self, place: &Place<'_>) -> Result<Self> {
        Self::gather((place, self.journal().is_some()), 1, Vec::new(), self.pool())
    }

    /// A pool like an embedded one, but its nodes share nothing but connections, as if each were a
    /// process.
    ///
    /// # Errors
    /// Those of [`MemoryNode::found`] and [`Cluster::join`].
    pub fn over_tcp(options: &PoolOptions) -> Result<Self> {
        Self::over(options, DataPath::Frames, &NicConfig::default())
    }

    /// The same, with verbs carried as `data_path` says.
    pub fn over(
        options: &PoolOptions,
        data_path: DataPath,
        nic_config: &NicConfig,
    ) -> Result<Self> {
        let listen = "127.0.0.1:0";
        let first =
            MemoryNode::found(listen, options, LeaseParameters::default(), data_path, nic_config)?;
        let address = first.listens().to_string();
        let (first_at, wanted, within) = (address.as_str(), None, JOINS_WITHIN);
        let data_path = Some(data_path);
        let place = Place { first: first_at, listen, wanted, within, data_path, nic_config };
        let mut memory = vec![first];
        for _ in 1..options.memory_nodes {
            memory.push(MemoryNode::join(&place, options.memory_bytes_per_node)?);
        }
        let cluster = Self::gather((&place, false), options.compute_nodes, memory, None)?;
        // As in a pool of one process, which begins with tables at every compute node: a node that
        // had none yet when it was asked for cells would be left out for a while.
        for i in 0..options.compute_nodes {
            let node = cluster.compute_node(usize::from(i))?;
            let ep = node.endpoint(0)?;
            ep.block_on(await_tables(&node, &ep, false))?;
        }
        Ok(cluster)
    }

    fn gather(
        (place, has_journal): (&Place<'_>, bool),
        compute_nodes: u16,
        memory: Vec<MemoryNode>,
        same: Option<PoolId>,
    ) -> Result<Self> {
        let mut pool = same;
        let (mut nodes, mut agents) = (Vec::new(), Vec::new());
        let mut options = PoolOptions::default();
        for i in 0..compute_nodes {
            let wanted = place.wanted.map(|n| n.saturating_add(i));
            let place = Place { wanted, ..place.clone() };
            let (node, membership_agent) =
                join_one((&place, has_journal), &mut pool, &mut options)?;
            nodes.push(node);
            agents.push(membership_agent);
        }
        // Each node knows of all others before any of them begins.
        let all = usize::from(compute_nodes);
        for node in &nodes {
            let ep = node.endpoint(0)?;
            ep.block_on(async {
                while node.membership().living().len() < all {
                    ep.check_deadline("the other compute nodes", 0)?;
                    ep.sleep(1_000_000).await;
                }
                Ok(())
            })?;
        }
        let processes = Processes { pool, agents, _memory: memory };
        Self::of_processes(options, nodes, processes)
    }
}

/// Joins; `pool` says which pool it must be, if that is known.
fn join_one(
    (place, has_journal): (&Place<'_>, bool),
    pool: &mut Option<PoolId>,
    options: &mut PoolOptions,
) -> Result<(Arc<PoolNode>, MembershipAgent)> {
    place.nic_config.access.keys.check_role(KeyRole::Compute, "joining as a compute node")?;
    let fabric = NetFabric::join(place, Role::Compute, |config| {
        *options = pool_config::decode(config)?;
        if options.journal.is_some() && !has_journal {
            return Err(Error::unsupported(format!(
                "the pool of {} has journal nodes, and this has no journal: use the library's index \
                 (`dmtree shell --connect`), or found a pool without `--journal`",
                place.first
            )));
        }
        Ok(options.chosen_compute_bytes())
    })?;
    if *pool.get_or_insert(fabric.pool()) != fabric.pool() {
        return Err(Error::incompatible(format!(
            "mn0 belongs to another pool: its process has restarted with an empty region, or {} is another's address; the contents of the old pool are gone, start its compute processes again",
            place.first
        )));
    }
    let (me, membership) = (fabric.me(), fabric.membership());
    let shape = Arc::new(Shape::new(options, layouts(&fabric, options)?));
    let net = fabric.clone();
    let fabric: Arc<dyn Fabric> = Arc::new(fabric);
    let node = start_node(&fabric, me.node, &shape, options, &membership)?;
    report_compute(&net, &node);
    let membership_agent = MembershipAgent::start(&node, net)?;
    let ep = node.endpoint(0)?;
    ep.block_on(check_heads(&ep, &node))?;
    ep.block_on(know_memory(&ep, &node))?;
    ep.block_on(await_tables(&node, &ep, true))?;
    Ok((node, membership_agent))
}

fn layouts(fabric: &NetFabric, options: &PoolOptions) -> Result<Vec<NodeLayout>> {
    let node_directory = fabric.node_directory();
    let layout = |m: u16| {
        let node = NodeId::memory(m);
        let place = node_directory.find(node).ok_or_else(|| {
            Error::corrupt(format!(
                "{node} is not in the node directory of a pool that is complete"
            ))
        })?;
        Ok(NodeLayout::new(node, place.region_bytes, options.chosen_chunk_bytes()))
    };
    (0..options.memory_nodes).map(layout).collect()
}

/// Checks the superblock of every memory node that is present. One that cannot be reached
/// may turn out to be away: its lease has not ended yet.
async fn check_heads(ep: &Endpoint, node: &PoolNode) -> Result<()> {
    let until = ep.now() + 2 * node.membership().lease_ns();
    for layout in &node.shape.founded {
        let at = GlobalAddr::new(layout.node, SUPERBLOCK);
        loop {
            if node.view.check_presence(layout.node).is_err() {
                break;
            }
            ep.renew_deadline();
            match ep.read(at, SUPERBLOCK_BYTES as u32).await {
                Ok(head) => {
                    head.extract(|b| layout.check(b))?;
                    break;
                }
                Err(e) if e.is_retryable() && ep.now() < until => ep.sleep(LOOK_NS).await,
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Waits until this node knows every memory node that was added. One that cannot be reached may
/// turn out to be away.
async fn know_memory(ep: &Endpoint, node: &PoolNode) -> Result<()> {
    let until = ep.now() + 2 * node.membership().lease_ns();
    loop {
        ep.renew_deadline();
        match node.membership().know_memory(ep).await {
            Err(e) if e.is_retryable() && ep.now() < until => ep.sleep(LOOK_NS).await,
            known => return known,
        }
    }
}

/// Tables that are made while no compute node owns any go to memory nodes, and stay there. So a
/// newcomer waits until it owns tables itself or (`or_peer`) another compute node answers: the
/// deaths of former members may have to complete first.
async fn await_tables(node: &PoolNode, ep: &Endpoint, or_peer: bool) -> Result<()> {
    let until = ep.now() + SHARE_WITHIN_LEASES * node.membership().lease_ns();
    while ep.now() < until
        && !(node.membership().serves_tables()
            || or_peer && node.partitions().has_answering_peer(ep).await)
    {
        ep.renew_deadline();
        ep.sleep(1_000_000).await;
    }
    ep.renew_deadline();
    Ok(())
}

/// The thread of a compute node's membership agent. Dropped, the node leaves in good order.
pub(crate) struct MembershipAgent {
    net: NetFabric,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl MembershipAgent {
    /// Returns when the node has joined.
    fn start(node: &Arc<PoolNode>, net: NetFabric) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (joined, news): (SyncSender<Result<()>>, Receiver<_>) = sync_channel(1);
        let (seen, node, its) = (stop.clone(), node.clone(), net.clone());
        let named = std::thread::Builder::new().name("dmtree agent".into());
        let thread = named
            .spawn(move || keep(&node, &its, &seen, &joined))
            .map_err(|e| Error::busy(format!("no thread for the membership agent: {e}")))?;
        let membership_agent = Self { net, stop, thread: Mutex::new(Some(thread)) };
        news.recv_timeout(JOINS_WITHIN).unwrap_or_else(|_| {
            Err(Error::timed_out("the membership of the pool has not answered for 10 s: is the first memory node up?"))
        })?;
        Ok(membership_agent)
    }

    /// Whether an operator has asked its node to leave.
    pub(crate) fn is_asked_to_leave(&self) -> bool {
        self.net.is_asked_to_leave()
    }

    /// What its node says of itself.
    pub(crate) fn status(&self) -> Option<NodeStatus> {
        self.net.status()
    }
}

impl Drop for MembershipAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = locked(&self.thread).take() {
            thread.thread().unpark();
            // A callback of the agent on a loss may drop the last handle of the pool.
            if thread.thread().id() != std::thread::current().id() {
                // The panic of an agent is not passed on.
                let _ = thread.join();
            }
        }
    }
}

fn keep(node: &Arc<PoolNode>, net: &NetFabric, stop: &AtomicBool, joined: &SyncSender<Result<()>>) {
    let ep = match node.endpoint(MEMBERSHIP_AGENT_SLAB_BYTES) {
        Ok(ep) => ep,
        Err(e) => return drop(joined.send(Err(e))),
    };
    let first = ep.block_on(node.membership().membership_step(&ep));
    let is_in = first.is_ok();
    let _ = joined.send(first);
    if !is_in {
        return;
    }
    let pause = || {
        let is_quiet = node.membership().has_settled_membership();
        let steps = if is_quiet { STEPS_PER_LEASE } else { STEPS_PER_LEASE_OF_A_DEATH };
        node.membership().lease_ns() / steps
    };
    let kept = node.partitions().keep_with_share(&ep, pause, || stop.load(Ordering::SeqCst));
    match ep.block_on(kept) {
        // The membership ends the lease of a node that cannot leave in good order.
        Ok(()) => {
            let pause_ns = node.membership().lease_ns() / STEPS_PER_LEASE;
            _ = ep.block_on(node.partitions().depart(&ep, pause_ns));
        }
        Err(e) => {
            // Its address must be free before the process joins again.
            net.close();
            node.membership().lose(e);
        }
    }
}

impl Partitions<'_> {
    /// Hands the node's tables over, if another node can take them, and leaves the pool. No
    /// operation of the node works any more.
    ///
    /// # Errors
    /// `Revoked` when it was dead already; those of the fabric.
    pub async fn depart(self, ep: &Endpoint, pause_ns: u64) -> Result<()> {
        let until = ep.now() + LEAVES_WITHIN_NS;
        while ep.now() < until && self.0.membership().has_peers() {
            match self.hand_over(ep).await {
                Ok(true) => break,
                Err(e) if !e.is_retryable() => return Err(e),
                _ => {}
            }
            // One planned move is under way at a time: another node's may come first.
            self.0.membership().membership_step(ep).await?;
            ep.sleep(pause_ns / 4).await;
        }
        // Garbage collection finds what cannot be handed in now.
        let _ = self.0.supply().hand_in(ep).await;
        self.0.membership().leave(ep).await
    }
}
