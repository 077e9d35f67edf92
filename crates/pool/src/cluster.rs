//! A pool as one process sees it: all its nodes, or one compute node of many.
//!
//! An embedded pool is made in this order: the regions (zero), the services of the memory nodes
//! (chunks, cells, and the catalog on memory node 0), the services of the compute nodes (cells,
//! epochs, log of garbage collection), and last the heads of the memory nodes: the first epoch,
//! then the superblock, which is read back and checked. No client runs before that, so no client
//! sees an unformatted region. Of a pool of several processes each process does its own part
//! (`multi_process.rs`).
//!
//! A compute node owns its share of the partitions in its first incarnation only. A later one owns
//! nothing until partitions are moved to it, because the directory may name other owners by then.

use std::sync::{Arc, Mutex};

use dmtree_fabric::local::LocalFabric;
#[cfg(feature = "tcp")]
use dmtree_fabric::net::{NodeStatus, PoolId};
use dmtree_fabric::{
    Endpoint, Error, Fabric, GlobalAddr, InProcess, LeaseParameters, Member, Membership, NodeId,
    Result,
};

use crate::catalog::{CATALOG_SERVICE, CatalogService};
use crate::chunks::{CHUNK_SERVICE, ChunkService};
use crate::epoch::{EPOCH_SERVICE, EpochService, Epochs, FIRST_EPOCH};
use crate::gc_log::{GC_LOG_SERVICE, GcLogService};
use crate::holder::MemoryHolder;
use crate::layout::{EPOCH_WORD, NodeLayout, SUPERBLOCK, SUPERBLOCK_BYTES, first_node};
#[cfg(feature = "tcp")]
use crate::multi_process::Processes;
use crate::node::PoolNode;
use crate::options::{PoolJournal, PoolOptions};
use crate::owners::{CELL_SERVICE, OwnerService};
use crate::purge::{PURGE_SERVICE, PurgeService};
use crate::segments::SegmentSpace;
use crate::services::{DATA_SERVICE, DataServices, INDEX_SERVICE, IndexService};
use crate::shape::Shape;
use crate::wire::locked;

/// A pool: one with all nodes in this process, or one that this process belongs to as a
/// compute node. Clone it freely; all clones are the same pool. It is made of options that
/// [`PoolOptions::validate`] accepts.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    fabric: Arc<dyn Fabric>,
    options: PoolOptions,
    shape: Arc<Shape>,
    membership: Arc<dyn Membership>,
    /// The same, when it is in this process.
    judge: Option<Arc<InProcess>>,
    /// The compute nodes of this process.
    nodes: Mutex<Vec<Arc<PoolNode>>>,
    /// What a pool of several processes has in this one.
    #[cfg(feature = "tcp")]
    processes: Option<Processes>,
}

dmtree_fabric::debug_line!(Cluster, it => "Cluster({:?})", it.0.options);

impl Inner {
    /// A pool of which these compute nodes are here.
    fn of(options: PoolOptions, nodes: Vec<Arc<PoolNode>>) -> Result<Self> {
        let first = nodes.first().ok_or_else(|| Error::invalid("a pool without compute nodes"))?;
        let (fabric, shape, membership) =
            (first.fabric.clone(), first.shape.clone(), first.membership.clone());
        Ok(Self {
            fabric,
            options,
            shape,
            membership,
            judge: None,
            nodes: Mutex::new(nodes),
            #[cfg(feature = "tcp")]
            processes: None,
        })
    }
}

impl Cluster {
    /// Makes the nodes, formats the regions, starts the services.
    pub fn embedded(options: &PoolOptions) -> Result<Self> {
        options.validate()?;
        let fabric = LocalFabric::with_knobs(options.knobs);
        for m in 0..options.memory_nodes {
            fabric.add_node(NodeId::memory(m), options.memory_bytes_per_node)?;
        }
        for c in 0..options.compute_nodes {
            fabric.add_node(NodeId::compute(c), options.chosen_compute_bytes())?;
        }
        Self::format(Arc::new(fabric), options)
    }

