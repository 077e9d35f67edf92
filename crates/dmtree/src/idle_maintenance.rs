//! Maintenance of an index while the sessions of its process are idle.
//!
//! Sessions do maintenance between their operations. In a pool of several processes others may
//! wait for it: for a lock that a failed operation has left, for tables that this process owns now,
//! and, after a death, for the garbage collection, which the first process does for all. So a
//! thread looks at the index now and then, and does what is due at two looks in a row: then the
//! sessions do not come to it. It is no worker of the index (`dmtree_parts::worker`): those keep an
//! endpoint and wake a thousand times a second, and an error ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use dmtree_engine::{DmNode, DmTree};
use dmtree_fabric::{Error, Result};
use dmtree_parts::{RangeIndex, Work};
use dmtree_pool::PoolNode;

use crate::session::SLAB_BYTES;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Pieces of maintenance after a look.
const PIECES: usize = 256;

/// Does the maintenance of an index on a compute node, until it is dropped.
pub(crate) struct IdleMaintenance {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IdleMaintenance {
    pub(crate) fn start(pool: Arc<PoolNode>, node: Arc<DmNode>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let named = Builder::new().name("dmtree maintenance".into());
        let thread = named
            .spawn(move || keep(&pool, &node, &stopped))
            .map_err(|e| Error::busy(format!("no thread for maintenance: {e}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for IdleMaintenance {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // A panic there was reported, and is none here.
        let _ = thread.join();
    }
}

fn keep(pool: &PoolNode, node: &Arc<DmNode>, stop: &AtomicBool) {
    let mut was_due = false;
    loop {
        std::thread::park_timeout(PAUSE);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let is_due = node.is_maintenance_due();
        if is_due && was_due {
            // What has failed is due at the next look. A node that is no member any more has
            // another incarnation soon, and another thread for it.
            let _ = catch_up(pool, node, stop);
        }
        was_due = is_due;
    }
}

fn catch_up(pool: &PoolNode, node: &Arc<DmNode>, stop: &AtomicBool) -> Result<()> {
    let ep = pool.endpoint(SLAB_BYTES)?;
    let mut index = DmTree::client(ep.clone(), node.clone());
    for _ in 0..PIECES {
        if stop.load(Ordering::Relaxed) || !node.is_maintenance_due() {
            break;
        }
        ep.renew_deadline();
        if ep.block_on(Box::pin(index.maintain()))? == Work::None {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a thread in real time")]

    use std::time::Instant;

    use super::*;
    use crate::{Options, Pool};

    /// Images that are beyond a smaller budget go, while no session works.
    #[test]
    fn an_idle_process_does_its_maintenance() {
        let pool = Pool::embedded().memory("64MiB").cache("1MiB").open().expect("a pool");
        let index = pool.create("t", Options::default().images(0.5)).expect("new");
        for n in 0..2_000u32 {
            index.put(n.to_be_bytes(), "12345678").expect("room");
        }
        let nodes = index.opened().nodes();
        let (node, tree) =
            (nodes.incarnation.cluster.compute_node(0).expect("one"), &nodes.trees[0]);
        index.opened().set_cache_bytes(256 << 10).expect("it fits");
        assert!(tree.is_maintenance_due());
        let maintenance = IdleMaintenance::start(node, tree.clone()).expect("a thread");
        let began = Instant::now();
        while tree.is_maintenance_due() {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", tree.due());
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(maintenance);
        let caches = index.stats().expect("stats").caches;
        assert!(caches[0].used_bytes + caches[0].image_bytes <= 256 << 10, "{caches:?}");
    }
}
