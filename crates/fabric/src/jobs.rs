//! Jobs: work on a node that lasts for milliseconds, started by a call.
//!
//! A client starts a job of a service ([`Endpoint::start_job`]) and has its number at once. The
//! service's handler ([`RpcHandler::job`]) runs on a worker of the node: a thread, or in a
//! simulator a thread in virtual time on one of the node's cores for jobs. It reaches the memory of
//! its node, and lasts until it returns, is cancelled, or its caller loses its access. Its result
//! stays at the node until it is forgotten.
//!
//! *Messages* are calls to a data service of every node ([`JOBS`]): at most once, and lost, delayed
//! and repeated as other calls are.
//!
//! *Ends.* A job ends at an await: its future is dropped, and the job counts as ended when no verb
//! of it executes any more. [`Jobs::end_of`] is called after the access of a caller was revoked,
//! and succeeds when the caller's jobs have ended. A start that comes later is refused under the
//! same lock, so no job slips between. A handler awaits something every millisecond or so
//! ([`Endpoint::yield_now`]); a revocation waits for it. A job also ends when its worker is
//! dropped: the simulator drops workers at the end of a run of clients.
//!
//! *Bounds.* A node keeps [`MAX_JOBS`] jobs and [`MAX_RESULT_BYTES`] of results. A number has the
//! node's incarnation in its upper half: it names no job of another incarnation.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::addr::NodeId;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::host::{Host, Power, down};
use crate::membership::Member;
use crate::rpc::{MAX_RPC_BYTES, RpcHandler, ServiceId, panicked};
use crate::sync::locked;
use crate::transport::Nanos;

/// The service of every node that messages about jobs go to.
pub(crate) const JOBS: ServiceId = ServiceId(u16::MAX);
/// Jobs that a node keeps: those that run, and those that have ended and are not forgotten.
pub const MAX_JOBS: usize = 64;
/// Bytes of results that a node keeps.
pub const MAX_RESULT_BYTES: usize = 1 << 20;
/// Longest result of a job: an answer has some bytes around it.
const LONGEST_RESULT: usize = MAX_RPC_BYTES - 16;
/// How long a revocation waits for the jobs of a member.
const LONGEST_END: Duration = Duration::from_millis(500);
/// Pauses between two questions of [`Endpoint::job`]: the first and the longest, ns.
const PAUSES_NS: (Nanos, Nanos) = (10_000, 1_000_000);

/// A job of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobNumber(pub u64);

/// A message about jobs.
#[derive(Serialize, Deserialize)]
enum Ask<'a> {
    Start { service: u16, request: &'a [u8] },
    State(u64),
    Cancel(u64),
    Forget(u64),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Started(u64),
    Running,
    Ended(Result<Vec<u8>, Failure>),
    Done,
}

/// What a worker and the table share of a running job.
#[derive(Default)]
struct Signal {
    cancelled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if let Some(waker) = locked(&self.waker).take() {
            waker.wake();
        }
    }

    /// Whether the job shall end; wakes this waker when it shall later.
    fn is_cancelled(&self, waker: &Waker) -> bool {
        // The waker first: a cancellation that is not seen here finds it.
        *locked(&self.waker) = Some(waker.clone());
        self.cancelled.load(Ordering::SeqCst)
    }
}

/// A job that a worker is to run.
pub(crate) struct Begun {
    number: u64,
    pub(crate) caller: Member,
    handler: Arc<dyn RpcHandler>,
    request: Vec<u8>,
    signal: Arc<Signal>,
}

struct Job {
    caller: Member,
    signal: Arc<Signal>,
    /// Goes when it has ended.
    forgotten: bool,
    result: Option<Result<Vec<u8>, Failure>>,
}

impl Job {
    fn result_bytes(&self) -> usize {
        self.result.iter().flatten().map(Vec::len).sum()
    }
}

#[derive(Default)]
struct Table {
    last: u32,
    all: BTreeMap<u64, Job>,
}

