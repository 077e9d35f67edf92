//! `memnode`: be a memory node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dmtree_bench::bytes::Bytes;
use dmtree_bench::{Failure, Result};
use dmtree_fabric::Terms;
use dmtree_pool::{MemoryNode, Place, PoolOptions};

use crate::args::MemnodeArgs;
use crate::{output, stop_flag};

/// Longest wait between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until the process is told to stop.
pub fn run(a: &MemnodeArgs) -> Result<()> {
    let stop = stop_flag()?;
    let node = match &a.join {
        None => found(a),
        Some(first) => {
            output::note(&format!("joining the pool of {first}"));
            let (listen, within) = (a.listen.as_str(), Duration::from_secs(a.wait));
            MemoryNode::join(&Place { first, listen, wanted: a.index, within }, a.memory_bytes.0)
        }
    };
    let node = node.map_err(|e| Failure::missing(&e))?;
    output::line(&format!(
        "{} serves {} at {}; what it holds is lost when it stops",
        node.node(),
        a.memory_bytes,
        node.listens()
    ));
    if a.join.is_none() {
        output::line(&format!(
            "compute nodes: dmtree shell --connect {0}, or dmtree bench quick --fabric tcp --nodes {0}",
            node.listens()
        ));
    }
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(LOOK);
    }
    Ok(())
}

fn found(a: &MemnodeArgs) -> dmtree_fabric::Result<MemoryNode> {
    let options = PoolOptions {
        memory_nodes: a.memory_nodes,
        compute_nodes: a.compute_nodes,
        memory_bytes_per_node: a.memory_bytes.0,
        compute_bytes_per_node: a.compute_bytes.0,
        chunk_bytes: a.chunk_bytes.map(|Bytes(n)| n),
        ..PoolOptions::default()
    };
    let terms = Terms { lease_ns: a.lease_ms * 1_000_000, ..Terms::default() };
    MemoryNode::found(&a.listen, &options, terms)
}
