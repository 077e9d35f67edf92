//! A worker thread: coroutines on an executor of the fabric, each taking one request after the other.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use dmtree_engine::DmTree;
use dmtree_fabric::{Core, Endpoint, Error, ErrorKind, Fifo, Result, Worker};
use dmtree_parts::RangeIndex;

use super::mailbox::{Door, Mailbox, OnDuty};
use crate::open::OpenIndex;
use crate::pool::PoolInner;
use crate::session::{HOUSEKEEPING_OPS, SLAB_BYTES, maintain};
use crate::tally::Tally;

/// What runs requests: a client of the index on a slot of the worker's executor.
pub(crate) struct Coroutine {
    pub(super) tree: DmTree,
    pub(super) tally: Arc<Tally>,
    pub(super) open: Arc<OpenIndex>,
    id: u64,
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        self.tally.publish(self.tree.endpoint().snapshot());
        self.open.retire(&self.tally);
    }
}

/// Starts a worker thread and waits until it is ready.
pub(super) fn start(
    pool: &Arc<PoolInner>,
    open: &Arc<OpenIndex>,
    door: &Arc<Door>,
    number: usize,
    coroutines: usize,
) -> Result<()> {
    let (pool, open, mailbox) = (pool.clone(), open.clone(), door.mailbox().clone());
    let (ready, readiness) = mpsc::channel();
    let body = move || {
        let _on_duty = OnDuty::new(&mailbox);
        match attach(&pool, &open, &mailbox, coroutines) {
            Ok((core, crew)) => {
                let mut worker = Worker::new(core);
                for c in crew {
                    worker.spawn(c.tree.endpoint().slot(), serve(c, mailbox.clone()));
                }
                let _ = ready.send(Ok(()));
                // It can stall only in a simulator; whoever waits then hears from the dropped requests.
                let _ = worker.run(&mut Fifo);
            }
            Err(e) => {
                let _ = ready.send(Err(e));
            }
        }
    };
    let thread = std::thread::Builder::new().name(format!("dmtree-async-{number}"));
    thread.spawn(body).map_err(|e| {
        Error::new(ErrorKind::Full, format!("the system gives no thread for an async client: {e}"))
    })?;
    readiness
        .recv()
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "a worker ended at its start")))
}

fn attach(
    pool: &PoolInner,
    open: &Arc<OpenIndex>,
    mailbox: &Mailbox,
    coroutines: usize,
) -> Result<(Rc<Core>, Vec<Coroutine>)> {
    let compute_node = open.next_node();
    let node = pool.cluster.compute_node(compute_node)?;
    let transport = node.fabric().attach(node.cn())?;
    let core = Core::new(transport.clone(), SLAB_BYTES);
    let coroutine = || {
        let ep = Endpoint::new(core.clone(), transport.clone(), core.add_slot());
        Coroutine {
            tree: DmTree::client(ep, open.nodes[compute_node].clone()),
            tally: open.enlist(),
            open: open.clone(),
            id: mailbox.enlist(),
        }
    };
    let crew = std::iter::repeat_with(coroutine).take(coroutines).collect();
    Ok((core, crew))
}

async fn serve(mut c: Coroutine, mailbox: Arc<Mailbox>) {
    let ep = c.tree.endpoint().clone();
    let mut quiet_ops = HOUSEKEEPING_OPS;
    while let Some(job) = poll_fn(|cx| mailbox.poll_take(c.id, cx)).await {
        job(&mut c).await;
        quiet_ops -= 1;
        if quiet_ops == 0 {
            quiet_ops = HOUSEKEEPING_OPS;
            maintain(&mut c.tree, &c.tally).await;
            c.tally.publish(ep.snapshot());
        }
        // In process no verb suspends: without this one coroutine would run all requests.
        ep.yield_now().await;
    }
}