    /// Formats the zeroed regions of a fabric that has the nodes of `options`, and starts the
    /// services on them.
    ///
    /// # Errors
    /// Those of [`PoolOptions::validate`] and of the fabric; `NotFound` when it lacks a node.
    pub fn format(fabric: Arc<dyn Fabric>, options: &PoolOptions) -> Result<Self> {
        let judge = Arc::new(InProcess::new(LeaseParameters::default()));
        Self::format_before(fabric, options, judge.clone(), judge)
    }

    /// The same with a membership that the nodes reach through a proxy: a test makes the proxy
    /// fail.
    pub fn format_before(
        fabric: Arc<dyn Fabric>,
        options: &PoolOptions,
        judge: Arc<InProcess>,
        membership: Arc<dyn Membership>,
    ) -> Result<Self> {
        options.validate()?;
        let chunk_bytes = options.chosen_chunk_bytes();
        let bytes = options.memory_bytes_per_node;
        let memory = (0..options.memory_nodes)
            .map(|m| NodeLayout::new(NodeId::memory(m), bytes, chunk_bytes))
            .collect();
        let shape = Arc::new(Shape::new(options, memory));
        for layout in &shape.founded {
            serve_memory(&*fabric, layout, options)?;
        }
        let mut nodes = Vec::new();
        for cn in (0..options.compute_nodes).map(NodeId::compute) {
            nodes.push(start_node(&fabric, cn, &shape, options, &membership)?);
        }
        let ep = nodes[0].endpoint(0)?;
        ep.block_on(write_heads(&ep, &shape.founded))?;
        let inner = Inner::of(options.clone(), nodes)?;
        Ok(Self(Arc::new(Inner { judge: Some(judge), ..inner })))
    }

    /// A pool of several processes, of which these compute nodes and this are here.
    #[cfg(feature = "tcp")]
    pub(crate) fn of_processes(
        options: PoolOptions,
        nodes: Vec<Arc<PoolNode>>,
        processes: Processes,
    ) -> Result<Self> {
        let inner = Inner::of(options, nodes)?;
        Ok(Self(Arc::new(Inner { processes: Some(processes), ..inner })))
    }

    /// Starts the services of a compute node that has restarted as a new incarnation: it owns
    /// nothing yet, knows nothing of what its former incarnation held, and joins with the first
    /// step of its membership agent.
    ///
    /// # Errors
    /// `NotFound` when there are not so many; those of the fabric.
    pub fn revive(&self, i: usize) -> Result<Arc<PoolNode>> {
        let cn = self.compute_node(i)?.cn();
        let Inner { fabric, shape, options, membership, .. } = &*self.0;
        let node = start_node(fabric, cn, shape, options, membership)?;
        locked(&self.0.nodes)[i] = node.clone();
        Ok(node)
    }

    /// Which pool of several processes it is; `None` for one with all nodes in this process.
    #[cfg(feature = "tcp")]
    pub fn pool(&self) -> Option<PoolId> {
        self.0.processes.as_ref()?.pool
    }

    /// The membership of its nodes.
    pub fn membership(&self) -> &Arc<dyn Membership> {
        &self.0.membership
    }

    /// The membership itself, when it is in this process.
    pub fn in_process_membership(&self) -> Option<&Arc<InProcess>> {
        self.0.judge.as_ref()
    }

    /// The journal nodes of the pool, if it has any.
    pub fn journal(&self) -> Option<PoolJournal> {
        self.0.options.journal
    }

