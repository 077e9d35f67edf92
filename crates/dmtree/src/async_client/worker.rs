//! A worker thread: coroutines on an executor of the fabric, each taking one request after the
//! other.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use dmtree_fabric::{Core, Endpoint, Error, Fifo, Nanos, Result, Transport, Worker};
use dmtree_parts::RangeIndex;

use super::mailbox::{Door, Mailbox, OnDuty, Taken};
use crate::client::Client;
use crate::latency::ONE_IN;
use crate::open::OpenIndex;
use crate::pool::PoolInner;
use crate::session::{HOUSEKEEPING_OPS, SLAB_BYTES, maintain};

/// Runs requests: a client of the index on a slot of the worker's executor.
pub(crate) struct Coroutine {
    pub(super) client: Client,
    pub(super) pool: Arc<PoolInner>,
    id: u64,
    /// The latest change that this coroutine has seen.
    seen: u64,
    /// Requests that have begun.
    begun: u32,
}

impl Coroutine {
    /// A request begins: the time, if it is one of those that are timed.
    pub(super) fn begins_timed(&mut self) -> Option<Nanos> {
        self.begun = self.begun.wrapping_add(1);
        self.begun.is_multiple_of(ONE_IN).then(|| self.client.ep.now())
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
        let mut ready = Some(ready);
        // Once for each incarnation of the process.
        loop {
            let attached = attach(&pool, &open, &mailbox, coroutines);
            let (attached, said) = match attached {
                Ok(attached) => (Some(attached), Ok(())),
                Err(e) => (None, Err(e)),
            };
            if let Some(ready) = ready.take() {
                let _ = ready.send(said);
            }
            let Some((core, tasks)) = attached else { return };
            let mut worker = Worker::new(core);
            for c in tasks {
                worker.spawn(c.client.ep.slot(), serve(c, mailbox.clone()));
            }
            // It can stall only in a simulator; waiting callers then get the error of the dropped
            // requests.
            if worker.run(&mut Fifo).is_err() || mailbox.is_over() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name(format!("dmtree-async-{number}"));
    thread
        .spawn(body)
        .map_err(|e| Error::full(format!("the system gives no thread for an async client: {e}")))?;
    readiness.recv().unwrap_or_else(|_| Err(Error::closed("a worker ended at its start")))
}

fn attach(
    pool: &Arc<PoolInner>,
    open: &Arc<OpenIndex>,
    mailbox: &Mailbox,
    coroutines: usize,
) -> Result<(Rc<Core>, Vec<Coroutine>)> {
    let (core, clients) = Client::several(open, coroutines)?;
    let coroutine =
        |client| Coroutine { client, pool: pool.clone(), id: mailbox.enlist(), seen: 0, begun: 0 };
    Ok((core, clients.into_iter().map(coroutine).collect()))
}

/// Runs requests until there will be no more, or there is a newer incarnation.
async fn serve(mut c: Coroutine, mailbox: Arc<Mailbox>) {
    let ep = c.client.tree.endpoint().clone();
    let mut quiet_ops = HOUSEKEEPING_OPS;
    loop {
        let has_news = || c.client.open.news() != c.seen;
        match poll_fn(|cx| mailbox.poll_take(c.id, has_news, cx)).await {
            Taken::Closed => return,
            Taken::News => {
                if !heed(&mut c, &mailbox).await {
                    return;
                }
            }
            Taken::Job(job) => {
                if let Err(e) = c.client.open.check_open() {
                    job.refuse(e);
                    continue;
                }
                if let Some(job) = job.run(&mut c).await {
                    // The coroutines of the newer incarnation take it.
                    return mailbox.put_back(job);
                }
                quiet_ops -= 1;
                if quiet_ops == 0 {
                    quiet_ops = HOUSEKEEPING_OPS;
                    maintain(&mut c.client.tree, &c.client.counters).await;
                    c.client.publish();
                }
            }
        }
        // In process no verb suspends: without this one coroutine would run all requests.
        ep.yield_now().await;
    }
}

/// Checks after a change; false when there is a newer incarnation. Requests that have waited for
/// one in vain are answered with the reason.
async fn heed(c: &mut Coroutine, mailbox: &Mailbox) -> bool {
    let (news, waiting) = (c.client.open.news(), mailbox.posted());
    let superseded = c.client.is_superseded(&c.pool).await;
    // Requests that come while this process is no member find that out by themselves.
    c.seen = news;
    if let Err(e) = &superseded {
        mailbox.refuse(waiting, e);
    }
    !superseded.unwrap_or(false)
}

impl Client {
    /// Several on one executor.
    fn several(open: &Arc<OpenIndex>, count: usize) -> Result<(Rc<Core>, Vec<Self>)> {
        let (nodes, compute_node) = (open.nodes(), open.next_node());
        let node = nodes.incarnation.cluster.compute_node(compute_node)?;
        let transport: Rc<dyn Transport> = node.fabric().attach(node.cn())?;
        let core = Core::new(transport.clone(), SLAB_BYTES);
        let client = || {
            let ep = Endpoint::new(core.clone(), transport.clone(), core.add_slot());
            Self::at(open, &nodes, (node.clone(), compute_node), ep)
        };
        let several = std::iter::repeat_with(client).take(count).collect();
        Ok((core, several))
    }
}
