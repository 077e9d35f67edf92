//! The service threads of a node: one answers calls to control services, one at a time; of a memory
//! node others answer those to data services, as many as it has cores for them.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::NodeShared;
use super::frames;
use super::sessions::{Mail, Session};
use super::transport::NetTransport;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::jobs::{self, Begun, JOBS};
use crate::membership::Member;
use crate::rpc::{RpcHandler, ServiceId, WithoutCalls, answer_data, check_reply};
use crate::sync::locked;
use crate::transport::Nanos;

/// A call to be answered.
pub(super) struct Call {
    pub(super) from: Member,
    pub(super) service: ServiceId,
    pub(super) request: Vec<u8>,
    /// Deadline by this node's clock: a later call is dropped.
    pub(super) use_by: Nanos,
    pub(super) reply: Reply,
}

/// Where an answer goes.
pub(super) enum Reply {
    /// To another process.
    Remote { session: Arc<Session>, number: u64 },
    /// To a client thread of this process.
    Here(Arc<Mutex<Option<Result<Vec<u8>>>>>),
}

impl Reply {
    fn send(self, shared: &NodeShared, result: Result<Vec<u8>>) {
        match self {
            Self::Here(place) => *locked(&place) = Some(result),
            Self::Remote { session, number } => {
                let mut frame = Vec::new();
                frames::answer(&mut frame, frames::CALL, &number.to_le_bytes(), result);
                shared.sessions.post(Mail::Reply(session.token, frame));
            }
        }
    }
}

/// Where calls go.
pub(super) struct Inboxes {
    pub(super) control: Sender<Call>,
    pub(super) data: Sender<Call>,
}

/// Starts the cores for data services; where their calls go.
pub(super) fn start_cores(shared: &Arc<NodeShared>, cores: u32) -> Result<Sender<Call>> {
    let (calls, inbox) = channel();
    let inbox = Arc::new(Mutex::new(inbox));
    for core in 0..cores {
        let inbox = inbox.clone();
        start(shared, &format!("dmtree core {core}"), move || locked(&inbox).recv().ok())?;
    }
    Ok(calls)
}

/// Starts a thread; it answers until there is no next call: its sender is dropped.
pub(super) fn start(
    shared: &Arc<NodeShared>,
    name: &str,
    next: impl Fn() -> Option<Call> + Send + 'static,
) -> Result<()> {
    let (started, news) = channel();
    let shared = shared.clone();
    let run = move || match NetTransport::new(shared.clone()) {
        Ok(transport) => {
            let _ = started.send(Ok(()));
            serve(&shared, Rc::new(transport), next);
        }
        Err(e) => _ = started.send(Err(e)),
    };
    let named = std::thread::Builder::new().name(name.into());
    let gone = |e: &dyn std::fmt::Display| Error::busy(format!("no thread: {e}"));
    named.spawn(run).map_err(|e| gone(&e))?;
    news.recv().map_err(|e| gone(&e))?
}

fn serve(shared: &Arc<NodeShared>, transport: Rc<NetTransport>, next: impl Fn() -> Option<Call>) {
    let first = Endpoint::alone(WithoutCalls::serving(transport, None), 0);
    while let Some(call) = next() {
        if shared.host.rpc.is_data(call.service) {
            let Some(call) = still_wanted(shared, call) else { continue };
            let result = match call.service {
                JOBS => answer_about_jobs(shared, &call).map(|(reply, begun)| {
                    begun.into_iter().for_each(|job| start_worker(shared, job));
                    reply
                }),
                _ => admitted(shared, &call).and_then(|handler| {
                    answer_data(&*handler, &first, (call.from.node, &call.request))
                }),
            };
            call.reply.send(shared, result);
            continue;
        }
        // Counts and deadlines of a call are its own.
        let ep = first.beside();
        // An error of the handler goes to the caller.
        let _ = ep.block_on(async {
            execute_call(shared, &ep, call).await;
            Ok(())
        });
    }
}