impl Table {
    /// A job has no owner any more.
    fn forget(&mut self, number: u64) {
        if let Some(job) = self.all.get_mut(&number) {
            job.signal.cancel();
            job.forgotten = true;
            if job.result.is_some() {
                self.all.remove(&number);
            }
        }
    }
}

/// The jobs of one node.
#[derive(Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
    ended: Condvar,
}

impl Jobs {
    /// Answers a message. The job that it starts, if any, is to be run by a worker.
    pub(crate) fn answer(
        &self,
        host: &Host,
        from: Member,
        message: &[u8],
    ) -> Result<(Vec<u8>, Option<Begun>)> {
        let ask = postcard::from_bytes(message)
            .map_err(|e| Error::invalid(format!("no message about a job: {e}")))?;
        let mut table = locked(&self.table);
        let mut begun = None;
        let answer = match ask {
            Ask::Start { service, request } => {
                let handler = host.rpc.handler(host.node, ServiceId(service))?;
                let job = table.start(host, from, (handler, request))?;
                let number = job.number;
                begun = Some(job);
                Answer::Started(number)
            }
            Ask::State(number) => match &table.find(host, from, number)?.result {
                None => Answer::Running,
                Some(result) => Answer::Ended(result.clone()),
            },
            Ask::Cancel(number) => {
                table.find(host, from, number)?.signal.cancel();
                Answer::Done
            }
            Ask::Forget(number) => {
                table.find(host, from, number)?;
                table.forget(number);
                Answer::Done
            }
        };
        let bytes = postcard::to_stdvec(&answer)
            .map_err(|e| Error::invalid(format!("an answer about a job: {e}")))?;
        Ok((bytes, begun))
    }

    /// A job has ended.
    fn end(&self, host: &Host, number: u64, result: Result<Vec<u8>>) {
        let mut table = locked(&self.table);
        let kept: usize = table.all.values().map(Job::result_bytes).sum();
        let result = result.and_then(|bytes| fitting(host.node, bytes, kept));
        if let Some(job) = table.all.get_mut(&number) {
            job.result = Some(result.map_err(|e| Failure::from(&e).cut(LONGEST_RESULT)));
            if job.forgotten {
                table.all.remove(&number);
            }
        }
        self.ended.notify_all();
    }

    /// Cancels and forgets the jobs for which `which` says so: no caller will ask for them.
    pub(crate) fn cancel(&self, which: impl Fn(Member) -> bool) {
        let mut table = locked(&self.table);
        let its = table.all.iter().filter(|(_, job)| which(job.caller));
        for number in its.map(|(number, _)| *number).collect::<Vec<_>>() {
            table.forget(number);
        }
    }

    /// Ends the jobs of a member that has lost its access, and of its former incarnations. It has
    /// succeeded when no step and no verb of them executes any more. Where workers are threads
    /// (`waits`) it waits for that; elsewhere the caller asks again, and lets the workers run
    /// meanwhile.
    ///
    /// # Errors
    /// `TimedOut` when a job has no await for too long; without `waits` `Busy` while a job of the
    /// member runs.
    pub(crate) fn end_of(&self, node: NodeId, incarnation: u32, waits: bool) -> Result<()> {
        let its = |m: Member| m.node == node && m.incarnation <= incarnation;
        self.cancel(its);
        let runs = |t: &mut Table| t.all.values().any(|job| its(job.caller));
        let mut table = locked(&self.table);
        if !waits {
            return match runs(&mut table) {
                false => Ok(()),
                true => Err(Error::busy(format!("a job of {node} has not ended yet: ask again"))),
            };
        }
        let wait = self.ended.wait_timeout_while(table, LONGEST_END, runs);
        match wait.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            false => Ok(()),
            true => Err(Error::timed_out(format!(
                "a job of {node} goes on after {} ms: its service awaits nothing",
                LONGEST_END.as_millis()
            ))),
        }
    }
}

