//! All nodes of an embedded pool in one process.

use std::sync::{Arc, RwLock};

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Fabric, GlobalAddr, InProcess, Member, NodeId, Result, Terms,
};

use crate::catalog::{CATALOG_SERVICE, CatalogService};
use crate::chunks::{CHUNK_SERVICE, ChunkService};
use crate::epoch::{EPOCH_SERVICE, EpochService, Epochs, FIRST_EPOCH};
use crate::homes::{CELL_SERVICE, HomeService, Space};
use crate::layout::{EPOCH_WORD, NodeLayout, SUPERBLOCK, SUPERBLOCK_BYTES, Shape, first_node};
use crate::node::PoolNode;
use crate::options::PoolOptions;

/// A pool whose nodes all live in this process. Clone it freely; all clones are the same pool.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    fabric: Arc<dyn Fabric>,
    options: PoolOptions,
    shape: Arc<Shape>,
    membership: Arc<InProcess>,
    nodes: RwLock<Vec<Arc<PoolNode>>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({:?})", self.0.options)
    }
}

impl Cluster {
    /// Makes the nodes, formats the regions, starts the services.
    ///
    /// # Errors
    /// Those of [`PoolOptions::validate`].
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

    /// Formats the zeroed regions of a fabric that has the nodes of `options`, and starts the services on them.
    ///
    /// # Errors
    /// Those of [`PoolOptions::validate`] and of the fabric; `NotFound` when it lacks a node.
    pub fn format(fabric: Arc<dyn Fabric>, options: &PoolOptions) -> Result<Self> {
        options.validate()?;
        let chunk_bytes = options.chosen_chunk_bytes();
        let bytes = options.memory_bytes_per_node;
        let shape = Arc::new(Shape {
            memory: (0..options.memory_nodes)
                .map(|m| NodeLayout::new(NodeId::memory(m), bytes, chunk_bytes))
                .collect(),
            compute_nodes: options.compute_nodes,
            compute_bytes: options.chosen_compute_bytes(),
            chunk_bytes,
            max_life: ((1u32 << options.life_bits) - 1) as u16,
        });
        let (c, m) = (options.compute_nodes, options.memory_nodes);
        let membership = Arc::new(InProcess::new(Terms::default()));
        let member = |node| Member { node, incarnation: fabric.incarnation(node).unwrap_or(0) };
        for layout in &shape.memory {
            let chunks = Arc::new(ChunkService::new(*layout));
            let space = Space::Chunks {
                service: chunks.clone(),
                chunk_bytes,
                rests: std::sync::Mutex::default(),
            };
            let homes = HomeService::new(member(layout.node), c, m, space);
            fabric.serve(layout.node, CHUNK_SERVICE, chunks)?;
            fabric.serve(layout.node, CELL_SERVICE, Arc::new(homes))?;
        }
        let catalog = Arc::new(CatalogService::default());
        fabric.serve(NodeId::memory(0), CATALOG_SERVICE, catalog)?;
        let mut nodes = Vec::new();
        for cn in (0..c).map(NodeId::compute) {
            let space = Space::region(shape.compute_bytes);
            let homes = HomeService::new(member(cn), c, m, space);
            nodes.push(start_node(&fabric, cn, &shape, homes, &membership)?);
        }
        let ep = nodes[0].endpoint(0)?;
        ep.core().block_on(ep.slot(), write_heads(&ep, &shape.memory))?;
        let nodes = RwLock::new(nodes);
        Ok(Self(Arc::new(Inner { fabric, options: options.clone(), shape, membership, nodes })))
    }

    /// Starts the services of a compute node that has come back as a new incarnation: it is the home of nothing yet, knows nothing
    /// of what its former life held, and joins with the first step of its keeper.
    ///
    /// # Errors
    /// `NotFound` when there are not so many; those of the fabric.
    pub fn revive(&self, i: usize) -> Result<Arc<PoolNode>> {
        let cn = self.compute_node(i)?.cn();
        let Inner { fabric, shape, membership, .. } = &*self.0;
        let me = Member { node: cn, incarnation: fabric.incarnation(cn).unwrap_or(0) };
        let homes = HomeService::empty(me, Space::region(shape.compute_bytes));
        let node = start_node(fabric, cn, shape, homes, membership)?;
        let mut nodes = self.0.nodes.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        nodes[i] = node.clone();
        Ok(node)
    }

    /// Who belongs to it.
    pub fn membership(&self) -> &Arc<InProcess> {
        &self.0.membership
    }

    /// The fabric.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.0.fabric
    }

    /// What it was made of.
    pub fn options(&self) -> &PoolOptions {
        &self.0.options
    }

    /// A compute node's share.
    ///
    /// # Errors
    /// `NotFound` when there are not so many.
    pub fn compute_node(&self, i: usize) -> Result<Arc<PoolNode>> {
        let nodes = self.0.nodes.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        nodes.get(i).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no compute node {i}: the pool has {}", nodes.len()),
            )
        })
    }

    /// How many compute nodes.
    pub fn compute_nodes(&self) -> usize {
        usize::from(self.0.options.compute_nodes)
    }

    /// How many memory nodes.
    pub fn memory_nodes(&self) -> usize {
        usize::from(self.0.options.memory_nodes)
    }
}

fn start_node(
    fabric: &Arc<dyn Fabric>,
    cn: NodeId,
    shape: &Arc<Shape>,
    homes: HomeService,
    membership: &Arc<InProcess>,
) -> Result<Arc<PoolNode>> {
    fabric.serve(cn, CELL_SERVICE, Arc::new(homes))?;
    let epochs = Epochs::new();
    fabric.serve(cn, EPOCH_SERVICE, Arc::new(EpochService(epochs.clone())))?;
    let membership = membership.clone();
    Ok(Arc::new(PoolNode::new(fabric.clone(), cn, shape.clone(), epochs, membership)))
}

async fn write_heads(ep: &Endpoint, layouts: &[NodeLayout]) -> Result<()> {
    ep.write_word(first_node(EPOCH_WORD), FIRST_EPOCH).await?;
    for layout in layouts {
        let at = GlobalAddr::new(layout.node, SUPERBLOCK);
        let mut buf = ep.buf(SUPERBLOCK_BYTES as u32).await?;
        buf.copy_from_slice(&layout.encode());
        ep.write(at, buf).await?;
        let back = ep.read(at, SUPERBLOCK_BYTES as u32).await?;
        back.extract(|b| layout.check(b))?;
    }
    Ok(())
}