    /// The fabric.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.0.fabric
    }

    /// The share of one of this process's compute nodes.
    ///
    /// # Errors
    /// `NotFound` when there are not so many.
    pub fn compute_node(&self, i: usize) -> Result<Arc<PoolNode>> {
        let nodes = locked(&self.0.nodes);
        nodes.get(i).cloned().ok_or_else(|| {
            Error::not_found(format!(
                "there is no compute node {i}: this process has {}",
                nodes.len()
            ))
        })
    }

    /// What this process's first compute node says of itself to operators; `None` in the memory of
    /// one process, and when the node has lost its membership.
    #[cfg(feature = "tcp")]
    pub fn status(&self) -> Option<NodeStatus> {
        self.0.processes.as_ref()?.agents.first()?.status()
    }

    /// Whether an operator has asked this process to leave the pool.
    #[cfg(feature = "tcp")]
    pub fn is_asked_to_leave(&self) -> bool {
        let agent = self.0.processes.as_ref().and_then(|here| here.agents.first());
        agent.is_some_and(|agent| agent.is_asked_to_leave())
    }

    /// How many compute nodes this process has: all, or one.
    pub fn compute_nodes(&self) -> usize {
        locked(&self.0.nodes).len()
    }

    /// How many memory nodes it was founded with.
    pub fn memory_nodes(&self) -> usize {
        self.0.shape.founded.len()
    }
}

/// Starts the services of a memory node.
pub(crate) fn serve_memory(
    fabric: &dyn Fabric,
    layout: &NodeLayout,
    options: &PoolOptions,
) -> Result<(Arc<ChunkService>, Arc<OwnerService>)> {
    let node = layout.node;
    let chunks = Arc::new(ChunkService::new(*layout));
    let space = SegmentSpace::chunks(chunks.clone(), layout.chunk_bytes);
    let me = Member { node, incarnation: fabric.incarnation(node).unwrap_or(0) };
    let owners = OwnerService::new(me, options.compute_nodes, options.memory_nodes, space);
    let owners = Arc::new(owners);
    fabric.serve(node, CHUNK_SERVICE, chunks.clone())?;
    let holder = MemoryHolder::new(chunks.clone(), node, layout.chunk_bytes);
    fabric.serve(node, DATA_SERVICE, Arc::new(DataServices::new(holder)))?;
    fabric.serve(node, CELL_SERVICE, owners.clone())?;
    if node == NodeId::memory(0) {
        fabric.serve(node, CATALOG_SERVICE, Arc::new(CatalogService::default()))?;
    }
    Ok((chunks, owners))
}

/// Starts the services of a compute node. In its first incarnation it owns its share of the tables,
/// later nothing at first.
pub(crate) fn start_node(
    fabric: &Arc<dyn Fabric>,
    cn: NodeId,
    shape: &Arc<Shape>,
    options: &PoolOptions,
    membership: &Arc<dyn Membership>,
) -> Result<Arc<PoolNode>> {
    let me = Member { node: cn, incarnation: fabric.incarnation(cn).unwrap_or(0) };
    let space = SegmentSpace::region(shape.compute_bytes);
    let owners = OwnerService::new(me, options.compute_nodes, options.memory_nodes, space);
    let owners = Arc::new(owners);
    fabric.serve(cn, CELL_SERVICE, owners.clone())?;
    let epochs = Epochs::new();
    fabric.serve(cn, EPOCH_SERVICE, Arc::new(EpochService(epochs.clone())))?;
    let membership = membership.clone();
    let (epochs, shape) = ((epochs, owners), shape.clone());
    let node = Arc::new(PoolNode::new(fabric.clone(), cn, shape, epochs, membership));
    fabric.serve(cn, GC_LOG_SERVICE, Arc::new(GcLogService(Arc::downgrade(&node))))?;
    fabric.serve(cn, PURGE_SERVICE, Arc::new(PurgeService(Arc::downgrade(&node))))?;
    fabric.serve(cn, INDEX_SERVICE, Arc::new(IndexService(node.indexes.clone())))?;
    Ok(node)
}

/// Formats the heads of memory nodes.
pub(crate) async fn write_heads(ep: &Endpoint, layouts: &[NodeLayout]) -> Result<()> {
    for layout in layouts {
        if layout.node == NodeId::memory(0) {
            ep.write_word(first_node(EPOCH_WORD), FIRST_EPOCH).await?;
        }
        let at = GlobalAddr::new(layout.node, SUPERBLOCK);
        ep.write_bytes(at, &layout.encode()).await?;
        let back = ep.read(at, SUPERBLOCK_BYTES as u32).await?;
        back.extract(|b| layout.check(b))?;
    }
    Ok(())
}