impl Table {
    fn start(
        &mut self,
        host: &Host,
        caller: Member,
        (handler, request): (Arc<dyn RpcHandler>, &[u8]),
    ) -> Result<Begun> {
        // Under the lock of the table: a revocation that comes later finds the job.
        if host.is_revoked(caller.node, caller.incarnation) {
            return Err(Error::revoked(format!(
                "{} starts no job of {caller}: it has lost its membership",
                host.node
            )));
        }
        if self.all.len() >= MAX_JOBS {
            return Err(Error::busy(format!(
                "{} has {MAX_JOBS} jobs already: forget those that have ended",
                host.node
            )));
        }
        self.last += 1;
        let number = u64::from(host.incarnation) << 32 | u64::from(self.last);
        let signal = Arc::<Signal>::default();
        let job = Job { caller, signal: signal.clone(), forgotten: false, result: None };
        self.all.insert(number, job);
        Ok(Begun { number, caller, handler, request: request.to_vec(), signal })
    }

    fn find(&self, host: &Host, from: Member, number: u64) -> Result<&Job> {
        let job = self.all.get(&number).filter(|job| !job.forgotten);
        let known = number >> 32 == u64::from(host.incarnation);
        match job {
            Some(job) if job.caller == from => Ok(job),
            Some(job) => Err(Error::invalid(format!(
                "job {number} of {} is not {from}'s but {}'s",
                host.node, job.caller
            ))),
            None if known && (number as u32) <= self.last && number as u32 > 0 => {
                Err(Error::not_found(format!("job {number} of {} is forgotten", host.node)))
            }
            None => Err(Error::not_found(format!(
                "{} has never had a job {number}, or has restarted since",
                host.node
            ))),
        }
    }
}

/// Refuses a result for which there is no room.
fn fitting(node: NodeId, result: Vec<u8>, kept: usize) -> Result<Vec<u8>> {
    match result.len() {
        n if n > LONGEST_RESULT => {
            Err(Error::invalid(format!("a job's result of {n} bytes exceeds {LONGEST_RESULT}")))
        }
        n if n + kept > MAX_RESULT_BYTES => Err(Error::full(format!(
            "{node} keeps {kept} bytes of jobs' results, and has no room for {n} more: forget jobs"
        ))),
        _ => Ok(result),
    }
}

/// A job on its worker. Dropped, at the end of the job or before, it has the table know of the end
/// once no verb of the job executes any more.
struct Running {
    host: Arc<Host>,
    ep: Endpoint,
    number: u64,
    /// How its work has ended.
    result: Option<Result<Vec<u8>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (host, number) = (self.host.clone(), self.number);
        let result = self.result.take().unwrap_or_else(|| {
            let what = format!("job {number} of {} has ended with its worker", host.node);
            Err(Error::closed(what).effect_unknown())
        });
        let end = move || host.jobs.end(&host, number, result);
        match self.host.power() {
            Power::On => self.ep.when_quiet(end),
            // Its verbs get no answer any more.
            _ => end(),
        }
    }
}

/// Runs a job to its end, on its worker.
pub(crate) async fn run(host: Arc<Host>, ep: Endpoint, job: Begun) {
    // Declared before the work is, it is dropped after it.
    let mut running =
        Running { host: host.clone(), ep: ep.clone(), number: job.number, result: None };
    let mut work = Some(job.handler.job(&ep, job.caller.node, &job.request));
    let result = poll_fn(|cx| {
        if host.power() != Power::On {
            return Poll::Ready(Err(down(host.node)));
        }
        let Some(work) = work.as_mut().filter(|_| !job.signal.is_cancelled(cx.waker())) else {
            let what = format!("job {} of {} was cancelled", job.number, host.node);
            return Poll::Ready(Err(Error::closed(what).effect_unknown()));
        };
        let step = || work.as_mut().poll(cx);
        catch_unwind(AssertUnwindSafe(step))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked(host.node))))
    })
    .await;
    running.result = Some(result);
    drop(work.take());
    if host.power() == Power::On {
        while !ep.is_quiet() {
            ep.sleep(1_000).await;
        }
        // Work that was charged last takes its time, too.
        ep.sleep(0).await;
    }
}

