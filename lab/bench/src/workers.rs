//! The workers of an open index on the fabrics of real threads: a thread for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use dmtree_fabric::Snapshot;
use dmtree_parts::{AnyNode, worker};
use dmtree_pool::Cluster;

use crate::failure::{Failure, Result};
use crate::opened::SLAB_BYTES;

/// Running workers. Dropped, they end after the piece of work that each has begun.
#[derive(Debug)]
pub struct Workers {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<dmtree_fabric::Result<Snapshot>>>,
}

impl Workers {
    /// Starts so many workers of each compute node.
    ///
    /// # Errors
    /// A compute node that is gone, a thread that cannot be started.
    pub fn start(cluster: &Cluster, nodes: &[AnyNode], workers: u32) -> Result<Self> {
        let mut all = Self { stop: Arc::default(), running: Vec::new() };
        for (cn, node) in nodes.iter().enumerate() {
            for number in 0..workers {
                let (pool, node, stop) =
                    (cluster.compute_node(cn)?, node.clone(), all.stop.clone());
                let work = move || {
                    let ep = pool.endpoint(SLAB_BYTES)?;
                    let mut index = node.client(ep.clone());
                    let stopped = || stop.load(Ordering::Relaxed);
                    let run = worker::run(&mut index, stopped);
                    ep.core().block_on(ep.slot(), Box::pin(run))?;
                    Ok(ep.snapshot())
                };
                let thread = Builder::new().name(format!("worker {number} of cn{cn}")).spawn(work);
                let failed =
                    |e| Failure::input(format!("a worker's thread cannot be started: {e}"));
                all.running.push(thread.map_err(failed)?);
            }
        }
        Ok(all)
    }

    /// Ends the workers, and returns what their verbs were.
    ///
    /// # Errors
    /// What a worker has failed with.
    pub fn stop(mut self) -> Result<Snapshot> {
        self.stop.store(true, Ordering::Relaxed);
        let mut counts = Snapshot::default();
        for thread in self.running.drain(..) {
            let name = thread.thread().name().unwrap_or("a worker").to_owned();
            let panicked = |_| Failure::violation(format!("{name} panicked"));
            let counted = thread.join().map_err(panicked)?;
            counts.add(&counted.map_err(|e| failed(&name, &e))?);
        }
        Ok(counts)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.running.drain(..) {
            // `stop` reports failures; a drop is on the way of another one, or of a tool's end.
            let _ = thread.join();
        }
    }
}

/// The failure of a worker.
pub(crate) fn failed(name: &str, e: &dmtree_fabric::Error) -> Failure {
    Failure::violation(format!("{name}: {e}"))
}