/// A future that is polled beside the calls.
type Worker = Pin<Box<dyn Future<Output = ()>>>;

/// The same without a thread, until the sender of the calls is dropped. Jobs run beside the calls,
/// on the same slot of the executor.
pub(super) async fn serve_on(shared: &Arc<NodeShared>, ep: &Endpoint, inbox: &Receiver<Call>) {
    let next = || {
        std::future::poll_fn(|cx| match inbox.try_recv() {
            Ok(call) => Poll::Ready(Some(call)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
            Err(TryRecvError::Empty) => {
                shared.net.wake_soon(cx.waker());
                Poll::Pending
            }
        })
    };
    let begun = RefCell::new(Vec::new());
    let mut calls = pin!(async {
        while let Some(call) = next().await {
            let job = execute_call(shared, ep, call).await;
            begun.borrow_mut().extend(job);
        }
    });
    let mut workers: Vec<Worker> = Vec::new();
    std::future::poll_fn(|cx| {
        let calls = calls.as_mut().poll(cx);
        for job in begun.take().into_iter().filter(|_| !shared.net.loses_jobs()) {
            // Without RDMA this cannot fail.
            if let Ok(transport) = NetTransport::new(shared.clone()) {
                let ep = ep.beside_over(WithoutCalls::for_job(transport));
                workers.push(Box::pin(jobs::run(shared.host.clone(), ep, job)));
            }
        }
        workers.retain_mut(|worker| worker.as_mut().poll(cx).is_pending());
        calls
    })
    .await;
}

/// The call, unless no caller waits for the answer any more.
fn still_wanted(shared: &NodeShared, call: Call) -> Option<Call> {
    shared.sessions.calls_bytes.fetch_sub(call.request.len(), Ordering::Relaxed);
    let is_moot = matches!(&call.reply, Reply::Remote { session, .. } if session.is_over());
    (!is_moot).then_some(call)
}

/// Answers a call that is still wanted. Returns the job that it asks for.
async fn execute_call(shared: &NodeShared, ep: &Endpoint, call: Call) -> Option<Begun> {
    let call = still_wanted(shared, call)?;
    let answered = match call.service {
        JOBS => answer_about_jobs(shared, &call),
        _ => answer(shared, ep, &call).await.map(|reply| (reply, None)),
    };
    let (result, begun) = match answered {
        Ok((reply, begun)) => (Ok(reply), begun),
        Err(e) => (Err(e), None),
    };
    call.reply.send(shared, result);
    begun
}

async fn answer(shared: &NodeShared, ep: &Endpoint, call: &Call) -> Result<Vec<u8>> {
    let handler = admitted(shared, call)?;
    check_reply(ep.node(), handler.call(ep, call.from.node, &call.request).await?)
}

/// Answers a message about jobs. Returns the job that it asks for, too.
fn answer_about_jobs(shared: &NodeShared, call: &Call) -> Result<(Vec<u8>, Option<Begun>)> {
    check(shared, call)?;
    shared.host.jobs.answer(&shared.host, call.from, &call.request)
}

/// Runs a job on a thread of its own.
fn start_worker(shared: &Arc<NodeShared>, job: Begun) {
    let on = shared.clone();
    jobs::start_thread(shared.host.clone(), job, move || {
        Ok(Endpoint::alone(WithoutCalls::for_job(NetTransport::new(on)?), 0))
    });
}

/// Whether a call is in time, and of a member.
fn check(shared: &NodeShared, call: &Call) -> Result<()> {
    shared.check_time(call.use_by, "a call")?;
    shared.check_issuer(call.from)
}

/// The handler of such a call.
fn admitted(shared: &NodeShared, call: &Call) -> Result<Arc<dyn RpcHandler>> {
    check(shared, call)?;
    shared.host.rpc.handler(shared.me.node, call.service)
}