/// Runs a job on a thread of its own. `open` makes its endpoint there.
pub(crate) fn start_thread(
    host: Arc<Host>,
    job: Begun,
    open: impl FnOnce() -> Result<Endpoint> + Send + 'static,
) {
    let (number, on) = (job.number, host.clone());
    let work = move || run_here(on, job, open);
    if let Err(e) = std::thread::Builder::new().name("dmtree job".into()).spawn(work) {
        host.jobs.end(&host, number, Err(Error::busy(format!("no thread for a job: {e}"))));
    }
}

/// Runs a job on this thread.
pub(crate) fn run_here(host: Arc<Host>, job: Begun, open: impl FnOnce() -> Result<Endpoint>) {
    let number = job.number;
    let ran = open().and_then(|ep| {
        ep.block_on(async {
            run(host.clone(), ep.clone(), job).await;
            Ok(())
        })
    });
    if let Err(e) = ran {
        host.jobs.end(&host, number, Err(e));
    }
}

/// Jobs of other nodes.
impl Endpoint {
    /// Starts a job of a service: a call. Its result is kept until [`Endpoint::forget_job`].
    ///
    /// # Errors
    /// `Busy` when the node has [`MAX_JOBS`]; those of [`Endpoint::rpc`].
    pub async fn start_job(
        &self,
        to: NodeId,
        service: ServiceId,
        request: &[u8],
    ) -> Result<JobNumber> {
        match self.about_job(to, &Ask::Start { service: service.0, request }).await? {
            Answer::Started(number) => Ok(JobNumber(number)),
            _ => Err(unexpected(to)),
        }
    }

    /// Whether a job of this client's node has ended, and its result: a call.
    ///
    /// # Errors
    /// The job's; `Closed` when it was cancelled; `NotFound` for a number that no job has, or a
    /// forgotten one, `InvalidArgument` for a job of another node; those of [`Endpoint::rpc`].
    pub async fn ask_job(&self, to: NodeId, number: JobNumber) -> Result<Option<Vec<u8>>> {
        match self.about_job(to, &Ask::State(number.0)).await? {
            Answer::Running => Ok(None),
            Answer::Ended(result) => {
                let failed = |f| Error::from(f).context(format!("job {} of {to}", number.0));
                result.map(Some).map_err(failed)
            }
            _ => Err(unexpected(to)),
        }
    }

    /// Waits for the end of a job, and returns its result: a call now and then.
    ///
    /// # Errors
    /// Those of [`Endpoint::ask_job`]; `TimedOut` at the deadline of the operation: the job goes
    /// on.
    pub async fn job(&self, to: NodeId, number: JobNumber) -> Result<Vec<u8>> {
        if !self.is_in_operation() {
            self.renew_deadline();
        }
        let (mut pause, longest) = PAUSES_NS;
        loop {
            if let Some(result) = self.ask_job(to, number).await? {
                return Ok(result);
            }
            self.check_deadline("the end of a job", number.0)?;
            self.sleep(pause).await;
            pause = (2 * pause).min(longest);
        }
    }

    /// Asks a job to end at its next await: a call. It has then ended with an error, or has ended
    /// before.
    ///
    /// # Errors
    /// As [`Endpoint::ask_job`].
    pub async fn cancel_job(&self, to: NodeId, number: JobNumber) -> Result<()> {
        self.about_job(to, &Ask::Cancel(number.0)).await.map(drop)
    }

    /// Gives a job's number up: a call. A job that runs is cancelled.
    ///
    /// # Errors
    /// As [`Endpoint::ask_job`].
    pub async fn forget_job(&self, to: NodeId, number: JobNumber) -> Result<()> {
        self.about_job(to, &Ask::Forget(number.0)).await.map(drop)
    }

    async fn about_job(&self, to: NodeId, ask: &Ask<'_>) -> Result<Answer> {
        let message = postcard::to_stdvec(ask)
            .map_err(|e| Error::invalid(format!("a message about a job: {e}")))?;
        let mut reply = Vec::new();
        self.rpc(to, JOBS, &message, &mut reply).await?;
        postcard::from_bytes(&reply).map_err(|_| unexpected(to))
    }
}

fn unexpected(node: NodeId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{node} sent no answer about a job"))
}
