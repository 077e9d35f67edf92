//! Workers of a compute node: clients that execute the background work of an index, such as
//! retraining, flushing or compaction.
//!
//! An index says how many workers a compute node has
//! ([`RangeIndex::workers`](crate::RangeIndex::workers)), and executes one bounded piece of work at
//! a time ([`RangeIndex::work`](crate::RangeIndex::work)). The program that opens the index gives
//! each worker a thread of its own ([`Workers`]), or a thread with its own CPU in the simulator,
//! and runs the loop of this module there until the index is closed. A worker holds nothing between
//! two pieces, so that it may stop, or die with its node, after any of them.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread::{Builder, JoinHandle};

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Endpoint, Error, ErrorKind, Result, Snapshot};
use dmtree_pool::PoolNode;

use crate::any::AnyIndex;

/// Buffers of a worker that has a thread of its own, bytes.
const SLAB_BYTES: u64 = 64 << 20;
/// A waiting worker looks for the end of its index at least this often, ns.
const LOOK_NS: u64 = 1_000_000;

/// When the next piece of work of a worker is due.
#[derive(Clone, Debug)]
pub enum Pause {
    /// Now: more work is waiting.
    None,
    /// After this time, ns.
    For(u64),
    /// When a client of the compute node asks for it, or after this time, ns.
    Until(Arc<WorkerSignal>, u64),
}

impl Pause {
    /// Whether no work is due now.
    pub fn is_rest(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Wakes the workers of a compute node. A signal that comes while none of them waits is kept for
/// the next one that does.
#[derive(Debug, Default)]
pub struct WorkerSignal {
    raised: AtomicBool,
    queue: WaitQueue,
}

impl WorkerSignal {
    /// Work is waiting.
    pub fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.queue.wake_all();
        }
    }

    fn take(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// Waits for a signal, at most this long. Returns whether one came.
    async fn wait(&self, ep: &Endpoint, at_most_ns: u64) -> bool {
        let mut listener = self.queue.listen();
        let mut sleep = std::pin::pin!(ep.sleep(at_most_ns));
        poll_fn(|cx| {
            if self.take() || listener.poll(cx.waker()).is_ready() {
                return Poll::Ready(true);
            }
            sleep.as_mut().poll(cx).map(|()| false)
        })
        .await
    }
}

/// Runs a worker until `stopped`.
///
/// # Errors
/// Those of a piece of work.
pub async fn run(index: &mut AnyIndex, stopped: impl Fn() -> bool) -> Result<()> {
    while !stopped() {
        index.endpoint().renew_deadline();
        let pause = index.work().await?;
        rest(index.endpoint(), &pause, &stopped).await;
    }
    Ok(())
}

/// Waits as a pause says, or until `stopped`.
pub async fn rest(ep: &Endpoint, pause: &Pause, stopped: &impl Fn() -> bool) {
    let ns = match pause {
        Pause::None => return ep.yield_now().await,
        Pause::For(ns) | Pause::Until(_, ns) => *ns,
    };
    let until = ep.now().saturating_add(ns);
    loop {
        let left = until.saturating_sub(ep.now());
        if left == 0 || stopped() {
            return;
        }
        match pause {
            Pause::Until(signal, _) => {
                if signal.wait(ep, left.min(LOOK_NS)).await {
                    return;
                }
            }
            _ => ep.sleep(left.min(LOOK_NS)).await,
        }
    }
}

/// The workers of an index on the compute nodes of this process, each on a thread of its own.
/// Dropped, they end after the piece of work that each has begun.
#[derive(Debug, Default)]
pub struct Workers {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<Result<Snapshot>>>,
}

impl Workers {
    /// Starts so many workers on a compute node.
    ///
    /// # Errors
    /// `Full`, when the system gives no thread.
    pub fn start(
        &mut self,
        pool: &Arc<PoolNode>,
        workers: u32,
        client: impl Fn(Endpoint) -> AnyIndex + Clone + Send + 'static,
    ) -> Result<()> {
        for number in 0..workers {
            let name = format!("worker {number} of {}", pool.cn());
            let (pool, client, stop) = (pool.clone(), client.clone(), self.stop.clone());
            let work = move || {
                let ep = pool.endpoint(SLAB_BYTES)?;
                let mut index = client(ep.clone());
                let run = run(&mut index, || stop.load(Ordering::Relaxed));
                ep.core().block_on(ep.slot(), Box::pin(run)).map(|()| ep.snapshot())
            };
            let failed = |e| Error::new(ErrorKind::Full, format!("no thread for a worker: {e}"));
            self.running.push(Builder::new().name(name).spawn(work).map_err(failed)?);
        }
        Ok(())
    }

    /// Ends the workers, and returns what their verbs were.
    ///
    /// # Errors
    /// What a worker has failed with; `Corrupt` when one has panicked.
    pub fn stop(mut self) -> Result<Snapshot> {
        self.join()
    }

    fn join(&mut self) -> Result<Snapshot> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.running.drain(..).map(|thread| {
            let name = thread.thread().name().unwrap_or("a worker").to_owned();
            let panicked = |_| Err(Error::corrupt("it panicked"));
            thread.join().unwrap_or_else(panicked).map_err(|e| e.context(name))
        });
        // All threads have ended before the first failure is reported.
        let ended: Vec<_> = ended.collect();
        let mut counts = Snapshot::default();
        ended.into_iter().try_for_each(|its| its.map(|its| counts.add(&its)))?;
        Ok(counts)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // `stop` reports failures; a drop is on the way of another one, or of the index's end.
        let _ = self.join();
    }
}
